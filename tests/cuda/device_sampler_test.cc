// Tokens that are drawn on a GPU: those of the host's sampler, for every kind of row and option.
#include "ops/device_sampler.h"

#include <bit>
#include <cmath>
#include <limits>

#include "backends/cuda/backend.h"
#include "cuda/gpu.h"
#include "support/random.h"

namespace headrace::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

enum class Kind {
  normal,
  sharp,
  flat,
  equal,
  zeros,
  mostly_forbidden,
  one,
  huge,
  none,
  nan,
  infinite
};
constexpr Kind kKinds[] = {
    Kind::normal, Kind::sharp, Kind::flat, Kind::equal, Kind::zeros,   Kind::mostly_forbidden,
    Kind::one,    Kind::huge,  Kind::none, Kind::nan,   Kind::infinite};
constexpr std::int64_t kNumGoodKinds = 7;

std::vector<float> row_of(Kind kind, std::int64_t vocab_size, Random& random) {
  std::vector<float> row(static_cast<std::size_t>(vocab_size));
  for (float& x : row) {
    const double normal = random.normal();
    switch (kind) {
      case Kind::normal:
      case Kind::nan:
      case Kind::infinite:
        x = static_cast<float>(2 * normal);
        break;
      case Kind::sharp:
        x = static_cast<float>(30 * normal);
        break;
      case Kind::flat:
        x = static_cast<float>(0.01 * normal);
        break;
      case Kind::equal:
        x = static_cast<float>(std::floor(normal));  // many ties
        break;
      case Kind::zeros:  // of both signs, which are equal
        x = std::copysign(random.between(0, 3) == 0 ? 1.0f : 0.0f, static_cast<float>(normal));
        break;
      case Kind::mostly_forbidden:
        x = random.between(0, 99) == 0 ? static_cast<float>(normal) : -kInfinity;
        break;
      case Kind::one:
      case Kind::none:
        x = -kInfinity;
        break;
      case Kind::huge:  // a penalty may make them infinite
        x = static_cast<float>(3e37 * normal);
        break;
    }
  }
  float& any = row[static_cast<std::size_t>(random.between(0, vocab_size - 1))];
  if (kind == Kind::one) any = 3;
  if (kind == Kind::nan) any = std::nanf("");
  if (kind == Kind::infinite) any = kInfinity;
  return row;
}

double pick(Random& random, std::initializer_list<double> values) {
  return values.begin()[random.between(0, static_cast<std::int64_t>(values.size()) - 1)];
}

SamplingOptions options_of(Random& rng) {
  const auto pick = [&](std::initializer_list<double> values) {
    return testing::pick(rng, values);
  };
  return {.temperature = pick({0, 0.3, 0.7, 1, 2.5}),
          .top_k = static_cast<std::int64_t>(pick({0, 0, 1, 7, 50, 3000})),
          .top_p = pick({1, 1, 0.999, 0.9, 0.4, 0.01}),
          .min_p = pick({0, 0, 0.001, 0.1, 0.9}),
          .seed = static_cast<std::uint64_t>(rng.between(0, INT64_MAX - 1)),
          .order = static_cast<SamplingOrder>(rng.between(0, 2))};
}

// With biases, penalties and logprobs besides.
SamplingOptions all_options_of(std::int64_t vocab_size, Random& random) {
  SamplingOptions o = options_of(random);
  o.temperature = pick(random, {0, 0.7, 1});
  if (random.between(0, 1) == 0) o.top_k = 0, o.top_p = 1, o.min_p = 0;
  o.repetition_penalty = pick(random, {1, 1, 1, 1.3, 0.7, 0.05});
  if (random.between(0, 1) == 0)
    o.repetition_window = static_cast<std::int64_t>(pick(random, {0, 5, 40, 1000}));
  o.presence_penalty = pick(random, {0, 0, 0.6, -1});
  o.frequency_penalty = pick(random, {0, 0, 0.3, -0.1});
  const auto num_biases = static_cast<int>(pick(random, {0, 0, 0, 1, 5, 300}));
  for (int i = 0; i < num_biases; ++i)  // some of one token
    o.logit_bias.push_back({static_cast<std::int32_t>(random.between(0, vocab_size - 1)),
                            i % 7 == 6 ? -kInfinity : static_cast<float>(3 * random.normal())});
  o.logprobs_mode = random.between(0, 1) == 0 ? LogprobsMode::raw : LogprobsMode::processed;
  if (random.between(0, 3) > 0)
    o.num_logprobs = static_cast<int>(pick(random, {0, 1, 5, 20, 64, 100}));
  return o;
}

