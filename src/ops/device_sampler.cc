#include "ops/device_sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "backends/cuda/backend.h"
#include "base/math.h"
#include "core/sampling_args.h"
#include "ops/device_edits.h"
#include "ops/logit_filter.h"
#include "ops/penalised_tokens.h"
#include "ops/uniform.h"

namespace headrace {
namespace {

// For the largest logits of a draw. A row with more leaves the draw to the host.
constexpr std::int64_t kMaxCandidates = 4096;
// A draw has up to two queries.
constexpr std::int64_t kMaxDraws = kMaxLogitQueries / 2;
// Of a round, which bound its memory; draws with more take another one. Bytes of rows that biases
// and penalties change (523 of a vocabulary of 128256), of masks (4185), and ranges of candidates.
constexpr std::int64_t kMaxEditedBytes = 256 << 20, kMaxMaskBytes = 64 << 20, kMaxRanges = 512;
constexpr double kLargest = -1;  // in place of a random number
constexpr float kInfinity = std::numeric_limits<float>::infinity();

LogitFilters filters_of(const SamplingOptions& o, std::int64_t vocab_size) {
  if (o.temperature == 0) return {};
  const bool has_top_k = o.top_k < vocab_size;
  return {.top_k = has_top_k ? static_cast<std::int32_t>(o.top_k) : 0,
          .keeps_ties = o.order != SamplingOrder::llama_cpp,
          .is_min_p_first = o.order == SamplingOrder::vllm,
          .top_p = o.top_p,
          .min_p_offset = min_p_offset(o.min_p, filter_temperature(o))};
}

// Of the weights that the device sums.
float temperature_of_sums(const SamplingOptions& o, const LogitFilters& filters) {
  if (o.temperature == 0) return o.num_logprobs ? 1 : 0;
  return static_cast<float>(filters.has_any() ? filter_temperature(o) : o.temperature);
}

// Parts of up to max_draws draws that fit in max_bytes: at least one.
std::int64_t num_that_fit(std::int64_t max_draws, std::int64_t bytes, std::int64_t max_bytes) {
  return std::clamp<std::int64_t>(max_bytes / bytes, 1, max_draws);
}

double uniform_of(const DeviceSampler::Draw& draw) {
  return uniform_at(draw.options->seed, draw.input.sequence_id, draw.input.position,
                    UniformPurpose::sampling);
}

// Logprobs of the largest logits, which the host computes.
bool has_top_logprobs(const SamplingOptions& o) {
  const bool is_one = o.logprobs_mode == LogprobsMode::processed && o.temperature == 0;
  return o.num_logprobs.value_or(0) > 0 && !is_one;
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
  State(Device& device, std::int64_t max_draws, std::int64_t vocab_size)
      : device_(device),
        max_draws_(max_draws),
        vocab_size_(vocab_size),
        num_maxima_(ceil_div(vocab_size, kLogitBlock)),
        num_sums_(ceil_div(vocab_size, kWeightBlock)),
        edits_(device, vocab_size, num_that_fit(max_draws, 4 * vocab_size, kMaxEditedBytes),
               num_that_fit(max_draws, 8 * num_maxima_, kMaxMaskBytes)),
        plans_(static_cast<std::size_t>(max_draws)) {}
  // The device reads and writes memory of the host.
  ~State() {
    if (!stream_) return;
    static_cast<void>(device_.synchronise(uploads_.get()));
    static_cast<void>(device_.synchronise(*stream_));
  }
  State(const State&) = delete;

  Status allocate();
  Status draw(const float* logits, std::span<Draw> draws, Stream stream);
  Result<bool> begin(const float* logits, std::span<const Draw> draws, Stream stream);
  Status end(std::span<Draw> draws);
  const std::int32_t* tokens_on_device() const { return tokens_; }

 private:
  // The arrays of the passes.
  struct Arrays {
    LogitQuery* queries;
    LogitRange* ranges;
    float* maxima;
  };
  // The queries of draws come first, then others of their logprobs. -1: none.
  struct Plan {
    bool is_left = false;  // to the host
    std::int64_t logprob_query = -1;
    std::int64_t top_range = -1;  // for top_logprobs
  };
  Arrays arrays_in(Buffer& buffer, std::size_t& bytes) const;
  std::int64_t max_queries() const { return 2 * max_draws_; }
  std::int64_t max_ranges() const { return std::min(max_draws_, kMaxRanges); }

  static bool has_ranges(std::span<const Draw> draws) {
    return std::ranges::any_of(draws, [](const Draw& d) { return has_top_logprobs(*d.options); });
  }
  std::size_t plan(const float* logits, std::span<const Draw> draws);
  Status enqueue();
  Status pick_out(std::span<const Draw> draws);
  float least_of_largest(std::int64_t query, std::int64_t count);
  Status gather();
  void finish(Draw& draw, std::size_t i);
  Failure failure_of(const DrawnToken& drawn) const;
  bool add_logprobs(Draw& draw, std::size_t i);

  Device& device_;
  std::optional<Stream> stream_;  // of the last draws
  cuda::OwnedStream uploads_;     // beside it, while it computes the logits
  const std::int64_t max_draws_, vocab_size_, num_maxima_, num_sums_;
  DeviceEdits edits_;
  std::vector<Plan> plans_;
  std::int64_t num_queries_ = 0, num_ranges_ = 0;  // of the plans
  bool has_weights_ = false;                       // a query has a temperature
  bool has_filters_ = false;                       // a query has filters
  std::vector<float> scratch_;                     // of least_of_largest()
  std::vector<Candidate> largest_;

  Buffer on_device_, on_host_;  // Arrays
  Arrays device_arrays_{}, host_arrays_{};
  double* block_sums_ = nullptr;  // in memory of the device, as the next one
  std::int32_t* tokens_ = nullptr;
  Buffer found_;  // of the host, written by the device
  std::int32_t* counts_ = nullptr;
  Candidate* candidates_ = nullptr;  // [max_ranges, kMaxCandidates]
  DrawnToken* drawn_ = nullptr;
  cuda::Event has_uploaded_, has_drawn_;  // behind the uploads and the draws of enqueue()
};

DeviceSampler::State::Arrays DeviceSampler::State::arrays_in(Buffer& buffer,
                                                             std::size_t& bytes) const {
  Arrays a{};
  a.queries = part<LogitQuery>(buffer, bytes, max_queries());
  a.ranges = part<LogitRange>(buffer, bytes, max_ranges());
  a.maxima = part<float>(buffer, bytes, max_queries() * num_maxima_);
  return a;
}

Status DeviceSampler::State::allocate() {
  const int device_id = device_.info().device_id;
  for (cuda::Event* event : {&has_uploaded_, &has_drawn_}) {
    Result<cuda::Event> made = cuda::make_event(device_id);
    if (!made.ok()) return std::move(made.failure());
    *event = std::move(made.value());
  }
  Result<cuda::OwnedStream> stream = cuda::make_stream(device_id);
  if (!stream.ok()) return std::move(stream.failure());
  uploads_ = std::move(stream.value());
  // First the sizes, then the places.
  for (const bool is_allocated : {false, true}) {
    std::size_t bytes = 0, host_bytes = 0, found_bytes = 0;
    device_arrays_ = arrays_in(on_device_, bytes);
    block_sums_ = part<double>(on_device_, bytes, max_queries() * num_sums_);
    tokens_ = part<std::int32_t>(on_device_, bytes, max_queries());
    host_arrays_ = arrays_in(on_host_, host_bytes);
    counts_ = part<std::int32_t>(found_, found_bytes, max_ranges());
    candidates_ = part<Candidate>(found_, found_bytes, max_ranges() * kMaxCandidates);
    drawn_ = part<DrawnToken>(found_, found_bytes, max_queries());
    if (is_allocated) break;
    on_device_ = device_.allocate(bytes);
    on_host_ = device_.allocate_host(host_bytes);
    found_ = device_.allocate_host(found_bytes);
    if (!edits_.allocate() || on_device_.data() == nullptr || on_host_.data() == nullptr ||
        found_.data() == nullptr)
      return Failure{ErrorCode::out_of_memory,
                     format_text("no memory to draw {} tokens at once; pass a smaller max_num_seqs",
                                 max_draws_)};
  }
  return std::nullopt;
}

Status DeviceSampler::State::draw(const float* logits, std::span<Draw> draws, Stream stream) {
  HEADRACE_TRY(cuda::wait(has_drawn_));  // draws that begin() made and an exception dropped
  stream_ = stream;
  while (!draws.empty()) {
    const std::span<Draw> now = draws.first(plan(logits, draws));
    draws = draws.subspan(now.size());
    HEADRACE_TRY(enqueue());
    if (has_ranges(now)) HEADRACE_TRY(pick_out(now));
    HEADRACE_TRY(end(now));
  }
  return std::nullopt;
}

Result<bool> DeviceSampler::State::begin(const float* logits, std::span<const Draw> draws,
                                         Stream stream) {
  if (Status failed = cuda::wait(has_drawn_)) return std::move(*failed);  // as in draw()
  if (has_ranges(draws) || plan(logits, draws) < draws.size()) return false;
  const std::span<const Plan> plans = std::span(plans_).first(draws.size());
  if (std::ranges::any_of(plans, &Plan::is_left)) return false;
  stream_ = stream;
  if (Status failed = enqueue()) return std::move(*failed);
  return true;
}

Status DeviceSampler::State::end(std::span<Draw> draws) {
  HEADRACE_TRY(cuda::wait(has_drawn_));
  for (std::size_t i = 0; i < draws.size(); ++i) finish(draws[i], i);
  return std::nullopt;
}

// Of the first draws, as many as fit: their number.
std::size_t DeviceSampler::State::plan(const float* logits, std::span<const Draw> draws) {
  edits_.clear();
  num_queries_ = num_ranges_ = 0;
  LogitQuery* const queries = host_arrays_.queries;
  has_filters_ = false;
  std::int64_t num_ranges = 0;  // that the draws may need
  for (const Draw& draw :
       draws.first(std::min(draws.size(), static_cast<std::size_t>(max_draws_)))) {
    const SamplingOptions& o = *draw.options;
    const float* const row = logits + draw.row * vocab_size_;
    DeviceEdits::Edited edited{.row = row};
    if ((num_ranges += has_top_logprobs(o)) > max_ranges()) break;
    if (!draw.input.mask.empty() || changes_logits(o)) {
      if (edits_.is_full()) break;
      edited = edits_.add(row, draw.input, o);
    }
    const bool is_left = edited.row == nullptr;
    plans_[static_cast<std::size_t>(num_queries_)] = {.is_left = is_left};
    const LogitFilters filters = filters_of(o, vocab_size_);
    queries[num_queries_++] = {.row = is_left ? row : edited.row,
                               .model_row = row,
                               .mask = edited.mask,
                               .temperature = temperature_of_sums(o, filters),
                               .uniform = o.temperature == 0 ? kLargest : uniform_of(draw),
                               .is_filtered = filters.has_any(),
                               .filtered_temperature = static_cast<float>(o.temperature),
                               .filters = filters};
    has_filters_ |= filters.has_any();
  }
  const auto num_draws = static_cast<std::size_t>(num_queries_);
  for (std::size_t i = 0; i < num_draws; ++i) {
    const SamplingOptions& o = *draws[i].options;
    const LogitQuery& own = queries[i];
    if (!o.num_logprobs || o.logprobs_mode != LogprobsMode::raw) continue;
    const bool is_own =
        own.row == own.model_row && own.mask == nullptr && own.temperature == 1 && !own.is_filtered;
    plans_[i].logprob_query = is_own ? static_cast<std::int64_t>(i) : num_queries_;
    if (!is_own)
      queries[num_queries_++] = {.row = own.model_row,
                                 .model_row = own.model_row,
                                 .mask = nullptr,
                                 .temperature = 1,
                                 .uniform = kLargest};
  }
  has_weights_ =
      std::ranges::any_of(std::span(queries, static_cast<std::size_t>(num_queries_)),
                          [](const LogitQuery& query) { return query.temperature != 0; });
  return num_draws;
}

// The passes that need no host. Masks of 256 draws have 4 MB, which a stream of their own copies
// while the logits are computed; the draws before have ended.
Status DeviceSampler::State::enqueue() {
  const int device_id = device_.info().device_id;
  const Arrays& d = device_arrays_;
  const ByteCopy queries = copy_of(host_arrays_.queries, d.queries, num_queries_);
  HEADRACE_TRY(device_.copy({&queries, 1}, *stream_));
  if (!edits_.is_empty()) {
    HEADRACE_TRY(edits_.upload(uploads_.get()));
    HEADRACE_TRY(cuda::record(has_uploaded_, uploads_.get()));
    HEADRACE_TRY(cuda::wait_on(*stream_, has_uploaded_));
    HEADRACE_TRY(edits_.apply(*stream_));
  }
  HEADRACE_TRY(cuda::summarise_logits({.vocab_size = vocab_size_,
                                       .queries = d.queries,
                                       .num_queries = num_queries_,
                                       .has_weights = has_weights_,
                                       .maxima = d.maxima,
                                       .block_sums = block_sums_},
                                      device_id, *stream_));
  HEADRACE_TRY(cuda::draw_tokens({.vocab_size = vocab_size_,
                                  .queries = d.queries,
                                  .num_queries = num_queries_,
                                  .has_filters = has_filters_,
                                  .maxima = d.maxima,
                                  .block_sums = block_sums_,
                                  .drawn = drawn_,
                                  .tokens = tokens_},
                                 device_id, *stream_));
  return cuda::record(has_drawn_, *stream_);
}

// The logits that may be among the largest.
Status DeviceSampler::State::pick_out(std::span<const Draw> draws) {
  const ByteCopy maxima =
      copy_of(device_arrays_.maxima, host_arrays_.maxima, num_queries_ * num_maxima_);
  HEADRACE_TRY(device_.copy({&maxima, 1}, *stream_));
  HEADRACE_TRY(device_.synchronise(*stream_));
  for (std::size_t i = 0; i < draws.size(); ++i) {
    const SamplingOptions& o = *draws[i].options;
    Plan& plan = plans_[i];
    if (plan.is_left || drawn_[i].token < 0 || !has_top_logprobs(o)) continue;
    const bool is_raw = o.logprobs_mode == LogprobsMode::raw;
    const std::int64_t query = is_raw ? plan.logprob_query : static_cast<std::int64_t>(i);
    host_arrays_.ranges[num_ranges_] = {static_cast<std::int32_t>(query),
                                        least_of_largest(query, *o.num_logprobs)};
    plan.top_range = num_ranges_++;
  }
  return num_ranges_ == 0 ? std::nullopt : gather();
}

// The `count` largest logits of a row are at least this large.
float DeviceSampler::State::least_of_largest(std::int64_t query, std::int64_t count) {
  const auto num_maxima = static_cast<std::size_t>(num_maxima_);
  scratch_.resize(num_maxima);
  return kth_largest({host_arrays_.maxima + query * num_maxima_, num_maxima}, count, scratch_);
}

Status DeviceSampler::State::gather() {
  const ByteCopy ranges = copy_of(host_arrays_.ranges, device_arrays_.ranges, num_ranges_);
  HEADRACE_TRY(device_.copy({&ranges, 1}, *stream_));
  HEADRACE_TRY(cuda::gather_logits({.vocab_size = vocab_size_,
                                    .queries = device_arrays_.queries,
                                    .ranges = device_arrays_.ranges,
                                    .num_ranges = num_ranges_,
                                    .maxima = device_arrays_.maxima,
                                    .candidates = candidates_,
                                    .max_candidates = kMaxCandidates,
                                    .counts = counts_},
                                   device_.info().device_id, *stream_));
  return device_.synchronise(*stream_);
}

// Where something is missing, the draw has no result.
void DeviceSampler::State::finish(Draw& draw, std::size_t i) {
  const Plan& plan = plans_[i];
  const DrawnToken& drawn = drawn_[i];
  if (plan.is_left) return;
  if (drawn.token < 0) {
    draw.failure = failure_of(drawn);
    return;
  }
  if (draw.options->num_logprobs && !add_logprobs(draw, i)) return;
  draw.token = drawn.token;
}

Failure DeviceSampler::State::failure_of(const DrawnToken& drawn) const {
  if (drawn.logit == -kInfinity) return all_logits_forbidden(static_cast<std::size_t>(vocab_size_));
  const auto token = static_cast<std::size_t>(-1 - drawn.token);
  if (!(drawn.model_logit < kInfinity)) return bad_logit_of_model(token, drawn.model_logit);
  return bad_edited_logit(token, drawn.logit, drawn.model_logit);
}

// Sampler::State::add_logprobs() of what is known. False: there are too many candidates.
bool DeviceSampler::State::add_logprobs(Draw& draw, std::size_t i) {
  const SamplingOptions& o = *draw.options;
  const Plan& plan = plans_[i];
  const DrawnToken& drawn = drawn_[i];
  const bool is_raw = o.logprobs_mode == LogprobsMode::raw;
  draw.top_logprobs.clear();
  if (!is_raw && o.temperature == 0) {
    if (*o.num_logprobs > 0) draw.top_logprobs.push_back({drawn.token, 0});
    return true;
  }
  const DrawnToken& of_logprobs = is_raw ? drawn_[plan.logprob_query] : drawn;
  const double max = of_logprobs.max, temperature = is_raw ? 1 : o.temperature;
  const double log_sum = std::log(of_logprobs.sum);
  const auto logprob = [&](float logit) { return logprob_of(logit, max, temperature, log_sum); };
  draw.logprob = logprob(is_raw ? drawn.model_logit : drawn.logit);
  if (plan.top_range < 0) return true;
  const std::int32_t count = counts_[plan.top_range];
  if (count > kMaxCandidates) return false;
  const std::span candidates(candidates_ + plan.top_range * kMaxCandidates,
                             static_cast<std::size_t>(count));
  largest_.clear();
  for (const Candidate& c : candidates)
    if (of_logprobs.bound.keeps(c.logit, c.token)) largest_.push_back(c);
  keep_largest(largest_, *o.num_logprobs);
  for (const Candidate& candidate : largest_)
    draw.top_logprobs.push_back({candidate.token, logprob(candidate.logit)});
  return true;
}

Result<DeviceSampler> DeviceSampler::make(Device& device, std::int64_t max_draws,
                                          std::int64_t vocab_size) {
  if (device.info().device_type != HEADRACE_CUDA)
    return unsupported("a device sampler on [{}]: must be a GPU; use a sampler of the host",
                       device_text(device.info()));
  if (max_draws > kMaxDraws)
    return unsupported("{} tokens drawn at once on a GPU, at most {}; pass a smaller max_num_seqs",
                       max_draws, kMaxDraws);
  if (vocab_size > kMaxDeviceLogits)
    return unsupported("a vocabulary of {} tokens on a GPU, at most {}; use a sampler of the host",
                       vocab_size, kMaxDeviceLogits);
  auto state = std::make_unique<State>(device, max_draws, vocab_size);
  if (Status bad = state->allocate()) return std::move(*bad);
  return DeviceSampler(std::move(state));
}

DeviceSampler::DeviceSampler(std::unique_ptr<State> state) : state_(std::move(state)) {}
DeviceSampler::~DeviceSampler() = default;
DeviceSampler::DeviceSampler(DeviceSampler&&) noexcept = default;
DeviceSampler& DeviceSampler::operator=(DeviceSampler&&) noexcept = default;

Status DeviceSampler::draw(const float* logits, std::span<Draw> draws, Stream stream) {
  return state_->draw(logits, draws, stream);
}
Result<bool> DeviceSampler::begin(const float* logits, std::span<const Draw> draws, Stream stream) {
  return state_->begin(logits, draws, stream);
}
const std::int32_t* DeviceSampler::tokens_on_device() const { return state_->tokens_on_device(); }
Status DeviceSampler::end(std::span<Draw> draws) { return state_->end(draws); }

}  // namespace headrace
