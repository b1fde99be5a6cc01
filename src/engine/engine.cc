#include "engine/engine.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "base/math.h"
#include "runtime/device_wait.h"

namespace headrace::engine {
namespace {

constexpr std::int64_t kMaxSamples = 1024;             // of a request
constexpr std::int64_t kCpuSeqs = 32, kGpuSeqs = 256;  // that run at once
// The rows of the largest tiles of products. An H200 (700 TFLOPS, 4.4 TB/s) reads 16-bit weights in
// the time in which it multiplies 160 tokens by them, so a step of 256 tokens takes little longer
// than one of decodes alone.
constexpr std::int64_t kGpuPromptTile = 256;

// Attention kernels compute a sequence with more rows than this (tokens x heads of a group) as a
// long prompt, whatever their number.
constexpr std::int64_t kMaxShortRows = 64;

Status check_range(const char* name, std::int64_t value, std::int64_t low, std::int64_t high,
                   const char* remedy) {
  if (value >= low && value <= high) return std::nullopt;
  return invalid_argument("{}={}: must be {} to {}; {}", name, value, low, high, remedy);
}

std::int64_t min_chunk(const model::Config& config) {
  return kMaxShortRows / (config.num_heads / config.num_kv_heads) + 1;
}

// With the defaults that depend on the model.
Result<EngineOptions> resolved(const LanguageModel& model, EngineOptions o) {
  const model::Config& config = model.decoder->config;
  if (o.max_tokens == 0) o.max_tokens = config.context_length;
  if (o.max_num_seqs == 0) o.max_num_seqs = is_on_gpu(model) ? kGpuSeqs : kCpuSeqs;
  // Room for prompts beside the sequences that decode.
  if (o.max_batch_tokens == 0)
    o.max_batch_tokens = std::max(is_on_gpu(model) ? kGpuEngineTokens : kCpuBatchTokens,
                                  2 * std::min(o.max_num_seqs, kMaxBatchTokens));
  if (Status bad = check_range("max_tokens", o.max_tokens, 1, config.context_length,
                               "pass 0 for the model's context_length"))
    return std::move(*bad);
  if (Status bad = check_range("max_batch_tokens", o.max_batch_tokens, 1, kMaxBatchTokens,
                               "pass 0 for the default"))
    return std::move(*bad);
  if (Status bad = Scheduler::check_num_seqs(o.max_num_seqs, o.max_batch_tokens))
    return std::move(*bad);
  // A CPU computes a prompt no faster in one step than in several, which tokens wait for.
  if (o.max_prompt_tokens == 0)
    o.max_prompt_tokens =
        is_on_gpu(model) ? o.max_batch_tokens : least_prompt_tokens(min_chunk(config));
  if (Status bad = check_range("max_requests", o.max_requests, 1, INT32_MAX,
                               "pass the number of requests that may wait and run"))
    return std::move(*bad);
  o.page_size = whole_page_size(o.page_size, o.k_dtype, o.v_dtype);
  if (o.num_pages == 0 && !is_on_gpu(model))
    o.num_pages = 4 * ceil_div(o.max_tokens, std::max<std::int64_t>(o.page_size, 1));
  return o;
}

SchedulerOptions scheduler_options(const LanguageModel& model, const EngineOptions& o,
                                   Stream stream) {
  return {.max_batch_tokens = o.max_batch_tokens,
          .max_prompt_tokens = o.max_prompt_tokens,
          .prompt_tile = is_on_gpu(model) ? kGpuPromptTile : 0,
          .max_num_seqs = o.max_num_seqs,
          .max_length = o.max_tokens,
          .min_chunk = min_chunk(model.decoder->config),
          .watermark_pages = o.num_pages / 100,
          .stream = stream};
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::make(const LanguageModel& model,
                                             const EngineOptions& options) {
  const model::Config& config = model.decoder->config;
  Result<EngineOptions> all = resolved(model, options);
  if (!all.ok()) return std::move(all.failure());
  EngineOptions& o = all.value();
  // Before the pages, which may take most of what is free.
  std::optional<DeviceSampler> device_sampler;
  if (is_on_gpu(model)) {
    Result<DeviceSampler> made =
        DeviceSampler::make(*model.device, o.max_num_seqs, config.vocab_size);
    if (!made.ok()) return std::move(made.failure());
    device_sampler.emplace(std::move(made.value()));
  }
  Result<ModelRunner> runner =
      ModelRunner::make(model, {.max_batch_tokens = o.max_batch_tokens,
                                .page_size = o.page_size,
                                .num_pages = o.num_pages,
                                .max_tokens_to_fit = o.max_tokens,
                                .num_host_pages = o.num_host_pages,
                                .cache_dtype = o.cache_dtype,
                                .k_dtype = o.k_dtype,
                                .v_dtype = o.v_dtype,
                                .max_sequences = o.max_num_seqs,
                                .max_logits = std::min(o.max_num_seqs, o.max_batch_tokens),
                                .has_prefix_cache = o.has_prefix_cache});
  if (!runner.ok()) return std::move(runner.failure());
  auto owned = std::make_unique<ModelRunner>(std::move(runner.value()));
  o.num_pages = owned->cache().options().num_pages;
  Result<Scheduler> scheduler =
      Scheduler::make(owned->cache(), scheduler_options(model, o, owned->stream()));
  if (!scheduler.ok()) return std::move(scheduler.failure());
  Result<Sampler> sampler = Sampler::make(model.host);
  if (!sampler.ok()) return std::move(sampler.failure());
  std::optional<HostSampler> host_sampler;
  if (!device_sampler) {
    Result<HostSampler> made = HostSampler::make(model.device->info());
    if (!made.ok()) return std::move(made.failure());
    host_sampler.emplace(std::move(made.value()));
  }
  const std::int64_t num_rows = device_sampler ? 1 : o.max_num_seqs;
  Buffer logits = model.device->allocate_host(
      static_cast<std::size_t>(num_rows * config.vocab_size) * sizeof(float));
  if (logits.data() == nullptr)
    return Failure{ErrorCode::out_of_memory,
                   format_text("max_num_seqs={}: no memory for the logits of as many tokens; pass "
                               "a smaller number",
                               o.max_num_seqs)};
  return std::unique_ptr<Engine>(new Engine(
      model, o, std::move(owned), std::move(scheduler.value()), std::move(sampler.value()),
      std::move(host_sampler), std::move(device_sampler), std::move(logits)));
}

Engine::Engine(const LanguageModel& model, const EngineOptions& options,
               std::unique_ptr<ModelRunner> runner, Scheduler scheduler, Sampler sampler,
               std::optional<HostSampler> host_sampler, std::optional<DeviceSampler> device_sampler,
               Buffer logits)
    : model_(model),
      options_(options),
      runner_(std::move(runner)),
      scheduler_(std::move(scheduler)),
      sampler_(std::move(sampler)),
      host_sampler_(std::move(host_sampler)),
      device_sampler_(std::move(device_sampler)),
      logits_(std::move(logits)) {
  update_stats();
}

// ---- any thread ----

Status Engine::check(const Request& request) const {
  if (request.prompt.empty())
    return invalid_argument("prompt: has no tokens; pass at least one, such as the BOS token");
  if (std::ssize(request.prompt) > options_.max_tokens)
    return invalid_argument(
        "prompt: has {} tokens, the engine's max_tokens is {}; shorten it or create an engine with "
        "a larger max_tokens",
        request.prompt.size(), options_.max_tokens);
  HEADRACE_TRY(model_.decoder->check_tokens("prompt", request.prompt));
  HEADRACE_TRY(model_.decoder->check_tokens("stop_tokens", request.stop_tokens));
  if (request.beam_width != 0) HEADRACE_TRY(check_beams(request));
  HEADRACE_TRY(check_range("n", request.n, 1, kMaxSamples, "add several requests for more"));
  if (request.n > 1 && request.sampling.temperature == 0)
    return invalid_argument(
        "n={} with temperature=0: greedy samples are equal; pass a temperature above 0, or n=1",
        request.n);
  HEADRACE_TRY(check_grammar(request.grammar.get(), model_.tokenizer, request.ignore_end));
  HEADRACE_TRY(
      check_range("max_new_tokens", request.max_new_tokens, 0, INT64_MAX, "pass 0 for no limit"));
  HEADRACE_TRY(check_range("cache_salt", request.cache_salt, 0, Scheduler::kMaxCacheSalt,
                           "pass 0 where all requests may share cached prompts"));
  return check_sampling_options(request.sampling, model_.decoder->config.vocab_size);
}

Result<std::int64_t> Engine::add(Request request) {
  if (Status bad = check(request)) return std::move(*bad);
  const Result<text::StopMatcher> stops = text::StopMatcher::make(request.stop);
  if (!stops.ok()) return stops.failure();
  if (request.beam_width != 0) {
    request.n = request.beam_width;
    request.sampling.num_logprobs = 0;  // of the tokens
  }
  Record record{.samples = std::vector<Gain>(static_cast<std::size_t>(request.n)),
                .num_open = request.n,
                .num_unpolled = request.n};
  for (std::size_t i = 0; i < record.samples.size(); ++i) {
    Output& output = record.samples[i].output;
    output.sample = static_cast<std::int64_t>(i);
    output.num_logprobs = request.sampling.num_logprobs;
  }
  const std::lock_guard lock(mutex_);
  if (failure_) return Failure(*failure_);
  if (std::ssize(records_) >= options_.max_requests)
    return Failure{ErrorCode::busy,
                   format_text("max_requests={}: as many requests have not ended or were not "
                               "polled; poll their outputs and add this one later",
                               options_.max_requests)};
  const std::int64_t id = last_request_ + 1;
  for (Gain& gain : record.samples) gain.output.request = id;
  std::list<Queued> queued;
  queued.push_back({id, std::move(request)});
  queued.back().record = &records_.emplace(id, std::move(record)).first->second;
  queued_.splice(queued_.end(), queued);  // nothing throws from here on
  return ++last_request_;
}

Status Engine::abort(std::int64_t id) {
  const std::lock_guard lock(mutex_);
  HEADRACE_TRY(check_range("id", id, 1, last_request_, "pass an id that add returned"));
  if (records_.contains(id)) aborted_.push_back(id);
  return std::nullopt;
}

std::optional<Output> Engine::poll() {
  const std::lock_guard lock(mutex_);
  if (polled_next_ == nullptr) return std::nullopt;
  Gain& gain = *polled_next_;
  Output rest{.request = gain.output.request,
              .sample = gain.output.sample,
              .num_logprobs = gain.output.num_logprobs};
  if (!gain.output.finish) rest.tokens.reserve(gain.output.tokens.size());
  // Nothing throws from here on.
  polled_next_ = gain.next;
  gain.is_listed = false;
  Output output = std::exchange(gain.output, std::move(rest));
  if (output.finish) {
    const auto record = records_.find(output.request);
    if (--record->second.num_unpolled == 0) records_.erase(record);
  }
  return output;
}

EngineStats Engine::stats() const {
  const std::lock_guard lock(mutex_);
  EngineStats stats = stats_;
  stats.sequences.num_waiting += std::ssize(queued_);
  stats.num_requests = std::ssize(records_);
  stats.num_finished_requests = num_finished_requests_;
  return stats;
}

// ---- the thread that steps ----

Status Engine::run() {
  for (;;) {
    Result<bool> more = step();
    if (!more.ok()) return std::move(more.failure());
    if (!more.value()) return std::nullopt;
  }
}

Result<bool> Engine::step() {
  try {
    return compute_step();
  } catch (...) {
    drop_taken();
    throw;
  }
}

Result<bool> Engine::compute_step() {
  if (failure_) return Failure(*failure_);  // only this thread writes it
  // Without the waits in between.
  const auto host_time = [] {
    return DeviceWait::Clock::now().time_since_epoch() - DeviceWait::of_thread();
  };
  const auto begin = host_time();
  has_delivered_ = false;
  take_queued();
  Status bad;
  if (!scheduler_.has_pages_for_all()) bad = take_drawn();
  if (!bad) bad = scheduler_.schedule();
  if (bad)
    end(*bad);
  else if (Status failed = compute())
    failed->code == ErrorCode::device_error ? end(*failed) : fail_step(*failed);
  for (const std::int64_t id : std::exchange(ended_, {})) active_.erase(id);
  host_time_ += host_time() - begin;
  update_stats();
  if (failure_) return Failure(*failure_);
  return has_delivered_ || !scheduler_.chunks().empty();
}

void Engine::take_queued() {
  std::list<Queued> queued;
  std::vector<std::int64_t> aborted;
  {
    const std::lock_guard lock(mutex_);
    queued.swap(queued_);
    aborted.swap(aborted_);
    last_taken_ = last_request_;
  }
  for (Queued& next : queued) start(std::move(next));
  for (const std::int64_t id : aborted) {
    const auto found = active_.find(id);
    if (found != active_.end()) finish_all(found->second, FinishReason::aborted, {});
  }
}

void Engine::start(Queued queued) {
  auto& [id, request, record] = queued;
  ActiveRequest& active = active_[id];
  active.id = id;
  active.record = record;
  active.num_open = request.n;
  for (std::int64_t i = 0; i < request.n; ++i) {
    active.samples.push_back({.idx = i,
                              .options = request.sampling,
                              .decoder = text::StreamDecoder(model_.tokenizer),
                              .stops = std::move(text::StopMatcher::make(request.stop).value()),
                              .matcher = {}});
    if (request.grammar) active.samples.back().matcher.emplace(request.grammar);
    active.samples.back().options.seed += static_cast<std::uint64_t>(i);
  }
  ActiveSample& first = active.samples.front();
  first.sequence = scheduler_.add(std::move(request.prompt), request.priority, request.cache_salt,
                                  request.beam_width != 0);
  owners_.set(first.sequence, {&active, &first});
  active.request = std::move(request);
  if (active.request.beam_width != 0) start_beams(active);
}

Status Engine::compute() {
  if (scheduler_.chunks().empty()) return take_drawn();
  const Status failed = forward();
  HEADRACE_TRY(take_drawn());
  if (failed) return failed;
  HEADRACE_TRY(scheduler_.complete());
  return draw_all();
}

Status Engine::forward() {
  const std::span<const Chunk> chunks = scheduler_.chunks();
  if (options_.before_step) HEADRACE_TRY(options_.before_step(chunks));
  parts_.clear();
  for (const Chunk& chunk : chunks)
    parts_.push_back({.sequence = chunk.cache_sequence,
                      .tokens = chunk.tokens,
                      .num_logits = chunk.is_last,
                      .num_generated = chunk.num_generated});
  if (!device_sampler_) {
    const DeviceWait wait;  // the CPU is the device
    return runner_->forward(parts_, logits_.as<float>());
  }
  return runner_->forward(parts_, nullptr, device_sampler_->tokens_on_device());
}

// Whether a sample whose sequence has `length` tokens ends with its next one. The last token needs
// no room, as nothing follows it.
bool Engine::ends_with_next(Owner owner, std::int64_t length) const {
  return owner.sample->num_tokens + 1 == owner.request->request.max_new_tokens ||
         length == options_.max_tokens;
}

void Engine::accept(Owner owner, const Sample& drawn, bool is_appended) {
  ActiveSample& sample = *owner.sample;
  const Request& request = owner.request->request;
  const std::int32_t token = drawn.token;
  Output& gained = gained_;
  gained.tokens.clear();
  gained.tokens.push_back(
      {token, drawn.logprob, {drawn.top_logprobs.begin(), drawn.top_logprobs.end()}});
  const Scheduler::Tokens tokens = scheduler_.tokens(sample.sequence);
  gained.num_cached_tokens = tokens.num_cached;
  gained.text.clear();
  gained.stop_string.reset();
  gained.finish.reset();
  const bool is_last = ends_with_next(owner, tokens.length() - is_appended);
  ++sample.num_tokens;
  ++num_generated_tokens_;
  const bool is_stop_token =
      std::ranges::find(request.stop_tokens, token) != request.stop_tokens.end();
  const bool is_end =
      !request.ignore_end && std::ranges::binary_search(model_.tokenizer.end_tokens(), token);
  if (is_stop_token || is_end) return finish(owner, std::move(gained), FinishReason::stop);
  Result<std::string> text = sample.decoder.push(token);
  if (!text.ok())
    return finish(owner, std::move(gained), FinishReason::error, text.failure().message);
  const text::StopMatcher::Output matched = sample.stops.push(text.value());
  gained.text += matched.text;
  gained.stop_string = matched.stop_idx;
  if (matched.stop_idx) return finish(owner, std::move(gained), FinishReason::stop);
  if (sample.matcher) {
    if (Status bad = sample.matcher->accept(token))
      return finish(owner, std::move(gained), FinishReason::error, bad->message);
    if (sample.matcher->is_finished()) return finish(owner, std::move(gained), FinishReason::stop);
  }
  if (is_last) return finish(owner, std::move(gained), FinishReason::length);
  if (!is_appended) scheduler_.append(sample.sequence, token);
  deliver(owner, std::move(gained));
}

// ---- outputs ----

void Engine::deliver(Owner owner, Output&& gained) {
  has_delivered_ = true;
  const std::lock_guard lock(mutex_);
  Record& record = *owner.request->record;
  Gain& gain = record.samples[static_cast<std::size_t>(owner.sample->idx)];
  if (!gained.tokens.empty()) gain.output.num_cached_tokens = gained.num_cached_tokens;
  std::ranges::move(gained.tokens, std::back_inserter(gain.output.tokens));
  gain.output.text += gained.text;
  gain.output.stop_string = gained.stop_string;
  if (gained.finish) return close(record, gain, *gained.finish, std::move(gained.error));
  list(gain);
}

void Engine::close(Record& record, Gain& gain, FinishReason reason, std::string error) noexcept {
  gain.output.finish = reason;
  gain.output.error = std::move(error);
  if (--record.num_open == 0) ++num_finished_requests_;
  list(gain);
}

void Engine::list(Gain& gain) noexcept {
  if (std::exchange(gain.is_listed, true)) return;
  gain.next = nullptr;
  (polled_next_ == nullptr ? polled_next_ : polled_last_->next) = &gain;
  polled_last_ = &gain;
}

void Engine::finish(Owner owner, Output&& gained, FinishReason reason, const std::string& error) {
  ActiveSample& sample = *owner.sample;
  // Text that is held back. Nothing is, after a stop string.
  gained.text += sample.stops.push(sample.decoder.flush()).text;
  gained.text += sample.stops.finish();
  gained.finish = reason;
  gained.error = error;
  sample.has_finished = true;
  if (sample.sequence != 0) {
    owners_.erase(sample.sequence);
    static_cast<void>(scheduler_.finish(sample.sequence));  // fails for unknown ids alone
  }
  if (--owner.request->num_open == 0) ended_.push_back(owner.request->id);
  deliver(owner, std::move(gained));
}

void Engine::finish_all(ActiveRequest& active, FinishReason reason, const std::string& error) {
  for (ActiveSample& sample : active.samples)
    if (!sample.has_finished) finish({&active, &sample}, {}, reason, error);
}

void Engine::fail(Owner owner, const std::string& error) {
  if (owner.request->beams) return finish_all(*owner.request, FinishReason::error, error);
  finish(owner, {}, FinishReason::error, error);
}

// The requests of the step end. What it wrote to pages is not committed, so no other request finds
// it.
void Engine::fail_step(const Failure& failure) {
  std::vector<ActiveRequest*> failed;
  for (const Chunk& chunk : scheduler_.chunks())
    if (const Owner* const owner = owners_.find(chunk.id)) failed.push_back(owner->request);
  for (ActiveRequest* active : failed) finish_all(*active, FinishReason::error, failure.message);
}

void Engine::end(const Failure& failure) {
  drawn_later_.clear();
  for (auto& [id, active] : active_) finish_all(active, FinishReason::error, failure.message);
  const std::lock_guard lock(mutex_);
  failure_ = failure;
  last_taken_ = last_request_;
  queued_.clear();
  for (auto& [id, record] : records_)  // those that no step has taken
    for (Gain& gain : record.samples)
      if (!gain.output.finish) close(record, gain, FinishReason::error, failure.message);
}

void Engine::drop_taken() noexcept {
  active_.clear();
  owners_.clear();
  ended_.clear();
  ranked_.clear();
  drawn_later_.clear();
  scheduler_.clear();
  runner_->cache().clear();
  const std::lock_guard lock(mutex_);
  for (auto& [id, record] : records_) {
    if (id > last_taken_) break;
    for (Gain& gain : record.samples)
      if (!gain.output.finish)
        close(record, gain, FinishReason::error, "out of memory");  // a short string
  }
}

void Engine::update_stats() {
  const PageAllocator& pages = runner_->cache().allocator();
  const std::lock_guard lock(mutex_);
  stats_ = {.sequences = scheduler_.stats(),
            .num_requests = 0,
            .num_finished_requests = 0,
            .num_generated_tokens = num_generated_tokens_,
            .num_pages = pages.num_pages(),
            .num_free_pages = pages.num_free(),
            .host_seconds = std::chrono::duration<double>(host_time_).count()};
}

}  // namespace headrace::engine
