// An engine whose n-th allocation fails, for every n: the call or requests fail with out_of_memory,
// each sample that was added ends once, and the engine answers the next request. And requests that
// have ended leave nothing in memory. Replaces operator new.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "headrace/engine.hpp"

static std::atomic<long> num_until_failure{-1};  // negative: none fails
static std::atomic<long> num_allocated{0};       // now

// Not inlined: g++ 12 takes the pair for a mismatch where it inlines one of both.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  if (num_until_failure >= 0 && num_until_failure-- == 0) throw std::bad_alloc();
  void* const memory = std::malloc(bytes > 0 ? bytes : 1);
  if (memory == nullptr) throw std::bad_alloc();
  ++num_allocated;
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  if (memory != nullptr) --num_allocated;
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  operator delete(memory);
}

namespace {

using headrace::Engine;
using headrace::Model;

const std::string kFile = std::string(HEADRACE_GOLDEN_DIR) + "/tiny/tiny_llama3_f16.gguf";
constexpr std::int64_t kNumPages = 16;

[[noreturn]] void fail(long n, const std::string& what) {
  std::printf("FAILED: allocation %ld: %s\n", n, what.c_str());
  std::exit(1);
}

// How each sample ended, by request and sample.
using Ends = std::map<std::pair<std::int64_t, std::int64_t>, std::int32_t>;

// Requests of several kinds: long and short prompts, several samples, stops, logprobs, penalties.
std::vector<headrace::Request> requests() {
  std::vector<headrace::Request> all(4);
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i].prompt.assign(5 + 20 * i, static_cast<std::int32_t>(40 + i));
    all[i].sampling = {.temperature = 2, .seed = i};
    all[i].max_new_tokens = 8;
    all[i].ignore_end = true;
  }
  all[0].n = 2;
  all[1].stop = {"never", "a"};
  all[1].stop_tokens = {1};
  all[2].num_logprobs = 2;
  all[2].sampling.repetition_penalty = 1.5;
  return all;
}

// A call that runs out of memory and is made again. False: more than once.
template <class Call>
bool succeeds(long n, Call call) {
  for (int i = 0; i < 2; ++i) {
    const headrace_status status = call();
    if (status == HEADRACE_OK) return true;
    if (status != HEADRACE_OUT_OF_MEMORY) fail(n, headrace_last_error());
  }
  return false;
}

void poll_all(long n, const Engine& engine, Ends& ends) {
  for (;;) {
    headrace_output* output = nullptr;
    if (!succeeds(n, [&] { return headrace_engine_poll(engine.get(), &output); }))
      fail(n, "poll fails twice");
    if (output == nullptr) return;
    headrace_output_info info{};
    info.struct_size = sizeof info;
    if (!succeeds(n, [&] { return headrace_output_get(output, &info); }))
      fail(n, "get fails twice");
    const long armed = num_until_failure.exchange(-1);
    if (!ends.contains({info.id, info.sample})) fail(n, "an output of no request");
    std::int32_t& end = ends.at({info.id, info.sample});
    if (end != HEADRACE_REQUEST_RUNNING) fail(n, "an output after the end");
    end = info.finish;
    headrace_output_destroy(output);
    num_until_failure = armed;
  }
}

// Adds one request, as C, so that nothing but the engine allocates. Whether it was added.
bool add(long n, const Engine& engine, const headrace::Request& request, Ends& ends) {
  const long armed = num_until_failure.exchange(-1);
  const headrace_sampling_options sampling = request.sampling.to_c();
  std::vector<const char*> stop;
  for (const std::string& text : request.stop) stop.push_back(text.c_str());
  headrace_request c;
  headrace_request_init(&c);
  c.tokens = request.prompt.data();
  c.num_tokens = request.prompt.size();
  c.sampling = &sampling;
  c.n = request.n;
  c.max_new_tokens = request.max_new_tokens;
  c.stop_tokens = request.stop_tokens.data();
  c.num_stop_tokens = request.stop_tokens.size();
  c.stop = stop.data();
  c.num_stop = stop.size();
  c.num_logprobs = request.num_logprobs.value_or(-1);
  c.ignore_end = request.ignore_end;
  std::int64_t id = 0;
  num_until_failure = armed;
  const headrace_status status = headrace_engine_add(engine.get(), &c, &id);
  const long left = num_until_failure.exchange(-1);
  if (status == HEADRACE_OK)
    for (std::int64_t i = 0; i < request.n; ++i) ends[{id, i}] = HEADRACE_REQUEST_RUNNING;
  else if (status != HEADRACE_OUT_OF_MEMORY)
    fail(n, headrace_last_error());
  num_until_failure = left;
  return status == HEADRACE_OK;
}

std::string answer(Engine& engine, const headrace::Request& request) {
  engine.add(request);
  engine.run();
  std::string text;
  while (const std::optional<headrace::Output> output = engine.poll()) text += output->text;
  return text;
}

