#include "ops/device_sampler.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "backends/cpu/sampling/sampling.h"
#include "backends/cuda/backend.h"
#include "base/math.h"
#include "core/sampling_args.h"
#include "ops/logit_filter.h"
#include "ops/uniform.h"

namespace headrace {
namespace {

// Of a draw. A filter that keeps more leaves the draw to the host.
constexpr std::int64_t kMaxCandidates = 4096;
static_assert(kMaxCandidates >= kWeightBlock);

bool has_filters(const SamplingOptions& o, std::int64_t vocab_size) {
  return (o.top_k != 0 && o.top_k < vocab_size) || o.top_p < 1 || o.min_p != 0;
}

// Of the weights that the device sums.
float temperature_of_sums(const SamplingOptions& o, std::int64_t vocab_size) {
  if (o.order == SamplingOrder::llama_cpp && o.temperature != 0 && has_filters(o, vocab_size))
    return 1;
  return static_cast<float>(o.temperature);
}

template <class T>
T* part(Buffer& buffer, std::size_t& bytes, std::int64_t count) {
  T* data = reinterpret_cast<T*>(buffer.data() + bytes);
  bytes = round_up<std::size_t>(bytes + static_cast<std::size_t>(count) * sizeof(T), 256);
  return data;
}

}  // namespace

class DeviceSampler::State {
 public:
  State(Device& device, const DeviceInfo& host, std::int64_t max_draws, std::int64_t vocab_size)
      : device_(device),
        host_(host),
        max_draws_(max_draws),
        vocab_size_(vocab_size),
        num_maxima_(ceil_div(vocab_size, kLogitBlock)),
        num_sums_(ceil_div(vocab_size, kWeightBlock)),
        filter_(host),
        values_(static_cast<std::size_t>(kWeightBlock)),
        weights_(static_cast<std::size_t>(kWeightBlock)),
        picks_(static_cast<std::size_t>(max_draws)) {}

  Status allocate();
  Status draw(const float* logits, std::span<Draw> draws);

 private:
  // What a draw needs to remember between the passes.
  struct Pick {
    double target, sum, before;  // before: the weights before the block that is picked
  };

  // The arrays of the passes. Summaries are copied to the host as one.
  struct Arrays {
    LogitQuery* queries;
    LogitRange* ranges;
    float* row_maxima;
    float* maxima;
    double* block_sums;
  };
  Arrays arrays_in(Buffer& buffer, std::size_t& bytes) const;

  Status summarise(const float* logits, std::span<const Draw> draws);
  LogitSummary summary_of(std::size_t i) const;
  LogitRange range_of(const Draw& draw, std::size_t i);
  Status gather(const float* logits, std::size_t num_draws);
  std::optional<std::int32_t> finish(const Draw& draw, std::size_t i);
  std::int32_t pick_token(std::span<const Candidate> block, float max, double temperature,
                          const Pick& pick);

  Device& device_;
  const DeviceInfo host_;
  const std::int64_t max_draws_, vocab_size_, num_maxima_, num_sums_;
  LogitFilter filter_;
  std::vector<float> values_, weights_;  // of a block
  std::vector<Pick> picks_;

