/** @file
 * Headrace: language models. The C ABI of everything above attention: model files, tokens, chat
 * templates, sessions, sampling, text. The conventions are those of headrace.h.
 *
 *   - headrace_model: weights and vocabulary, immutable: any number of sessions and threads share
 *     it.
 *   - headrace_session: one sequence of tokens: keys and values, logits of the last token. One
 *     thread at a time.
 *
 * A list comes back through (capacity, count): `count` is how many elements there are; they are
 * written where `capacity` suffices, else the call is an invalid_argument. NULL with capacity 0
 * asks for the count alone.
 */
#ifndef HEADRACE_MODEL_H_
#define HEADRACE_MODEL_H_

#include "headrace/headrace.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- model files: what they say, without their weights ---- */

/** What a model file says about itself; immutable. */
typedef struct headrace_model_file headrace_model_file;

/** A tensor of a model file. */
typedef struct headrace_weight_info {
  size_t struct_size; /**< sizeof this struct: the caller sets it */
  const char* name;   /**< valid as long as the file */
  const char* type;   /**< "Q4_1" */
  int32_t rank;       /**< axes, 1 to 4 */
  int32_t reserved;   /**< 0 */
  int64_t shape[4];   /**< rows first; the last axis is contiguous */
  uint64_t offset;    /**< of its first byte in the file */
  uint64_t bytes;     /**< in the file */
} headrace_weight_info;

/** Reads and checks the head of a GGUF file. io_error, unsupported: file, place and rule. */
HEADRACE_API headrace_status headrace_model_file_open(const char* path, headrace_model_file** file);
HEADRACE_API void headrace_model_file_close(headrace_model_file* file); /**< NULL is fine */
/** "GGUF". */
HEADRACE_API const char* headrace_model_file_format(const headrace_model_file* file);
/** Entries of its metadata; an index counts them from 0, sorted by key. */
HEADRACE_API int64_t headrace_model_file_num_keys(const headrace_model_file* file);
/** Key of an entry, valid as long as the file; NULL for a bad index. */
HEADRACE_API const char* headrace_model_file_key(const headrace_model_file* file, int64_t index);
/** Type of its value as GGUF names it, "u32" or "array[string]", by the same rules. */
HEADRACE_API const char* headrace_model_file_kind(const headrace_model_file* file, int64_t index);
/** Its value as text (lists: their length and the first elements), by the same rules. */
HEADRACE_API const char* headrace_model_file_value(const headrace_model_file* file, int64_t index);
/** Tensors; an index counts them from 0, in the order of the file. */
HEADRACE_API int64_t headrace_model_file_num_weights(const headrace_model_file* file);
/** Facts about a tensor. invalid_argument: the index, or the struct_size of `info`. */
HEADRACE_API headrace_status headrace_model_file_weight(const headrace_model_file* file,
                                                        int64_t index, headrace_weight_info* info);

/* ---- models ---- */

/** Weights and vocabulary; immutable. */
typedef struct headrace_model headrace_model;

/** Bytes of weights that are in memory, of all; on the thread that loads. */
typedef void (*headrace_progress_fn)(void* user, uint64_t done, uint64_t total);

/** How a model is loaded. */
typedef struct headrace_model_options {
  size_t struct_size;  /**< sizeof this struct: the init function fills it in */
  int32_t num_threads; /**< 0: every core this process may use */
  int32_t exact;       /**< 1: weights as floats and float products: slower, 4 bytes a weight */
  int32_t use_mmap;    /**< 1: read from a mapping of the file (which must not change meanwhile) */
  int32_t vocab_only;  /**< 1: no weights: tokens and templates only */
  headrace_progress_fn progress; /**< may be NULL */
  void* progress_user;           /**< handed to it */
} headrace_model_options;

/** headrace_model_options_init() for languages that cannot use this header: struct_size is the
 * sizeof of their declaration. */
HEADRACE_API headrace_status headrace_model_options_init_sized(headrace_model_options* options,
                                                               size_t struct_size);
