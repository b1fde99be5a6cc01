/** @file
 * Headrace: a paged KV cache. The C ABI of the memory that holds keys and values of many sequences
 * in pages of one pool, shares them between sequences, and finds prefixes that were computed
 * before. The conventions are those of headrace.h.
 *
 * Token t of a sequence lies in page block_table[t / page_size], slot t % page_size, in every
 * layer. One step of a sequence is
 *   1. headrace_kv_cache_reserve(): pages for the tokens of the step,
 *   2. headrace_kv_cache_fill_batch(): block_table, seqused_k and slot_mapping for kernels,
 *   3. kernels that write keys and values to slot_mapping and read pages through block_table,
 *   4. headrace_kv_cache_commit(): the token ids.
 *
 *   - A call that returns invalid_argument or out_of_memory has changed nothing. out_of_memory from
 *     reserve and swap_in means that pages are missing: free or swap out another sequence.
 *   - Thread safety: one thread at a time may use a cache. Different caches are independent.
 *   - Copies of pages are enqueued on `stream` and not waited for. Kernels that use the pages must
 *     run in the order of that stream. On the CPU, copies are finished when a call returns.
 */
#ifndef HEADRACE_KV_CACHE_H_
#define HEADRACE_KV_CACHE_H_

#include "headrace/headrace.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Pages, sequences and the prefix cache. */
typedef struct headrace_kv_cache headrace_kv_cache;

/** Memory order of a page. Attention reads either as strides of the same axes. */
typedef enum headrace_kv_layout {
  HEADRACE_KV_NHD = 0, /**< [page_size, num_kv_heads, head_dim]: a token's heads are contiguous */
  HEADRACE_KV_HND = 1  /**< [num_kv_heads, page_size, head_dim]: a head's tokens are contiguous */
} headrace_kv_layout;

/** Options of a cache. num_layers, num_kv_heads, head_dim and num_pages have no defaults. */
typedef struct headrace_kv_cache_options {
  size_t struct_size;       /**< sizeof this struct, set by the init function */
  int64_t num_layers;       /**< layers that have keys and values */
  int64_t num_kv_heads;     /**< KV heads of a layer */
  int64_t head_dim;         /**< of keys, 1 to 576 */
  int64_t head_dim_v;       /**< of values; 0: head_dim */
  int64_t num_pages;        /**< in the pool; a page has page_size tokens of all layers */
  int64_t num_host_pages;   /**< in host memory, for swapped sequences; 0: none */
  int64_t page_size;        /**< tokens per page, 1 or more; default 16 */
  int32_t dtype;            /**< headrace_dtype: F16 (default), BF16 or F32 */
  int32_t layout;           /**< headrace_kv_layout; default NHD */
  int32_t device_type;      /**< headrace_device_type of the pages; default CPU */
  int32_t device_id;        /**< CUDA: device number; CPU: 0 */
  int32_t k_dtype;          /**< headrace_dtype of stored keys; -1 (default): dtype. I8, F8E4M3,
                               I4X2, U4X2 or U2X4: codes. Tokens then count in groups of 16, with
                               keys of U4X2 or U2X4 of 32, and pages hold whole groups */
  int32_t v_dtype;          /**< the same of stored values */
  int64_t num_recent_pages; /**< with codes, of a group each, of the dtype: two for each sequence
                               and one for each group of tokens that is reserved at once */
} headrace_kv_cache_options;

/** headrace_kv_cache_options_init() for bindings that cannot use this header: struct_size is the
 * sizeof of their declaration. */
HEADRACE_API headrace_status
headrace_kv_cache_options_init_sized(headrace_kv_cache_options* options, size_t struct_size);
/** Sets the defaults and struct_size. */
static inline headrace_status headrace_kv_cache_options_init(headrace_kv_cache_options* options) {
  return headrace_kv_cache_options_init_sized(options, sizeof *options);
}

/** Allocates all pages, uninitialized. out_of_memory: the message has the bytes. */
HEADRACE_API headrace_status headrace_kv_cache_create(const headrace_kv_cache_options* options,
                                                      headrace_kv_cache** cache);
HEADRACE_API void headrace_kv_cache_destroy(headrace_kv_cache* cache); /**< NULL is allowed */

/** The key pages of a layer: [num_pages, page_size, num_kv_heads, head_dim], valid as long as the
 * cache. */
HEADRACE_API headrace_status headrace_kv_cache_k_pages(const headrace_kv_cache* cache,
                                                       int64_t layer, headrace_tensor* pages);