std::vector<std::int32_t> history_of(std::int64_t vocab_size, Random& random) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(pick(random, {0, 1, 30, 900})));
  const std::int64_t last = std::min<std::int64_t>(vocab_size, 200) - 1;  // so that some repeat
  for (auto& token : tokens)
    token = static_cast<std::int32_t>(vocab_size - 1 - random.between(0, last));
  if (!tokens.empty() && random.between(0, 30) == 0)
    tokens[tokens.size() / 2] = static_cast<std::int32_t>(pick(random, {-1, double(vocab_size)}));
  return tokens;
}

// Empty: none.
std::vector<std::uint64_t> mask_of(std::int64_t vocab_size, Random& random) {
  const auto percent = static_cast<std::int64_t>(pick(random, {-1, -1, -1, 0, 1, 50, 99, 100}));
  std::vector<std::uint64_t> mask;
  if (percent < 0) return mask;
  mask.resize(static_cast<std::size_t>((vocab_size + 63) / 64));
  for (std::int64_t i = 0; i < vocab_size; ++i)
    if (random.between(0, 99) < percent)
      mask[static_cast<std::size_t>(i / 64)] |= std::uint64_t{1} << i % 64;
  if (percent == 1) {  // at least one, in words that forbid all and words that forbid none
    mask.back() |= 1;
    mask.front() = ~std::uint64_t{0};
  }
  return mask;
}

class DeviceSamplerOnGpu : public ::testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override { HEADRACE_NEEDS_GPU(80); }

  DeviceSampler make(std::int64_t max_draws) const {
    return std::move(DeviceSampler::make(*device_, max_draws, vocab_size_).value());
  }
  void add_row(Kind kind, Random& random) {
    const auto row = row_of(kind, vocab_size_, random);
    rows_.insert(rows_.end(), row.begin(), row.end());
  }
  Result<Sample> on_host(const DeviceSampler::Draw& draw) {
    SamplingInput input = draw.input;
    input.logits = std::span<const float>(rows_).subspan(
        static_cast<std::size_t>(draw.row * vocab_size_), static_cast<std::size_t>(vocab_size_));
    return sampler_.sample(input, *draw.options);
  }
  // A draw without a result is left to the host. False: this one is.
  bool expect_same(const DeviceSampler::Draw& draw) {
    const SamplingOptions& o = *draw.options;
    SCOPED_TRACE(::testing::Message()
                 << "row " << draw.row << " temperature " << o.temperature << " top_k " << o.top_k
                 << " top_p " << o.top_p << " min_p " << o.min_p << " order "
                 << static_cast<int>(o.order) << " num_logprobs " << o.num_logprobs.value_or(-1)
                 << " mode " << static_cast<int>(o.logprobs_mode) << " biases "
                 << o.logit_bias.size() << " repetition " << o.repetition_penalty << " presence "
                 << o.presence_penalty << " mask " << draw.input.mask.size());
    const Result<Sample> expected = on_host(draw);
    if (draw.failure) {
      EXPECT_FALSE(expected.ok()) << draw.failure->message;
      if (expected.ok()) return true;
      EXPECT_EQ(draw.failure->message, expected.failure().message);
      EXPECT_EQ(draw.failure->code, expected.failure().code);
    }
    if (!draw.token) return draw.failure.has_value();
    EXPECT_TRUE(expected.ok()) << expected.failure().message;
    if (!expected.ok()) return true;
    const Sample& sample = expected.value();
    EXPECT_EQ(*draw.token, sample.token);
    EXPECT_EQ(std::bit_cast<std::uint32_t>(draw.logprob),
              std::bit_cast<std::uint32_t>(sample.logprob));
    const auto is_equal = [](const TokenLogprob& a, const TokenLogprob& b) {
      return a.token == b.token &&
             std::bit_cast<std::uint32_t>(a.logprob) == std::bit_cast<std::uint32_t>(b.logprob);
    };
    EXPECT_TRUE(std::ranges::equal(draw.top_logprobs, sample.top_logprobs, is_equal))
        << draw.top_logprobs.size() << " and " << sample.top_logprobs.size() << " logprobs";
    return true;
  }

  const std::int64_t vocab_size_ = GetParam();
  std::unique_ptr<Device> device_ = has_gpu(80) ? std::move(cuda::make_device(0).value()) : nullptr;
  const DeviceInfo host_ = cpu_info().value();
  Sampler sampler_ = std::move(Sampler::make(host_).value());
  std::vector<float> rows_;  // [*, vocab_size]
};
// Below, at and beyond blocks of 64 and 256; models'.
INSTANTIATE_TEST_SUITE_P(Vocabularies, DeviceSamplerOnGpu,
                         ::testing::Values(1, 63, 64, 65, 255, 256, 257, 1000, 32000, 49152, 128256,
                                           152064));

