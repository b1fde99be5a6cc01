/** @file
 * Headrace: language models. The C ABI of everything above attention: model files, tokens, chat
 * templates, sessions, sampling, text. The conventions are those of headrace.h.
 *
 *   - headrace_model: weights and vocabulary. Immutable: any number of sessions and threads may
 *     share it.
 *   - headrace_session: one sequence of tokens, its KV cache, the last logits. For one thread.
 *   - headrace_completions: what was generated after such a sequence, several times. Immutable.
 *
 * Lists are returned through (capacity, count): `count` receives the number of elements; they are
 * written if `capacity` suffices, else the call returns invalid_argument. Pass NULL and capacity 0
 * to get only the count.
 */
#ifndef HEADRACE_MODEL_H_
#define HEADRACE_MODEL_H_

#include "headrace/headrace.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- model files: metadata and tensors, without loading the weights ---- */

/** Metadata and tensor list of a model file; immutable. */
typedef struct headrace_model_file headrace_model_file;

/** A tensor of a model file. */
typedef struct headrace_weight_info {
  size_t struct_size; /**< sizeof this struct, set by the caller */
  const char* name;   /**< valid as long as the file */
  const char* type;   /**< "Q4_1" */
  int32_t rank;       /**< number of axes, 1 to 4 */
  int32_t reserved;   /**< 0 */
  int64_t shape[4];   /**< rows first; the last axis is contiguous */
  uint64_t offset;    /**< of the first byte in the file */
  uint64_t bytes;     /**< size in the file */
} headrace_weight_info;

/** Reads and checks the header of a GGUF file. io_error, unsupported: file, position and rule. */
HEADRACE_API headrace_status headrace_model_file_open(const char* path, headrace_model_file** file);
HEADRACE_API void headrace_model_file_close(headrace_model_file* file); /**< NULL is allowed */
/** "GGUF". */
HEADRACE_API const char* headrace_model_file_format(const headrace_model_file* file);
/** Number of metadata entries; indices count from 0, sorted by key. */
HEADRACE_API int64_t headrace_model_file_num_keys(const headrace_model_file* file);
/** Key of a metadata entry, valid as long as the file; NULL for a bad index. */
HEADRACE_API const char* headrace_model_file_key(const headrace_model_file* file, int64_t index);
/** GGUF type of its value, "u32" or "array[string]"; same lifetime, NULL for a bad index. */
HEADRACE_API const char* headrace_model_file_kind(const headrace_model_file* file, int64_t index);
/** Its value as text (lists: length and first elements); same lifetime, NULL for a bad index. */
HEADRACE_API const char* headrace_model_file_value(const headrace_model_file* file, int64_t index);
/** Number of tensors; indices count from 0, in file order. */
HEADRACE_API int64_t headrace_model_file_num_weights(const headrace_model_file* file);
/** Fills `info` for a tensor. invalid_argument: bad index or struct_size. */
HEADRACE_API headrace_status headrace_model_file_weight(const headrace_model_file* file,
                                                        int64_t index, headrace_weight_info* info);

/* ---- models ---- */

/** Weights and vocabulary; immutable. */
typedef struct headrace_model headrace_model;

/** Loading progress in bytes of weights; called on the loading thread. */
typedef void (*headrace_progress_fn)(void* user, uint64_t done, uint64_t total);

/** Options for loading a model. */
typedef struct headrace_model_options {
  size_t struct_size;            /**< sizeof this struct, set by the init function */
  int32_t num_threads;           /**< 0: all CPUs available to the process */
  int32_t exact;                 /**< 1: compute with f32 weights: slower, 4 bytes per weight */
  int32_t use_mmap;              /**< 1: memory-map the file while loading (it must not change) */
  int32_t vocab_only;            /**< 1: no weights: only tokens and chat templates */
  headrace_progress_fn progress; /**< may be NULL */
  void* progress_user;           /**< passed to progress */
  int32_t device_type;           /**< headrace_device_type that computes: CPU (default) or CUDA */
  int32_t device_id;             /**< number of the CUDA device; 0 on the CPU */
  int32_t fast; /**< 1, on CUDA: products of more than 128 tokens by cuBLASLt (loaded at run time),
                     whose bits depend on the tokens beside a row */
  int32_t reserved; /**< 0 */
} headrace_model_options;

