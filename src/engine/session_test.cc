// Sessions on tiny models of every family, compared with logits of transformers
// (tests/golden/README.md).
#include "engine/session.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/math.h"
#include "engine/model_fixture.h"
#include "tests/support/forwarding_device.h"

namespace headrace::engine {
namespace {

const std::string kFolder = std::string(HEADRACE_GOLDEN_DIR) + "/tiny/";

struct Golden {
  std::string name, file;
  std::vector<std::int32_t> tokens;
  std::vector<float> logits;  // [tokens, vocab_size]
  std::size_t vocab_size;
  double largest_logit, llama_cpp_difference;
};

void PrintTo(const Golden& golden, std::ostream* out) { *out << golden.name; }

std::vector<Golden> read_goldens() {
  std::ifstream file(kFolder + "tiny.json");
  std::vector<Golden> goldens;
  const auto json = nlohmann::json::parse(file);
  for (const auto& model : json.at("models")) {
    Golden golden{.name = model.at("name"),
                  .file = kFolder + model.at("file").get<std::string>(),
                  .tokens = model.at("tokens"),
                  .logits = {},
                  .vocab_size = model.at("vocab_size"),
                  .largest_logit = model.at("largest_logit"),
                  .llama_cpp_difference = model.at("llama_cpp_difference")};
    golden.logits.resize(golden.tokens.size() * golden.vocab_size);
    std::ifstream logits(kFolder + model.at("logits").get<std::string>(), std::ios::binary);
    logits.read(reinterpret_cast<char*>(golden.logits.data()),
                static_cast<std::streamsize>(golden.logits.size() * sizeof(float)));
    EXPECT_TRUE(logits) << golden.name;
    goldens.push_back(std::move(golden));
  }
  return goldens;
}

Session session_of(const LanguageModel& model, DType dtype, std::int64_t batch_tokens = 512,
                   std::int64_t page_size = 16) {
  Result<Session> session = Session::make(model, {.max_tokens = 64,
                                                  .batch_tokens = batch_tokens,
                                                  .cache_dtype = dtype,
                                                  .page_size = page_size});
  if (!session.ok()) throw std::runtime_error(session.failure().message);
  return std::move(session.value());
}

std::vector<float> logits_of(Session& session, const Golden& golden) {
  std::vector<float> logits(golden.logits.size());
  const Status failed = session.append(golden.tokens, logits.data());
  EXPECT_FALSE(failed) << failed->message;
  return logits;
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    if (!(difference <= largest)) largest = difference;  // a NaN stays
  }
  return largest;
}

class Tiny : public ::testing::TestWithParam<Golden> {};

// Two sums of floats in different orders: 64 units in the last place of the largest logit
// (measured: up to 20).
TEST_P(Tiny, ExactLogitsMatchTransformers) {
  const Golden& golden = GetParam();
  const double bound = 64 * 0x1p-23 * golden.largest_logit;
  const LanguageModel model = load(golden.file, MatmulMode::exact);
  Session at_once = session_of(model, DType::f32);
  EXPECT_LE(largest_difference(logits_of(at_once, golden), golden.logits), bound);
  Session one_by_one = session_of(model, DType::f32, 1);
  EXPECT_LE(largest_difference(logits_of(one_by_one, golden), golden.logits), bound);
}

// 8-bit activations and a 16-bit cache: the error is at most twice that of llama.cpp on the same
// file (with an f32 cache) plus the rounding of the cache.
TEST_P(Tiny, NormalLogitsAreWithinTheErrorOfTheFormat) {
  const Golden& golden = GetParam();
  const LanguageModel model = load(golden.file, MatmulMode::normal);
  Session session = session_of(model, DType::f16);
  EXPECT_LE(largest_difference(logits_of(session, golden), golden.logits),
            2 * golden.llama_cpp_difference + 0x1p-9 * golden.largest_logit);
}

TEST_P(Tiny, BitsDependNeitherOnThreadsNorOnMmap) {
  const Golden& golden = GetParam();
  for (const auto mode : {MatmulMode::normal, MatmulMode::exact}) {
    const LanguageModel one = load(golden.file, mode, 1);
    const LanguageModel three = load(golden.file, mode, 3, true);
    Session a = session_of(one, DType::f16), b = session_of(three, DType::f16);
    EXPECT_EQ(logits_of(a, golden), logits_of(b, golden));
  }
}

// With prompts in one and in many steps.
TEST_P(Tiny, BitsDoNotDependOnThePageSize) {
  const Golden& golden = GetParam();
  const LanguageModel model = load(golden.file, MatmulMode::normal);
  for (const std::int64_t batch_tokens : {512, 9, 1}) {
    Session contiguous = session_of(model, DType::f16, batch_tokens, 64);  // all in one page
    const std::vector<float> expected = logits_of(contiguous, golden);
    for (const std::int64_t page_size : {1, 7, 16, 4096}) {
      Session session = session_of(model, DType::f16, batch_tokens, page_size);
      EXPECT_EQ(logits_of(session, golden), expected) << page_size << ", " << batch_tokens;
    }
  }
}

TEST_P(Tiny, TruncatedTokensLeaveNoTrace) {
  const Golden& golden = GetParam();
  const LanguageModel model = load(golden.file, MatmulMode::normal);
  Session session = session_of(model, DType::f16);
  const std::vector<float> first = logits_of(session, golden);
  ASSERT_FALSE(session.truncate(std::ssize(golden.tokens)));
  EXPECT_NE(session.logits(), nullptr);
  ASSERT_FALSE(session.truncate(3));
  EXPECT_EQ(session.logits(), nullptr);
  ASSERT_FALSE(session.append(std::vector<std::int32_t>(20, 7), nullptr));
  ASSERT_FALSE(session.truncate(0));
  EXPECT_EQ(logits_of(session, golden), first);
  EXPECT_EQ(
      std::vector<float>(first.end() - static_cast<std::ptrdiff_t>(golden.vocab_size), first.end()),
      std::vector<float>(session.logits(), session.logits() + golden.vocab_size));
}

// Also of a text in several batches, and whether the caller gets the logits of every token or not.
TEST(Session, KeepsTheLogitsOfTheLastToken) {
  const Golden golden = read_goldens().front();
  const LanguageModel model = load(golden.file, MatmulMode::normal);
  const std::size_t vocab_size = golden.vocab_size;
  const std::span<const std::int32_t> tokens(golden.tokens);
  for (const std::int64_t batch : {1, 2, 3, 5, 6, 7, 512}) {
    for (const std::size_t count : {1, 2, 5, 6, 7, 12}) {
      SCOPED_TRACE(format_text("{} tokens in batches of {}", count, batch));
      Session all = session_of(model, DType::f16, batch),
              last = session_of(model, DType::f16, batch);
      std::vector<float> logits(count * vocab_size);
      ASSERT_FALSE(all.append(tokens.first(count), logits.data()));
      ASSERT_FALSE(last.append(tokens.first(count), nullptr));
      const std::vector<float> expected(logits.end() - static_cast<std::ptrdiff_t>(vocab_size),
                                        logits.end());
      for (const Session* session : {&all, &last})
        EXPECT_EQ(std::vector<float>(session->logits(), session->logits() + vocab_size), expected);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Tiny, ::testing::ValuesIn(read_goldens()),
                         [](const auto& suite) { return suite.param.name; });

TEST(Session, BadTokensAreRefusedAndNothingIsAppended) {
  const Golden golden = read_goldens().front();
  const LanguageModel model = load(golden.file, MatmulMode::normal);
  Session session = session_of(model, DType::f16);
  ASSERT_FALSE(session.append(golden.tokens, nullptr));
  const Status outside = session.append(std::vector<std::int32_t>{1, 288}, nullptr);
  ASSERT_TRUE(outside);
  EXPECT_EQ(outside->message,
            "tokens[1]=288: must be 0 to 287; pass tokens of this model's vocabulary");
  const Status full = session.append(std::vector<std::int32_t>(33, 1), nullptr);
  ASSERT_TRUE(full);
  EXPECT_EQ(full->code, ErrorCode::invalid_argument);
  EXPECT_EQ(full->message,
            "num_tokens=33: the session holds 32 of max_tokens=64 tokens, so at most 32 fit; "
            "shorten the text or create a session with a larger max_tokens");
  EXPECT_EQ(session.tokens().size(), golden.tokens.size());
  EXPECT_NE(session.logits(), nullptr);
  EXPECT_TRUE(session.truncate(33));
  EXPECT_TRUE(session.truncate(-1));
}

// A session holds the pages of its tokens and no others.
TEST(Session, PagesFollowTheTokens) {
  const Golden golden = read_goldens().front();
  const LanguageModel model = load(golden.file, MatmulMode::normal);
  for (const std::int64_t page_size : {1, 7, 64, 4096}) {
    Session session = session_of(model, DType::f16, 5, page_size);
    const auto expect_pages = [&](std::int64_t num_tokens) {
      const KvCacheStats stats = session.cache().stats();
      EXPECT_EQ(stats.num_pages, ceil_div<std::int64_t>(64, page_size));
      EXPECT_EQ(stats.num_used_pages, ceil_div(num_tokens, page_size));
      EXPECT_EQ(stats.num_tokens, num_tokens);
    };
    expect_pages(0);
    ASSERT_FALSE(session.append(golden.tokens, nullptr));
    expect_pages(32);
    ASSERT_TRUE(session.append(std::vector<std::int32_t>(33, 1), nullptr));
    expect_pages(32);
    ASSERT_FALSE(session.truncate(8));
    expect_pages(8);
  }
}

// Of codes, a cut within an older group leaves tokens that the next append computes again.
TEST(Session, TruncatesCodesAnywhere) {
  const Golden golden = read_goldens().front();
  const LanguageModel model = load(golden.file, MatmulMode::normal);
  const auto logits_of = [&](const Session& session) {
    return std::vector<float>(session.logits(),
                              session.logits() + model.decoder->config.vocab_size);
  };
  for (const DType codes : {DType::i8, DType::f8e4m3, DType::i4x2, DType::u4x2, DType::u2x4}) {
    const auto make = [&] {
      return std::move(
          Session::make(
              model,
              {.max_tokens = 64, .cache_dtype = DType::f32, .k_dtype = codes, .v_dtype = codes})
              .value());
    };
    const std::int32_t next = golden.tokens.front();
    Session session = make();
    for (const std::int32_t token : golden.tokens)
      ASSERT_FALSE(session.append({&token, 1}, nullptr));
    for (const std::int64_t kept : {31, 25, 16, 15, 3, 0}) {
      ASSERT_FALSE(session.truncate(kept));
      EXPECT_EQ(std::ssize(session.tokens()), kept);
      std::vector<float> all(static_cast<std::size_t>(model.decoder->config.vocab_size));
      ASSERT_FALSE(session.append({&next, 1}, all.data()));
      Session fresh = make();
      for (std::int64_t i = 0; i < kept; ++i)
        ASSERT_FALSE(fresh.append({&golden.tokens[static_cast<std::size_t>(i)], 1}, nullptr));
      ASSERT_FALSE(fresh.append({&next, 1}, nullptr));
      const std::vector<float> expected = logits_of(fresh), got = logits_of(session);
      EXPECT_EQ(all, got);
      for (std::size_t i = 0; i < got.size(); ++i)
        ASSERT_NEAR(got[i], expected[i], 1e-4) << dtype_name(codes) << ' ' << kept << ' ' << i;
    }
  }
}

// Of any number of tokens in batches of any size, and behind a cut of codes, whose tokens are
// computed again before them: a row each, and nothing beyond.
TEST(Session, AnAppendGivesTheLogitsOfItsOwnTokens) {
  constexpr float kUntouched = 12345;
  const Golden golden = read_goldens().front();
  const LanguageModel model = load(golden.file, MatmulMode::normal);
  const std::span<const std::int32_t> tokens(golden.tokens);
  for (const std::optional<DType> codes :
       {std::optional<DType>(), {DType::i8}, {DType::f8e4m3}, {DType::i4x2}, {DType::u2x4}}) {
    const auto make = [&](std::int64_t batch) {
      return std::move(Session::make(model, {.max_tokens = 64,
                                             .batch_tokens = batch,
                                             .cache_dtype = DType::f32,
                                             .k_dtype = codes,
                                             .v_dtype = codes})
                           .value());
    };
    Session whole = make(512);
    const std::vector<float> expected = logits_of(whole, golden);
    for (const std::int64_t batch : {1, 3, 5, 16, 512}) {
      Session session = make(batch);
      for (const std::size_t kept : {31, 25, 17, 16, 15, 3, 0})
        for (const std::size_t count : {1, 4, 9, 20}) {
          if (kept + count > tokens.size()) continue;
          SCOPED_TRACE(format_text("{} tokens after {} in batches of {}{}", count, kept, batch,
                                   codes ? dtype_name(*codes) : ""));
          ASSERT_FALSE(session.truncate(0));
          ASSERT_FALSE(session.append(tokens, nullptr));
          ASSERT_FALSE(session.truncate(static_cast<std::int64_t>(kept)));
          std::vector<float> rows((count + tokens.size()) * golden.vocab_size, kUntouched);
          ASSERT_FALSE(session.append(tokens.subspan(kept, count), rows.data()));
          const std::size_t num_written = count * golden.vocab_size;
          for (std::size_t i = 0; i < num_written; ++i)
            ASSERT_NEAR(rows[i], expected[kept * golden.vocab_size + i], 1e-4) << i;
          EXPECT_EQ(std::count(rows.begin(), rows.end(), kUntouched), rows.size() - num_written);
        }
    }
  }
}

TEST(Session, SizesAreChecked) {
  const LanguageModel model = load(read_goldens().front().file, MatmulMode::normal);
  for (const SessionOptions& options :
       {SessionOptions{.max_tokens = -1}, SessionOptions{.max_tokens = 1 << 30},
        SessionOptions{.batch_tokens = -1}, SessionOptions{.batch_tokens = 1 << 30},
        SessionOptions{.page_size = 0}, SessionOptions{.page_size = -16},
        SessionOptions{.max_tokens = 64, .num_pages = 3}, SessionOptions{.num_pages = -1},
        SessionOptions{.page_size = std::int64_t{1} << 31}}) {
    Result<Session> session = Session::make(model, options);
    ASSERT_FALSE(session.ok());
    EXPECT_EQ(session.failure().code, ErrorCode::invalid_argument);
  }
}

// The host with a limit for the bytes of one allocation.
class LimitedDevice final : public testing::ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  Buffer allocate(std::size_t bytes) override {
    return bytes > limit ? Buffer() : ForwardingDevice::allocate(bytes);
  }
  Buffer allocate_host(std::size_t bytes) override { return allocate(bytes); }

  std::size_t limit = SIZE_MAX;
};

LimitedDevice& limit_device_of(LanguageModel& model) {
  auto limited = std::make_unique<LimitedDevice>(std::move(model.device));
  LimitedDevice& device = *limited;
  model.device = std::move(limited);
  return device;
}

TEST(Session, SaysWhenThereIsNoMemoryForPages) {
  LanguageModel model = load(read_goldens().front().file, MatmulMode::normal);
  limit_device_of(model).limit = 4000;  // has room for the activations of a token
  const Result<Session> session =
      Session::make(model, {.max_tokens = 64, .batch_tokens = 1, .page_size = 16});
  ASSERT_FALSE(session.ok());
  EXPECT_EQ(session.failure().code, ErrorCode::out_of_memory);
  EXPECT_EQ(session.failure().message,
            "no memory for keys and values of 4 pages of page_size=16 tokens; pass a smaller "
            "max_tokens or page_size, or a 16-bit cache_dtype");
}

// A step that fails keeps no page and no token.
TEST(Session, FailedStepsLeaveNoTrace) {
  const Golden golden = read_goldens().front();
  LanguageModel model = load(golden.file, MatmulMode::normal);
  LimitedDevice& device = limit_device_of(model);
  Session other = session_of(model, DType::f16, 3), session = session_of(model, DType::f16, 3);
  const std::vector<float> expected = logits_of(other, golden);
  ASSERT_FALSE(session.append({golden.tokens.data(), 1}, nullptr));
  for (const std::size_t kept : {std::size_t{1}, std::size_t{0}}) {
    device.limit = 0;  // a step of more tokens than those before has to allocate
    const Status bad = session.append({golden.tokens.data() + kept, 20}, nullptr);
    ASSERT_TRUE(bad);
    EXPECT_EQ(bad->code, ErrorCode::out_of_memory);
    EXPECT_EQ(session.tokens().size(), kept);
    EXPECT_EQ(session.logits(), nullptr);
    EXPECT_EQ(session.cache().stats().num_used_pages, kept);
    device.limit = SIZE_MAX;
    ASSERT_FALSE(session.truncate(0));
  }
  EXPECT_EQ(logits_of(session, golden), expected);
}

// The pointer is invalid: a read of any token would crash.
TEST(Session, TooManyTokensAreRejectedBeforeAnyIsRead) {
  const Golden golden = read_goldens().front();
  const LanguageModel model = load(golden.file, MatmulMode::normal);
  Session session = session_of(model, DType::f16);
  const auto* nowhere = reinterpret_cast<const std::int32_t*>(std::uintptr_t{16});
  for (const std::size_t count : {std::size_t{65}, std::size_t{1} << 40, SIZE_MAX / 4}) {
    const Status bad = session.append({nowhere, count}, nullptr);
    ASSERT_TRUE(bad);
    EXPECT_EQ(bad->message.find(format_text("num_tokens={}: ", count)), 0u) << bad->message;
    EXPECT_NE(bad->message.find("max_tokens=64"), std::string::npos) << bad->message;
  }
  ASSERT_FALSE(session.append(golden.tokens, nullptr));
  const std::size_t have = golden.tokens.size();
  EXPECT_TRUE(session.append({nowhere, 65 - have}, nullptr));
  EXPECT_EQ(session.tokens().size(), have);
  EXPECT_FALSE(session.append(std::vector<std::int32_t>(64 - have, 1), nullptr));
}

// With windows of w keys and n layers, the logits of a token depend on exactly the last
// n * (w - 1) + 1 tokens, in prefill and in decode.
TEST(Session, SlidingWindowsHideExactlyTheOlderTokens) {
  const Golden golden = read_goldens().front();
  LanguageModel model = load(golden.file, MatmulMode::exact);
  model::Config& config = model.decoder->config;
  const std::size_t num_tokens = 20;
  const auto last_logits = [&](const std::vector<std::int32_t>& tokens, std::int64_t batch) {
    Session session = session_of(model, DType::f32, batch);
    EXPECT_FALSE(session.append(tokens, nullptr));
    return std::vector<float>(session.logits(), session.logits() + golden.vocab_size);
  };
  for (const std::int64_t window : {0, 1, 2, 5, 100}) {
    config.window = window;
    const bool is_open = window == 0 || config.num_layers * (window - 1) + 1 >= 20;
    const std::size_t reach =
        is_open ? num_tokens : static_cast<std::size_t>(config.num_layers * (window - 1) + 1);
    for (const std::int64_t batch : {512, 6, 1}) {
      std::vector<std::int32_t> tokens(golden.tokens.begin(), golden.tokens.begin() + 20);
      const std::vector<float> expected = last_logits(tokens, batch);
      for (std::size_t back = 1; back <= num_tokens; ++back) {
        std::vector<std::int32_t> other = tokens;
        std::int32_t& token = other[num_tokens - back];
        token = token == 7 ? 8 : 7;
        EXPECT_EQ(last_logits(other, batch) == expected, back > reach)
            << "window " << window << ", batch " << batch << ", token " << back << " from the end";
      }
    }
  }
}

TEST(SessionOptions, OfBatchesEndAtTheirLimits) {
  const LanguageModel model =
      load(std::string(HEADRACE_GOLDEN_DIR) + "/tiny/tiny_llama3_f16.gguf", MatmulMode::normal);
  for (const std::int64_t good : {std::int64_t{0}, std::int64_t{1}, kMaxBatchTokens})
    EXPECT_TRUE(Session::make(model, {.batch_tokens = good}).ok()) << good;
  for (const std::int64_t bad : {std::int64_t{-1}, kMaxBatchTokens + 1})
    EXPECT_FALSE(Session::make(model, {.batch_tokens = bad}).ok()) << bad;
}

}  // namespace
}  // namespace headrace::engine