TEST_P(DeviceSamplerOnGpu, DrawsTheTokensOfTheHost) {
  constexpr std::int64_t kRows = 14, kDraws = 100;
  DeviceSampler sampler = make(64);  // fewer than are drawn at once
  Random random(static_cast<std::uint64_t>(vocab_size_));
  for (int round = 0; round < 4; ++round) {
    rows_.clear();
    for (std::int64_t i = 0; i < kRows; ++i) add_row(kKinds[i % kNumGoodKinds], random);
    const OnDevice<float> logits(rows_);
    std::vector<SamplingOptions> options;
    for (std::int64_t i = 0; i < kDraws; ++i) options.push_back(options_of(random));
    std::vector<DeviceSampler::Draw> draws;
    for (std::int64_t i = 0; i < kDraws; ++i)
      draws.push_back({.row = random.between(0, kRows - 1),
                       .options = &options[static_cast<std::size_t>(i)],
                       .input = {.sequence_id = static_cast<std::uint64_t>(i), .position = 3 + i}});
    ASSERT_FALSE(sampler.draw(logits.data(), draws, nullptr));
    for (const auto& draw : draws) {
      EXPECT_TRUE(expect_same(draw));
      if (HasFailure()) return;
    }
  }
}

// Of rows that are damaged, too, beside others; more draws than a round has.
TEST_P(DeviceSamplerOnGpu, DrawsWhatTheHostDrawsWithAnyOptions) {
  constexpr std::int64_t kRows = 15, kDraws = 300;
  DeviceSampler sampler = make(200);
  Random random(static_cast<std::uint64_t>(vocab_size_));
  std::int64_t num_left = 0, num_failed = 0;  // rows of many ties have too many top logprobs
  for (std::int64_t i = 0; i < kRows; ++i) add_row(kKinds[i % std::ssize(kKinds)], random);
  const OnDevice<float> logits(rows_);
  struct Request {
    SamplingOptions options;
    std::vector<std::int32_t> prompt, output;
    std::vector<std::uint64_t> mask;
  };
  std::vector<Request> requests;
  for (std::int64_t i = 0; i < kDraws; ++i)
    requests.push_back({all_options_of(vocab_size_, random), history_of(vocab_size_, random),
                        history_of(vocab_size_, random), mask_of(vocab_size_, random)});
  std::vector<DeviceSampler::Draw> draws;
  for (std::int64_t i = 0; i < kDraws; ++i) {
    const Request& request = requests[static_cast<std::size_t>(i)];
    // Mostly rows that are not damaged.
    const std::int64_t row =
        random.between(0, 2) == 0 ? random.between(0, kRows - 1) : random.between(0, kNumGoodKinds);
    draws.push_back({.row = row,
                     .options = &request.options,
                     .input = {.prompt = request.prompt,
                               .output = request.output,
                               .mask = request.mask,
                               .sequence_id = static_cast<std::uint64_t>(i),
                               .position = 3 + i}});
  }
  ASSERT_FALSE(sampler.draw(logits.data(), draws, nullptr));
  for (const auto& draw : draws) {
    num_left += !expect_same(draw);
    num_failed += draw.failure.has_value();
    if (HasFailure()) return;
  }
  EXPECT_LT(num_left, kDraws / 4);
  EXPECT_GT(num_failed, 10);
}

