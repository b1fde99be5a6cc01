// The engine: many requests with one model.
#include <cmath>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "capi/session_common.h"
#include "engine/engine.h"
#include "headrace/engine.h"

struct headrace_engine {
  std::unique_ptr<headrace::engine::Engine> engine;
};

struct headrace_output {
  headrace::engine::Output output;
  std::int64_t num_top;
  // Of output.tokens, as callers read them. Made by the first headrace_output_get(), so that an
  // output that was polled is not lost if memory is missing; several threads may read one output.
  mutable std::mutex mutex;  // of the first read: std::call_once() would make a system call
  mutable bool has_arrays = false;
  mutable std::vector<std::int32_t> tokens;
  mutable std::vector<float> logprobs;                       // empty: none
  mutable std::vector<headrace_token_logprob> top_logprobs;  // [tokens, num_top]
};

namespace headrace::capi {
namespace {

headrace_engine_options default_engine_options() {
  const engine::EngineOptions defaults;
  headrace_engine_options options{};
  options.max_batch_tokens = defaults.max_batch_tokens;
  options.max_num_seqs = defaults.max_num_seqs;
  options.max_requests = defaults.max_requests;
  options.page_size = defaults.page_size;
  options.cache_dtype = HEADRACE_F16;
  options.k_dtype = options.v_dtype = -1;
  return options;
}

headrace_request default_request() {
  headrace_request request{};
  request.n = 1;
  request.num_logprobs = -1;
  request.length_penalty = 1;
  return request;
}

Result<engine::EngineOptions> engine_options(const headrace_engine_options* theirs) {
  headrace_engine_options c = default_engine_options();
  if (auto bad = read_struct("options", theirs, c)) return std::move(*bad);
  Result<DType> dtype = cache_dtype_of(c.cache_dtype);
  if (!dtype.ok()) return std::move(dtype.failure());
  Result<std::optional<DType>> k_dtype = stored_dtype_of("k_dtype", c.k_dtype, "cache_dtype");
  if (!k_dtype.ok()) return std::move(k_dtype.failure());
  Result<std::optional<DType>> v_dtype = stored_dtype_of("v_dtype", c.v_dtype, "cache_dtype");
  if (!v_dtype.ok()) return std::move(v_dtype.failure());
  engine::EngineOptions options;
  options.k_dtype = k_dtype.value();
  options.v_dtype = v_dtype.value();
  options.max_tokens = c.max_tokens;
  options.max_batch_tokens = c.max_batch_tokens;
  options.max_prompt_tokens = c.max_prompt_tokens;
  options.max_num_seqs = c.max_num_seqs;
  options.max_requests = c.max_requests;
  options.cache_dtype = dtype.value();
  options.page_size = c.page_size;
  options.num_pages = c.num_pages;
  options.num_host_pages = c.num_host_pages;
  options.has_prefix_cache = c.no_prefix_cache == 0;
  return options;
}

Result<engine::Request> request_of(const headrace_request* theirs) {
  if (theirs == nullptr) return null_argument("request", "pass a request with a prompt");
  headrace_request c = default_request();
  if (auto bad = read_struct("request", theirs, c)) return std::move(*bad);
  if (c.tokens == nullptr && c.num_tokens > 0)
    return null_argument("tokens", "pass an array of num_tokens ids");
  if (c.stop_tokens == nullptr && c.num_stop_tokens > 0)
    return null_argument("stop_tokens", "pass an array of num_stop_tokens ids");
  if (c.num_logprobs < -1 || c.num_logprobs > kMaxLogprobs)
    return invalid_argument("num_logprobs={}: must be 0 to {}, or -1 for no logprobs; pass fewer",
                            c.num_logprobs, kMaxLogprobs);
  Result<SamplingOptions> sampling = sampling_options(c.sampling);
  if (!sampling.ok()) return std::move(sampling.failure());
  Result<std::vector<std::string>> stop = stop_strings(c.stop, c.num_stop);
  if (!stop.ok()) return std::move(stop.failure());
  engine::Request request;
  request.prompt.assign(c.tokens, c.tokens + c.num_tokens);
  request.sampling = std::move(sampling.value());
  if (c.num_logprobs >= 0) request.sampling.num_logprobs = c.num_logprobs;
  request.sequence_id = sequence_of(c.sampling);
  request.n = c.n;
  request.max_new_tokens = c.max_new_tokens;
  request.stop_tokens.assign(c.stop_tokens, c.stop_tokens + c.num_stop_tokens);
  request.stop = std::move(stop.value());
  request.ignore_end = c.ignore_end != 0;
  if (c.grammar != nullptr) request.grammar = c.grammar->grammar;
  request.priority = c.priority;
  request.cache_salt = c.cache_salt;
  request.beam_width = c.beam_width;
  request.length_penalty = c.length_penalty;
  return request;
}

void make_arrays(const headrace_output& output) {
  output.tokens.clear();
  output.logprobs.clear();
  output.top_logprobs.clear();
  for (const engine::OutputToken& token : output.output.tokens) {
    output.tokens.push_back(token.token);
    if (!output.output.num_logprobs) continue;
    output.logprobs.push_back(token.logprob);
    for (std::size_t i = 0; i < static_cast<std::size_t>(output.num_top); ++i)
      output.top_logprobs.push_back(top_logprob(token.top_logprobs, i));
  }
}

headrace_output_info info_of(const headrace_output& output) {
  const engine::Output& from = output.output;
  headrace_output_info info{};
  info.id = from.request;
  info.sample = from.sample;
  info.tokens = output.tokens.data();
  info.num_tokens = std::ssize(output.tokens);
  info.logprobs = from.num_logprobs ? output.logprobs.data() : nullptr;
  info.top_logprobs = output.num_top > 0 ? output.top_logprobs.data() : nullptr;
  info.num_top = output.num_top;
  info.text = from.text.c_str();
  info.num_bytes = from.text.size();
  info.error = from.error.c_str();
  info.finish = from.finish ? HEADRACE_REQUEST_STOP + static_cast<std::int32_t>(*from.finish)
                            : HEADRACE_REQUEST_RUNNING;
  info.num_cached_tokens = from.num_cached_tokens;
  info.stop_string = from.stop_string ? static_cast<std::int64_t>(*from.stop_string) : -1;
  return info;
}

headrace_engine_stats stats_of(const engine::EngineStats& from) {
  const engine::SchedulerStats& sequences = from.sequences;
  headrace_engine_stats stats{};
  stats.num_requests = from.num_requests;
  stats.num_waiting = sequences.num_waiting;
  stats.num_running = sequences.num_running;
  stats.num_preempted = sequences.num_preempted;
  stats.num_pages = from.num_pages;
  stats.num_free_pages = from.num_free_pages;
  stats.num_finished = from.num_finished_requests;
  stats.num_steps = sequences.num_steps;
  stats.num_scheduled_tokens = sequences.num_scheduled_tokens;
  stats.num_generated_tokens = from.num_generated_tokens;
  stats.num_prompt_tokens = sequences.num_prompt_tokens;
  stats.num_cached_tokens = sequences.num_cached_tokens;
  stats.num_preemptions = sequences.num_preemptions;
  stats.host_seconds = from.host_seconds;
  return stats;
}

Failure null_engine() { return null_argument("engine", "create one first"); }

}  // namespace
}  // namespace headrace::capi