/** For bindings that cannot use this header: struct_size is the sizeof of their declaration. */
HEADRACE_API headrace_status headrace_model_options_init_sized(headrace_model_options* options,
                                                               size_t struct_size);
/** Sets the defaults and struct_size. */
static inline headrace_status headrace_model_options_init(headrace_model_options* options) {
  return headrace_model_options_init_sized(options, sizeof *options);
}

/** Loads a GGUF file. unsupported: the architecture, a tensor type, the tokenizer; a CUDA device in
 * a library without CUDA. invalid_argument: there is no such device. out_of_memory: the weights
 * exceed the free memory of the CUDA device. options may be NULL. */
HEADRACE_API headrace_status headrace_model_load(const char* path,
                                                 const headrace_model_options* options,
                                                 headrace_model** model);
HEADRACE_API void headrace_model_destroy(headrace_model* model); /**< after its sessions; or NULL */

/** What determines the tensors of a model. */
typedef struct headrace_model_shape {
  size_t struct_size;                  /**< sizeof this struct, set by the caller */
  const char* name;                    /**< becomes the name of the model */
  const char* architecture;            /**< "llama" or "qwen2" */
  int64_t num_layers;                  /**< transformer layers */
  int64_t hidden_size;                 /**< size of the hidden state */
  int64_t ffn_size;                    /**< intermediate size of the FFN */
  int64_t vocab_size;                  /**< size of the vocabulary, at least 258 */
  int64_t num_heads;                   /**< query heads */
  int64_t num_kv_heads;                /**< KV heads */
  int64_t head_dim;                    /**< of q, k and v */
  int64_t context_length;              /**< maximum sequence length */
  int64_t window;                      /**< sliding window in keys; 0: none */
  double rms_eps;                      /**< of the norms */
  double rope_base;                    /**< theta of RoPE */
  double rope_linear_factor;           /**< divides positions; 1: none */
  double rope_llama3_factor;           /**< Llama 3 scaling of RoPE's frequencies; 0: none */
  double rope_low_freq_factor;         /**< of Llama 3 scaling */
  double rope_high_freq_factor;        /**< of Llama 3 scaling */
  double rope_original_context_length; /**< of Llama 3 scaling */
  int64_t bos_token;                   /**< beginning of text; -1: none */
  int64_t eos_token;                   /**< end of text; -1: none */
  int32_t tied_embeddings;             /**< 1: the output matrix is the embedding */
  int32_t reserved;                    /**< 0 */
} headrace_model_shape;

/** Names of the published models whose shapes are known, from index 0 on; NULL past the last. */
HEADRACE_API const char* headrace_model_shape_name(int64_t index);
/** Fills `shape` with that of a published model. invalid_argument: the message lists the names. */
HEADRACE_API headrace_status headrace_model_shape_find(const char* name,
                                                       headrace_model_shape* shape);

/** Writes a GGUF file of a model with random normal weights and a vocabulary of filler tokens, for
 * timing at full size. weight_type: of the matrices, by its name in GGUF ("BF16", "Q4_0", ...); the
 * vectors are F32. The bytes depend on shape, type and seed alone. The file appears under its name
 * when it is complete, and replaces one of that name; an error leaves nothing. options: num_threads
 * and progress (in written bytes); may be NULL. invalid_argument, unsupported: shape or type.
 * io_error: the reason, such as a full disk. */
HEADRACE_API headrace_status headrace_random_model_write(const headrace_model_shape* shape,
                                                         const char* weight_type, uint64_t seed,
                                                         const headrace_model_options* options,
                                                         const char* path);
/** Loads the same model without a file. Until the weights are loaded, the memory of the host holds
 * the bytes of the file beside them. Errors as in the functions above and headrace_model_load(). */
HEADRACE_API headrace_status headrace_random_model_load(const headrace_model_shape* shape,
                                                        const char* weight_type, uint64_t seed,
                                                        const headrace_model_options* options,
                                                        headrace_model** model);

/** Writes a GGUF file with num_kv_heads KV heads, which divides those of the file `input`: the mean
 * of adjacent heads (Ainslie et al., "GQA", 2023). weight_type: of the matrices that change,
 * "BF16", "F16" or "F32". options, output and errors as in headrace_random_model_write(). */