// As they have another error, or change more tokens than are uploaded.
TEST_P(DeviceSamplerOnGpu, LeavesHistoriesItCannotTakeToTheHost) {
  DeviceSampler sampler = make(8);
  Random random(3);
  add_row(Kind::normal, random);
  const OnDevice<float> logits(rows_);
  const SamplingOptions penalty{.repetition_penalty = 1.5, .presence_penalty = 1};
  std::vector<std::int32_t> all(static_cast<std::size_t>(vocab_size_));
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int32_t>(i);
  const auto outside = static_cast<std::int32_t>(vocab_size_);
  std::vector<DeviceSampler::Draw> draws(3, {.row = 0, .options = &penalty, .input = {}});
  draws[0].input = {.prompt = {&outside, 1}, .position = 1};
  draws[1].input = {.output = all, .position = vocab_size_};
  draws[2].input = {.output = {all.data(), 1}, .position = 1};
  ASSERT_FALSE(sampler.draw(logits.data(), draws, nullptr));
  EXPECT_FALSE(expect_same(draws[0]));
  EXPECT_EQ(expect_same(draws[1]), vocab_size_ <= 4096);
  EXPECT_TRUE(expect_same(draws[2]));
}

TEST_P(DeviceSamplerOnGpu, ReportsBadRowsBesideOthers) {
  DeviceSampler sampler = make(8);
  for (const float bad : {std::nanf(""), kInfinity}) {
    rows_.assign(static_cast<std::size_t>(2 * vocab_size_), 1.0f);
    rows_[static_cast<std::size_t>(vocab_size_ / 2)] = bad;
    const OnDevice<float> logits(rows_);
    for (const double temperature : {0.0, 1.0}) {
      const SamplingOptions options{.temperature = temperature};
      std::vector<DeviceSampler::Draw> draws = {
          {.row = 0, .options = &options, .input = {.position = 1}},
          {.row = 1, .options = &options, .input = {.position = 1}}};
      ASSERT_FALSE(sampler.draw(logits.data(), draws, nullptr));
      EXPECT_TRUE(draws[0].failure);
      EXPECT_TRUE(draws[1].token);
      EXPECT_TRUE(expect_same(draws[0]) && expect_same(draws[1]));
    }
  }
}

TEST(DeviceSamplerOnGpuLimits, RefusesMoreDrawsThanAGridHasRows) {
  HEADRACE_NEEDS_GPU(80);
  const auto device = std::move(cuda::make_device(0).value());
  const auto made = DeviceSampler::make(*device, 32768, 64);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.failure().code, ErrorCode::unsupported);
}