using namespace headrace::capi;  // the functions below are the C face of this namespace

extern "C" {

headrace_status headrace_engine_options_init_sized(headrace_engine_options* options,
                                                   size_t struct_size) {
  return init("options", default_engine_options(), options, struct_size);
}

headrace_status headrace_request_init_sized(headrace_request* request, size_t struct_size) {
  return init("request", default_request(), request, struct_size);
}

headrace_status headrace_engine_create(const headrace_model* model,
                                       const headrace_engine_options* options,
                                       headrace_engine** engine) {
  return guarded([&] {
    if (engine == nullptr)
      return fail(null_argument("engine", "pass the address of an engine pointer"));
    *engine = nullptr;
    if (auto bad = check_has_weights(model)) return fail(std::move(*bad));
    auto wanted = engine_options(options);
    if (!wanted.ok()) return fail(std::move(wanted.failure()));
    auto made = headrace::engine::Engine::make(model->model, wanted.value());
    if (!made.ok()) return fail(std::move(made.failure()));
    *engine = new headrace_engine{std::move(made.value())};
    return HEADRACE_OK;
  });
}

void headrace_engine_destroy(headrace_engine* engine) { delete engine; }

headrace_status headrace_engine_add(headrace_engine* engine, const headrace_request* request,
                                    int64_t* id) {
  return guarded([&] {
    if (engine == nullptr) return fail(null_engine());
    if (id == nullptr) return fail(null_argument("id", "pass the address of an id"));
    auto wanted = request_of(request);
    if (!wanted.ok()) return fail(std::move(wanted.failure()));
    auto added = engine->engine->add(std::move(wanted.value()));
    if (!added.ok()) return fail(std::move(added.failure()));
    *id = added.value();
    return HEADRACE_OK;
  });
}

headrace_status headrace_engine_abort(headrace_engine* engine, int64_t id) {
  return guarded([&] {
    if (engine == nullptr) return fail(null_engine());
    return status_of(engine->engine->abort(id));
  });
}

headrace_status headrace_engine_step(headrace_engine* engine, int* has_worked) {
  return guarded([&] {
    if (engine == nullptr) return fail(null_engine());
    auto stepped = engine->engine->step();
    if (!stepped.ok()) return fail(std::move(stepped.failure()));
    if (has_worked != nullptr) *has_worked = stepped.value();
    return HEADRACE_OK;
  });
}

headrace_status headrace_engine_run(headrace_engine* engine) {
  return guarded([&] {
    if (engine == nullptr) return fail(null_engine());
    return status_of(engine->engine->run());
  });
}

headrace_status headrace_engine_poll(headrace_engine* engine, headrace_output** output) {
  return guarded([&] {
    if (engine == nullptr) return fail(null_engine());
    if (output == nullptr)
      return fail(null_argument("output", "pass the address of an output pointer"));
    *output = nullptr;
    auto made = std::make_unique<headrace_output>();
    auto polled = engine->engine->poll();
    if (!polled) return HEADRACE_OK;
    made->output = std::move(*polled);
    made->num_top = made->output.num_logprobs.value_or(0);
    *output = made.release();
    return HEADRACE_OK;
  });
}

headrace_status headrace_output_get(const headrace_output* output, headrace_output_info* info) {
  return guarded([&] {
    if (output == nullptr) return fail(null_argument("output", "poll one first"));
    {
      const std::lock_guard lock(output->mutex);
      if (!output->has_arrays) make_arrays(*output);
      output->has_arrays = true;
    }
    return give("info", info_of(*output), info);
  });
}

void headrace_output_destroy(headrace_output* output) { delete output; }

headrace_status headrace_engine_get_stats(const headrace_engine* engine,
                                          headrace_engine_stats* stats) {
  return guarded([&] {
    if (engine == nullptr) return fail(null_engine());
    return give("stats", stats_of(engine->engine->stats()), stats);
  });
}

}  // extern "C"
