/** @file
 * Headrace: the engine, which serves many requests with one model by continuous batching. The
 * conventions are those of headrace.h; models and sampling options are those of model.h.
 *
 *   headrace_engine_create(model, NULL, &engine);
 *   headrace_engine_add(engine, &request, &id);      // from any thread
 *   headrace_engine_step(engine, &has_worked);       // on one thread, again and again
 *   headrace_engine_poll(engine, &output);           // from any thread; NULL: nothing new
 *
 * Threads: one thread at a time calls headrace_engine_step() or headrace_engine_run(); any thread
 * calls the other functions of an engine at any time. An output belongs to the thread that polled
 * it.
 *
 * The tokens and logprobs of a request depend on the request, the model and its device alone: not
 * on requests beside it, on the order in which they came, on preemption or the prefix cache.
 */
#ifndef HEADRACE_ENGINE_H_
#define HEADRACE_ENGINE_H_

#include "headrace/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Requests, the KV cache that they share, and what they gave. The model must outlive it. */
typedef struct headrace_engine headrace_engine;

/** Options of an engine. */
typedef struct headrace_engine_options {
  size_t struct_size; /**< sizeof this struct, set by the init function */
  int64_t max_tokens; /**< of prompt and answer; 0: the model's context_length */
  int64_t
      max_batch_tokens; /**< tokens of a step; 0: 512, on a GPU 2048, or 2 max_num_seqs if more */
  int64_t max_num_seqs; /**< that are computed at once; 0: 32 on a CPU, 256 on a GPU */
  int64_t max_requests; /**< that have not ended or were not polled; default 1024 */
  int64_t page_size;    /**< tokens per page of the KV cache; default 16; changes no bit */
  /** Of the KV cache, allocated when the engine is created. 0, on a CPU: those of four sequences of
   * max_tokens. 0, on a GPU: those of max_num_seqs (at least four) such sequences, or as many as
   * fit in 90 % of the memory that is free then; engines that are created later share the rest. */
  int64_t num_pages;
  int64_t num_host_pages;  /**< for preempted sequences; default 0: they are computed anew */
  int32_t cache_dtype;     /**< headrace_dtype of the KV cache: F16 (default), BF16 or F32 */
  int32_t no_prefix_cache; /**< 1: do not reuse the keys and values of equal prompts */
  int32_t k_dtype; /**< headrace_dtype of stored keys, as in headrace_session_options; default -1 */
  int32_t v_dtype; /**< the same of stored values */
  /** Most tokens of prompts in a step in which answers grow, which wait for them. 0: on a CPU as
   * few as the bits of prompts allow, 129 or less; on a GPU max_batch_tokens. A GPU computes a
   * quarter of the prompts that could be computed in such a step, and fills it to a multiple of
   * 256 tokens. */
  int64_t max_prompt_tokens;
} headrace_engine_options;

/** headrace_engine_options_init() for bindings that cannot use this header: struct_size is the
 * sizeof of their declaration. */
HEADRACE_API headrace_status headrace_engine_options_init_sized(headrace_engine_options* options,
                                                                size_t struct_size);
/** Sets the defaults and struct_size. */
static inline headrace_status headrace_engine_options_init(headrace_engine_options* options) {
  return headrace_engine_options_init_sized(options, sizeof *options);
}

/** options may be NULL. invalid_argument: an option is out of range, or the model has no weights.
 * out_of_memory: the pages exceed the memory; with num_pages = 0 on a GPU those of one sequence. */
HEADRACE_API headrace_status headrace_engine_create(const headrace_model* model,
                                                    const headrace_engine_options* options,
                                                    headrace_engine** engine);
/** No other thread may use the engine any more. NULL is allowed. */
HEADRACE_API void headrace_engine_destroy(headrace_engine* engine);

/** A prompt and what is wanted after it. */
typedef struct headrace_request {
  size_t struct_size;                        /**< sizeof this struct, set by the init function */
  const int32_t* tokens;                     /**< [num_tokens], the prompt */
  size_t num_tokens;                         /**< elements of tokens; at least 1 */
  const headrace_sampling_options* sampling; /**< NULL: the defaults; sample i has seed + i */
  int64_t n;                                 /**< samples of the prompt, 1 to 1024; default 1 */
  int64_t max_new_tokens;                    /**< of a sample; 0: until the context is full */
  const int32_t* stop_tokens;                /**< [num_stop_tokens] */
  size_t num_stop_tokens;                    /**< elements of stop_tokens */
  const char* const* stop;                   /**< [num_stop] stop strings; they are not output */
  size_t num_stop;                           /**< elements of stop */
  int64_t priority;     /**< the lowest runs first; equal: first come, first served; default 0 */
  int32_t num_logprobs; /**< most likely tokens beside each token; -1 (default): no logprobs */
  int32_t ignore_end;   /**< 1: continue past end-of-text tokens */
  const headrace_grammar* grammar; /**< what the text of each sample matches; NULL: any text */
  /** Only requests with the same one, 0 to 2^56 - 1, share cached prompts, so that no time says
   * what another tenant sent; default 0. */
  int64_t cache_salt;
  /** Not 0: a beam search, as headrace_session_beam_search() makes it, with that many beams, at
   * most max_num_seqs. Sample i is the completion with the i-th highest score, output whole when
   * the search has ended, with logprobs. n, stop, stop_tokens, num_logprobs and grammar keep their
   * defaults, and sampling has no effect. */
  int64_t beam_width;
  double length_penalty; /**< score = logprob / tokens^length_penalty; 0 to 10; default 1 */
} headrace_request;

