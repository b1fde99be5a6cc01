/// @file
/// Language models for C++20: a header-only skin over model.h.
///
///   headrace::Model model("SmolLM2-135M-Instruct.Q4_1.gguf");
///   headrace::Session session(model);
///   session.append(model.chat_tokens({{"user", "Why is the sky blue?"}}));
///   session.generate({.max_new_tokens = 200}, [](std::string_view text) {
///     std::cout << text << std::flush;
///     return true;  // go on
///   });
#pragma once

#if __cplusplus < 202002L
#error \
    "Headrace's C++ headers need C++20: compile with -std=c++20 (or later), in CMake link \
headrace::headrace or set CMAKE_CXX_STANDARD to 20; C programs include headrace/headrace.h"
#endif

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "headrace/headrace.hpp"
#include "headrace/model.h"

namespace headrace {
inline namespace v0 {

namespace detail {

/// Two calls of a function that fills (data, capacity, &count): the first asks for the count.
template <class Container, class Fill>
Container filled(Fill fill) {
  std::size_t count = 0;
  check(fill(nullptr, std::size_t{0}, &count));
  Container container(count, {});
  if (count > 0) check(fill(container.data(), count, &count));
  return container;
}

template <auto destroy>
struct Destroy {
  template <class T>
  void operator()(T* object) const noexcept {
    destroy(object);
  }
};

}  // namespace detail

/// What a model file says about itself, without its weights. The texts live as long as it does.
class ModelFile {
 public:
  /// An entry of the metadata.
  struct Entry {
    std::string_view key;    ///< "general.architecture"
    std::string_view kind;   ///< as GGUF names it: "u32", "array[string]"
    std::string_view value;  ///< as text; lists: their length and the first elements
  };
  /// A tensor.
  struct Weight {
    std::string_view name;            ///< "output_norm.weight"
    std::string_view type;            ///< "Q4_1"
    std::vector<std::int64_t> shape;  ///< rows first; the last axis is contiguous
    std::uint64_t offset;             ///< of its first byte in the file
    std::uint64_t bytes;              ///< in the file
  };

  /// Throws Error(HEADRACE_IO_ERROR or HEADRACE_UNSUPPORTED): file, place and rule.
  explicit ModelFile(const std::string& path) {
    headrace_model_file* file = nullptr;
    check(headrace_model_file_open(path.c_str(), &file));
    file_.reset(file);
  }

  /// "GGUF".
  std::string_view format() const { return headrace_model_file_format(file_.get()); }
  /// Entries of the metadata.
  std::int64_t num_keys() const { return headrace_model_file_num_keys(file_.get()); }
  /// Tensors.
  std::int64_t num_weights() const { return headrace_model_file_num_weights(file_.get()); }
  /// index < num_keys(), sorted by key.
  Entry entry(std::int64_t index) const {
    return {headrace_model_file_key(file_.get(), index),
            headrace_model_file_kind(file_.get(), index),
            headrace_model_file_value(file_.get(), index)};
  }
  /// index < num_weights(), in the order of the file.
  Weight weight(std::int64_t index) const {
    headrace_weight_info info{};
    info.struct_size = sizeof info;
    check(headrace_model_file_weight(file_.get(), index, &info));
    return {info.name, info.type, {info.shape, info.shape + info.rank}, info.offset, info.bytes};
  }

 private:
  std::unique_ptr<headrace_model_file, detail::Destroy<headrace_model_file_close>> file_;
};

/// How a model is loaded.
struct ModelOptions {
  int num_threads = 0;      ///< 0: every core this process may use
  bool exact = false;       ///< weights as floats and float products: slower, 4 bytes a weight
  bool use_mmap = false;    ///< read from a mapping of the file, which must not change meanwhile
  bool vocab_only = false;  ///< no weights: tokens and templates only
  /// Hears how many bytes of weights are in memory, of all. Must not throw.
  std::function<void(std::uint64_t done, std::uint64_t total)> progress = {};
};

/// One turn of a conversation.
struct Message {
  std::string role;     ///< "system", "user" or "assistant"
  std::string content;  ///< UTF-8
};

/// Weights and vocabulary, immutable.
class Model {
 public:
  /// Throws Error: HEADRACE_IO_ERROR or HEADRACE_UNSUPPORTED with file, place and rule.
  explicit Model(const std::string& path, const ModelOptions& options = {}) {
    headrace_model_options c;
    check(headrace_model_options_init(&c));
    c.num_threads = options.num_threads;
    c.exact = options.exact;
    c.use_mmap = options.use_mmap;
    c.vocab_only = options.vocab_only;
    if (options.progress) {
      c.progress_user = const_cast<void*>(static_cast<const void*>(&options.progress));
      c.progress = [](void* user, std::uint64_t done, std::uint64_t total) {
        (*static_cast<std::function<void(std::uint64_t, std::uint64_t)>*>(user))(done, total);
      };
    }
    headrace_model* model = nullptr;
    check(headrace_model_load(path.c_str(), &c, &model));
    model_.reset(model);
  }

  /// Facts; their texts live as long as the model.
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
  /// Special tokens by their names; whole characters only where the tokens end on one.
  std::string detokenize(std::span<const std::int32_t> tokens) const {
    return detail::filled<std::string>([&](char* text, std::size_t capacity, std::size_t* count) {
      return headrace_detokenize(model_.get(), tokens.data(), tokens.size(), text, capacity, count);
    });
  }
  /// Whether a token ends the text (end of turn, end of text).
  bool is_end(std::int32_t token) const { return headrace_token_is_end(model_.get(), token) != 0; }

  /// template_name empty: the one that the file carries.
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

/// Sizes of a session.
struct SessionOptions {
  std::int64_t max_tokens = 0;     ///< 0: the model's context_length
  std::int64_t batch_tokens = 0;   ///< 0: 512
  DType cache_dtype = DType::f16;  ///< of keys and values: f16, bf16 or f32
};

/// How the next token is drawn.
struct SamplingOptions {
  double temperature = 0;  ///< 0: the most likely token
  double top_p = 1;        ///< the most likely tokens that have this much probability; 1: off
  double min_p = 0;        ///< of the most likely token's probability; 0: off
  std::int64_t top_k = 0;  ///< 0: off
  double repetition_penalty = 1;       ///< 1: off
  double presence_penalty = 0;         ///< off the logit of a token that was drawn; 0: off
  double frequency_penalty = 0;        ///< the same for each time it was; 0: off
  std::int64_t repetition_window = 0;  ///< last tokens of prompt and answer; 0: all of them
  std::uint64_t seed = 0;              ///< a draw depends on seed, sequence and position only
  std::uint64_t sequence = 0;          ///< tells sequences that share a seed apart
  std::vector<headrace_logit_bias> logit_bias = {};     ///< added to the logits of their tokens
  headrace_sampling_order order = HEADRACE_ORDER_VLLM;  ///< of the filters

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

/// What a generation does beside sampling.
struct GenerationOptions {
  SamplingOptions sampling = {};       ///< how tokens are drawn
  std::int64_t max_new_tokens = 0;     ///< 0: until the end or the session is full
  std::vector<std::string> stop = {};  ///< texts that end it; not put out
  bool ignore_end = false;             ///< tokens that end the text are text like others
};

/// How a generation ended.
struct Generation {
  std::int64_t num_tokens = 0;                   ///< drawn, the one that ended the text included
  headrace_finish finish = HEADRACE_FINISH_END;  ///< why
};

/// One sequence of tokens. The model outlives it.
class Session {
 public:
  /// An empty sequence.
  explicit Session(const Model& model, const SessionOptions& options = {}) {
    headrace_session_options c;
    check(headrace_session_options_init(&c));
    c.max_tokens = options.max_tokens;
    c.batch_tokens = options.batch_tokens;
    c.cache_dtype = static_cast<std::int32_t>(options.cache_dtype);
    headrace_session* session = nullptr;
    check(headrace_session_create(model.get(), &c, &session));
    session_.reset(session);
  }

  /// all_logits: null, or [tokens.size(), vocab_size].
  void append(std::span<const std::int32_t> tokens, float* all_logits = nullptr) {
    check(headrace_session_append(session_.get(), tokens.data(), tokens.size(), all_logits));
  }
  /// [vocab_size], behind the last token; null before the first.
  const float* logits() const { return headrace_session_logits(session_.get()); }
  /// Tokens of the sequence.
  std::int64_t length() const { return headrace_session_length(session_.get()); }
  /// Keeps the first `length` tokens; the logits are gone.
  void truncate(std::int64_t length) { check(headrace_session_truncate(session_.get(), length)); }

  /// Draws the next token and does not append it; `top` is filled with the most likely ones. Tokens
  /// before num_prompt_tokens are prompt, which presence and frequency penalties do not count.
  headrace_token_logprob sample(const SamplingOptions& options, std::int64_t num_prompt_tokens,
                                std::span<headrace_token_logprob> top = {}) {
    const headrace_sampling_options c = options.to_c();
    headrace_token_logprob token{};
    check(headrace_session_sample(session_.get(), &c, num_prompt_tokens, &token, top.data(),
                                  top.size()));
    return token;
  }

  /// on_text(std::string_view) -> bool: false ends the generation. What it throws comes out here.
  template <class OnText>
  Generation generate(const GenerationOptions& options, OnText on_text) {
    struct Caller {
      OnText* on_text;
      std::exception_ptr error;
    } caller{&on_text, nullptr};
    const headrace_sampling_options sampling = options.sampling.to_c();
    std::vector<const char*> stop;
    for (const std::string& text : options.stop) stop.push_back(text.c_str());
    headrace_generation_options c;
    check(headrace_generation_options_init(&c));
    c.sampling = &sampling;
    c.max_new_tokens = options.max_new_tokens;
    c.stop = stop.data();
    c.num_stop = stop.size();
    c.ignore_end = options.ignore_end;
    c.user = &caller;
    c.on_text = [](void* user, const char* text, std::size_t num_bytes) -> int {
      auto* self = static_cast<Caller*>(user);
      try {
        return (*self->on_text)(std::string_view(text, num_bytes)) ? 0 : 1;
      } catch (...) {
        self->error = std::current_exception();
        return 1;
      }
    };
    headrace_generation result{};
    result.struct_size = sizeof result;
    const headrace_status status = headrace_session_generate(session_.get(), &c, &result);
    if (caller.error) std::rethrow_exception(caller.error);
    check(status);
    return {result.num_tokens, static_cast<headrace_finish>(result.finish)};
  }

  /// For functions of the C ABI.
  headrace_session* get() const { return session_.get(); }

 private:
  std::unique_ptr<headrace_session, detail::Destroy<headrace_session_destroy>> session_;
};

}  // namespace v0
}  // namespace headrace