HEADRACE_API headrace_status headrace_model_convert(const char* input, int64_t num_kv_heads,
                                                    const char* weight_type,
                                                    const headrace_model_options* options,
                                                    const char* output);

/** Properties of a model; sizes in elements, lengths in tokens. */
typedef struct headrace_model_info {
  size_t struct_size;         /**< sizeof this struct, set by the caller */
  const char* architecture;   /**< "llama"; the strings are valid as long as the model */
  const char* name;           /**< name in the file; may be "" */
  const char* weight_types;   /**< "Q4_1 210, F32 61, Q8_0 1": tensors of each type */
  const char* chat_template;  /**< name of the recognized template; "" if none */
  int64_t num_layers;         /**< transformer layers */
  int64_t hidden_size;        /**< size of the hidden state */
  int64_t ffn_size;           /**< intermediate size of the FFN */
  int64_t vocab_size;         /**< size of the vocabulary */
  int64_t context_length;     /**< that the model was trained for */
  int64_t num_heads;          /**< query heads */
  int64_t num_kv_heads;       /**< KV heads */
  int64_t head_dim;           /**< of q and k */
  int64_t head_dim_v;         /**< of v */
  int64_t num_parameters;     /**< elements of all tensors */
  int64_t weight_bytes;       /**< size of the weights in memory */
  int64_t token_weight_bytes; /**< of them, read per token (all but the embedding rows) */
  int32_t bos_token;          /**< beginning of text; -1: none */
  int32_t eos_token;          /**< end of text; -1: none */
  int32_t num_threads;        /**< threads per call */
  int32_t exact;              /**< as in headrace_model_options */
  int32_t device_type;        /**< headrace_device_type that computes */
  int32_t device_id;          /**< of the CUDA device; 0 on the CPU */
  int32_t fast;               /**< as in headrace_model_options */
  int32_t reserved;           /**< 0 */
} headrace_model_info;

/** Fills `info`. */
HEADRACE_API headrace_status headrace_model_get_info(const headrace_model* model,
                                                     headrace_model_info* info);

/** The header of the file that headrace_random_model_write() writes, without writing it. */
HEADRACE_API headrace_status headrace_model_file_describe(const headrace_model_shape* shape,
                                                          const char* weight_type,
                                                          headrace_model_file** file);

/* ---- tokens ---- */

/** Bits of the flags of headrace_tokenize(). */
typedef enum headrace_tokenize_flags {
  HEADRACE_TOKENIZE_SPECIAL = 1, /**< parse special tokens in the text */
  HEADRACE_TOKENIZE_BOS = 2      /**< add the BOS token if the file requests it */
} headrace_tokenize_flags;

/** text: num_bytes arbitrary bytes; invalid UTF-8 becomes byte tokens. */
HEADRACE_API headrace_status headrace_tokenize(const headrace_model* model, const char* text,
                                               size_t num_bytes, uint32_t flags, int32_t* tokens,
                                               size_t capacity, size_t* count);
/** The text of tokens; special tokens give their names. A space at the start that
 * headrace_tokenize() puts before every text (SentencePiece) is left out. */
HEADRACE_API headrace_status headrace_detokenize(const headrace_model* model, const int32_t* tokens,
                                                 size_t num_tokens, char* text, size_t capacity,
                                                 size_t* count);
/** The text that a token adds to that of others before it: a space at its start is kept. */
HEADRACE_API headrace_status headrace_token_text(const headrace_model* model, int32_t token,
                                                 char* text, size_t capacity, size_t* count);
/** 1 if the token ends generation (end of turn, end of text). */
HEADRACE_API int headrace_token_is_end(const headrace_model* model, int32_t token);

/** One turn. Templates with tools (qwen2.5, llama3.1, llama3.2, mistral-v0.3, mistral-nemo,
 * mistral-v7-tools, mistral-v7-tekken-tools) also have "tools", the first message, a JSON object
 * per line as in OpenAI's API; "tool_call" after an "assistant", a JSON object with name and
 * arguments; "tool", a result; before a call or a result its "tool_call_id", which Mistral's
 * templates require: 9 letters or digits. */
typedef struct headrace_message {
  const char* role;    /**< "system", "user", "assistant", or a role of tools */
  const char* content; /**< UTF-8, zero-terminated */
} headrace_message;

