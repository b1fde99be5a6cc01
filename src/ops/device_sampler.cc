#include "ops/device_sampler.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

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
// A draw has up to two queries.
constexpr std::int64_t kMaxDraws = kMaxLogitQueries / 2;

// Whether the logprob of the token comes from weights of another temperature than the draw's.
bool needs_more_weights(const SamplingOptions& o) {
  return o.num_logprobs && o.logprobs_mode == LogprobsMode::raw && o.temperature != 0 &&
         o.temperature != 1;
}

bool has_filters(const SamplingOptions& o, std::int64_t vocab_size) {
  return (o.top_k != 0 && o.top_k < vocab_size) || o.top_p < 1 || o.min_p != 0;
}

// Of the weights that the device sums.
float temperature_of_sums(const SamplingOptions& o, std::int64_t vocab_size) {
  if (o.order == SamplingOrder::llama_cpp && o.temperature != 0 && has_filters(o, vocab_size))
    return 1;
  if (o.temperature == 0) return o.num_logprobs ? 1 : 0;
  return static_cast<float>(o.temperature);
}

template <class T>
T* part(Buffer& buffer, std::size_t& bytes, std::int64_t count) {
  T* data = reinterpret_cast<T*>(buffer.data() + bytes);
  bytes = round_up<std::size_t>(bytes + static_cast<std::size_t>(count) * sizeof(T), 256);
  return data;
}

template <class T>
ByteCopy copy_of(const T* from, T* to, std::int64_t count) {
  return {reinterpret_cast<const std::byte*>(from), reinterpret_cast<std::byte*>(to),
          static_cast<std::size_t>(count) * sizeof(T)};
}

}  // namespace

class DeviceSampler::State {
 public:
  State(Device& device, const DeviceInfo& host, std::int64_t max_draws, std::int64_t vocab_size,
        Stream stream)
      : device_(device),
        host_(host),
        stream_(stream),
        max_draws_(max_draws),
        vocab_size_(vocab_size),
        num_maxima_(ceil_div(vocab_size, kLogitBlock)),
        num_sums_(ceil_div(vocab_size, kWeightBlock)),
        filter_(host),
        sums_(static_cast<std::size_t>(max_draws)) {}
  // The device reads and writes memory of the host.
  ~State() { static_cast<void>(device_.synchronise(stream_)); }
  State(const State&) = delete;

  Status allocate();
  bool draws_alone(const SamplingOptions& o) const {
    return o.temperature == 0 || !has_filters(o, vocab_size_);
  }
  Status draw(const float* logits, std::span<Draw> draws);
  Status begin(const float* logits, std::span<const Draw> draws);
  Status end(std::span<Draw> draws);
  const std::int32_t* tokens_on_device() const { return tokens_; }
  std::int64_t max_draws() const { return max_draws_; }

 private:
  // The arrays of the passes. Summaries are copied to the host as one.
  struct Arrays {
    LogitQuery* queries;
    LogitRange* ranges;
    float* row_maxima;
    float* maxima;
    double* block_sums;
  };
  Arrays arrays_in(Buffer& buffer, std::size_t& bytes) const;
  // Those of the draws, then of weights that their logprobs need besides.
  std::int64_t max_queries() const { return 2 * max_draws_; }

  Status draw_some(const float* logits, std::span<Draw> draws);
  Status enqueue_summaries(const float* logits, std::span<const Draw> draws);
  Status read_summaries(std::size_t num_draws);
  void take_drawn(std::span<Draw> draws) const;
  LogitSummary summary_of(std::size_t i) const;
  LogitRange range_of(const Draw& draw, std::size_t i);
  Status gather(const float* logits, std::size_t num_draws);
  std::optional<std::int32_t> finish(const Draw& draw, std::size_t i);

  Device& device_;
  const DeviceInfo host_;
  const Stream stream_;
  const std::int64_t max_draws_, vocab_size_, num_maxima_, num_sums_;
  LogitFilter filter_;
  std::vector<double> sums_;      // of the weights of a draw
  std::int64_t num_queries_ = 0;  // of begin()