/** The value pages of a layer: [num_pages, page_size, num_kv_heads, head_dim_v]. */
HEADRACE_API headrace_status headrace_kv_cache_v_pages(const headrace_kv_cache* cache,
                                                       int64_t layer, headrace_tensor* pages);
/** What belongs to the codes of a layer, for headrace_kv_append() and attention: k_scale and
 * v_scale of sides that have codes, k_recent and v_recent; recent_table is not given. Set
 * quantised->struct_size before. invalid_argument: the cache has no codes. */
HEADRACE_API headrace_status headrace_kv_cache_quantised(const headrace_kv_cache* cache,
                                                         int64_t layer,
                                                         headrace_quantised_kv* quantised);

/* ---- sequences ---- */

/** Adds a sequence that begins with the longest prefix of `tokens` in the prefix cache, in whole
 * pages and at most num_tokens - 1 tokens (logits come from computing at least one). The sequence
 * then holds `num_cached` tokens; reserve and commit the others. Only sequences with equal `salt`
 * share pages: give each tenant, adapter or modality its own. sequence: an id above 0 that is never
 * used twice. num_cached may be NULL. */
HEADRACE_API headrace_status headrace_kv_cache_add(headrace_kv_cache* cache, const int32_t* tokens,
                                                   size_t num_tokens, uint64_t salt,
                                                   int64_t* sequence, int64_t* num_cached);
/** Adds a sequence with the tokens of another one, in the same pages. The first write to a partly
 * filled page that others hold copies it. The other sequence must have no reserved slots. */
HEADRACE_API headrace_status headrace_kv_cache_fork(headrace_kv_cache* cache, int64_t sequence,
                                                    int64_t* fork);
/** Removes a sequence. Its full pages can be found by their tokens until they are reused, least
 * recently used first. */
HEADRACE_API headrace_status headrace_kv_cache_free(headrace_kv_cache* cache, int64_t sequence);

/** Makes at least num_tokens slots after the sequence's tokens writable. */
HEADRACE_API headrace_status headrace_kv_cache_reserve(headrace_kv_cache* cache, int64_t sequence,
                                                       int64_t num_tokens, void* stream);
/** Appends token ids, 0 or more each. Their keys and values are in the first reserved slots, or
 * will be when the work enqueued before is done. Full pages enter the prefix cache. */
HEADRACE_API headrace_status headrace_kv_cache_commit(headrace_kv_cache* cache, int64_t sequence,
                                                      const int32_t* tokens, size_t num_tokens);
/** Keeps the first `length` tokens and no reserved slots. Pages of other sequences are unchanged.
 * A cache of codes has the newest group of tokens alone unquantised: `length` must be in it, or be
 * whole groups. */
HEADRACE_API headrace_status headrace_kv_cache_truncate(headrace_kv_cache* cache, int64_t sequence,
                                                        int64_t length);
/** For the accepted nodes of a draft tree: copies the keys and values at `positions`, ascending and
 * all reserved, to the first reserved slots, and gives up the other reserved slots. Commit the
 * tokens afterwards. Keys of U4X2 and U2X4 are quantised by the append that completes their group:
 * a move must not complete one. */
HEADRACE_API headrace_status headrace_kv_cache_move(headrace_kv_cache* cache, int64_t sequence,
                                                    const int64_t* positions, size_t num_positions,
                                                    void* stream);

/** Copies a sequence to host pages and frees its pages; gives up its reserved slots. Until it is
 * swapped in, it can only be swapped in or freed. */
HEADRACE_API headrace_status headrace_kv_cache_swap_out(headrace_kv_cache* cache, int64_t sequence,
                                                        void* stream);
/** Copies a sequence back. Pages that are still in the prefix cache are not copied. */
HEADRACE_API headrace_status headrace_kv_cache_swap_in(headrace_kv_cache* cache, int64_t sequence,
                                                       void* stream);

/** State of a sequence. */
typedef struct headrace_kv_sequence_info {
  size_t struct_size;   /**< sizeof this struct, set by the caller */
  int64_t length;       /**< tokens */
  int64_t num_reserved; /**< slots after them */
  int64_t num_pages;    /**< in the block table; 0 while swapped out */
  int32_t is_swapped;   /**< 1: in host pages */
  int32_t reserved;     /**< 0 */
} headrace_kv_sequence_info;

/** Fills `info`. */
HEADRACE_API headrace_status headrace_kv_cache_get_sequence_info(const headrace_kv_cache* cache,
                                                                 int64_t sequence,
                                                                 headrace_kv_sequence_info* info);

/* ---- a step ---- */