/** The tokens of a conversation; special tokens inside messages are not parsed. template_name NULL:
 * the file's own, recognized by its text and never evaluated; `unsupported` lists all names. */
HEADRACE_API headrace_status headrace_chat_tokens(const headrace_model* model,
                                                  const char* template_name,
                                                  const headrace_message* messages,
                                                  size_t num_messages, int add_generation_prompt,
                                                  int32_t* tokens, size_t capacity, size_t* count);

/* ---- sessions ---- */

/** One sequence of tokens. The model must outlive it. Use it on one thread at a time. */
typedef struct headrace_session headrace_session;

/** Options of a session. */
typedef struct headrace_session_options {
  size_t struct_size;   /**< sizeof this struct, set by the init function */
  int64_t max_tokens;   /**< capacity of the sequence; 0: the model's context_length */
  int64_t batch_tokens; /**< of a prompt at once; 0: 512 on a CPU, 8192 on a GPU */
  int32_t cache_dtype;  /**< headrace_dtype of the KV cache: F16 (default), BF16 or F32 */
  int32_t reserved;     /**< 0 */
  int64_t page_size;    /**< tokens per page of the KV cache; default 16; changes no bit */
  int64_t num_pages; /**< of the KV cache; 0: those of max_tokens; several completions need more */
  int32_t k_dtype;   /**< headrace_dtype of stored keys; -1 (default): cache_dtype; codes but for
                        the newest group of 16 or 32 tokens. Pages are rounded up to groups */
  int32_t v_dtype;   /**< the same of stored values */
  int64_t sparq_components; /**< SparQ attention (sparq.h) of tokens appended one at a time */
  int64_t sparq_keys;       /**< its num_components, num_keys; 0 and 0 (default): dense */
} headrace_session_options;

/** For bindings that cannot use this header: struct_size is the sizeof of their declaration. */
HEADRACE_API headrace_status headrace_session_options_init_sized(headrace_session_options* options,
                                                                 size_t struct_size);
/** Sets the defaults and struct_size. */
static inline headrace_status headrace_session_options_init(headrace_session_options* options) {
  return headrace_session_options_init_sized(options, sizeof *options);
}
/** Creates an empty sequence. options may be NULL. */
HEADRACE_API headrace_status headrace_session_create(const headrace_model* model,
                                                     const headrace_session_options* options,
                                                     headrace_session** session);
HEADRACE_API void headrace_session_destroy(headrace_session* session); /**< NULL is allowed */

/** Appends tokens and computes the logits after the last one. logits: NULL, or [num_tokens,
 * vocab_size] for the logits after every token. invalid_argument: the tokens exceed the session's
 * capacity (none is read), or one is not in the vocabulary. On an error nothing is appended. */
HEADRACE_API headrace_status headrace_session_append(headrace_session* session,
                                                     const int32_t* tokens, size_t num_tokens,
                                                     float* logits);
/** Logits after the last token, [vocab_size], until the next append; NULL before the first. */
HEADRACE_API const float* headrace_session_logits(const headrace_session* session);
/** Number of tokens in the sequence. */
HEADRACE_API int64_t headrace_session_length(const headrace_session* session);
/** Keeps the first `length` tokens. Discards the logits, unless it keeps all tokens. */
HEADRACE_API headrace_status headrace_session_truncate(headrace_session* session, int64_t length);

/* ---- sampling and text ---- */

/** Order of filters and temperature, after biases and penalties, as in the named program. */
typedef enum headrace_sampling_order {
  HEADRACE_ORDER_VLLM = 0,         /**< temperature, min-p, top-k, top-p (the default) */
  HEADRACE_ORDER_TRANSFORMERS = 1, /**< temperature, top-k, top-p, min-p */
  HEADRACE_ORDER_LLAMA_CPP = 2     /**< top-k, top-p, min-p, temperature */
} headrace_sampling_order;

/** A bias on the logit of a token. */
typedef struct headrace_logit_bias {
  int32_t token; /**< 0 to vocab_size - 1 */
  float bias;    /**< added before temperature; -inf: never sampled */
} headrace_logit_bias;