  Buffer on_device_, on_host_;  // Arrays
  Arrays device_arrays_{}, host_arrays_{};
  Buffer candidates_;  // of the host, written by the device
  std::int32_t* counts_ = nullptr;
  Candidate* known_ = nullptr;  // [max_draws, kMaxCandidates]
  DrawnToken* drawn_ = nullptr;
  std::int32_t* tokens_ = nullptr;  // in memory of the device
  cuda::Event has_drawn_;           // behind the draws of begin()
};

DeviceSampler::State::Arrays DeviceSampler::State::arrays_in(Buffer& buffer,
                                                             std::size_t& bytes) const {
  Arrays a{};
  a.queries = part<LogitQuery>(buffer, bytes, max_queries());
  a.ranges = part<LogitRange>(buffer, bytes, max_draws_);
  a.row_maxima = part<float>(buffer, bytes, max_queries());
  a.maxima = part<float>(buffer, bytes, max_queries() * num_maxima_);
  a.block_sums = part<double>(buffer, bytes, max_queries() * num_sums_);
  return a;
}

Status DeviceSampler::State::allocate() {
  std::size_t bytes = 0, candidate_bytes = 0;
  Buffer none;
  arrays_in(none, bytes);
  part<std::int32_t>(none, bytes, max_queries());
  part<std::int32_t>(none, candidate_bytes, max_draws_);
  part<Candidate>(none, candidate_bytes, max_draws_ * kMaxCandidates);
  part<DrawnToken>(none, candidate_bytes, max_queries());
  on_device_ = device_.allocate(bytes);
  on_host_ = device_.allocate_host(bytes);
  candidates_ = device_.allocate_host(candidate_bytes);
  if (on_device_.data() == nullptr || on_host_.data() == nullptr || candidates_.data() == nullptr)
    return Failure{ErrorCode::out_of_memory,
                   format_text("no memory to draw {} tokens at once; pass a smaller max_num_seqs",
                               max_draws_)};
  Result<cuda::Event> event = cuda::make_event(device_.info().device_id);
  if (!event.ok()) return std::move(event.failure());
  has_drawn_ = std::move(event.value());
  std::size_t at = 0;
  device_arrays_ = arrays_in(on_device_, at);
  tokens_ = part<std::int32_t>(on_device_, at, max_queries());
  host_arrays_ = arrays_in(on_host_, at = 0);
  candidate_bytes = 0;
  counts_ = part<std::int32_t>(candidates_, candidate_bytes, max_draws_);
  known_ = part<Candidate>(candidates_, candidate_bytes, max_draws_ * kMaxCandidates);
  drawn_ = part<DrawnToken>(candidates_, candidate_bytes, max_queries());
  return std::nullopt;
}

Status DeviceSampler::State::draw(const float* logits, std::span<Draw> draws) {
  while (!draws.empty()) {
    const std::span<Draw> now =
        draws.first(std::min(draws.size(), static_cast<std::size_t>(max_draws_)));
    draws = draws.subspan(now.size());
    const bool is_alone =
        std::ranges::all_of(now, [&](const Draw& draw) { return draws_alone(*draw.options); });
    HEADRACE_TRY(is_alone ? begin(logits, now) : draw_some(logits, now));
    if (is_alone) HEADRACE_TRY(end(now));
  }
  return std::nullopt;
}

Status DeviceSampler::State::begin(const float* logits, std::span<const Draw> draws) {
  HEADRACE_TRY(enqueue_summaries(logits, draws));
  HEADRACE_TRY(cuda::draw_tokens({.logits = logits,
                                  .vocab_size = vocab_size_,
                                  .queries = device_arrays_.queries,
                                  .num_queries = num_queries_,
                                  .maxima = device_arrays_.maxima,
                                  .block_sums = device_arrays_.block_sums,
                                  .row_maxima = device_arrays_.row_maxima,
                                  .drawn = drawn_,
                                  .tokens = tokens_},
                                 device_.info().device_id, stream_));
  return cuda::record(has_drawn_, stream_);
}

Status DeviceSampler::State::end(std::span<Draw> draws) {
  HEADRACE_TRY(cuda::wait(has_drawn_));
  take_drawn(draws);
  return std::nullopt;
}