/** Fills in the defaults and struct_size. */
static inline headrace_status headrace_model_options_init(headrace_model_options* options) {
  return headrace_model_options_init_sized(options, sizeof *options);
}

/** Loads a GGUF file. unsupported: the architecture, a tensor type, the tokenizer. options may be
 * NULL. */
HEADRACE_API headrace_status headrace_model_load(const char* path,
                                                 const headrace_model_options* options,
                                                 headrace_model** model);
/** Sessions must be gone before. NULL is fine. */
HEADRACE_API void headrace_model_destroy(headrace_model* model);

/** What a model is; sizes in elements, lengths in tokens. */
typedef struct headrace_model_info {
  size_t struct_size;        /**< sizeof this struct: the caller sets it */
  const char* architecture;  /**< "llama"; these texts are valid as long as the model */
  const char* name;          /**< what the file calls itself; may be "" */
  const char* weight_types;  /**< "Q4_1 210, F32 61, Q8_0 1": tensors of each type */
  const char* chat_template; /**< name of the recognised template, "" where there is none */
  int64_t num_layers;        /**< transformer layers */
  int64_t hidden_size;       /**< of an activation */
  int64_t ffn_size;          /**< inside the feed-forward */
  int64_t vocab_size;        /**< tokens that the model knows */
  int64_t context_length;    /**< that it was trained for */
  int64_t num_heads;         /**< of the queries */
  int64_t num_kv_heads;      /**< of keys and values */
  int64_t head_dim;          /**< of queries and keys */
  int64_t head_dim_v;        /**< of values */
  int64_t num_parameters;    /**< elements of all tensors */
  int64_t weight_bytes;      /**< as they lie in memory */
  int64_t
      token_weight_bytes; /**< of them, read for one token (all but the rows of the embedding) */
  int32_t bos_token;      /**< begins a text; -1: none */
  int32_t eos_token;      /**< ends a text; -1: none */
  int32_t num_threads;    /**< that its calls use */
  int32_t exact;          /**< as in headrace_model_options */
} headrace_model_info;

/** Facts about a model. */
HEADRACE_API headrace_status headrace_model_get_info(const headrace_model* model,
                                                     headrace_model_info* info);

/* ---- tokens ---- */

/** Bits of the flags of headrace_tokenize(). */
typedef enum headrace_tokenize_flags {
  HEADRACE_TOKENIZE_SPECIAL = 1, /**< names of special tokens in the text become those tokens */
  HEADRACE_TOKENIZE_BOS = 2      /**< begin with the token that the file wants there, if it does */
} headrace_tokenize_flags;

/** text: num_bytes of any kind; bytes that are no UTF-8 are tokens of their own. */
HEADRACE_API headrace_status headrace_tokenize(const headrace_model* model, const char* text,
                                               size_t num_bytes, uint32_t flags, int32_t* tokens,
                                               size_t capacity, size_t* count);
/** The bytes of tokens; special tokens by their names. */
HEADRACE_API headrace_status headrace_detokenize(const headrace_model* model, const int32_t* tokens,
                                                 size_t num_tokens, char* text, size_t capacity,
                                                 size_t* count);
/** 1: a token that ends the text (end of turn, end of text). */
HEADRACE_API int headrace_token_is_end(const headrace_model* model, int32_t token);

/** One turn of a conversation. */
typedef struct headrace_message {
  const char* role;    /**< "system", "user", "assistant" */
  const char* content; /**< UTF-8, ends with 0 */
} headrace_message;

/** The tokens of a conversation. template_name NULL: the one the file carries, recognised by its
 * text and never evaluated; unsupported names those that are known. Names of special tokens inside
 * a message are text. */
HEADRACE_API headrace_status headrace_chat_tokens(const headrace_model* model,
                                                  const char* template_name,
                                                  const headrace_message* messages,
                                                  size_t num_messages, int add_generation_prompt,
                                                  int32_t* tokens, size_t capacity, size_t* count);