/** headrace_request_init() for bindings that cannot use this header: struct_size is the sizeof of
 * their declaration. */
HEADRACE_API headrace_status headrace_request_init_sized(headrace_request* request,
                                                         size_t struct_size);
/** Sets the defaults and struct_size. */
static inline headrace_status headrace_request_init(headrace_request* request) {
  return headrace_request_init_sized(request, sizeof *request);
}

/** Queues a request and writes its id, which counts from 1. The request is copied.
 * invalid_argument: a value is out of range, a token is not in the vocabulary, the prompt exceeds
 * max_tokens. busy: there are max_requests; poll, and add it later. */
HEADRACE_API headrace_status headrace_engine_add(headrace_engine* engine,
                                                 const headrace_request* request, int64_t* id);
/** The samples of the request that have not ended end in the next step, aborted. No effect on a
 * request that has ended. invalid_argument: no request had this id. */
HEADRACE_API headrace_status headrace_engine_abort(headrace_engine* engine, int64_t id);

/** Computes one step. On a GPU its tokens may come with the next step. has_worked: NULL, or 0 if
 * there was nothing to do. A request that fails ends with its error and is no error of the step.
 * out_of_memory: the requests that steps have taken end with this error; the engine goes on.
 * device_error: the device is lost; all requests have ended and later calls return the same. */
HEADRACE_API headrace_status headrace_engine_step(headrace_engine* engine, int* has_worked);
/** Steps until there is nothing to do. */
HEADRACE_API headrace_status headrace_engine_run(headrace_engine* engine);

/** How a sample of a request ended. */
typedef enum headrace_request_finish {
  HEADRACE_REQUEST_RUNNING = 0, /**< it has not ended */
  HEADRACE_REQUEST_STOP = 1,    /**< an end-of-text token, a stop token or a stop string */
  HEADRACE_REQUEST_LENGTH = 2,  /**< max_new_tokens, or the context is full */
  HEADRACE_REQUEST_ABORTED = 3, /**< headrace_engine_abort() */
  HEADRACE_REQUEST_ERROR = 4    /**< see error */
} headrace_request_finish;

/** What one sample of a request gained; immutable: any thread may read it. */
typedef struct headrace_output headrace_output;

/** The contents of an output. The pointers are valid as long as the output. */
typedef struct headrace_output_info {
  size_t struct_size;    /**< sizeof this struct, set by the caller */
  int64_t id;            /**< of the request */
  int64_t sample;        /**< 0 to n - 1 */
  const int32_t* tokens; /**< [num_tokens] */
  int64_t num_tokens;    /**< new tokens, with one that ended the sample */
  const float* logprobs; /**< [num_tokens], from the model's unmodified logits; or NULL */
  /** [num_tokens, num_top], the most likely first; token -1 beyond the vocabulary; or NULL. */
  const headrace_token_logprob* top_logprobs;
  int64_t num_top;     /**< num_logprobs of the request, at least 0 */
  const char* text;    /**< new text in whole UTF-8 characters, zero-terminated */
  size_t num_bytes;    /**< of text, without the terminator */
  const char* error;   /**< why the sample failed; "" without an error */
  int32_t finish;      /**< headrace_request_finish; the last output of a sample has not RUNNING */
  int32_t reserved;    /**< 0 */
  int64_t stop_string; /**< index of the stop string that ended the sample; -1: none did */
  /** Of the prompt, found in the prefix cache when the sample started; 0 for samples that began
   * with the pages of another one of their request, and for outputs without tokens. */
  int64_t num_cached_tokens;
} headrace_output_info;

/** Takes the output that waits longest, all of its sample since the last poll; NULL: none. */
HEADRACE_API headrace_status headrace_engine_poll(headrace_engine* engine,
                                                  headrace_output** output);
/** Fills `info`. */
HEADRACE_API headrace_status headrace_output_get(const headrace_output* output,
                                                 headrace_output_info* info);
HEADRACE_API void headrace_output_destroy(headrace_output* output); /**< NULL is allowed */

/** Counts since the engine was created, unless they say otherwise. */
typedef struct headrace_engine_stats {
  size_t struct_size;           /**< sizeof this struct, set by the caller */
  int64_t num_requests;         /**< now: that have not ended or were not polled */
  int64_t num_waiting;          /**< now: sequences that have not started */
  int64_t num_running;          /**< now: sequences that are computed */
  int64_t num_preempted;        /**< now: sequences that gave their pages to others */
  int64_t num_pages;            /**< of the KV cache */
  int64_t num_free_pages;       /**< now; free pages may still hold a cached prefix */
  int64_t num_finished;         /**< requests */
  int64_t num_steps;            /**< steps that computed tokens */
  int64_t num_scheduled_tokens; /**< computed in these steps: prompts and answers */
  int64_t num_generated_tokens; /**< of answers */
  int64_t num_prompt_tokens;    /**< of the prompts of sequences that have started */
  int64_t num_cached_tokens;    /**< of them, found in the prefix cache */
  int64_t num_preemptions;      /**< of sequences */
  /** Of the steps, without waits for a GPU, or the forward of a model on a CPU. */
  double host_seconds;
} headrace_engine_stats;

/** Fills `stats`, as of the last step. */
HEADRACE_API headrace_status headrace_engine_get_stats(const headrace_engine* engine,
                                                       headrace_engine_stats* stats);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* HEADRACE_ENGINE_H_ */