// The tokens that the device drew alone.
void DeviceSampler::State::take_drawn(std::span<Draw> draws) const {
  std::size_t next = draws.size();
  for (std::size_t i = 0; i < draws.size(); ++i) {
    const SamplingOptions& o = *draws[i].options;
    const DrawnToken& drawn = drawn_[i];
    const double sum = needs_more_weights(o) ? drawn_[next++].sum : drawn.sum;
    if (!draws_alone(o)) continue;
    if (drawn.token < 0) {
      draws[i].failure =
          drawn.logit == -std::numeric_limits<float>::infinity()
              ? all_logits_forbidden(static_cast<std::size_t>(vocab_size_))
              : bad_logit_of_model(static_cast<std::size_t>(-1 - drawn.token), drawn.logit);
      continue;
    }
    draws[i].token = drawn.token;
    const bool is_raw = o.logprobs_mode == LogprobsMode::raw;
    if (!o.num_logprobs || (!is_raw && o.temperature == 0)) continue;
    draws[i].logprob = logprob_of(drawn.logit, static_cast<double>(drawn.max),
                                  is_raw ? 1 : o.temperature, std::log(sum));
  }
}

// Those that the device draws alone beside others.
Status DeviceSampler::State::draw_some(const float* logits, std::span<Draw> draws) {
  HEADRACE_TRY(begin(logits, draws));
  HEADRACE_TRY(read_summaries(draws.size()));
  for (std::size_t i = 0; i < draws.size(); ++i) host_arrays_.ranges[i] = range_of(draws[i], i);
  HEADRACE_TRY(gather(logits, draws.size()));
  take_drawn(draws);
  for (std::size_t i = 0; i < draws.size(); ++i)
    if (!draws_alone(*draws[i].options)) draws[i].token = finish(draws[i], i);
  return std::nullopt;
}

Status DeviceSampler::State::enqueue_summaries(const float* logits, std::span<const Draw> draws) {
  constexpr double kLargest = -1;  // in place of a random number
  num_queries_ = 0;
  for (const Draw& draw : draws) {
    const SamplingOptions& o = *draw.options;
    host_arrays_.queries[num_queries_++] = {
        draw.row, temperature_of_sums(o, vocab_size_),
        o.temperature == 0
            ? kLargest
            : uniform_at(o.seed, draw.sequence_id, draw.position, UniformPurpose::sampling)};
  }
  for (const Draw& draw : draws)
    if (needs_more_weights(*draw.options))
      host_arrays_.queries[num_queries_++] = {draw.row, 1, kLargest};
  const Arrays& d = device_arrays_;
  const ByteCopy queries = copy_of(host_arrays_.queries, d.queries, num_queries_);
  HEADRACE_TRY(device_.copy({&queries, 1}, stream_));
  return cuda::summarise_logits({.logits = logits,
                                 .vocab_size = vocab_size_,
                                 .queries = d.queries,
                                 .num_queries = num_queries_,
                                 .maxima = d.maxima,
                                 .block_sums = d.block_sums,
                                 .row_maxima = d.row_maxima},
                                device_.info().device_id, stream_);
}

Status DeviceSampler::State::read_summaries(std::size_t num_draws) {
  const auto count = static_cast<std::int64_t>(num_draws);
  const Arrays &d = device_arrays_, &h = host_arrays_;
  const ByteCopy summaries[] = {copy_of(d.row_maxima, h.row_maxima, count),
                                copy_of(d.maxima, h.maxima, count * num_maxima_),
                                copy_of(d.block_sums, h.block_sums, count * num_sums_)};
  HEADRACE_TRY(device_.copy(summaries, stream_));
  return device_.synchronise(stream_);
}

LogitSummary DeviceSampler::State::summary_of(std::size_t i) const {
  const auto num_maxima = static_cast<std::size_t>(num_maxima_),
             num_sums = static_cast<std::size_t>(num_sums_);
  return {.num_logits = vocab_size_,
          .max = host_arrays_.row_maxima[i],
          .maxima = {host_arrays_.maxima + i * num_maxima, num_maxima},
          .block_sums = {host_arrays_.block_sums + i * num_sums, num_sums}};
}