/* ---- sessions ---- */

/** One sequence of tokens. The model outlives it; one thread at a time uses it. */
typedef struct headrace_session headrace_session;

/** Sizes of a session. */
typedef struct headrace_session_options {
  size_t struct_size;   /**< sizeof this struct: the init function fills it in */
  int64_t max_tokens;   /**< of the sequence; 0: the model's context_length */
  int64_t batch_tokens; /**< that go through the network at once; 0: 512 */
  int32_t cache_dtype;  /**< headrace_dtype of keys and values: F16 (default), BF16, F32 */
  int32_t reserved;     /**< 0 */
} headrace_session_options;

/** headrace_session_options_init() for languages that cannot use this header: struct_size is the
 * sizeof of their declaration. */
HEADRACE_API headrace_status headrace_session_options_init_sized(headrace_session_options* options,
                                                                 size_t struct_size);
/** Fills in the defaults and struct_size. */
static inline headrace_status headrace_session_options_init(headrace_session_options* options) {
  return headrace_session_options_init_sized(options, sizeof *options);
}
/** An empty sequence. options may be NULL. */
HEADRACE_API headrace_status headrace_session_create(const headrace_model* model,
                                                     const headrace_session_options* options,
                                                     headrace_session** session);
HEADRACE_API void headrace_session_destroy(headrace_session* session); /**< NULL is fine */

/** Appends tokens and computes the logits behind the last one. logits: NULL, or
 * [num_tokens, vocab_size] to get those behind every token. On an error nothing was appended.
 * invalid_argument: more tokens than the session has room for (none of them is read then), or one
 * that is not in the vocabulary. */
HEADRACE_API headrace_status headrace_session_append(headrace_session* session,
                                                     const int32_t* tokens, size_t num_tokens,
                                                     float* logits);
/** Logits behind the last token, [vocab_size], until the next append; NULL before the first. */
HEADRACE_API const float* headrace_session_logits(const headrace_session* session);
/** Tokens of the sequence. */
HEADRACE_API int64_t headrace_session_length(const headrace_session* session);
/** Keeps the first `length` tokens. The logits are gone. */
HEADRACE_API headrace_status headrace_session_truncate(headrace_session* session, int64_t length);

/* ---- sampling and text ---- */

/** Biases and penalties come first, the draw last; the filters and the temperature between them in
 * the order of the program that the name says. */
typedef enum headrace_sampling_order {
  HEADRACE_ORDER_VLLM = 0,         /**< temperature, min-p, top-k, top-p (the default) */
  HEADRACE_ORDER_TRANSFORMERS = 1, /**< temperature, top-k, top-p, min-p */
  HEADRACE_ORDER_LLAMA_CPP = 2     /**< top-k, top-p, min-p, temperature */
} headrace_sampling_order;

/** What is added to the logit of a token. */
typedef struct headrace_logit_bias {
  int32_t token; /**< 0 to vocab_size - 1 */
  float bias;    /**< before temperature; -inf: never drawn */
} headrace_logit_bias;

/** How the next token is drawn. The defaults take the most likely one. The
 * filters are those of the program that `order` names. */
typedef struct headrace_sampling_options {
  size_t struct_size;                    /**< sizeof this struct: the init function fills it in */
  double temperature;                    /**< 0: the most likely token (the default) */
  double top_p;                          /**< 1: off */
  double min_p;                          /**< 0: off */
  double repetition_penalty;             /**< 1: off */
  double presence_penalty;               /**< off the logit of a token that was drawn; 0: off */
  double frequency_penalty;              /**< the same for each time it was; 0: off */
  int64_t top_k;                         /**< 0: off */
  int64_t repetition_window;             /**< last tokens of prompt and answer; 0: all of them */
  uint64_t seed;                         /**< a draw depends on seed, sequence and position only */
  uint64_t sequence;                     /**< tells sequences that share a seed apart */
  const headrace_logit_bias* logit_bias; /**< [num_logit_bias] */
  size_t num_logit_bias;                 /**< elements of logit_bias */
  int32_t order;                         /**< headrace_sampling_order */
  int32_t reserved;                      /**< 0 */
} headrace_sampling_options;

