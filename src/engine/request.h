// What callers ask of the engine, and what they get.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ops/sampling.h"
#include "text/grammar/grammar.h"

namespace headrace::engine {

struct Request {
  std::vector<std::int32_t> prompt = {};
  SamplingOptions sampling = {};  // sample i of n draws with seed + i
  std::uint64_t sequence_id = 0;  // keys the draws, beside seed and position
  std::int64_t n = 1;             // samples of the prompt
  // Not 0: the completions of a beam search (beam_ranking.h), best first, instead of samples. They
  // are output when it has ended.
  std::int64_t beam_width = 0;
  double length_penalty = 1;        // of the search
  std::int64_t max_new_tokens = 0;  // of each sample; 0: until the context is full
  std::vector<std::int32_t> stop_tokens = {};
  std::vector<std::string> stop = {};  // stop strings; not emitted
  bool ignore_end = false;             // continue past the end tokens of the vocabulary
  // What the text of each sample matches; null: any text. A sample ends with `stop` where nothing
  // may follow.
  std::shared_ptr<text::Grammar> grammar = {};
  std::int64_t priority = 0;    // the lowest runs first; equal: first come, first served
  std::int64_t cache_salt = 0;  // only requests with the same one share cached pages
};

// waiting: not started. preempted: its pages were given to others; it continues as if it had not
// been interrupted.
enum class SequenceState { waiting, running, preempted, finished };

enum class FinishReason {
  stop,     // an end token, a stop token or a stop string
  length,   // max_tokens, or the context is full
  aborted,  // abort()
  error     // Output::error
};

struct OutputToken {
  std::int32_t token;
  float logprob;                           // with num_logprobs
  std::vector<TokenLogprob> top_logprobs;  // num_logprobs of them
};

// What a sample of a request gained since it was polled last. The last one has a finish reason.
struct Output {
  std::int64_t request = 0, sample = 0;
  std::optional<int> num_logprobs = {};  // of the request's sampling
  std::vector<OutputToken> tokens = {};
  std::int64_t num_cached_tokens = 0;  // of the prompt, found in the prefix cache at the start
  std::string text = {};  // whole characters; what may begin a stop string is held back
  std::optional<FinishReason> finish = {};
  std::optional<std::size_t> stop_string = {};  // of Request::stop, which ended the sample
  std::string error = {};                       // with FinishReason::error
};

}  // namespace headrace::engine
