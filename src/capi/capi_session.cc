// Sessions: one sequence and its continuation.
#include <cmath>
#include <memory>
#include <utility>

#include "base/callback.h"
#include "capi/session_common.h"

namespace headrace::capi {
namespace {

headrace_session_options default_session_options() {
  headrace_session_options options{};
  options.cache_dtype = HEADRACE_F16;
  options.k_dtype = options.v_dtype = -1;
  options.page_size = engine::SessionOptions().page_size;
  return options;
}

headrace_sampling_options default_sampling_options() {
  headrace_sampling_options options{};
  options.top_p = 1;
  options.repetition_penalty = 1;
  return options;
}

Result<engine::SessionOptions> session_options(const headrace_session_options& c) {
  Result<DType> dtype = cache_dtype_of(c.cache_dtype);
  if (!dtype.ok()) return std::move(dtype.failure());
  Result<std::optional<DType>> k_dtype = stored_dtype_of("k_dtype", c.k_dtype, "cache_dtype");
  if (!k_dtype.ok()) return std::move(k_dtype.failure());
  Result<std::optional<DType>> v_dtype = stored_dtype_of("v_dtype", c.v_dtype, "cache_dtype");
  if (!v_dtype.ok()) return std::move(v_dtype.failure());
  engine::SessionOptions options;
  options.k_dtype = k_dtype.value();
  options.v_dtype = v_dtype.value();
  options.max_tokens = c.max_tokens;
  options.batch_tokens = c.batch_tokens;
  options.cache_dtype = dtype.value();
  options.page_size = c.page_size;
  options.num_pages = c.num_pages;
  options.sparq = {.num_components = c.sparq_components, .num_keys = c.sparq_keys};
  return options;
}

}  // namespace

Status check_has_weights(const headrace_model* model) {
  if (model == nullptr) return null_argument("model", "load one first");
  if (model->model.decoder) return std::nullopt;
  return invalid_argument(
      "model: it was loaded with vocab_only and has no weights; load it without vocab_only");
}

Result<DType> cache_dtype_of(int32_t dtype) {
  if (dtype == HEADRACE_F32 || dtype == HEADRACE_F16 || dtype == HEADRACE_BF16)
    return static_cast<DType>(dtype);
  return invalid_argument(
      "cache_dtype={}: must be f16, bf16 or f32; pass HEADRACE_F16, HEADRACE_BF16 or HEADRACE_F32",
      dtype);
}

Result<std::optional<DType>> stored_dtype_of(const char* name, int32_t dtype,
                                             const char* of_cache) {
  if (dtype == -1) return std::optional<DType>();
  if (is_code(static_cast<DType>(dtype))) return std::optional(static_cast<DType>(dtype));
  return invalid_argument(
      "{}={}: must be -1 ({}) or codes; pass HEADRACE_I8, HEADRACE_F8E4M3, HEADRACE_I4X2, "
      "HEADRACE_U4X2 or HEADRACE_U2X4",
      name, dtype, of_cache);
}

uint64_t sequence_of(const headrace_sampling_options* theirs) {
  headrace_sampling_options c = default_sampling_options();
  static_cast<void>(read_struct("sampling", theirs, c));
  return c.sequence;
}

Result<SamplingOptions> sampling_options(const headrace_sampling_options* theirs) {
  headrace_sampling_options c = default_sampling_options();
  if (auto bad = read_struct("sampling", theirs, c)) return std::move(*bad);
  if (c.order < HEADRACE_ORDER_VLLM || c.order > HEADRACE_ORDER_LLAMA_CPP)
    return invalid_argument(
        "order={}: must be 0 (vllm), 1 (transformers) or 2 (llama.cpp); use a "
        "headrace_sampling_order value",
        c.order);
  if (c.logit_bias == nullptr && c.num_logit_bias > 0)
    return null_argument("logit_bias", "pass an array of num_logit_bias elements");
  SamplingOptions options;
  options.temperature = c.temperature;
  options.top_k = c.top_k;
  options.top_p = c.top_p;
  options.min_p = c.min_p;
  options.repetition_penalty = c.repetition_penalty;
  if (c.repetition_window != 0) options.repetition_window = c.repetition_window;
  options.presence_penalty = c.presence_penalty;
  options.frequency_penalty = c.frequency_penalty;
  options.seed = c.seed;
  options.order = static_cast<SamplingOrder>(c.order);
  for (size_t i = 0; i < c.num_logit_bias; ++i)
    options.logit_bias.push_back({c.logit_bias[i].token, c.logit_bias[i].bias});
  return options;
}

Result<std::vector<std::string>> stop_strings(const char* const* stop, size_t num_stop) {
  if (stop == nullptr && num_stop > 0)
    return null_argument("stop", "pass an array of num_stop strings");
  std::vector<std::string> strings;
  for (size_t i = 0; i < num_stop; ++i) {
    if (stop[i] == nullptr || *stop[i] == '\0')
      return invalid_argument("stop[{}]: must not be NULL or empty; pass a non-empty string", i);
    strings.emplace_back(stop[i]);
  }
  return strings;
}

headrace_token_logprob top_logprob(std::span<const TokenLogprob> top, size_t i) {
  if (i >= top.size()) return {-1, -INFINITY};
  return {top[i].token, top[i].logprob};
}

Result<engine::GenerationOptions> generation_options(const headrace_generation_options* theirs) {
  headrace_generation_options c{};
  if (auto bad = read_struct("options", theirs, c)) return std::move(*bad);
  if (c.max_new_tokens < 0)
    return invalid_argument("max_new_tokens={}: must not be negative; pass 0 for no limit",
                            c.max_new_tokens);
  Result<std::vector<std::string>> stop = stop_strings(c.stop, c.num_stop);
  if (!stop.ok()) return std::move(stop.failure());
  Result<SamplingOptions> sampling = sampling_options(c.sampling);
  if (!sampling.ok()) return std::move(sampling.failure());
  engine::GenerationOptions options;
  options.sampling = std::move(sampling.value());
  options.sequence_id = sequence_of(c.sampling);
  options.max_new_tokens = c.max_new_tokens;
  options.ignore_end = c.ignore_end != 0;
  if (c.grammar != nullptr) options.grammar = c.grammar->grammar;
  options.stop = std::move(stop.value());
  if (c.on_text != nullptr)
    options.on_text = [fn = c.on_text, user = c.user](std::string_view text) -> Result<bool> {
      bool may_continue = false;
      if (auto bad =
              call_back("on_text", [&] { may_continue = fn(user, text.data(), text.size()) == 0; }))
        return std::move(*bad);
      return may_continue;
    };
  return options;
}

namespace {

Status sample_next(headrace_session& session, const headrace_sampling_options* theirs,
                   int64_t num_prompt_tokens, headrace_token_logprob& token,
                   headrace_token_logprob* top, size_t num_top) {
  Result<SamplingOptions> options = sampling_options(theirs);
  if (!options.ok()) return std::move(options.failure());
  if (num_top > static_cast<size_t>(kMaxLogprobs))
    return invalid_argument("num_top={}: must be 0 to {}; pass fewer", num_top, kMaxLogprobs);
  options.value().num_logprobs = static_cast<int>(num_top);
  Result<Sample> drawn = engine::sample_next(session.session, options.value(), sequence_of(theirs),
                                             num_prompt_tokens, session.sampler);
  if (!drawn.ok()) return std::move(drawn.failure());
  token = {drawn.value().token, drawn.value().logprob};
  for (size_t i = 0; i < num_top; ++i) top[i] = top_logprob(drawn.value().top_logprobs, i);
  return std::nullopt;
}

}  // namespace
}  // namespace headrace::capi