  Buffer on_device_, on_host_;  // Arrays
  Arrays device_arrays_{}, host_arrays_{};
  Buffer candidates_;  // of the host, written by the device
  std::int32_t* counts_ = nullptr;
  Candidate* known_ = nullptr;  // [max_draws, kMaxCandidates]
};

DeviceSampler::State::Arrays DeviceSampler::State::arrays_in(Buffer& buffer,
                                                             std::size_t& bytes) const {
  Arrays a{};
  a.queries = part<LogitQuery>(buffer, bytes, max_draws_);
  a.ranges = part<LogitRange>(buffer, bytes, max_draws_);
  a.row_maxima = part<float>(buffer, bytes, max_draws_);
  a.maxima = part<float>(buffer, bytes, max_draws_ * num_maxima_);
  a.block_sums = part<double>(buffer, bytes, max_draws_ * num_sums_);
  return a;
}

Status DeviceSampler::State::allocate() {
  std::size_t bytes = 0, candidate_bytes = 0;
  Buffer none;
  arrays_in(none, bytes);
  part<std::int32_t>(none, candidate_bytes, max_draws_);
  part<Candidate>(none, candidate_bytes, max_draws_ * kMaxCandidates);
  on_device_ = device_.allocate(bytes);
  on_host_ = device_.allocate_host(bytes);
  candidates_ = device_.allocate_host(candidate_bytes);
  if (on_device_.data() == nullptr || on_host_.data() == nullptr || candidates_.data() == nullptr)
    return Failure{ErrorCode::out_of_memory,
                   format_text("no memory to draw {} tokens at once; pass a smaller max_num_seqs",
                               max_draws_)};
  std::size_t ignored = 0;
  device_arrays_ = arrays_in(on_device_, ignored);
  host_arrays_ = arrays_in(on_host_, ignored = 0);
  candidate_bytes = 0;
  counts_ = part<std::int32_t>(candidates_, candidate_bytes, max_draws_);
  known_ = part<Candidate>(candidates_, candidate_bytes, max_draws_ * kMaxCandidates);
  return std::nullopt;
}

Status DeviceSampler::State::draw(const float* logits, std::span<Draw> draws) {
  while (!draws.empty()) {
    const std::span<Draw> now =
        draws.first(std::min(draws.size(), static_cast<std::size_t>(max_draws_)));
    draws = draws.subspan(now.size());
    HEADRACE_TRY(summarise(logits, now));
    for (std::size_t i = 0; i < now.size(); ++i) host_arrays_.ranges[i] = range_of(now[i], i);
    HEADRACE_TRY(gather(logits, now.size()));
    for (std::size_t i = 0; i < now.size(); ++i) now[i].token = finish(now[i], i);
  }
  return std::nullopt;
}

Status DeviceSampler::State::summarise(const float* logits, std::span<const Draw> draws) {
  for (std::size_t i = 0; i < draws.size(); ++i)
    host_arrays_.queries[i] = {draws[i].row, temperature_of_sums(*draws[i].options, vocab_size_)};
  const auto count = std::ssize(draws);
  const auto copy = [&](const void* from, void* to, std::int64_t elements, std::size_t bytes) {
    return ByteCopy{static_cast<const std::byte*>(from), static_cast<std::byte*>(to),
                    static_cast<std::size_t>(elements) * bytes};
  };
  const Arrays &d = device_arrays_, &h = host_arrays_;
  const ByteCopy queries = copy(h.queries, d.queries, count, sizeof *h.queries);
  HEADRACE_TRY(device_.copy({&queries, 1}, nullptr));
  HEADRACE_TRY(cuda::summarise_logits({.logits = logits,
                                       .vocab_size = vocab_size_,
                                       .queries = d.queries,
                                       .num_queries = count,
                                       .maxima = d.maxima,
                                       .block_sums = d.block_sums,
                                       .row_maxima = d.row_maxima},
                                      device_.info().device_id, nullptr));
  const ByteCopy summaries[] = {
      copy(d.row_maxima, h.row_maxima, count, sizeof *h.row_maxima),
      copy(d.maxima, h.maxima, count * num_maxima_, sizeof *h.maxima),
      copy(d.block_sums, h.block_sums, count * num_sums_, sizeof *h.block_sums)};
  HEADRACE_TRY(device_.copy(summaries, nullptr));
  return device_.synchronise(nullptr);
}

LogitSummary DeviceSampler::State::summary_of(std::size_t i) const {
  const auto num_maxima = static_cast<std::size_t>(num_maxima_),
             num_sums = static_cast<std::size_t>(num_sums_);
  return {.num_logits = vocab_size_,
          .max = host_arrays_.row_maxima[i],
          .maxima = {host_arrays_.maxima + i * num_maxima, num_maxima},
          .block_sums = {host_arrays_.block_sums + i * num_sums, num_sums}};
}

// The logits that the draw needs.
LogitRange DeviceSampler::State::range_of(const Draw& draw, std::size_t i) {
  const SamplingOptions& o = *draw.options;
  const LogitSummary summary = summary_of(i);
  LogitRange range{.row = draw.row, .first_block = 0, .last_block = 0, .at_least = 0};
  if (!std::isfinite(summary.max)) return range;  // finish() leaves it to the host
  if (o.temperature == 0) {
    const auto first = std::ranges::find(summary.maxima, summary.max) - summary.maxima.begin();
    range.first_block = static_cast<std::int32_t>(first);
    range.last_block = range.first_block + 1;
    range.at_least = summary.max;
    return range;
  }
  Pick& pick = picks_[i];
  pick.sum = 0;
  for (const double sum : summary.block_sums) pick.sum += sum;
  if (has_filters(o, vocab_size_)) {
    range.last_block = static_cast<std::int32_t>(num_maxima_);
    range.at_least = filter_.needed(o, summary, pick.sum);
    return range;
  }
  // LogitFilter::pick() over block sums.
  pick.target =
      pick.sum * uniform_at(o.seed, draw.sequence_id, draw.position, UniformPurpose::sampling);
  pick.before = 0;
  std::size_t block = 0;
  while (block + 1 < summary.block_sums.size() &&
         !(pick.before + summary.block_sums[block] > pick.target))
    pick.before += summary.block_sums[block++];
  constexpr auto kRatio = static_cast<std::int32_t>(kWeightBlock / kLogitBlock);
  range.first_block = static_cast<std::int32_t>(block) * kRatio;
  range.last_block = std::min(range.first_block + kRatio, static_cast<std::int32_t>(num_maxima_));
  range.at_least = -std::numeric_limits<float>::infinity();
  return range;
}

Status DeviceSampler::State::gather(const float* logits, std::size_t num_draws) {
  const ByteCopy ranges{reinterpret_cast<const std::byte*>(host_arrays_.ranges),
                        reinterpret_cast<std::byte*>(device_arrays_.ranges),
                        num_draws * sizeof *host_arrays_.ranges};
  HEADRACE_TRY(device_.copy({&ranges, 1}, nullptr));
  HEADRACE_TRY(cuda::gather_logits({.logits = logits,
                                    .vocab_size = vocab_size_,
                                    .ranges = device_arrays_.ranges,
                                    .num_ranges = static_cast<std::int64_t>(num_draws),
                                    .maxima = device_arrays_.maxima,
                                    .candidates = known_,
                                    .max_candidates = kMaxCandidates,
                                    .counts = counts_},
                                   device_.info().device_id, nullptr));
  return device_.synchronise(nullptr);
}

std::optional<std::int32_t> DeviceSampler::State::finish(const Draw& draw, std::size_t i) {
  const SamplingOptions& o = *draw.options;
  const LogitSummary summary = summary_of(i);
  const auto count = static_cast<std::size_t>(counts_[i]);
  if (!std::isfinite(summary.max) || counts_[i] > kMaxCandidates) return std::nullopt;
  const std::span<const Candidate> known{known_ + i * kMaxCandidates, count};
  if (o.temperature == 0) return known.front().token;
  if (!has_filters(o, vocab_size_)) return pick_token(known, summary.max, o.temperature, picks_[i]);
  filter_.begin(summary, picks_[i].sum, known);
  filter_.apply(o);
  if (filter_.keeps_all()) return std::nullopt;  // by rounding, or top_k beyond the block maxima
  const Distribution left = filter_.distribution(o.temperature);
  return left.tokens[filter_.pick(
      uniform_at(o.seed, draw.sequence_id, draw.position, UniformPurpose::sampling))];
}

// LogitFilter::pick() in a block.
std::int32_t DeviceSampler::State::pick_token(std::span<const Candidate> block, float max,
                                              double temperature, const Pick& pick) {
  for (std::size_t i = 0; i < block.size(); ++i) values_[i] = block[i].logit;
  double sum = 0;
  cpu::exp_weights({.logits = values_.data(),
                    .num_logits = std::ssize(block),
                    .max = max,
                    .temperature = static_cast<float>(temperature),
                    .weights = weights_.data(),
                    .block_sums = &sum},
                   host_);
  double reached = pick.before;
  std::int32_t picked = 0;
  for (std::size_t i = 0; i < block.size(); ++i) {
    if (weights_[i] == 0) continue;
    picked = block[i].token;
    reached += static_cast<double>(weights_[i]);
    if (reached > pick.target) break;
  }
  return picked;
}

bool DeviceSampler::takes(const SamplingOptions& o) {
  return o.logit_bias.empty() && o.repetition_penalty == 1 && o.presence_penalty == 0 &&
         o.frequency_penalty == 0 && !o.num_logprobs;
}

Result<DeviceSampler> DeviceSampler::make(Device& device, const DeviceInfo& host,
                                          std::int64_t max_draws, std::int64_t vocab_size) {
  if (device.info().device_type != HEADRACE_CUDA)
    return unsupported("a device sampler on [{}]: must be a GPU; use a sampler of the host",
                       device_text(device.info()));
  if (vocab_size > kMaxGatherLogits)
    return unsupported("a vocabulary of {} tokens on a GPU, at most {}; use a sampler of the host",
                       vocab_size, kMaxGatherLogits);
  auto state = std::make_unique<State>(device, host, max_draws, vocab_size);
  if (Status bad = state->allocate()) return std::move(*bad);
  return DeviceSampler(std::move(state));
}

DeviceSampler::DeviceSampler(std::unique_ptr<State> state) : state_(std::move(state)) {}
DeviceSampler::~DeviceSampler() = default;
DeviceSampler::DeviceSampler(DeviceSampler&&) noexcept = default;
DeviceSampler& DeviceSampler::operator=(DeviceSampler&&) noexcept = default;

Status DeviceSampler::draw(const float* logits, std::span<Draw> draws) {
  return state_->draw(logits, draws);
}

}  // namespace headrace