// Fails the n-th allocation. Whether there was one.
bool run(const Model& model, long n, const std::vector<headrace::Request>& wanted,
         const std::string& expected) {
  Engine engine(model, {.max_tokens = 100,
                        .max_num_seqs = 4,
                        .page_size = 8,
                        .num_pages = kNumPages,
                        .num_host_pages = n % 2 == 0 ? 0 : 8});
  Ends ends;
  num_until_failure = n;
  bool has_failed = false;
  for (const headrace::Request& request : wanted) has_failed |= !add(n, engine, request, ends);
  headrace_engine_abort(engine.get(), 1 + n % 4);
  for (int has_worked = 1; has_worked != 0;) {
    const headrace_status status = headrace_engine_step(engine.get(), &has_worked);
    if (status != HEADRACE_OK && status != HEADRACE_OUT_OF_MEMORY) fail(n, headrace_last_error());
    if (status == HEADRACE_OUT_OF_MEMORY && std::exchange(has_failed, true))
      fail(n, "two failures of one allocation");
    poll_all(n, engine, ends);
  }
  const bool was_reached = num_until_failure.exchange(-1) < 0;
  for (const auto& [key, end] : ends) {
    if (end == HEADRACE_REQUEST_RUNNING) fail(n, "a request did not end");
    if (end == HEADRACE_REQUEST_ERROR && !was_reached) fail(n, "an error without a failure");
  }
  const headrace_engine_stats stats = engine.stats();
  if (stats.num_requests != 0 || stats.num_running != 0 || stats.num_free_pages != kNumPages)
    fail(n, "requests or pages are left");
  if (answer(engine, wanted[3]) != expected) fail(n, "another answer after the failure");
  return was_reached;
}

using Arrays = std::tuple<std::vector<std::int32_t>, std::vector<float>,
                          std::vector<std::pair<std::int32_t, float>>>;

Arrays arrays_of(const headrace_output_info& info) {
  Arrays arrays{{info.tokens, info.tokens + info.num_tokens},
                {info.logprobs, info.logprobs + info.num_tokens},
                {}};
  for (std::int64_t i = 0; i < info.num_tokens * info.num_top; ++i)
    std::get<2>(arrays).emplace_back(info.top_logprobs[i].token, info.top_logprobs[i].logprob);
  return arrays;
}

// headrace_output_get() makes the arrays of an output. Called again after its n-th allocation has
// failed, it gives those that a call without a failure gives: nothing is left of the first one.
void expect_whole_arrays(const Model& model) {
  headrace::Request request = requests()[2];
  request.num_logprobs = 3;
  Arrays expected;
  for (long n = -1;; ++n) {
    Engine engine(model);
    engine.add(request);
    engine.run();
    headrace_output* output = nullptr;
    if (headrace_engine_poll(engine.get(), &output) != HEADRACE_OK || output == nullptr)
      fail(n, "no output");
    headrace_output_info info{};
    info.struct_size = sizeof info;
    num_until_failure = n;
    headrace_status status = headrace_output_get(output, &info);
    const bool was_reached = num_until_failure.exchange(-1) < 0 && n >= 0;
    if (status != (was_reached ? HEADRACE_OUT_OF_MEMORY : HEADRACE_OK)) fail(n, "another status");
    status = headrace_output_get(output, &info);
    if (status != HEADRACE_OK) fail(n, headrace_last_error());
    const Arrays arrays = arrays_of(info);
    if (n < 0) expected = arrays;
    if (std::get<0>(arrays).size() != 8) fail(n, "another number of tokens");
    if (arrays != expected) fail(n, "other arrays than without a failure");
    headrace_output_destroy(output);
    if (n >= 0 && !was_reached) {
      if (n < 3) fail(n, "the arrays are made elsewhere than this test looks");
      return;
    }
  }
}

// After many requests of each kind the engine holds about as many allocations as after a few: one
// that each request left would be kRounds more. Deadlines of the scheduler stay for some thousand
// steps, 32 of them in an allocation.
void expect_nothing_left(const Model& model) {
  constexpr long kRounds = 64;
  std::vector<headrace::Request> kinds = requests();
  for (headrace::Request& kind : kinds) kind.max_new_tokens = 2;
  headrace::Request search = kinds[3];
  search.beam_width = 3;
  search.max_new_tokens = 4;
  search.sampling = {};
  kinds.push_back(search);
  headrace::Request constrained = kinds[3];
  constrained.grammar = headrace::Grammar::regex(model, "[ab]{1,9}");
  constrained.ignore_end = false;
  kinds.push_back(constrained);
  kinds.push_back(kinds[3]);  // is aborted
  for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
    Engine engine(model, {.max_tokens = 100, .max_num_seqs = 4, .page_size = 8, .num_pages = 64});
    const auto round = [&] {
      const std::int64_t id = engine.add(kinds[kind]);
      engine.step();
      if (kind + 1 == kinds.size()) engine.abort(id);
      engine.run();
      while (engine.poll()) {
      }
    };
    for (int i = 0; i < 8; ++i) round();
    const long before = num_allocated;
    for (long i = 0; i < kRounds; ++i) round();
    const long more = num_allocated - before;
    std::printf("%ld requests of kind %zu left %ld allocations\n", kRounds, kind, more);
    if (more > kRounds / 2) fail(more, "allocations of ended requests are left");
  }
}

}  // namespace

int main() {
  const Model model(kFile, {.num_threads = 2});
  expect_nothing_left(model);
  expect_whole_arrays(model);
  const std::vector<headrace::Request> wanted = requests();
  Engine engine(model);
  const std::string expected = answer(engine, wanted[3]);
  long n = 0;
  while (run(model, n, wanted, expected)) ++n;
  std::printf("%ld allocations failed, one at a time\n", n);
  return n > 200 ? 0 : 1;  // else the engine allocates elsewhere than this test looks
}