/** headrace_sampling_options_init() for languages that cannot use this header: struct_size is the
 * sizeof of their declaration. */
HEADRACE_API headrace_status
headrace_sampling_options_init_sized(headrace_sampling_options* options, size_t struct_size);
/** Fills in the defaults and struct_size. */
static inline headrace_status headrace_sampling_options_init(headrace_sampling_options* options) {
  return headrace_sampling_options_init_sized(options, sizeof *options);
}

/** A token and how likely it was. */
typedef struct headrace_token_logprob {
  int32_t token; /**< -1: none */
  float logprob; /**< natural log, of the logits as the model gave them */
} headrace_token_logprob;

/** Draws the next token from the session's logits; does not append it. Tokens before
 * `num_prompt_tokens` of the sequence are prompt, those behind it answer (presence and frequency
 * penalties count the answer only). top: NULL, or [num_top] for the most likely ones. options may
 * be NULL. io_error: the model gave a logit that is NaN or +infinity, as damaged weights do. */
HEADRACE_API headrace_status headrace_session_sample(headrace_session* session,
                                                     const headrace_sampling_options* options,
                                                     int64_t num_prompt_tokens,
                                                     headrace_token_logprob* token,
                                                     headrace_token_logprob* top, size_t num_top);

/** Why a generation ended. */
typedef enum headrace_finish {
  HEADRACE_FINISH_END = 0,      /**< the model ended its text */
  HEADRACE_FINISH_STOP = 1,     /**< a stop string */
  HEADRACE_FINISH_LENGTH = 2,   /**< max_new_tokens, or the session is full */
  HEADRACE_FINISH_CANCELLED = 3 /**< on_text said so */
} headrace_finish;

/** Text as it comes, whole UTF-8 characters; not 0-terminated. Another value than 0 ends the
 * generation. Called with 0 bytes where a token completed no character. */
typedef int (*headrace_text_fn)(void* user, const char* text, size_t num_bytes);

/** What headrace_session_generate() does beside sampling. */
typedef struct headrace_generation_options {
  size_t struct_size; /**< sizeof this struct: the init function fills it in */
  const headrace_sampling_options* sampling; /**< NULL: the defaults */
  int64_t max_new_tokens;                    /**< 0: until the end or the session is full */
  const char* const* stop;                   /**< [num_stop] texts that end it; not put out */
  size_t num_stop;                           /**< elements of stop */
  int32_t ignore_end;       /**< 1: tokens that end the text are text like others */
  int32_t reserved;         /**< 0 */
  headrace_text_fn on_text; /**< may be NULL */
  void* user;               /**< handed to on_text */
} headrace_generation_options;

/** headrace_generation_options_init() for languages that cannot use this header: struct_size is the
 * sizeof of their declaration. */
HEADRACE_API headrace_status
headrace_generation_options_init_sized(headrace_generation_options* options, size_t struct_size);
/** Fills in the defaults and struct_size. */
static inline headrace_status headrace_generation_options_init(
    headrace_generation_options* options) {
  return headrace_generation_options_init_sized(options, sizeof *options);
}

/** How a generation ended. */
typedef struct headrace_generation {
  size_t struct_size; /**< sizeof this struct: the caller sets it */
  int64_t num_tokens; /**< drawn, the one that ended the text included */
  int32_t finish;     /**< headrace_finish */
  int32_t reserved;   /**< 0 */
} headrace_generation;

/** Continues the session's sequence: sample, append, put out, until something ends it. What was
 * drawn is part of the sequence afterwards, but for the last token where nothing will follow it.
 * io_error as headrace_session_sample() has it. */
HEADRACE_API headrace_status headrace_session_generate(headrace_session* session,
                                                       const headrace_generation_options* options,
                                                       headrace_generation* result);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* HEADRACE_MODEL_H_ */
