/// @file
/// The engine for C++20: a header-only wrapper of engine.h.
///
///   headrace::Model model("SmolLM2-135M-Instruct.Q4_1.gguf");
///   headrace::Engine engine(model);
///   for (const std::string& text : prompts)
///     engine.add({.prompt = model.tokenize(text), .max_new_tokens = 100});
///   while (engine.step())
///     while (std::optional<headrace::Output> output = engine.poll())
///       std::cout << output->id << ": " << output->text << '\n';
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "headrace/engine.h"
#include "headrace/model.hpp"

namespace headrace {
inline namespace v0 {

/// Options of an engine.
struct EngineOptions {
  std::int64_t max_tokens = 0;        ///< of prompt and answer; 0: the model's context_length
  std::int64_t max_batch_tokens = 0;  ///< tokens of a step; 0: 512 or more, on a GPU 2048
  std::int64_t max_num_seqs = 0;      ///< sequences at once; 0: 32 on a CPU, 256 on a GPU
  std::int64_t max_requests = 1024;   ///< that have not ended or were not polled
  std::int64_t page_size = 16;        ///< tokens per page of the KV cache; changes no bit
  std::int64_t num_pages = 0;         ///< 0: of four sequences; on a GPU up to 90 % of what is free
  std::int64_t num_host_pages = 0;    ///< for preempted sequences; 0: they are computed anew
  DType cache_dtype = DType::f16;     ///< of the KV cache: f16, bf16 or f32
  bool has_prefix_cache = true;       ///< reuse the keys and values of equal prompts
  std::optional<DType> k_dtype{};     ///< of stored keys: codes; empty: cache_dtype
  std::optional<DType> v_dtype{};     ///< the same of stored values
  std::int64_t max_prompt_tokens = 0;  ///< in a step in which answers grow; 0: on a CPU few
};

/// A prompt and what is wanted after it.
struct Request {
  std::vector<std::int32_t> prompt = {};       ///< at least one token
  SamplingOptions sampling = {};               ///< sample i has seed + i
  std::int64_t n = 1;                          ///< samples of the prompt, 1 to 1024
  std::int64_t max_new_tokens = 0;             ///< of a sample; 0: until the context is full
  std::vector<std::int32_t> stop_tokens = {};  ///< end a sample
  std::vector<std::string> stop = {};          ///< stop strings; they are not output
  std::int64_t priority = 0;             ///< the lowest runs first; equal: first come, first served
  std::optional<int> num_logprobs = {};  ///< most likely tokens beside each token; empty: none
  bool ignore_end = false;               ///< continue past end-of-text tokens
  std::optional<Grammar> grammar = {};   ///< what the text of each sample matches; empty: any
  std::int64_t cache_salt = 0;           ///< only requests with the same one share cached prompts
  std::int64_t beam_width = 0;           ///< not 0: the completions of a beam search, best first
  double length_penalty = 1;             ///< of the search: score = logprob / tokens^length_penalty
};

/// What one sample of a request gained since it was polled last.
struct Output {
  std::int64_t id = 0;                                        ///< of the request
  std::int64_t sample = 0;                                    ///< 0 to n - 1
  std::vector<std::int32_t> tokens = {};                      ///< with one that ended the sample
  std::vector<float> logprobs = {};                           ///< [tokens]; empty: none
  std::vector<headrace_token_logprob> top_logprobs = {};      ///< [tokens, num_logprobs]
  std::string text = {};                                      ///< whole UTF-8 characters
  headrace_request_finish finish = HEADRACE_REQUEST_RUNNING;  ///< RUNNING: it has not ended
  std::string error = {};                                     ///< with HEADRACE_REQUEST_ERROR
  std::optional<std::size_t> stop_string = {};                ///< index of the one that ended it
  std::int64_t num_cached_tokens = 0;  ///< of the prompt, in the prefix cache when it started
};

/// Serves many requests with one model, which must outlive it. One thread at a time calls step() or
/// run(), any thread the other functions.
class Engine {
 public:
  /// Throws Error: an option is out of range, or the pages exceed the memory.
  explicit Engine(const Model& model, const EngineOptions& options = {}) {
    headrace_engine_options c;
    check(headrace_engine_options_init(&c));
    c.max_tokens = options.max_tokens;
    c.max_batch_tokens = options.max_batch_tokens;
    c.max_num_seqs = options.max_num_seqs;
    c.max_requests = options.max_requests;
    c.page_size = options.page_size;
    c.num_pages = options.num_pages;
    c.num_host_pages = options.num_host_pages;
    c.cache_dtype = static_cast<std::int32_t>(options.cache_dtype);
    c.no_prefix_cache = !options.has_prefix_cache;
    if (options.k_dtype) c.k_dtype = static_cast<std::int32_t>(*options.k_dtype);
    if (options.v_dtype) c.v_dtype = static_cast<std::int32_t>(*options.v_dtype);
    c.max_prompt_tokens = options.max_prompt_tokens;
    headrace_engine* engine = nullptr;
    check(headrace_engine_create(model.get(), &c, &engine));
    engine_.reset(engine);
  }

  /// Queues a request and returns its id. Throws Error(HEADRACE_BUSY): there are max_requests.
  std::int64_t add(const Request& request) {
    const headrace_sampling_options sampling = request.sampling.to_c();
    std::vector<const char*> stop;
    for (const std::string& text : request.stop) stop.push_back(text.c_str());
    headrace_request c;
    check(headrace_request_init(&c));
    c.tokens = request.prompt.data();
    c.num_tokens = request.prompt.size();
    c.sampling = &sampling;
    c.n = request.n;
    c.max_new_tokens = request.max_new_tokens;
    c.stop_tokens = request.stop_tokens.data();
    c.num_stop_tokens = request.stop_tokens.size();
    c.stop = stop.data();
    c.num_stop = stop.size();
    c.priority = request.priority;
    c.num_logprobs = request.num_logprobs.value_or(-1);
    c.ignore_end = request.ignore_end;
    c.grammar = request.grammar ? request.grammar->get() : nullptr;
    c.cache_salt = request.cache_salt;
    c.beam_width = request.beam_width;
    c.length_penalty = request.length_penalty;
    std::int64_t id = 0;
    check(headrace_engine_add(engine_.get(), &c, &id));
    return id;
  }
  /// What has not ended of the request ends in the next step.
  void abort(std::int64_t id) { check(headrace_engine_abort(engine_.get(), id)); }

  /// Computes one step. False: there was nothing to do. Throws Error(HEADRACE_DEVICE_ERROR).
  bool step() {
    int has_worked = 0;
    check(headrace_engine_step(engine_.get(), &has_worked));
    return has_worked != 0;
  }
  /// Steps until there is nothing to do.
  void run() { check(headrace_engine_run(engine_.get())); }

  /// The output that waits longest; empty: none.
  std::optional<Output> poll() {
    headrace_output* polled = nullptr;
    check(headrace_engine_poll(engine_.get(), &polled));
    if (polled == nullptr) return std::nullopt;
    const std::unique_ptr<headrace_output, detail::Destroy<headrace_output_destroy>> owner(polled);
    headrace_output_info info{};
    info.struct_size = sizeof info;
    check(headrace_output_get(polled, &info));
    Output output{.id = info.id,
                  .sample = info.sample,
                  .tokens = {info.tokens, info.tokens + info.num_tokens},
                  .text = {info.text, info.num_bytes},
                  .finish = static_cast<headrace_request_finish>(info.finish),
                  .error = info.error,
                  .num_cached_tokens = info.num_cached_tokens};
    if (info.stop_string >= 0) output.stop_string = static_cast<std::size_t>(info.stop_string);
    if (info.logprobs != nullptr)
      output.logprobs.assign(info.logprobs, info.logprobs + info.num_tokens);
    if (info.top_logprobs != nullptr)
      output.top_logprobs.assign(info.top_logprobs,
                                 info.top_logprobs + info.num_tokens * info.num_top);
    return output;
  }

  /// Counts, as of the last step.
  headrace_engine_stats stats() const {
    headrace_engine_stats stats{};
    stats.struct_size = sizeof stats;
    check(headrace_engine_get_stats(engine_.get(), &stats));
    return stats;
  }

  /// For functions of the C ABI.
  headrace_engine* get() const { return engine_.get(); }

 private:
  std::unique_ptr<headrace_engine, detail::Destroy<headrace_engine_destroy>> engine_;
};

}  // namespace v0
}  // namespace headrace