/** Sequences of a step, and the arrays to fill, in host memory. */
typedef struct headrace_kv_batch {
  size_t struct_size;        /**< sizeof this struct, set by the init function */
  const int64_t* sequences;  /**< [num_sequences] */
  const int32_t* num_tokens; /**< [num_sequences]: reserved slots that the step writes */
  int64_t num_sequences;     /**< elements of sequences and num_tokens */
  int64_t max_pages;         /**< row length of block_table */
  int32_t* block_table;  /**< written: [num_sequences, max_pages], 0 past a sequence's last page;
                            NULL: not wanted */
  int32_t* seqused_k;    /**< written: [num_sequences], length + num_tokens; NULL: not wanted */
  int64_t* slot_mapping; /**< written: [num_slots], page * page_size + slot of each token that
                            the step writes; NULL: not wanted */
  int64_t num_slots;     /**< elements of slot_mapping: the sum of num_tokens */
  int64_t max_recent;    /**< of a cache of codes: row length of recent_table */
  int32_t* recent_table; /**< written: [num_sequences, max_recent], the recent pages from the group
                            of a sequence's first new token on, 0 past its last one; NULL: not
                            wanted */
  int64_t* recent_slots; /**< written: [num_slots], recent page * group + index in it, of each
                            token that the step writes; NULL: not wanted */
} headrace_kv_batch;

/** headrace_kv_batch_init() for bindings that cannot use this header: struct_size is the sizeof of
 * their declaration. */
HEADRACE_API headrace_status headrace_kv_batch_init_sized(headrace_kv_batch* batch,
                                                          size_t struct_size);
/** Zeroes all fields (nothing given) and sets struct_size. */
static inline headrace_status headrace_kv_batch_init(headrace_kv_batch* batch) {
  return headrace_kv_batch_init_sized(batch, sizeof *batch);
}

/** Fills the arrays of a batch. */
HEADRACE_API headrace_status headrace_kv_cache_fill_batch(const headrace_kv_cache* cache,
                                                          const headrace_kv_batch* batch);

/* ---- rotary position embeddings ---- */

/** Which elements of a head form a pair i that RoPE rotates. */
typedef enum headrace_rope_layout {
  HEADRACE_ROPE_INTERLEAVED = 0, /**< (2i, 2i + 1): GPT-J, GGUF files of llama */
  HEADRACE_ROPE_HALVES = 1       /**< (i, i + rot_dim / 2): GPT-NeoX, Hugging Face */
} headrace_rope_layout;

/** How a model that was trained on few positions reaches more. */
typedef enum headrace_rope_scaling {
  HEADRACE_ROPE_SCALING_NONE = 0,   /**< frequency(i) = base^(-2i / rot_dim) */
  HEADRACE_ROPE_SCALING_LINEAR = 1, /**< positions / factor (Chen et al. 2023) */
  HEADRACE_ROPE_SCALING_NTK = 2,    /**< base * factor^(rot_dim / (rot_dim - 2)) (bloc97 2023) */
  HEADRACE_ROPE_SCALING_DYNAMIC_NTK =
      3,                           /**< NTK by the factor that `seqlen` needs (emozilla 2023):
                                      factor * seqlen / original_context_length - factor + 1 */
  HEADRACE_ROPE_SCALING_YARN = 4,  /**< fast pairs unchanged, slow ones / factor, a ramp between
                                      them, and an attention factor (Peng et al. 2023) */
  HEADRACE_ROPE_SCALING_LLAMA3 = 5 /**< the same by wavelength (Llama 3.1) */
} headrace_rope_scaling;

/** Angles of RoPE (Su et al., RoFormer, 2021): pair i of a token turns by position * frequency(i).
 * A scaling reads the fields that its comment names and no others. */
typedef struct headrace_rope_options {
  size_t struct_size; /**< sizeof this struct, set by the init function */
  int32_t layout;     /**< headrace_rope_layout; default INTERLEAVED */
  int32_t scaling;    /**< headrace_rope_scaling; default NONE */
  int64_t rot_dim;    /**< even; the first rot_dim elements of a head are rotated. 0: all of them */
  double base;        /**< default 10000; "theta" */
  double factor;      /**< default 1; of every scaling but NONE */
  int64_t original_context_length; /**< DYNAMIC_NTK, YARN, LLAMA3: positions of the training */
  int64_t seqlen;          /**< DYNAMIC_NTK: positions in use, those of this call included */
  double beta_fast;        /**< YARN: default 32 */
  double beta_slow;        /**< YARN: default 1 */
  double mscale;           /**< YARN: default 0, none; DeepSeek's models have it */
  double mscale_all_dim;   /**< YARN: default 0, none */
  double low_freq_factor;  /**< LLAMA3: default 1 */
  double high_freq_factor; /**< LLAMA3: default 4 */
  double attention_factor; /**< multiplies cosines and sines; NaN (default): that of the scaling, 1
                              but for YARN */
  const double* frequencies; /**< host memory, [rot_dim / 2], radians per position, or NULL: the
                                caller's own, then base and scaling are not used */
  int32_t truncate;          /**< YARN: 1 (default): the ramp begins and ends at whole pairs */
  int32_t reserved;          /**< 0 */
} headrace_rope_options;

