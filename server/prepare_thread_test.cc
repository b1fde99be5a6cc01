#include "prepare_thread.h"

#include <gtest/gtest.h>

#include <semaphore>

namespace headrace::server {
namespace {

// A thread that prepares a request whenever it is allowed to; the reply's body is the request's.
class Bench {
 public:
  explicit Bench(std::size_t max_bytes)
      : thread_(
            [this](const HttpRequest& request) {
              begun_.release();
              allowed_.acquire();
              return Prepared{{.body = request.body}};
            },
            max_bytes,
            [this](std::int64_t id, const Prepared& prepared) {
              done_.emplace_back(id, prepared.reply.body);
              ended_.release();
            }) {}
  ~Bench() { allowed_.release(100); }

  bool add(std::int64_t id, const std::string& body) {
    return thread_.add(
        id,
        {.method = {}, .path = {}, .host = {}, .origin = {}, .authorization = {}, .body = body});
  }
  void cancel(std::int64_t id) { thread_.cancel(id); }
  void wait_until_one_begins() { begun_.acquire(); }
  void let_one_end() {
    allowed_.release();
    ended_.acquire();
  }
  const std::vector<std::pair<std::int64_t, std::string>>& done() const { return done_; }

 private:
  std::counting_semaphore<> begun_{0}, allowed_{0}, ended_{0};
  std::vector<std::pair<std::int64_t, std::string>> done_;
  PrepareThread thread_;
};

TEST(PrepareThread, TakesRequestsInTheirOrder) {
  Bench bench(1000);
  std::vector<std::pair<std::int64_t, std::string>> wanted;
  for (std::int64_t id = 1; id <= 20; ++id) {
    ASSERT_TRUE(bench.add(id, "body " + std::to_string(id)));
    wanted.emplace_back(id, "body " + std::to_string(id));
  }
  for (std::size_t i = 0; i < wanted.size(); ++i) bench.let_one_end();
  EXPECT_EQ(bench.done(), wanted);
}

TEST(PrepareThread, BoundsTheBytesOfWhatIsThere) {
  constexpr std::size_t kMax = 100;
  Bench bench(kMax);
  // The only one may be larger. Nothing with a byte has room beside it.
  ASSERT_TRUE(bench.add(1, std::string(kMax + 1, 'a')));
  EXPECT_FALSE(bench.add(2, "b"));
  bench.wait_until_one_begins();
  EXPECT_FALSE(bench.add(2, "b"));  // also of what is being prepared
  bench.let_one_end();
  ASSERT_TRUE(bench.add(3, std::string(kMax - 1, 'a')));
  EXPECT_FALSE(bench.add(4, "bb"));
  EXPECT_TRUE(bench.add(4, "b"));
  EXPECT_FALSE(bench.add(5, "b"));
  EXPECT_TRUE(bench.add(5, ""));
  for (int i = 0; i < 3; ++i) bench.let_one_end();
  EXPECT_TRUE(bench.add(6, std::string(kMax, 'a')));
}

TEST(PrepareThread, ACancelledRequestIsNotPreparedAndMakesRoom) {
  Bench bench(100);
  ASSERT_TRUE(bench.add(1, std::string(10, 'a')));
  bench.wait_until_one_begins();
  ASSERT_TRUE(bench.add(2, std::string(90, 'b')));
  EXPECT_FALSE(bench.add(3, "c"));
  bench.cancel(2);
  bench.cancel(2);  // the second time it is unknown
  bench.cancel(1);  // too late: it is being prepared
  EXPECT_TRUE(bench.add(3, std::string(90, 'c')));
  bench.let_one_end();
  bench.let_one_end();
  ASSERT_EQ(bench.done().size(), 2u);
  EXPECT_EQ(bench.done()[0].first, 1);
  EXPECT_EQ(bench.done()[1].first, 3);
}

TEST(PrepareThread, ItsEndDropsWhatWaits) {
  Bench bench(100);
  for (std::int64_t id = 1; id <= 50; ++id) ASSERT_TRUE(bench.add(id, "a"));
  bench.wait_until_one_begins();
  // The destructor lets one request end, and returns.
}

}  // namespace
}  // namespace headrace::server