/** Sampling parameters. The defaults are greedy; the filters follow the program of `order`. */
typedef struct headrace_sampling_options {
  size_t struct_size;                    /**< sizeof this struct, set by the init function */
  double temperature;                    /**< 0: greedy (the default) */
  double top_p;                          /**< 1: off */
  double min_p;                          /**< 0: off */
  double repetition_penalty;             /**< 1: off */
  double presence_penalty;               /**< subtracted from logits of generated tokens; 0: off */
  double frequency_penalty;              /**< the same, times the token's count; 0: off */
  int64_t top_k;                         /**< 0: off */
  int64_t repetition_window;             /**< covers the last tokens of prompt and answer; 0: all */
  uint64_t seed;                         /**< a sample depends only on seed, sequence, position */
  uint64_t sequence;                     /**< distinguishes sequences with the same seed */
  const headrace_logit_bias* logit_bias; /**< [num_logit_bias] */
  size_t num_logit_bias;                 /**< elements of logit_bias */
  int32_t order;                         /**< headrace_sampling_order */
  int32_t reserved;                      /**< 0 */
} headrace_sampling_options;

/** For bindings that cannot use this header: struct_size is the sizeof of their declaration. */
HEADRACE_API headrace_status
headrace_sampling_options_init_sized(headrace_sampling_options* options, size_t struct_size);
/** Sets the defaults and struct_size. */
static inline headrace_status headrace_sampling_options_init(headrace_sampling_options* options) {
  return headrace_sampling_options_init_sized(options, sizeof *options);
}

/** A token and its log-probability. */
typedef struct headrace_token_logprob {
  int32_t token; /**< -1: none */
  float logprob; /**< natural log, from the model's unmodified logits */
} headrace_token_logprob;

/** Samples the next token from the session's logits without appending it. The first
 * `num_prompt_tokens` tokens of the sequence are the prompt, the others the answer (presence and
 * frequency penalties only count the answer). top: NULL, or [num_top] for the most likely tokens.
 * options may be NULL. io_error: a logit is NaN or +infinity, which means damaged weights. */
HEADRACE_API headrace_status headrace_session_sample(headrace_session* session,
                                                     const headrace_sampling_options* options,
                                                     int64_t num_prompt_tokens,
                                                     headrace_token_logprob* token,
                                                     headrace_token_logprob* top, size_t num_top);

/** What a generated text must match (grammar.h). */
typedef struct headrace_grammar headrace_grammar;

/** Finish reason of a generation. */
typedef enum headrace_finish {
  HEADRACE_FINISH_END = 0,      /**< an end-of-text token, or the end of the grammar */
  HEADRACE_FINISH_STOP = 1,     /**< a stop string */
  HEADRACE_FINISH_LENGTH = 2,   /**< max_new_tokens, or the session is full */
  HEADRACE_FINISH_CANCELLED = 3 /**< on_text returned nonzero */
} headrace_finish;

/** Receives text as it is generated, in whole UTF-8 characters, not zero-terminated. Return nonzero
 * to end the generation. Called with 0 bytes if a token completed no character. */
typedef int (*headrace_text_fn)(void* user, const char* text, size_t num_bytes);

/** Options of headrace_session_generate(). */
typedef struct headrace_generation_options {
  size_t struct_size;                        /**< sizeof this struct, set by the init function */
  const headrace_sampling_options* sampling; /**< NULL: the defaults */
  int64_t max_new_tokens;                    /**< 0: until end of text or the session is full */
  const char* const* stop;                   /**< [num_stop] stop strings; they are not output */
  size_t num_stop;                           /**< elements of stop */
  int32_t ignore_end;                        /**< 1: continue past end-of-text tokens */
  int32_t reserved;                          /**< 0 */
  headrace_text_fn on_text;                  /**< may be NULL */
  void* user;                                /**< passed to on_text */
  const headrace_grammar* grammar;           /**< what the text matches; NULL: any text */
} headrace_generation_options;

/** For bindings that cannot use this header: struct_size is the sizeof of their declaration. */
HEADRACE_API headrace_status
headrace_generation_options_init_sized(headrace_generation_options* options, size_t struct_size);
/** Sets the defaults and struct_size. */
static inline headrace_status headrace_generation_options_init(
    headrace_generation_options* options) {
  return headrace_generation_options_init_sized(options, sizeof *options);
}

/** Result of a generation. */
typedef struct headrace_generation {
  size_t struct_size; /**< sizeof this struct, set by the caller */
  int64_t num_tokens; /**< generated tokens, including the one that ended it */
  int32_t finish;     /**< headrace_finish */
  int32_t reserved;   /**< 0 */
} headrace_generation;

