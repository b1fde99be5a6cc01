/** @file
 * SparQ attention: the decode of long sequences with less memory traffic (Ribar et al., "SparQ
 * Attention", 2023, arXiv:2312.04985). Included by headrace.h, which has the conventions.
 *
 * Dense attention of one query reads every key and value. SparQ reads `num_components` components
 * of every key, estimates the softmax from them, and then reads the `num_keys` keys and values with
 * the largest estimates. It is an approximation: out differs from dense attention.
 */
#ifndef HEADRACE_SPARQ_H_
#define HEADRACE_SPARQ_H_

#include "headrace/headrace.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Options of SparQ attention. num_components and num_keys have no defaults. */
typedef struct headrace_sparq_options {
  size_t struct_size;     /**< sizeof this struct, set by the init function */
  double softmax_scale;   /**< NaN: head_dim^-0.5 */
  int64_t num_components; /**< r of the paper: components of a query that step 1 reads, 1 to
                             head_dim */
  int64_t num_keys;       /**< k of the paper: keys that step 2 reads, 1 or more; a sequence with no
                             more keys is computed exactly */
  int64_t local_window;   /**< l of the paper: the last keys, which are always among num_keys; more
                             than num_keys count as num_keys; default 0 */
  int64_t max_seqlen_k;   /**< paged: upper bound of seqused_k; 0: max_pages * page_size */
} headrace_sparq_options;

/** headrace_sparq_options_init() for bindings that cannot use this header: struct_size is the
 * sizeof of their declaration. */
HEADRACE_API headrace_status headrace_sparq_options_init_sized(headrace_sparq_options* options,
                                                               size_t struct_size);
/** Sets the defaults and struct_size. */
static inline headrace_status headrace_sparq_options_init(headrace_sparq_options* options) {
  return headrace_sparq_options_init_sized(options, sizeof *options);
}

/** The tensors of a call: one query token per sequence, the last one of its keys. With block_table
 * k, v and k_components are pages, as in headrace_attention_tensors. Everything below `out` is
 * optional; leave it zeroed if absent. Strides are free except the last of q, k, k_components, v,
 * out and v_sum, which is 1. */
typedef struct headrace_sparq_tensors {
  size_t struct_size; /**< sizeof this struct, set by the init function */
  headrace_tensor q;  /**< [batch, num_heads, head_dim]; f32, f16 or bf16 */
  headrace_tensor k; /**< [batch, seqlen_k, num_kv_heads, head_dim], or pages [num_pages, page_size,
                        num_kv_heads, head_dim]; dtype of q, or codes with `quantised` */
  headrace_tensor k_components; /**< k once more, by component: [batch, num_kv_heads, head_dim,
                                   seqlen_k], or pages [num_pages, num_kv_heads, head_dim,
                                   page_size]; dtype of q; headrace_sparq_append() writes it */
  headrace_tensor v;     /**< [batch, seqlen_k, num_kv_heads, head_dim_v], or pages; as k, chosen
                            apart */
  headrace_tensor out;   /**< written: [batch, num_heads, head_dim_v], dtype of q */
  headrace_tensor v_sum; /**< f32 [batch, num_kv_heads, head_dim_v]: the sum of the values of all
                            keys of a sequence. Given: the keys that are not read count with the
                            mean value (step 3 of the paper). The paper leaves it out for grouped
                            heads */
  headrace_tensor block_table; /**< i32 [batch, max_pages], as in headrace_attention_tensors without
                                  page_indptr */
  headrace_tensor seqused_k;   /**< i32 [batch], as in headrace_attention_tensors; required with
                                  block_table */
  headrace_tensor indices; /**< written: i32 [batch, num_kv_heads, num_keys], the keys that step 2
                              read, ascending, then -1 */
  headrace_tensor alpha;   /**< written: f32 [batch, num_heads], the estimated share of the softmax
                              that those keys have, 0 to 1 */
  const headrace_quantised_kv* quantised; /**< scales of k and v and the newest keys unquantised, as
                                             in headrace_attention_tensors; NULL: none */
} headrace_sparq_tensors;

/** headrace_sparq_tensors_init() for bindings that cannot use this header: struct_size is the
 * sizeof of their declaration. */
HEADRACE_API headrace_status headrace_sparq_tensors_init_sized(headrace_sparq_tensors* tensors,
                                                               size_t struct_size);
/** Zeroes all fields (nothing given) and sets struct_size. */
static inline headrace_status headrace_sparq_tensors_init(headrace_sparq_tensors* tensors) {
  return headrace_sparq_tensors_init_sized(tensors, sizeof *tensors);
}

/** Bytes of workspace that headrace_sparq_attention() needs with these tensors and options, on this
 * machine. Reads only shapes, strides and addresses. */
HEADRACE_API headrace_status headrace_sparq_workspace_bytes(const headrace_sparq_tensors* tensors,
                                                            const headrace_sparq_options* options,
                                                            size_t* bytes);

