/** @file
 * The merge of attention over disjoint keys. Included by headrace.h, which has the conventions.
 */
#ifndef HEADRACE_MERGE_STATES_H_
#define HEADRACE_MERGE_STATES_H_

#include "headrace/headrace.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Maximum number of states of a merge. */
#define HEADRACE_MAX_STATES 128

/** Attention states of the same rows over disjoint keys: out and lse of attention calls, or the
 * partial results of key splits. All are on one device. Strides are free (for inputs also 0 and
 * negative) except the last of out, which is 1; all states have the shape and strides of the first.
 * `out` may be the view outs[i] itself, and `lse` the view lses[i]; they must not overlap anything
 * else. */
typedef struct headrace_merge_states_tensors {
  size_t struct_size;          /**< sizeof this struct, set by the init function */
  int64_t num_states;          /**< 1 to HEADRACE_MAX_STATES */
  const headrace_tensor* outs; /**< [num_states] tensors [batch, seqlen, num_heads, head_dim_v], or
                                  ragged [total, num_heads, head_dim_v]; one dtype, f32, f16 or
                                  bf16 */
  const headrace_tensor* lses; /**< [num_states] tensors, f32, natural log: [batch, num_heads,
                                  seqlen], or [num_heads, total] */
  headrace_tensor out;         /**< written: shape of the states, f32, f16 or bf16 */
  headrace_tensor lse;         /**< optional, written: f32, shape of the lses */
} headrace_merge_states_tensors;

/** headrace_merge_states_tensors_init() for bindings that cannot use this header: struct_size is
 * the sizeof of their declaration. */
HEADRACE_API headrace_status headrace_merge_states_tensors_init_sized(
    headrace_merge_states_tensors* tensors, size_t struct_size);
/** Zeroes all fields (nothing given) and sets struct_size. */
static inline headrace_status headrace_merge_states_tensors_init(
    headrace_merge_states_tensors* tensors) {
  return headrace_merge_states_tensors_init_sized(tensors, sizeof *tensors);
}

/** out = sum(exp(lses[i]) * outs[i]) / sum(exp(lses[i])), lse = log(sum(exp(lses[i]))): attention
 * over the keys of all states (Dao et al., "Flash-Decoding", 2023). The sums run in the order of
 * the states, in f32, relative to the largest lse, so a result's bits depend on that order and on
 * nothing else. A state with an lse of -inf saw no key: it has no weight and its out is not read;
 * if all have, out is 0 and lse -inf. NaN in a state with weight gives NaN.
 *
 * Needs no workspace, allocates nothing, can be captured in a graph. `stream` as in
 * headrace_plan_run(): NULL on CPU; on CUDA the work is enqueued on it. */
HEADRACE_API headrace_status headrace_merge_states(const headrace_merge_states_tensors* tensors,
                                                   void* stream);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* HEADRACE_MERGE_STATES_H_ */
