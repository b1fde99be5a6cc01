// Shared by the functions of sessions.
#pragma once

#include <optional>

#include "capi/model_common.h"
#include "engine/generate.h"
#include "engine/session.h"

struct headrace_session {
  const headrace_model* model;
  headrace::engine::Session session;
  headrace::Sampler sampler;
};

namespace headrace::capi {

// invalid_argument: the model was loaded with vocab_only, or is null.
Status check_has_weights(const headrace_model* model);
// Of a KV cache.
Result<DType> cache_dtype_of(int32_t dtype);
// Stored keys or values; -1: empty, the dtype of the cache.
Result<std::optional<DType>> stored_dtype_of(const char* name, int32_t dtype, const char* of_cache);
Result<SamplingOptions> sampling_options(const headrace_sampling_options* theirs);
// Requires options that sampling_options() accepted.
uint64_t sequence_of(const headrace_sampling_options* theirs);
Result<std::vector<std::string>> stop_strings(const char* const* stop, size_t num_stop);
// The i-th of the most likely tokens; token -1 if there are fewer.
headrace_token_logprob top_logprob(std::span<const TokenLogprob> top, size_t i);
Result<engine::GenerationOptions> generation_options(const headrace_generation_options* theirs);

}  // namespace headrace::capi