/** SparQ attention of one query token per sequence. For each sequence and KV head, with the g
 * queries of its group:
 *
 *   1. C: the num_components components c with the largest sum of |q[c]| over the group. For each
 *      query, p = softmax(softmax_scale / sqrt(t) * sum(q[c] * k[j, c], c in C)) over all keys j,
 *      where t = sum(|q[c]|, c in C) / sum(|q[c]|) (1 if that is 0).
 *   2. J: the last local_window keys, then those with the largest sum of p over the group, num_keys
 *      together; among equals the lowest j. out = attention over the keys of J.
 *   3. alpha = sum(p[j], j in J). With v_sum: out = alpha * out + (1 - alpha) * v_sum / seqlen_k.
 *
 * A sequence with at most num_keys keys skips step 1 and is attention over all of them, alpha 1;
 * with no key out is 0. Step 1 reads k_components, which are never quantised; step 2 reads k and v
 * in the form in which dense attention of the query would see them. Keys behind seqused_k and other
 * components are never read, so they may hold anything. Equal scores are resolved in the same way
 * on every device, but scores are rounded differently, so that J may differ in keys with almost
 * equal p. A sequence's bits depend neither on the batch nor on the number of threads.
 *
 * `workspace`: headrace_sparq_workspace_bytes() bytes on the device of the tensors; then the call
 * allocates nothing. NULL with 0 bytes: the call allocates and frees one; on CUDA stream-ordered.
 * `stream` as in headrace_plan_run(): NULL on CPU; on CUDA the work is enqueued on it, can be
 * captured in a graph, and lengths and pages out of bounds are clamped and reported by
 * headrace_check(). */
HEADRACE_API headrace_status headrace_sparq_attention(const headrace_sparq_tensors* tensors,
                                                      const headrace_sparq_options* options,
                                                      void* workspace, size_t workspace_bytes,
                                                      void* stream);

/** Bytes of keys and values that the call reads for one sequence of seqlen_k keys and one KV head:
 * (seqlen_k * num_components + min(num_keys, seqlen_k) * (head_dim + head_dim_v)) *
 * element_bytes, and what dense attention reads if seqlen_k <= num_keys: seqlen_k * (head_dim +
 * head_dim_v) * element_bytes. 0 for negative sizes; INT64_MAX if it does not fit. */
HEADRACE_API int64_t headrace_sparq_bytes(int64_t seqlen_k, int64_t head_dim, int64_t head_dim_v,
                                          int64_t num_components, int64_t num_keys,
                                          int64_t element_bytes);

/** What SparQ attention needs of new tokens whose keys and values are in a cache already, for
 * example by headrace_kv_append() with the same slot_mapping. Strides are free except the last of
 * k, v, k_components and v_sum, which is 1. */
typedef struct headrace_sparq_append_tensors {
  size_t struct_size; /**< sizeof this struct, set by the init function */
  headrace_tensor k;  /**< [num_pages, page_size, num_kv_heads, head_dim]; f32, f16 or bf16. A
                         cache without pages is one of batch pages of seqlen_k slots */
  headrace_tensor slot_mapping; /**< i64 [num_tokens]: page * page_size + slot of each new token;
                                   negative: the token is left out */
  headrace_tensor k_components; /**< written: [num_pages, num_kv_heads, head_dim, page_size], dtype
                                   of k */
  headrace_tensor v; /**< optional, with v_sum: [num_pages, page_size, num_kv_heads, head_dim_v],
                        dtype of k, or codes with v_scale */
  headrace_tensor v_sum; /**< optional, added to: f32 [batch, num_kv_heads, head_dim_v]; zero it for
                            a new sequence, keep a copy of it before tokens that may be removed
                            again */
  headrace_tensor cu_seqlens; /**< i32 [batch + 1]: tokens cu_seqlens[b] to cu_seqlens[b + 1] belong
                                 to row b of v_sum. Absent: one token per row */
  headrace_tensor
      k_slots; /**< i64 [num_tokens], for a cache of codes: where k has the tokens' keys,
                  page * k.shape[1] + slot; negative: left out. Then k may have pages of
                  its own: k_recent with the recent_slots of headrace_kv_append(), or
                  the new keys as one page. Absent: at slot_mapping */
  headrace_tensor v_scale; /**< of a v of codes, as in headrace_quantised_kv, a scale for each key
                              and head; v_sum is then the sum of what the codes stand for */
} headrace_sparq_append_tensors;

/** headrace_sparq_append_tensors_init() for bindings that cannot use this header: struct_size is
 * the sizeof of their declaration. */
HEADRACE_API headrace_status headrace_sparq_append_tensors_init_sized(
    headrace_sparq_append_tensors* tensors, size_t struct_size);
/** Zeroes all fields (nothing given) and sets struct_size. */
static inline headrace_status headrace_sparq_append_tensors_init(
    headrace_sparq_append_tensors* tensors) {
  return headrace_sparq_append_tensors_init_sized(tensors, sizeof *tensors);
}

/** Copies the keys at slot_mapping to k_components, and adds the values to v_sum in f32, in the
 * order of the tokens. Needs no workspace, allocates nothing, can be captured in a graph. `stream`
 * as in headrace_sparq_attention(). A slot that is not in the pages, and cu_seqlens that are no
 * prefix sums: invalid_argument on the CPU, and nothing was written; on CUDA such tokens are left
 * out and headrace_check() returns the error. */
HEADRACE_API headrace_status headrace_sparq_append(const headrace_sparq_append_tensors* tensors,
                                                   void* stream);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* HEADRACE_SPARQ_H_ */