// As many tokens as masses add up without rounding, all equally likely.
TEST(DeviceSamplerOnGpuLimits, DrawsFromTheLargestVocabulary) {
  HEADRACE_NEEDS_GPU(80);
  constexpr std::int64_t kVocabSize = std::int64_t{1} << 19;
  const auto device = std::move(cuda::make_device(0).value());
  DeviceSampler sampler = std::move(DeviceSampler::make(*device, 8, kVocabSize).value());
  EXPECT_FALSE(DeviceSampler::make(*device, 8, kVocabSize + 1).ok());
  const std::vector<float> row(kVocabSize, 1.0f);
  const OnDevice<float> logits(row);
  Sampler host = std::move(Sampler::make(cpu_info().value()).value());
  const SamplingOptions all[] = {
      {.seed = 1},
      {.top_p = 0.7, .seed = 2},
      {.top_k = 300'001, .seed = 3},
      {.top_k = 300'001, .top_p = 0.9, .min_p = 0.5, .seed = 4, .order = SamplingOrder::llama_cpp}};
  std::vector<DeviceSampler::Draw> draws;
  for (const SamplingOptions& options : all)
    for (std::int64_t position = 1; position < 3; ++position)
      draws.push_back({.row = 0, .options = &options, .input = {.position = position}});
  ASSERT_FALSE(sampler.draw(logits.data(), draws, nullptr));
  for (const auto& draw : draws) {
    SamplingInput input = draw.input;
    input.logits = row;
    EXPECT_EQ(draw.token, host.sample(input, *draw.options).value().token);
  }
}

TEST_P(DeviceSamplerOnGpu, BeginsWhatNeedsNoHost) {
  DeviceSampler sampler = make(100);
  Random random(5);
  add_row(Kind::normal, random);
  const OnDevice<float> logits(rows_);
  const auto begins = [&](const SamplingOptions& o, std::size_t count = 1,
                          const SamplingInput& input = {}) {
    std::vector<DeviceSampler::Draw> draws(count, {.row = 0, .options = &o, .input = input});
    const bool has_begun = sampler.begin(logits.data(), draws, nullptr).value();
    if (has_begun) EXPECT_FALSE(sampler.end(draws));
    for (const auto& draw : draws) EXPECT_EQ(draw.token || draw.failure, has_begun);
    return has_begun;
  };
  const std::vector<std::uint64_t> mask(static_cast<std::size_t>((vocab_size_ + 63) / 64), 1);
  const std::vector<std::int32_t> history(300, 0);
  EXPECT_TRUE(begins({}, 100));
  EXPECT_FALSE(begins({}, 101));
  EXPECT_TRUE(begins({.temperature = 0, .top_p = 0.5}));
  EXPECT_TRUE(begins({.num_logprobs = 0}));
  EXPECT_TRUE(begins({.logit_bias = {{0, 1}}}, 100));
  EXPECT_TRUE(begins({}, 100, {.mask = mask}));
  EXPECT_TRUE(begins({.repetition_penalty = 2}, 100, {.output = history}));
  EXPECT_TRUE(
      begins({.frequency_penalty = 2, .num_logprobs = 0}, 100, {.output = history, .mask = mask}));
  EXPECT_TRUE(begins({.top_k = 3, .top_p = 0.5, .min_p = 0.1}, 100, {.mask = mask}));
  EXPECT_FALSE(begins({.num_logprobs = 1}));
  // Longer lists than there is memory for: of a row, and of all.
  EXPECT_FALSE(begins({.logit_bias = std::vector<LogitBias>(8193)}));
  EXPECT_TRUE(begins({.logit_bias = std::vector<LogitBias>(8192)}, 64));
  EXPECT_FALSE(begins({.logit_bias = std::vector<LogitBias>(8192)}, 65));
  const auto outside = static_cast<std::int32_t>(vocab_size_);
  EXPECT_FALSE(begins({.repetition_penalty = 2}, 1, {.output = {&outside, 1}}));
}

// 256 MB of rows that biases change, 64 MB of masks.
TEST(DeviceSamplerOnGpuLimits, BeginsWhatItHasMemoryFor) {
  HEADRACE_NEEDS_GPU(80);
  constexpr std::int64_t kVocabSize = 152064, kRows = (256 << 20) / (4 * kVocabSize),
                         kMasks = (64 << 20) / (kVocabSize / 8);
  const auto device = std::move(cuda::make_device(0).value());
  DeviceSampler sampler = std::move(DeviceSampler::make(*device, kMasks + 1, kVocabSize).value());
  const OnDevice<float> logits(std::vector<float>(kVocabSize, 1.0f));
  const SamplingOptions greedy{.temperature = 0}, biased{.temperature = 0, .logit_bias = {{99, 1}}};
  std::vector<std::uint64_t> mask(kVocabSize / 64);
  mask.back() = std::uint64_t{1} << 63;  // behind forbidden ones that are as large
  const auto expect_limit = [&](std::int64_t most, const DeviceSampler::Draw& draw,
                                std::int32_t token) {
    std::vector<DeviceSampler::Draw> draws(static_cast<std::size_t>(most + 1), draw);
    EXPECT_FALSE(sampler.begin(logits.data(), draws, nullptr).value());
    ASSERT_FALSE(sampler.draw(logits.data(), draws, nullptr));
    for (const auto& drawn : draws) ASSERT_EQ(drawn.token, token);
    draws.assign(static_cast<std::size_t>(most), draw);
    EXPECT_TRUE(sampler.begin(logits.data(), draws, nullptr).value());
    ASSERT_FALSE(sampler.end(draws));
    for (const auto& drawn : draws) ASSERT_EQ(drawn.token, token);
  };
  expect_limit(kRows, {.row = 0, .options = &biased, .input = {}}, 99);
  SamplingOptions longest{.temperature = 0, .logit_bias = std::vector<LogitBias>(8192)};
  longest.logit_bias.back() = {98, 1};
  expect_limit(64, {.row = 0, .options = &longest, .input = {}}, 98);
  expect_limit(kMasks, {.row = 0, .options = &greedy, .input = {.mask = mask}}, kVocabSize - 1);
}

// In two calls: the tokens stay on the device, and errors are those of the host.
TEST_P(DeviceSamplerOnGpu, DrawsAlone) {
  DeviceSampler sampler = make(8);
  Random random(static_cast<std::uint64_t>(vocab_size_));
  for (const Kind kind :
       {Kind::normal, Kind::sharp, Kind::flat, Kind::none, Kind::infinite, Kind::nan, Kind::huge})
    add_row(kind, random);
  const OnDevice<float> logits(rows_);
  for (const double temperature : {0.0, 0.4, 1.0, 3.0})
    for (std::int64_t position = 0; position < 60; ++position) {
      SamplingOptions options{.temperature = temperature, .seed = 7};
      if (position % 3 != 0) options.num_logprobs = 0;
      if (position % 3 == 2) options.logprobs_mode = LogprobsMode::processed;
      const auto last = static_cast<std::int32_t>(vocab_size_ - 1);
      if (position % 4 == 3) options.logit_bias = {{last, 9.0f}, {0, -1.0f}, {last, 0.1f}};
      if (position % 8 == 7) options.logit_bias.push_back({last / 2, -kInfinity});
      if (position % 5 == 4) options.repetition_penalty = 1.3;
      if (position % 6 == 1) options.top_p = 0.9;
      if (position % 6 == 5) options.top_k = 40, options.min_p = 0.01;
      options.order = static_cast<SamplingOrder>(position % 11 % 3);
      if (position % 7 >= 5) options.presence_penalty = 0.5, options.frequency_penalty = -0.1;
      const std::vector<std::int32_t> history = {last, last / 3, last, 0};
      std::vector<DeviceSampler::Draw> draws;
      std::vector<std::vector<std::uint64_t>> masks;
      for (std::int64_t row = 6; row >= 0; --row) masks.push_back(mask_of(vocab_size_, random));
      for (std::int64_t row = 6; row >= 0; --row)
        draws.push_back({.row = row,
                         .options = &options,
                         .input = {.prompt = history,
                                   .output = history,
                                   .mask = masks[static_cast<std::size_t>(row)],
                                   .sequence_id = 3,
                                   .position = position}});
      ASSERT_TRUE(sampler.begin(logits.data(), draws, nullptr).value());
      ASSERT_FALSE(sampler.end(draws));
      std::vector<std::int32_t> tokens(draws.size());
      ASSERT_FALSE(device_->download(sampler.tokens_on_device(), tokens.data(),
                                     tokens.size() * sizeof tokens[0], nullptr));
      for (std::size_t i = 0; i < draws.size(); ++i) {
        ASSERT_TRUE(expect_same(draws[i]));
        EXPECT_EQ(tokens[i], draws[i].token.value_or(0));
        if (HasFailure()) return;
      }
    }
}

}  // namespace
}  // namespace headrace::testing