using namespace headrace::capi;  // the functions below are the C face of this namespace

extern "C" {

headrace_status headrace_session_options_init_sized(headrace_session_options* options,
                                                    size_t struct_size) {
  return init("options", default_session_options(), options, struct_size);
}

headrace_status headrace_sampling_options_init_sized(headrace_sampling_options* options,
                                                     size_t struct_size) {
  return init("options", default_sampling_options(), options, struct_size);
}

headrace_status headrace_generation_options_init_sized(headrace_generation_options* options,
                                                       size_t struct_size) {
  return init("options", {}, options, struct_size);
}

headrace_status headrace_session_create(const headrace_model* model,
                                        const headrace_session_options* options,
                                        headrace_session** session) {
  return guarded([&] {
    if (session == nullptr)
      return fail(null_argument("session", "pass the address of a session pointer"));
    *session = nullptr;
    if (auto bad = check_has_weights(model)) return fail(std::move(*bad));
    headrace_session_options ours = default_session_options();
    if (auto bad = read_struct("options", options, ours)) return fail(std::move(*bad));
    auto wanted = session_options(ours);
    if (!wanted.ok()) return fail(std::move(wanted.failure()));
    auto made = headrace::engine::Session::make(model->model, wanted.value());
    if (!made.ok()) return fail(std::move(made.failure()));
    auto sampler = headrace::Sampler::make(model->model.host);
    if (!sampler.ok()) return fail(std::move(sampler.failure()));
    *session = new headrace_session{
        .model = model, .session = std::move(made.value()), .sampler = std::move(sampler.value())};
    return HEADRACE_OK;
  });
}

void headrace_session_destroy(headrace_session* session) { delete session; }

headrace_status headrace_session_append(headrace_session* session, const int32_t* tokens,
                                        size_t num_tokens, float* logits) {
  return guarded([&] {
    if (session == nullptr) return fail(null_argument("session", "create one first"));
    if (tokens == nullptr && num_tokens > 0)
      return fail(null_argument("tokens", "pass an array of num_tokens ids"));
    return status_of(session->session.append({tokens, num_tokens}, logits));
  });
}

const float* headrace_session_logits(const headrace_session* session) {
  return session == nullptr ? nullptr : session->session.logits();
}

int64_t headrace_session_length(const headrace_session* session) {
  return session == nullptr ? 0 : static_cast<int64_t>(session->session.tokens().size());
}

headrace_status headrace_session_truncate(headrace_session* session, int64_t length) {
  return guarded([&] {
    if (session == nullptr) return fail(null_argument("session", "create one first"));
    return status_of(session->session.truncate(length));
  });
}

headrace_status headrace_session_sample(headrace_session* session,
                                        const headrace_sampling_options* options,
                                        int64_t num_prompt_tokens, headrace_token_logprob* token,
                                        headrace_token_logprob* top, size_t num_top) {
  return guarded([&] {
    if (session == nullptr) return fail(null_argument("session", "create one first"));
    if (token == nullptr) return fail(null_argument("token", "pass the address of a token"));
    if (top == nullptr && num_top > 0)
      return fail(null_argument("top", "pass an array of num_top elements"));
    return status_of(sample_next(*session, options, num_prompt_tokens, *token, top, num_top));
  });
}

headrace_status headrace_session_generate(headrace_session* session,
                                          const headrace_generation_options* options,
                                          headrace_generation* result) {
  return guarded([&] {
    if (session == nullptr) return fail(null_argument("session", "create one first"));
    const headrace_status has_room = give("result", headrace_generation{}, result);
    if (has_room != HEADRACE_OK) return has_room;  // before sampling consumes a random number
    auto wanted = generation_options(options);
    if (!wanted.ok()) return fail(std::move(wanted.failure()));
    auto done = headrace::engine::generate(session->session, session->model->model.tokenizer,
                                           wanted.value(), session->sampler);
    if (!done.ok()) return fail(std::move(done.failure()));
    headrace_generation facts{};
    facts.num_tokens = done.value().num_tokens;
    facts.finish = static_cast<int32_t>(done.value().finish);
    return give("result", facts, result);
  });
}

}  // extern "C"