/** Continues the session's sequence: samples, appends and outputs tokens until a finish reason
 * applies. Generated tokens become part of the sequence, except a last token that nothing follows.
 * io_error as in headrace_session_sample(). */
HEADRACE_API headrace_status headrace_session_generate(headrace_session* session,
                                                       const headrace_generation_options* options,
                                                       headrace_generation* result);

/* ---- several completions of one sequence ---- */

/** A list of completions; immutable. */
typedef struct headrace_completions headrace_completions;

/** A completion: what was generated after the sequence of a session. */
typedef struct headrace_completion {
  size_t struct_size;    /**< sizeof this struct, set by the caller */
  const int32_t* tokens; /**< [num_tokens]; the pointers are valid as long as the list */
  int64_t num_tokens;    /**< generated tokens, including the one that ended it */
  const char* text;      /**< output text, zero-terminated */
  size_t num_bytes;      /**< of text, without the terminator */
  double logprob;        /**< of all tokens: natural log, from the model's unmodified logits */
  double score;          /**< that beams are ranked by; samples: logprob */
  int32_t finish;        /**< headrace_finish */
  int32_t reserved;      /**< 0 */
} headrace_completion;

/** Number of completions; NULL: 0. */
HEADRACE_API int64_t headrace_completions_count(const headrace_completions* completions);
/** Fills `completion`. invalid_argument: bad index or struct_size. */
HEADRACE_API headrace_status headrace_completions_get(const headrace_completions* completions,
                                                      int64_t index,
                                                      headrace_completion* completion);
HEADRACE_API void headrace_completions_destroy(
    headrace_completions* completions); /**< NULL is allowed */

/** headrace_text_fn for one of several samples. Nonzero ends that sample alone. */
typedef int (*headrace_sample_text_fn)(void* user, int64_t sample, const char* text,
                                       size_t num_bytes);

/** Samples n completions, 1 to 1024, in one batch; they share the pages of the sequence in the KV
 * cache. Sample i is what headrace_session_generate() gives with seed + i. The session is
 * unchanged. options->on_text must be NULL; on_text may be NULL and gets `user`. invalid_argument:
 * n > 1 with temperature 0, as the samples would be equal. out_of_memory: pages are missing
 * (num_pages of the session); nothing is sampled then. */
HEADRACE_API headrace_status headrace_session_generate_n(headrace_session* session,
                                                         const headrace_generation_options* options,
                                                         int64_t n, headrace_sample_text_fn on_text,
                                                         void* user,
                                                         headrace_completions** completions);

/** Options of headrace_session_beam_search(). */
typedef struct headrace_beam_options {
  size_t struct_size;     /**< sizeof this struct, set by the init function */
  int64_t beam_width;     /**< beams and completions, 1 to the size of the vocabulary; default 4 */
  double length_penalty;  /**< score = logprob / num_tokens^length_penalty; 0 to 10, default 1 */
  int64_t max_new_tokens; /**< 0: until end of text or the session is full */
  int32_t ignore_end;     /**< 1: continue past end-of-text tokens */
  int32_t reserved;       /**< 0 */
} headrace_beam_options;

/** For bindings that cannot use this header: struct_size is the sizeof of their declaration. */
HEADRACE_API headrace_status headrace_beam_options_init_sized(headrace_beam_options* options,
                                                              size_t struct_size);
/** Sets the defaults and struct_size. */
static inline headrace_status headrace_beam_options_init(headrace_beam_options* options) {
  return headrace_beam_options_init_sized(options, sizeof *options);
}

/** Beam search: up to beam_width completions, the highest score first. All beams are one batch and
 * share pages of the KV cache. Deterministic; ties: the lowest token, then the lowest beam. The
 * session is unchanged. options may be NULL. out_of_memory: pages are missing (num_pages of the
 * session); nothing is computed then. io_error as in headrace_session_sample(). */
HEADRACE_API headrace_status headrace_session_beam_search(headrace_session* session,
                                                          const headrace_beam_options* options,
                                                          headrace_completions** completions);

#ifdef __cplusplus
} /* extern "C" */
#endif

#include "headrace/step.h" /* for programs that include this header alone */

#endif /* HEADRACE_MODEL_H_ */
