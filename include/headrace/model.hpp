/// @file
/// Language models for C++20: a header-only wrapper of model.h.
///
///   headrace::Model model("SmolLM2-135M-Instruct.Q4_1.gguf");
///   headrace::Session session(model);
///   session.append(model.chat_tokens({{"user", "Why is the sky blue?"}}));
///   session.generate({.max_new_tokens = 200}, [](std::string_view text) {
///     std::cout << text << std::flush;
///     return true;  // continue
///   });
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "headrace/grammar.h"
#include "headrace/model_file.hpp"

namespace headrace {
inline namespace v0 {

/// Options for loading a model.
struct ModelOptions {
  int num_threads = 0;      ///< 0: all CPUs available to the process
  bool exact = false;       ///< compute with f32 weights: slower, 4 bytes per weight
  bool use_mmap = false;    ///< memory-map the file while loading; it must not change
  bool vocab_only = false;  ///< no weights: only tokens and chat templates
  /// Loading progress in bytes of weights. If it throws, the call ends with an Error and no result.
  std::function<void(std::uint64_t done, std::uint64_t total)> progress = {};
  std::int32_t device_type = HEADRACE_CPU;  ///< headrace_device_type that computes
  std::int32_t device_id = 0;               ///< number of the CUDA device; 0 on the CPU
  bool fast = false;  ///< on CUDA: large products by cuBLASLt; a row's bits depend on its batch

  /// Points into this object.
  headrace_model_options to_c() const {
    headrace_model_options c;
    check(headrace_model_options_init(&c));
    c.num_threads = num_threads;
    c.exact = exact;
    c.use_mmap = use_mmap;
    c.vocab_only = vocab_only;
    c.device_type = device_type;
    c.device_id = device_id;
    c.fast = fast;
    if (progress) {
      c.progress_user = const_cast<void*>(static_cast<const void*>(&progress));
      c.progress = [](void* user, std::uint64_t done, std::uint64_t total) {
        (*static_cast<std::function<void(std::uint64_t, std::uint64_t)>*>(user))(done, total);
      };
    }
    return c;
  }
};

/// A model with random normal weights, for timing at full size.
struct RandomModel {
  headrace_model_shape shape;        ///< of find_model_shape(), or filled by the caller
  std::string weight_type = "BF16";  ///< of the matrices, by its name in GGUF
  std::uint64_t seed = 0;            ///< equal seeds: equal weights

  /// Writes a GGUF file. Of the options, num_threads and progress (in written bytes) apply. Throws
  /// Error: shape, type, or the reason why the file cannot be written; then no file is left.
  void write(const std::string& path, const ModelOptions& options = {}) const {
    const headrace_model_options c = options.to_c();
    check(headrace_random_model_write(&shape, weight_type.c_str(), seed, &c, path.c_str()));
  }
};

/// Writes the GGUF file `input` with fewer KV heads; see headrace_model_convert(). Of the options,
/// progress applies. Throws Error: number of heads, type, or the reason why a file cannot be read
/// or written; then no file is left.
inline void convert_model(const std::string& input, const std::string& output,
                          std::int64_t num_kv_heads, const std::string& weight_type = "BF16",
                          const ModelOptions& options = {}) {
  const headrace_model_options c = options.to_c();
  check(
      headrace_model_convert(input.c_str(), num_kv_heads, weight_type.c_str(), &c, output.c_str()));
}

/// Names of the published models whose shapes are known.
inline std::vector<std::string> model_shape_names() {
  std::vector<std::string> names;
  while (const char* name = headrace_model_shape_name(static_cast<std::int64_t>(names.size())))
    names.emplace_back(name);
  return names;
}
/// The shape of a published model. Throws Error(HEADRACE_INVALID_ARGUMENT): lists the names.
inline headrace_model_shape find_model_shape(const std::string& name) {
  headrace_model_shape shape{};
  shape.struct_size = sizeof shape;
  check(headrace_model_shape_find(name.c_str(), &shape));
  return shape;
}

/// One turn of a conversation.
struct Message {
  std::string role;     ///< "system", "user", "assistant", "tools", "tool_call", "tool" or
                        ///< "tool_call_id"
  std::string content;  ///< UTF-8
};

/// Weights and vocabulary, immutable.
class Model {
 public:
  /// Throws Error: HEADRACE_IO_ERROR or HEADRACE_UNSUPPORTED with file, position and rule.
  explicit Model(const std::string& path, const ModelOptions& options = {}) {
    const headrace_model_options c = options.to_c();
    headrace_model* model = nullptr;
    check(headrace_model_load(path.c_str(), &c, &model));
    model_.reset(model);
  }
  /// Loads a random model without a file.
  explicit Model(const RandomModel& random, const ModelOptions& options = {}) {
    const headrace_model_options c = options.to_c();
    headrace_model* model = nullptr;
    check(headrace_random_model_load(&random.shape, random.weight_type.c_str(), random.seed, &c,
                                     &model));
    model_.reset(model);
  }

  /// Properties; the strings live as long as the model.
  headrace_model_info info() const {
    headrace_model_info info{};
    info.struct_size = sizeof info;
    check(headrace_model_get_info(model_.get(), &info));
    return info;
  }

  /// flags: headrace_tokenize_flags.
  std::vector<std::int32_t> tokenize(std::string_view text,
                                     std::uint32_t flags = HEADRACE_TOKENIZE_BOS) const {
    return detail::filled<std::vector<std::int32_t>>(
        [&](std::int32_t* tokens, std::size_t capacity, std::size_t* count) {
          return headrace_tokenize(model_.get(), text.data(), text.size(), flags, tokens, capacity,
                                   count);
        });
  }
  /// Special tokens give their names. The text may end within a UTF-8 character.
  std::string detokenize(std::span<const std::int32_t> tokens) const {
    return detail::filled<std::string>([&](char* text, std::size_t capacity, std::size_t* count) {
      return headrace_detokenize(model_.get(), tokens.data(), tokens.size(), text, capacity, count);
    });
  }
  /// The text that a token adds to that of others before it.
  std::string token_text(std::int32_t token) const {
    return detail::filled<std::string>([&](char* text, std::size_t capacity, std::size_t* count) {
      return headrace_token_text(model_.get(), token, text, capacity, count);
    });
  }
  /// Whether a token ends generation (end of turn, end of text).
  bool is_end(std::int32_t token) const { return headrace_token_is_end(model_.get(), token) != 0; }

  /// template_name empty: the file's own template.
  std::vector<std::int32_t> chat_tokens(const std::vector<Message>& messages,
                                        const std::string& template_name = {},
                                        bool add_generation_prompt = true) const {
    std::vector<headrace_message> c;
    for (const Message& message : messages)
      c.push_back({message.role.c_str(), message.content.c_str()});
    return detail::filled<std::vector<std::int32_t>>([&](std::int32_t* tokens, std::size_t capacity,
                                                         std::size_t* count) {
      return headrace_chat_tokens(model_.get(),
                                  template_name.empty() ? nullptr : template_name.c_str(), c.data(),
                                  c.size(), add_generation_prompt, tokens, capacity, count);
    });
  }

  /// For functions of the C ABI.
  const headrace_model* get() const { return model_.get(); }

 private:
  std::unique_ptr<headrace_model, detail::Destroy<headrace_model_destroy>> model_;
};

/// What a generated text must match, compiled for the vocabulary of a model. Copies share it.
class Grammar {
 public:
  /// JSON that is valid under a JSON Schema. Throws Error with the place in the schema.
  static Grammar json_schema(const Model& model, std::string_view schema) {
    return make(headrace_grammar_create_json_schema, model, schema);
  }
  /// Texts that a regular expression matches as a whole. Throws Error with line and column.
  static Grammar regex(const Model& model, std::string_view regex) {
    return make(headrace_grammar_create_regex, model, regex);
  }
  /// Texts of a grammar in GBNF, the syntax of llama.cpp. Throws Error with line and column.
  static Grammar gbnf(const Model& model, std::string_view gbnf) {
    return make(headrace_grammar_create_gbnf, model, gbnf);
  }

  /// For functions of the C ABI.
  const headrace_grammar* get() const { return grammar_.get(); }

 private:
  using Create = headrace_status (*)(const headrace_model*, const char*, std::size_t,
                                     headrace_grammar**);
  static Grammar make(Create create, const Model& model, std::string_view text) {
    headrace_grammar* made = nullptr;
    check(create(model.get(), text.data(), text.size(), &made));
    Grammar grammar;
    grammar.grammar_.reset(made, headrace_grammar_destroy);
    return grammar;
  }
  Grammar() = default;

  std::shared_ptr<headrace_grammar> grammar_;
};

/// Options of a session.
struct SessionOptions {
  std::int64_t max_tokens = 0;     ///< 0: the model's context_length
  std::int64_t batch_tokens = 0;   ///< of a step; 0: 512 on a CPU, 8192 on a GPU
  DType cache_dtype = DType::f16;  ///< of the KV cache: f16, bf16 or f32
  std::int64_t page_size = 16;     ///< tokens per page of the KV cache; changes no bit
  std::int64_t num_pages = 0;      ///< 0: those of max_tokens; several completions need more
  std::optional<DType> k_dtype{};  ///< of stored keys: codes; empty: cache_dtype
  std::optional<DType> v_dtype{};  ///< the same of stored values
  /// SparQ attention of tokens that are appended one at a time, on a CPU: its num_components.
  std::int64_t sparq_components = 0;
  std::int64_t sparq_keys = 0;  ///< its num_keys; both 0: dense attention
};

/// Sampling parameters.
struct SamplingOptions {
  double temperature = 0;              ///< 0: greedy
  double top_p = 1;                    ///< smallest set of tokens with this probability; 1: off
  double min_p = 0;                    ///< minimum probability relative to the most likely; 0: off
  std::int64_t top_k = 0;              ///< 0: off
  double repetition_penalty = 1;       ///< 1: off
  double presence_penalty = 0;         ///< subtracted from logits of generated tokens; 0: off
  double frequency_penalty = 0;        ///< the same, times the token's count; 0: off
  std::int64_t repetition_window = 0;  ///< covers the last tokens of prompt and answer; 0: all
  std::uint64_t seed = 0;              ///< a sample depends only on seed, sequence, position
  std::uint64_t sequence = 0;          ///< distinguishes sequences with the same seed
  std::vector<headrace_logit_bias> logit_bias = {};     ///< added to the tokens' logits
  headrace_sampling_order order = HEADRACE_ORDER_VLLM;  ///< of filters and temperature

  /// Points into this object.
  headrace_sampling_options to_c() const {
    headrace_sampling_options c;
    check(headrace_sampling_options_init(&c));
    c.temperature = temperature;
    c.top_p = top_p;
    c.min_p = min_p;
    c.top_k = top_k;
    c.repetition_penalty = repetition_penalty;
    c.presence_penalty = presence_penalty;
    c.frequency_penalty = frequency_penalty;
    c.repetition_window = repetition_window;
    c.seed = seed;
    c.sequence = sequence;
    c.logit_bias = logit_bias.data();
    c.num_logit_bias = logit_bias.size();
    c.order = order;
    return c;
  }
};

/// Options of a generation.
struct GenerationOptions {
  SamplingOptions sampling = {};        ///< sampling parameters
  std::int64_t max_new_tokens = 0;      ///< 0: until end of text or the session is full
  std::vector<std::string> stop = {};   ///< stop strings; they are not output
  bool ignore_end = false;              ///< continue past end-of-text tokens
  std::optional<Grammar> grammar = {};  ///< what the text matches; empty: any text
};

/// Result of a generation.
struct Generation {
  std::int64_t num_tokens = 0;                   ///< generated, including the one that ended it
  headrace_finish finish = HEADRACE_FINISH_END;  ///< finish reason
};

/// Options of a beam search.
struct BeamOptions {
  std::int64_t beam_width = 4;      ///< beams and completions
  double length_penalty = 1;        ///< score = logprob / num_tokens^length_penalty; 0 to 10
  std::int64_t max_new_tokens = 0;  ///< 0: until end of text or the session is full
  bool ignore_end = false;          ///< continue past end-of-text tokens
};

/// What was generated after the sequence of a session.
struct Completion {
  std::vector<std::int32_t> tokens;              ///< generated, including the one that ended it
  std::string text;                              ///< output text
  double logprob = 0;                            ///< of all tokens, from the unmodified logits
  double score = 0;                              ///< that beams are ranked by; samples: logprob
  headrace_finish finish = HEADRACE_FINISH_END;  ///< finish reason
};

namespace detail {

/// GenerationOptions for the C ABI. Points into itself and into `options`.
struct CGenerationOptions {
  explicit CGenerationOptions(const GenerationOptions& options)
      : sampling(options.sampling.to_c()) {
    for (const std::string& text : options.stop) stop.push_back(text.c_str());
    check(headrace_generation_options_init(&c));
    c.sampling = &sampling;
    c.max_new_tokens = options.max_new_tokens;
    c.stop = stop.data();
    c.num_stop = stop.size();
    c.ignore_end = options.ignore_end;
    c.grammar = options.grammar ? options.grammar->get() : nullptr;
  }
  CGenerationOptions(const CGenerationOptions&) = delete;
  CGenerationOptions& operator=(const CGenerationOptions&) = delete;

  headrace_sampling_options sampling;  ///< that c.sampling points to
  std::vector<const char*> stop;       ///< that c.stop points to
  headrace_generation_options c;       ///< the options
};

/// A callback behind a C function, and the exception that it threw.
template <class OnText>
struct TextCaller {
  OnText* on_text;           ///< returns whether to continue
  std::exception_ptr error;  ///< null: none was thrown

  /// Nonzero: end the generation.
  template <class... Arguments>
  int call(Arguments... arguments) noexcept {
    try {
      return (*on_text)(arguments...) ? 0 : 1;
    } catch (...) {
      error = std::current_exception();
      return 1;
    }
  }
};

using CompletionList = std::unique_ptr<headrace_completions, Destroy<headrace_completions_destroy>>;

inline std::vector<Completion> completions_of(const headrace_completions* list) {
  std::vector<Completion> all;
  for (std::int64_t i = 0; i < headrace_completions_count(list); ++i) {
    headrace_completion c{};
    c.struct_size = sizeof c;
    check(headrace_completions_get(list, i, &c));
    all.push_back({{c.tokens, c.tokens + c.num_tokens},
                   {c.text, c.num_bytes},
                   c.logprob,
                   c.score,
                   static_cast<headrace_finish>(c.finish)});
  }
  return all;
}

}  // namespace detail

/// One sequence of tokens. The model must outlive it.
class Session {
 public:
  /// Creates an empty sequence.
  explicit Session(const Model& model, const SessionOptions& options = {}) {
    headrace_session_options c;
    check(headrace_session_options_init(&c));
    c.max_tokens = options.max_tokens;
    c.batch_tokens = options.batch_tokens;
    c.cache_dtype = static_cast<std::int32_t>(options.cache_dtype);
    c.page_size = options.page_size;
    c.num_pages = options.num_pages;
    if (options.k_dtype) c.k_dtype = static_cast<std::int32_t>(*options.k_dtype);
    if (options.v_dtype) c.v_dtype = static_cast<std::int32_t>(*options.v_dtype);
    c.sparq_components = options.sparq_components;
    c.sparq_keys = options.sparq_keys;
    headrace_session* session = nullptr;
    check(headrace_session_create(model.get(), &c, &session));
    session_.reset(session);
  }

  /// all_logits: null, or [tokens.size(), vocab_size].
  void append(std::span<const std::int32_t> tokens, float* all_logits = nullptr) {
    check(headrace_session_append(session_.get(), tokens.data(), tokens.size(), all_logits));
  }
  /// [vocab_size], after the last token; null before the first.
  const float* logits() const { return headrace_session_logits(session_.get()); }
  /// Number of tokens in the sequence.
  std::int64_t length() const { return headrace_session_length(session_.get()); }
  /// Keeps the first `length` tokens. Discards the logits, unless it keeps all tokens.
  void truncate(std::int64_t length) { check(headrace_session_truncate(session_.get(), length)); }
  /// The C handle; valid as long as the session.
  headrace_session* get() { return session_.get(); }

  /// Samples the next token without appending it; fills `top` with the most likely ones. Presence
  /// and frequency penalties do not count the first num_prompt_tokens tokens.
  headrace_token_logprob sample(const SamplingOptions& options, std::int64_t num_prompt_tokens,
                                std::span<headrace_token_logprob> top = {}) {
    const headrace_sampling_options c = options.to_c();
    headrace_token_logprob token{};
    check(headrace_session_sample(session_.get(), &c, num_prompt_tokens, &token, top.data(),
                                  top.size()));
    return token;
  }

  /// on_text(std::string_view) -> bool: false ends the generation. Rethrows its exceptions.
  template <class OnText>
  Generation generate(const GenerationOptions& options, OnText on_text) {
    detail::TextCaller<OnText> caller{&on_text, nullptr};
    detail::CGenerationOptions own(options);
    own.c.user = &caller;
    own.c.on_text = [](void* user, const char* text, std::size_t num_bytes) -> int {
      return static_cast<detail::TextCaller<OnText>*>(user)->call(
          std::string_view(text, num_bytes));
    };
    headrace_generation result{};
    result.struct_size = sizeof result;
    const headrace_status status = headrace_session_generate(session_.get(), &own.c, &result);
    if (caller.error) std::rethrow_exception(caller.error);
    check(status);
    return {result.num_tokens, static_cast<headrace_finish>(result.finish)};
  }

  /// Samples n completions, 1 to 1024, in one batch: sample i is that of generate() with seed + i.
  /// The session is unchanged. on_text(std::int64_t sample, std::string_view) -> bool: false ends
  /// that sample. Rethrows its exceptions.
  template <class OnText>
  std::vector<Completion> generate_n(const GenerationOptions& options, std::int64_t n,
                                     OnText on_text) {
    detail::TextCaller<OnText> caller{&on_text, nullptr};
    const detail::CGenerationOptions own(options);
    const auto call = [](void* user, std::int64_t sample, const char* text,
                         std::size_t num_bytes) -> int {
      return static_cast<detail::TextCaller<OnText>*>(user)->call(
          sample, std::string_view(text, num_bytes));
    };
    headrace_completions* list = nullptr;
    const headrace_status status =
        headrace_session_generate_n(session_.get(), &own.c, n, call, &caller, &list);
    const detail::CompletionList owner(list);
    if (caller.error) std::rethrow_exception(caller.error);
    check(status);
    return detail::completions_of(list);
  }
  /// The same without a callback.
  std::vector<Completion> generate_n(const GenerationOptions& options, std::int64_t n) {
    return generate_n(options, n, [](std::int64_t, std::string_view) { return true; });
  }
  /// Up to beam_width completions, the highest score first. The session is unchanged.
  std::vector<Completion> beam_search(const BeamOptions& options = {}) {
    headrace_beam_options c;
    check(headrace_beam_options_init(&c));
    c.beam_width = options.beam_width;
    c.length_penalty = options.length_penalty;
    c.max_new_tokens = options.max_new_tokens;
    c.ignore_end = options.ignore_end;
    headrace_completions* list = nullptr;
    check(headrace_session_beam_search(session_.get(), &c, &list));
    const detail::CompletionList owner(list);
    return detail::completions_of(list);
  }

  /// For functions of the C ABI.
  headrace_session* get() const { return session_.get(); }

 private:
  std::unique_ptr<headrace_session, detail::Destroy<headrace_session_destroy>> session_;
};

}  // namespace v0
}  // namespace headrace