/** headrace_rope_options_init() for bindings that cannot use this header: struct_size is the sizeof
 * of their declaration. */
HEADRACE_API headrace_status headrace_rope_options_init_sized(headrace_rope_options* options,
                                                              size_t struct_size);
/** Sets the defaults and struct_size. */
static inline headrace_status headrace_rope_options_init(headrace_rope_options* options) {
  return headrace_rope_options_init_sized(options, sizeof *options);
}

/** The frequencies after all scaling, in radians per position, and the attention factor (NULL: not
 * wanted). num_frequencies: rot_dim / 2, and rot_dim must not be 0. invalid_argument writes
 * nothing. */
HEADRACE_API headrace_status headrace_rope_frequencies(const headrace_rope_options* options,
                                                       double* frequencies, size_t num_frequencies,
                                                       double* attention_factor);

/* ---- writing keys and values ---- */

/** Options of an append. */
typedef struct headrace_kv_append_options {
  size_t struct_size;                /**< sizeof this struct, set by the init function */
  const headrace_rope_options* rope; /**< NULL (default): no rotation; with cos and sin: pairs
                                        (2i, 2i + 1) */
  double norm_eps;                   /**< default 1e-6; of q_norm_weight and k_norm_weight */
  int32_t hadamard; /**< 1: each head of q and k is multiplied by an orthogonal matrix, the same
                       for both, so that attention is unchanged and quantised keys lose less:
                       Sylvester's Hadamard matrix / sqrt(n) in blocks of n, the largest power of
                       two that divides head_dim. For keys of 4 bits; all keys of a cache alike.
                       Default 0 */
  int32_t reserved; /**< 0 */
} headrace_kv_append_options;

/** headrace_kv_append_options_init() for bindings that cannot use this header: struct_size is the
 * sizeof of their declaration. */
HEADRACE_API headrace_status
headrace_kv_append_options_init_sized(headrace_kv_append_options* options, size_t struct_size);
/** Sets the defaults and struct_size. */
static inline headrace_status headrace_kv_append_options_init(headrace_kv_append_options* options) {
  return headrace_kv_append_options_init_sized(options, sizeof *options);
}

/** The tensors of an append: q with q_out, or k and v with their pages and slot_mapping, or both.
 * All are on one device. q, k and v have one dtype, f32, f16 or bf16; q_out and the pages have any
 * of these each. Pages may also have codes (K and V chosen apart), whose scales `quantised`
 * receives. i8, f8e4m3 and i4x2: each head of a token has a scale of its own, the largest magnitude
 * / 127 (i8) or / 448 (f8e4m3), or the element of the largest magnitude / -8 (i4x2). u4x2 and u2x4:
 * 32 channels of a value have a scale, their range / 15 or / 3, and a zero point, their least
 * element, as f16. So have 32 keys in each channel: the call that writes the last of them quantises
 * all from k_recent, which it needs. Scales are NaN if an element is NaN or infinite (or, as f16,
 * beyond 65504). Strides are free (for inputs also 0 and negative) except the last, which is 1: q,
 * k and v may be slices of one buffer. Outputs must not overlap any other tensor; q_out may be the
 * view q itself. */