// The logits that the filters of the draw need.
LogitRange DeviceSampler::State::range_of(const Draw& draw, std::size_t i) {
  const SamplingOptions& o = *draw.options;
  const LogitSummary summary = summary_of(i);
  LogitRange range{.row = draw.row, .first_block = 0, .last_block = 0, .at_least = 0};
  if (draws_alone(o) || !std::isfinite(summary.max)) return range;  // none
  sums_[i] = 0;
  for (const double sum : summary.block_sums) sums_[i] += sum;
  range.last_block = static_cast<std::int32_t>(num_maxima_);
  range.at_least = filter_.needed(o, summary, sums_[i]);
  return range;
}

Status DeviceSampler::State::gather(const float* logits, std::size_t num_draws) {
  const ByteCopy ranges =
      copy_of(host_arrays_.ranges, device_arrays_.ranges, static_cast<std::int64_t>(num_draws));
  HEADRACE_TRY(device_.copy({&ranges, 1}, stream_));
  HEADRACE_TRY(cuda::gather_logits({.logits = logits,
                                    .vocab_size = vocab_size_,
                                    .ranges = device_arrays_.ranges,
                                    .num_ranges = static_cast<std::int64_t>(num_draws),
                                    .maxima = device_arrays_.maxima,
                                    .candidates = known_,
                                    .max_candidates = kMaxCandidates,
                                    .counts = counts_},
                                   device_.info().device_id, stream_));
  return device_.synchronise(stream_);
}

std::optional<std::int32_t> DeviceSampler::State::finish(const Draw& draw, std::size_t i) {
  const SamplingOptions& o = *draw.options;
  const LogitSummary summary = summary_of(i);
  const auto count = static_cast<std::size_t>(counts_[i]);
  if (!std::isfinite(summary.max) || counts_[i] > kMaxCandidates) return std::nullopt;
  const std::span<const Candidate> known{known_ + i * kMaxCandidates, count};
  filter_.begin(summary, sums_[i], known);
  filter_.apply(o);
  if (filter_.keeps_all()) return std::nullopt;  // by rounding, or top_k beyond the block maxima
  const Distribution left = filter_.distribution(o.temperature);
  return left.tokens[filter_.pick(
      uniform_at(o.seed, draw.sequence_id, draw.position, UniformPurpose::sampling))];
}

bool DeviceSampler::takes(const SamplingOptions& o) {
  const bool has_no_filters = o.temperature == 0 || (o.top_k == 0 && o.top_p == 1 && o.min_p == 0);
  return o.logit_bias.empty() && o.repetition_penalty == 1 && o.presence_penalty == 0 &&
         o.frequency_penalty == 0 && (!o.num_logprobs || (*o.num_logprobs == 0 && has_no_filters));
}

Result<DeviceSampler> DeviceSampler::make(Device& device, const DeviceInfo& host,
                                          std::int64_t max_draws, std::int64_t vocab_size,
                                          Stream stream) {
  if (device.info().device_type != HEADRACE_CUDA)
    return unsupported("a device sampler on [{}]: must be a GPU; use a sampler of the host",
                       device_text(device.info()));
  if (max_draws > kMaxDraws)
    return unsupported("{} tokens drawn at once on a GPU, at most {}; pass a smaller max_num_seqs",
                       max_draws, kMaxDraws);
  if (vocab_size > kMaxGatherLogits)
    return unsupported("a vocabulary of {} tokens on a GPU, at most {}; use a sampler of the host",
                       vocab_size, kMaxGatherLogits);
  auto state = std::make_unique<State>(device, host, max_draws, vocab_size, stream);
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
Status DeviceSampler::begin(const float* logits, std::span<const Draw> draws) {
  return state_->begin(logits, draws);
}
Status DeviceSampler::end(std::span<Draw> draws) { return state_->end(draws); }
const std::int32_t* DeviceSampler::tokens_on_device() const { return state_->tokens_on_device(); }
std::int64_t DeviceSampler::max_draws() const { return state_->max_draws(); }
bool DeviceSampler::draws_alone(const SamplingOptions& options) const {
  return state_->draws_alone(options);
}

}  // namespace headrace
