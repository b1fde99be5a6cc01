/** @file
 * Headrace: what a step of a language model costs, operator by operator: predicted for any device,
 * or measured. The conventions are those of headrace.h.
 */
#ifndef HEADRACE_STEP_H_
#define HEADRACE_STEP_H_

#include "headrace/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/** A step of a model on sequences of equal lengths. */
typedef struct headrace_step_shape {
  size_t struct_size;  /**< sizeof this struct, set by the caller */
  int64_t num_seqs;    /**< sequences */
  int64_t seqlen_q;    /**< tokens of each in this step: 1 in decode, the prompt in prefill */
  int64_t seqlen_k;    /**< tokens of each after this step */
  int32_t cache_dtype; /**< headrace_dtype of the KV cache: F16, BF16 or F32 */
  int32_t reserved;    /**< 0 */
  int32_t k_dtype;     /**< headrace_dtype of stored keys: codes; 0: cache_dtype */
  int32_t v_dtype;     /**< the same of stored values */
} headrace_step_shape;

/** All calls of an operator in a step. */
typedef struct headrace_operator_cost {
  size_t struct_size; /**< sizeof this struct, set by the caller */
  const char* name;   /**< "linear qkv"; the strings are valid as long as the step */
  const char* kernel; /**< "cuda_sm90_decode" */
  int64_t num_calls;  /**< calls in the step */
  double bytes;       /**< of inputs and outputs, each once: weights, activations, cached K and V */
  double flops;       /**< of products and attention */
  double seconds;     /**< of all calls: headrace_session_time_step(); 0: not measured */
} headrace_operator_cost;

/** The operators of a step; immutable. */
typedef struct headrace_step headrace_step;

/** What a step of a model file costs on a device, which need not be present; no weight is read.
 * Weights count as the device keeps them: bf16 on CUDA. invalid_argument: a number of `shape`. */
HEADRACE_API headrace_status headrace_step_explain(const headrace_model_file* file,
                                                   const headrace_step_shape* shape,
                                                   const headrace_device_info* device,
                                                   headrace_step** step);
/** Times a step that appends num_tokens arbitrary tokens to the session, num_rounds times, in turn
 * with steps that leave out one of its operators. The seconds of an operator are what the step
 * takes longer with it, the median of the rounds: on a GPU the end of an operator hides the start
 * of the next. The session does not change. invalid_argument: num_tokens (1 to the tokens of a step
 * for which the session has room), num_rounds (1 to 10000). unsupported: the session decodes with
 * SparQ attention. out_of_memory: pages are missing. */
HEADRACE_API headrace_status headrace_session_time_step(headrace_session* session,
                                                        int64_t num_tokens, int64_t num_rounds,
                                                        headrace_step** step);
/** Seconds of the whole step, the median of the rounds; 0: not measured, or NULL. */
HEADRACE_API double headrace_step_seconds(const headrace_step* step);
/** Number of operators, in the order of their first calls; NULL: 0. */
HEADRACE_API int64_t headrace_step_count(const headrace_step* step);
/** Fills `cost`. invalid_argument: bad index or struct_size. */
HEADRACE_API headrace_status headrace_step_get(const headrace_step* step, int64_t index,
                                               headrace_operator_cost* cost);
HEADRACE_API void headrace_step_destroy(headrace_step* step); /**< NULL is allowed */

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* HEADRACE_STEP_H_ */