typedef struct headrace_kv_append_tensors {
  size_t struct_size;           /**< sizeof this struct, set by the init function */
  headrace_tensor k;            /**< [num_tokens, num_kv_heads, head_dim] */
  headrace_tensor v;            /**< [num_tokens, num_kv_heads, head_dim_v] */
  headrace_tensor k_pages;      /**< written: [num_pages, page_size, num_kv_heads, head_dim] */
  headrace_tensor v_pages;      /**< written: [num_pages, page_size, num_kv_heads, head_dim_v] */
  headrace_tensor slot_mapping; /**< i64 [num_tokens], page * page_size + slot, each at most once;
                                   negative: the token is not stored (padding) */
  headrace_tensor q;            /**< [num_tokens, num_heads, head_dim] */
  headrace_tensor q_out;        /**< written: shape of q */
  headrace_tensor positions;    /**< i32 [num_tokens]; with rotations */
  headrace_tensor cos; /**< [max_positions, rot_dim / 2], f32, f16 or bf16, with sin: replace the
                          angles of the options, whose base, scaling and factors are not used */
  headrace_tensor sin; /**< shape of cos */
  headrace_tensor q_norm_weight; /**< [head_dim], f32, f16 or bf16: RMS norm of each head of q */
  headrace_tensor k_norm_weight; /**< the same of k */
  const headrace_quantised_kv* quantised; /**< with pages of codes: k_scale and v_scale are written,
                                             and k_recent and v_recent, if given, at recent_slots.
                                             Its recent_table is not used. NULL: none */
  headrace_tensor recent_slots;    /**< i64 [num_tokens], with k_recent: page * group + index of the
                                      token in its group, each at most once; negative: not stored */
  headrace_tensor channel_factors; /**< f32 [num_kv_heads, head_dim], powers of two; num_kv_heads
                                      divides num_heads: elements of q are multiplied by the
                                      factor of their channel, those of k divided. So attention
                                      is unchanged, and large channels of k, as biases make them,
                                      leave more of a scale to the others. For keys of int8 or int4;
                                      all keys of a cache alike */
} headrace_kv_append_tensors;

/** headrace_kv_append_tensors_init() for bindings that cannot use this header: struct_size is the
 * sizeof of their declaration. */
HEADRACE_API headrace_status
headrace_kv_append_tensors_init_sized(headrace_kv_append_tensors* tensors, size_t struct_size);
/** Zeroes all fields (nothing given) and sets struct_size. */
static inline headrace_status headrace_kv_append_tensors_init(headrace_kv_append_tensors* tensors) {
  return headrace_kv_append_tensors_init_sized(tensors, sizeof *tensors);
}

/** Writes new keys and values to their slots, and q to q_out, in one pass: each head of q and k is
 * x * weight / sqrt(mean(x^2) + norm_eps) if it has a weight (RMS norm, Qwen3), and its first
 * rot_dim elements are then rotated: (a, b) -> (a cos - b sin, b cos + a sin) for each pair; then
 * come the channel factors, if given, and the Hadamard matrix, if `hadamard` is 1. v is copied. The
 * arithmetic is in f32, with one rounding to the output's dtype; angles are products in double.
 * `options` NULL: the defaults.
 *
 * Needs no workspace, allocates nothing, can be captured in a graph. `stream` as in
 * headrace_plan_run(): NULL on CPU; on CUDA the work is enqueued on it. A token's bits do not
 * depend on the other tokens of the call.
 *
 * A slot that is not in the pages, and a position that is not in cos and sin: invalid_argument on
 * the CPU, and nothing was written. On CUDA that token is not stored (position: nor is its q
 * written), all others are, and headrace_check() returns the error. */
HEADRACE_API headrace_status headrace_kv_append(const headrace_kv_append_tensors* tensors,
                                                const headrace_kv_append_options* options,
                                                void* stream);

/* ---- statistics ---- */

/** Statistics of a cache. The counters begin with its creation. */
typedef struct headrace_kv_cache_stats {
  size_t struct_size;            /**< sizeof this struct, set by the caller */
  int64_t num_pages;             /**< in the pool */
  int64_t num_free_pages;        /**< no sequence holds them */
  int64_t num_used_pages;        /**< the others */
  int64_t num_cached_pages;      /**< in the prefix cache, used or free */
  int64_t num_shared_pages;      /**< several sequences hold them */
  int64_t num_host_pages;        /**< in host memory */
  int64_t num_free_host_pages;   /**< of them, free */
  int64_t num_sequences;         /**< swapped ones included */
  int64_t num_swapped_sequences; /**< in host pages */
  int64_t num_tokens;            /**< in used pages; tokens of a shared page count once */
  int64_t num_unused_slots;      /**< of used pages: the waste */
  int64_t num_queried_tokens;    /**< counter: prompt tokens that add looked up */
  int64_t num_hit_tokens;        /**< counter: of them, found in the prefix cache */
  int64_t num_evictions;         /**< counter: pages that left the prefix cache */
  int64_t num_page_copies;       /**< counter: copies on write */
  int64_t num_moved_tokens;      /**< counter: tokens that move copied */
  int64_t num_pages_swapped_out; /**< counter: pages copied to the host */
  int64_t num_pages_swapped_in;  /**< counter: pages copied back */
} headrace_kv_cache_stats;

/** Fills `stats`. Visits every page. */
HEADRACE_API headrace_status headrace_kv_cache_get_stats(const headrace_kv_cache* cache,
                                                         headrace_kv_cache_stats* stats);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* HEADRACE_KV_CACHE_H_ */
