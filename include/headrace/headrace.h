/** @file
 * Headrace: exact, IO-aware attention. The C ABI, on which all other interfaces are built.
 *
 * Conventions:
 *   - Every function returns a headrace_status (or a plain value that cannot fail). The message of
 *     the calling thread's last error is headrace_last_error().
 *   - Structs that may grow begin with `struct_size`, their sizeof in the caller's header. The init
 *     functions set it together with the defaults: call them, then set what you need. For structs
 *     without an init function the caller sets it. The library reads and writes exactly that many
 *     bytes, so that programs built with older headers keep working; it refuses unknown sizes.
 *   - Tensors are borrowed views: nothing is copied or kept after the call returns.
 *   - Strides are in elements and may be zero or negative for inputs. Attention needs stride 1 for
 *     head_dim; softmax accepts any strides.
 *   - The library never prints, exits or aborts, and no exception crosses this boundary.
 *   - Callbacks must not throw. An exception from a callback is caught, and the call returns
 *     invalid_argument with a message that names the callback.
 *   - Thread safety: all functions may be called from any thread at any time. A plan is immutable
 *     and may run on several threads at once if each has its own workspace and outputs.
 */
#ifndef HEADRACE_HEADRACE_H_
#define HEADRACE_HEADRACE_H_

#include <stddef.h>
#include <stdint.h>

#define HEADRACE_VERSION_MAJOR 0 /**< of this header; 0: a minor version may change the ABI */
#define HEADRACE_VERSION_MINOR 1 /**< of this header */
#define HEADRACE_VERSION_PATCH 0 /**< of this header */

/** Marks exported functions. */
#if defined(_WIN32)
#define HEADRACE_API
#else
#define HEADRACE_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- status ---- */

/** Result of a call. If it is not HEADRACE_OK, headrace_last_error() has the message. */
typedef enum headrace_status {
  HEADRACE_OK = 0,               /**< success */
  HEADRACE_INVALID_ARGUMENT = 1, /**< the message has the argument, value, rule and remedy */
  HEADRACE_UNSUPPORTED = 2,      /**< valid, but no kernel supports it; the message has why */
  HEADRACE_OUT_OF_MEMORY = 3,    /**< on the host or on the device */
  HEADRACE_DEVICE_ERROR = 4,     /**< CUDA or its driver failed; the message has its error */
  HEADRACE_IO_ERROR = 5, /**< a file cannot be read or is damaged; a model's logits are NaN */
  HEADRACE_INTERNAL = 6, /**< a bug in the library */
  HEADRACE_BUSY = 7      /**< a queue is full; the same call succeeds later */
} headrace_status;

/** Message of this thread's last error; "" if none. Valid until the thread's next call. */
HEADRACE_API const char* headrace_last_error(void);
/** "invalid_argument", "unsupported", ... */
HEADRACE_API const char* headrace_status_name(headrace_status status);

/* ---- version and build ---- */

/** "MAJOR.MINOR.PATCH" of the loaded library (the macros above are this header's). */
HEADRACE_API const char* headrace_version(void);
/** One line about this build: version, compiler, dtypes, instruction sets, CUDA architectures. */
HEADRACE_API const char* headrace_build_info(void);
/** Name of an environment variable of the library, by index from 0; NULL for a bad index. */
HEADRACE_API const char* headrace_env_name(int index);
/** One-line description of that variable; NULL for a bad index. */
HEADRACE_API const char* headrace_env_text(int index);

/* ---- tensors ---- */

/** Element type of a tensor. */
typedef enum headrace_dtype {
  HEADRACE_F32 = 0,    /**< IEEE binary32 */
  HEADRACE_F16 = 1,    /**< IEEE binary16 */
  HEADRACE_BF16 = 2,   /**< bfloat16, the upper half of a binary32 */
  HEADRACE_F64 = 3,    /**< IEEE binary64; reference kernels only */
  HEADRACE_I32 = 4,    /**< for lengths */
  HEADRACE_U32 = 5,    /**< for bit masks */
  HEADRACE_BOOL = 6,   /**< one byte; 0 is false, anything else is true */
  HEADRACE_I64 = 7,    /**< for slots */
  HEADRACE_I8 = 8,     /**< codes of a quantised KV cache, -127 to 127; times a scale */
  HEADRACE_F8E4M3 = 9, /**< 1 sign, 4 exponent and 3 mantissa bits, to 448, no infinity (OCP OFP8);
                          codes of a quantised KV cache */
  HEADRACE_I4X2 = 10,  /**< two 4-bit codes in a byte, those of elements 2i (low bits) and 2i + 1: a
                          code c is (c - 8) times a scale. Shapes and strides count bytes */
  HEADRACE_U4X2 = 11,  /**< the same of KIVI's form: a code c is a zero point + c times a scale */
  HEADRACE_U2X4 = 12   /**< four 2-bit codes in a byte, elements 4i (low bits) to 4i + 3, as U4X2 */
} headrace_dtype;

/** Device type of a tensor. */
typedef enum headrace_device_type {
  HEADRACE_CPU = 0, /**< host memory */
  HEADRACE_CUDA = 1 /**< device memory */
} headrace_device_type;

/** Maximum rank of a tensor. */
#define HEADRACE_MAX_RANK 6

/** A borrowed tensor view. `data == NULL && rank == 0` means "not given". */
typedef struct headrace_tensor {
  void* data;                         /**< address of element [0, 0, ...] */
  int32_t dtype;                      /**< headrace_dtype */
  int32_t device_type;                /**< headrace_device_type */
  int32_t device_id;                  /**< CUDA: device number; CPU: 0 */
  int32_t rank;                       /**< number of axes, at most HEADRACE_MAX_RANK */
  int64_t shape[HEADRACE_MAX_RANK];   /**< only the first `rank` entries count */
  int64_t strides[HEADRACE_MAX_RANK]; /**< in elements */
} headrace_tensor;

/* ---- devices ---- */

/** Instruction sets: bits of headrace_device_info.cpu_isa. */
typedef enum headrace_cpu_isa {
  HEADRACE_ISA_AVX2 = 1,         /**< AVX2, FMA and F16C */
  HEADRACE_ISA_AVX512 = 2,       /**< AVX-512 F, BW, DQ and VL */
  HEADRACE_ISA_AVX512_BF16 = 4,  /**< AVX-512 BF16: bf16 dot products */
  HEADRACE_ISA_NEON = 8,         /**< Arm's Advanced SIMD */
  HEADRACE_ISA_AVX512_VNNI = 16, /**< AVX-512 VNNI: 8-bit dot products */
  /** AVX-512 BF16 at FMA throughput (AMD since Zen 4): a speed, not an instruction set. */
  HEADRACE_ISA_AVX512_BF16_FAST = 32
} headrace_cpu_isa;

/** A plain value: plans can be made for devices that are absent (explain, tests). */
typedef struct headrace_device_info {
  size_t struct_size;  /**< sizeof this struct, set by the caller */
  int32_t device_type; /**< headrace_device_type */
  int32_t device_id;   /**< CUDA: device number; CPU: 0 */
  int32_t sm;          /**< CUDA: compute capability * 10, for example 90; CPU: 0 */
  int32_t num_units;   /**< CUDA: multiprocessors; CPU: threads per call */
  uint32_t cpu_isa;    /**< CPU: headrace_cpu_isa bits */
  uint32_t smem_bytes; /**< CUDA: maximum shared memory per CTA; CPU: 0 */
  int64_t l2_bytes;    /**< CPU: per core; CUDA: of the device */
  char name[96];       /**< zero-terminated */
} headrace_device_info;

/** The CPU of this process: its instruction sets and the threads of its affinity mask, subject to
 * HEADRACE_CPU_ISA and HEADRACE_NUM_THREADS. */
HEADRACE_API headrace_status headrace_cpu_info(headrace_device_info* device);
/** Number of CUDA devices visible to this process. Fails if the build or the driver lacks CUDA. */
HEADRACE_API headrace_status headrace_num_cuda_devices(int32_t* num_devices);
/** A CUDA device, by number from 0. */
HEADRACE_API headrace_status headrace_cuda_info(int32_t device_id, headrace_device_info* device);
/** Parses "cpu", "cpu:avx2", "cpu:avx512:16", "cuda", "cuda:1" (devices of this process) or
 * "h100", "h200" (SXM) or "sm90:132" (any GPU) into a device description. */
HEADRACE_API headrace_status headrace_device_from_text(const char* text,
                                                       headrace_device_info* device);

/* ---- attention ---- */

/** Alignment of the causal mask. */
typedef enum headrace_causal {
  HEADRACE_CAUSAL_NONE = 0, /**< every key */
  HEADRACE_CAUSAL_BOTTOM_RIGHT =
      1, /**< query i sees keys j <= i + seqlen_k - seqlen_q: the last query sees the last key */
  HEADRACE_CAUSAL_TOP_LEFT = 2 /**< query i sees keys j <= i */
} headrace_causal;

/** Options of softmax(q k^T * softmax_scale) v. Order of the score terms: scale, softcap, ALiBi and
 * bias, mask; sinks are added to the denominator only. headrace.hpp lists the sources. */
typedef struct headrace_attention_options {
  size_t struct_size;        /**< sizeof this struct, set by the init function */
  double softmax_scale;      /**< NaN: head_dim^-0.5 (head_dim of q and k) */
  double softcap;            /**< 0: none; else c: score = c * tanh(score / c) */
  double dropout_p;          /**< probability of dropping, 0 <= p < 1 */
  uint64_t dropout_seed;     /**< with dropout_offset the key of Philox4x32-7; equal: equal masks */
  uint64_t dropout_offset;   /**< distinguishes calls with the same seed */
  int64_t window_left;       /**< keys visible left of the diagonal, inclusive; -1: open */
  int64_t window_right;      /**< keys visible right of the diagonal, inclusive; -1: open */
  int64_t max_seqlen_q;      /**< ragged batches only: upper bound of the lengths of q */
  int64_t max_seqlen_k;      /**< ragged batches: upper bound of the lengths of k; paged: the same,
                                0: max_pages * page_size */
  int32_t causal;            /**< headrace_causal; also aligns window and ALiBi (top-left with
                                HEADRACE_CAUSAL_TOP_LEFT, else bottom-right) */
  int32_t num_splits;        /**< key splits; 0: chosen automatically from the sequence's lengths */
  int32_t strict_fallback;   /**< 1: fail (unsupported) rather than use the slow fallback */
  int32_t strict_rows;       /**< 1: a row's bits do not depend on seqlen_q (prefill = decode) */
  int32_t checked;           /**< 1: the host waits for device lengths and validates them first */
  int32_t deterministic;     /**< 1: bit-identical gradients in each run; always the case on CPU */
  int64_t max_shared_prefix; /**< paged: keys that neighbouring sequences may have in the same pages
                                at their start, to be read once; changes no bit. 0: none */
} headrace_attention_options;

/** For bindings that cannot use this header: struct_size is the sizeof of their declaration. */
HEADRACE_API headrace_status
headrace_attention_options_init_sized(headrace_attention_options* options, size_t struct_size);
/** Sets the defaults and struct_size. */
static inline headrace_status headrace_attention_options_init(headrace_attention_options* options) {
  return headrace_attention_options_init_sized(options, sizeof *options);
}

/** What belongs to quantised k and v: the scales of their codes, and the newest keys unquantised.
 *
 * Scales are f32: one for each key and head, in the shape of k without its last axis, or one for
 * each sequence and head, [batch, num_kv_heads]. An element is its code times the scale. i8 and
 * i4x2 need a scale; f8e4m3 without one is taken as it is. u4x2 and u2x4 are for pages: u32 words
 * have an f16 scale (the low half) and an f16 zero point, in k_scale [num_pages, page_size / 32,
 * num_kv_heads, head_dim] of each channel of 32 keys, in v_scale [num_pages, page_size,
 * num_kv_heads, ceil(head_dim_v / 32)] of each 32 channels of a value.
 * Recent keys are for codes in pages. Keys count in groups of `group`: a query at position i sees
 * key j as recent if j / group == i / group, and as codes if its group is an earlier one. So a
 * query's result does not depend on how many tokens calls had. The position of a query is its
 * diagonal key; causal bottom-right, or seqlen_q 1. Without tree_mask. */
typedef struct headrace_quantised_kv {
  size_t struct_size;       /**< sizeof this struct, set by the init function */
  headrace_tensor k_scale;  /**< of k */
  headrace_tensor v_scale;  /**< of v */
  headrace_tensor k_recent; /**< dtype of q, [num_recent_pages, group, num_kv_heads, head_dim] */
  headrace_tensor v_recent; /**< dtype of q, [num_recent_pages, group, num_kv_heads, head_dim_v] */
  headrace_tensor recent_table; /**< i32 [batch, max_recent], rows contiguous: entry i of a sequence
                                   is the page of k_recent that has group first + i; first =
                                   (seqused_k - seqlen_q) / group is the group of its first query */
} headrace_quantised_kv;

/** For bindings that cannot use this header: struct_size is the sizeof of their declaration. */
HEADRACE_API headrace_status headrace_quantised_kv_init_sized(headrace_quantised_kv* quantised,
                                                              size_t struct_size);
/** Zeroes all fields (nothing given) and sets struct_size. */
static inline headrace_status headrace_quantised_kv_init(headrace_quantised_kv* quantised) {
  return headrace_quantised_kv_init_sized(quantised, sizeof *quantised);
}

/** The tensors of one call, dense or ragged. Ragged: cu_seqlens_q and cu_seqlens_k are given, and
 * batch and seqlen of q, k, v and out are merged into one axis, [total, heads, dim]. Paged:
 * block_table and seqused_k are given, k and v are pages of keys, and cu_seqlens_k is absent; q is
 * dense, or ragged with cu_seqlens_q. Everything below `out` is optional; leave it zeroed if
 * absent. */
typedef struct headrace_attention_tensors {
  size_t struct_size;  /**< sizeof this struct, set by the init function */
  headrace_tensor q;   /**< [batch, seqlen_q, num_heads, head_dim]; f32, f16, bf16 or f64 */
  headrace_tensor k;   /**< [batch, seqlen_k, num_kv_heads, head_dim], dtype of q, or codes
                          (packed ones: bytes of head_dim elements); see `quantised` */
  headrace_tensor v;   /**< [batch, seqlen_k, num_kv_heads, head_dim_v], as k, chosen apart */
  headrace_tensor out; /**< written: [batch, seqlen_q, num_heads, head_dim_v], dtype of q */
  headrace_tensor lse; /**< f32 out (f64 with f64 inputs), natural log: [batch, num_heads,
                          seqlen_q], ragged [num_heads, total_q] */
  headrace_tensor cu_seqlens_q; /**< i32 [batch + 1], prefix sums of lengths, from 0 to total_q */
  headrace_tensor cu_seqlens_k; /**< i32 [batch + 1], from 0 to total_k */
  headrace_tensor
      alibi_slopes; /**< f32 [num_heads] or [batch, num_heads]: score += -slope * |i + shift - j| */
  headrace_tensor bias; /**< dtype of q or f32; [batch, num_heads, seqlen_q, seqlen_k], any axis may
                           have size 1 or stride 0; ragged [num_heads, total_q, max_seqlen_k] */
  headrace_tensor mask; /**< bool, true = keep; shaped like bias */
  headrace_tensor tree_mask; /**< u32 [batch, seqlen_q, words], ragged [total_q, words]: bit j of
                                row i: query i sees key seqlen_k - seqlen_q + j. All earlier keys
                                are visible, bits beyond seqlen_q are ignored; words >=
                                ceil(seqlen_q / 32), seqlen_q <= seqlen_k */
  headrace_tensor sinks;     /**< f32 [num_heads]: logits added to the denominator only */
  headrace_tensor probs; /**< f32 out [batch, num_heads, seqlen_q, seqlen_k] (f64 if inputs are),
                            for debugging small dense batches: softmax after dropout */
  headrace_tensor block_table; /**< i32 [batch, max_pages], rows contiguous: key j of sequence b is
                                  slot j % page_size of page block_table[b, j / page_size]. k is
                                  then [num_pages, page_size, num_kv_heads, head_dim] and v
                                  [num_pages, page_size, num_kv_heads, head_dim_v], any strides.
                                  Entries beyond the used pages are never read */
  headrace_tensor seqused_k; /**< i32 [batch]: keys of each sequence, 0 to max_seqlen_k (paged: and
                                to max_pages * page_size; dense: to seqlen_k; ragged: to the rows
                                of the sequence). Keys behind them may hold anything. Required with
                                block_table; forward only */
  const headrace_quantised_kv* quantised; /**< scales and recent keys of k and v; NULL: none */
  headrace_tensor page_indptr; /**< i32 [batch + 1]: block_table is then [num_entries] (CSR), and
                                  sequence b has its entries page_indptr[b] to page_indptr[b + 1] -
                                  1. Set max_seqlen_k too: it is else num_entries * page_size */
} headrace_attention_tensors;

/** For bindings that cannot use this header: struct_size is the sizeof of their declaration. */
HEADRACE_API headrace_status
headrace_attention_tensors_init_sized(headrace_attention_tensors* tensors, size_t struct_size);
/** Zeroes all fields (nothing given) and sets struct_size. */
static inline headrace_status headrace_attention_tensors_init(headrace_attention_tensors* tensors) {
  return headrace_attention_tensors_init_sized(tensors, sizeof *tensors);
}

/** Additional tensors of a backward. Its headrace_attention_tensors are all inputs: pass those of
 * the forward, including the out and lse that it wrote, without probs. q, k, v, out and lse are
 * required. Outputs are overwritten, not accumulated. The gradients are those of sum(out * dout) +
 * sum(lse * dlse). A row that sees no key contributes exactly 0. */
typedef struct headrace_attention_gradients {
  size_t struct_size;     /**< sizeof this struct, set by the init function */
  headrace_tensor dout;   /**< shape and dtype of out */
  headrace_tensor dlse;   /**< optional; shape and dtype of lse */
  headrace_tensor dq;     /**< written: shape and dtype of q */
  headrace_tensor dk;     /**< written: shape and dtype of k, summed over the heads of a group */
  headrace_tensor dv;     /**< written: shape and dtype of v, summed over the heads of a group */
  headrace_tensor dbias;  /**< optional, written: shape and dtype of bias; summed over axes where
                             bias has size 1 */
  headrace_tensor dsinks; /**< optional, written: f32 [num_heads] */
} headrace_attention_gradients;

/** For bindings that cannot use this header: struct_size is the sizeof of their declaration. */
HEADRACE_API headrace_status headrace_attention_gradients_init_sized(
    headrace_attention_gradients* gradients, size_t struct_size);
/** Zeroes all fields (nothing given) and sets struct_size. */
static inline headrace_status headrace_attention_gradients_init(
    headrace_attention_gradients* gradients) {
  return headrace_attention_gradients_init_sized(gradients, sizeof *gradients);
}

/** Forward or backward. */
typedef enum headrace_phase {
  HEADRACE_FORWARD = 0, /**< out, and lse if given */
  HEADRACE_BACKWARD = 1 /**< gradients */
} headrace_phase;

/** What has a scale of its own. */
typedef enum headrace_scaling {
  HEADRACE_SCALING_NONE = 0,         /**< no scales */
  HEADRACE_SCALING_PER_KEY = 1,      /**< each key and head */
  HEADRACE_SCALING_PER_SEQUENCE = 2, /**< each sequence and head */
  HEADRACE_SCALING_ZERO_POINTS = 3   /**< as u4x2 and u2x4 have them */
} headrace_scaling;

/** Shapes and features of one call, without pointers. */
typedef struct headrace_problem {
  size_t struct_size;      /**< sizeof this struct, set by the init function */
  int64_t batch;           /**< sequences */
  int64_t seqlen_q;        /**< rows of q per sequence; ragged: max_seqlen_q */
  int64_t seqlen_k;        /**< rows of k and v per sequence; ragged, paged: max_seqlen_k */
  int64_t total_q;         /**< ragged: rows of q; dense: 0 */
  int64_t total_k;         /**< ragged: rows of k and v; dense, paged: 0 */
  int64_t num_heads;       /**< of q and out: a multiple of num_kv_heads */
  int64_t num_kv_heads;    /**< of k and v */
  int64_t head_dim;        /**< of q and k, 1 to 576 */
  int64_t head_dim_v;      /**< of v and out, 1 to 576 */
  int64_t window_left;     /**< in keys, inclusive; -1: open */
  int64_t window_right;    /**< in keys, inclusive; -1: open */
  double softmax_scale;    /**< scale of q k^T; NaN: head_dim^-0.5 */
  double softcap;          /**< bound of the scaled scores; 0: none */
  double dropout_p;        /**< probability of dropping, 0 <= p < 1 */
  int32_t dtype;           /**< headrace_dtype of q, k, v and out */
  int32_t bias_dtype;      /**< headrace_dtype; -1: no bias */
  int32_t causal;          /**< headrace_causal */
  int32_t num_splits;      /**< 0: chosen automatically */
  int32_t is_ragged;       /**< cu_seqlens are given; this flag and those below are 0 or 1 */
  int32_t has_alibi;       /**< alibi_slopes are given */
  int32_t has_mask;        /**< mask is given */
  int32_t has_tree_mask;   /**< tree_mask is given */
  int32_t has_sinks;       /**< sinks are given */
  int32_t has_lse;         /**< lse is written; backward: read */
  int32_t has_probs;       /**< probs are written */
  int32_t strict_fallback; /**< as in headrace_attention_options */
  int32_t strict_rows;     /**< as in headrace_attention_options */
  int32_t checked;         /**< as in headrace_attention_options */
  int32_t alignment; /**< of q, k, v, out and gradients of them: the largest power of two up to 16
                        that divides their addresses and strides in bytes; 0 means 16 */
  int32_t has_negative_strides; /**< one of them has a negative stride */
  int32_t phase;                /**< headrace_phase */
  int32_t has_dlse;             /**< backward: dlse is given */
  int32_t has_dbias;            /**< backward: dbias is written */
  int32_t has_dsinks;           /**< backward: dsinks are written */
  int32_t deterministic;        /**< as in headrace_attention_options */
  int32_t has_seqused_k;     /**< seqused_k is given: seqlen_k is the upper bound of its lengths */
  int64_t page_size;         /**< keys of a page; 0: k and v are not paged */
  int64_t num_pages;         /**< pages of k and v; not paged: 0 */
  int64_t max_pages;         /**< most pages of a sequence; not paged: 0 */
  int32_t k_dtype;           /**< headrace_dtype of k; -1: dtype */
  int32_t v_dtype;           /**< headrace_dtype of v; -1: dtype */
  int32_t k_scaling;         /**< headrace_scaling of k */
  int32_t v_scaling;         /**< headrace_scaling of v */
  int64_t recent_group;      /**< keys of a page of k_recent; 0: not given */
  int64_t num_recent_pages;  /**< pages of k_recent; 0: not given */
  int64_t max_recent;        /**< columns of recent_table; 0: not given */
  int64_t max_shared_prefix; /**< as in headrace_attention_options */
} headrace_problem;

/** For bindings that cannot use this header: struct_size is the sizeof of their declaration. */
HEADRACE_API headrace_status headrace_problem_init_sized(headrace_problem* problem,
                                                         size_t struct_size);
/** Sets the defaults (f32, every size 1, everything else absent) and struct_size. */
static inline headrace_status headrace_problem_init(headrace_problem* problem) {
  return headrace_problem_init_sized(problem, sizeof *problem);
}
/** Validates the tensors and options of one call and fills `problem`. Reads only shapes, strides
 * and addresses. */
HEADRACE_API headrace_status headrace_attention_problem(const headrace_attention_tensors* tensors,
                                                        const headrace_attention_options* options,
                                                        headrace_problem* problem);
/** The same for the backward. */
HEADRACE_API headrace_status headrace_attention_backward_problem(
    const headrace_attention_tensors* tensors, const headrace_attention_gradients* gradients,
    const headrace_attention_options* options, headrace_problem* problem);

/** A selected kernel and its schedule; immutable. */
typedef struct headrace_plan headrace_plan;

/** Selects the kernel of the problem's phase and its schedule. Pure: accesses no device, keeps no
 * pointer. */
HEADRACE_API headrace_status headrace_plan_attention(const headrace_problem* problem,
                                                     const headrace_device_info* device,
                                                     headrace_plan** plan);
HEADRACE_API void headrace_plan_destroy(headrace_plan* plan); /**< NULL is allowed */
/** Workspace bytes that a run needs on the plan's device; NULL: 0. */
HEADRACE_API size_t headrace_plan_workspace_bytes(const headrace_plan* plan);
/** 1 if only the slow fallback supports the problem; NULL: 0. */
HEADRACE_API int headrace_plan_is_fallback(const headrace_plan* plan);
/** The kernel's name, valid as long as the plan; NULL: "". */
HEADRACE_API const char* headrace_plan_kernel(const headrace_plan* plan);
/** A multi-line report: the kernels in order, why each was refused, the schedule of the selected
 * one. Valid as long as the plan. */
HEADRACE_API const char* headrace_plan_explain(const headrace_plan* plan);
/** Options that may differ between runs of a plan; all others are part of the plan. */
typedef struct headrace_run_options {
  size_t struct_size;      /**< sizeof this struct, set by the init function */
  uint64_t dropout_seed;   /**< as in headrace_attention_options */
  uint64_t dropout_offset; /**< as in headrace_attention_options */
} headrace_run_options;

/** For bindings that cannot use this header: struct_size is the sizeof of their declaration. */
HEADRACE_API headrace_status headrace_run_options_init_sized(headrace_run_options* options,
                                                             size_t struct_size);
/** Zeroes all fields and sets struct_size. */
static inline headrace_status headrace_run_options_init(headrace_run_options* options) {
  return headrace_run_options_init_sized(options, sizeof *options);
}
/** Runs the plan. `tensors` must have the shapes and features of the plan's problem; `options`
 * NULL: zeros; the workspace has at least headrace_plan_workspace_bytes() bytes (any alignment;
 * NULL if that is 0) on the plan's device. Neither allocates nor synchronizes with the device. On
 * CPU `stream` is NULL and the result is complete on return. On CUDA the work is enqueued on
 * `stream`, a cudaStream_t of the plan's device (NULL: the default stream); the caller's current
 * device does not change. */
HEADRACE_API headrace_status headrace_plan_run(const headrace_plan* plan,
                                               const headrace_attention_tensors* tensors,
                                               const headrace_run_options* options, void* workspace,
                                               size_t workspace_bytes, void* stream);
/** Runs the plan of a backward problem, with the same rules. Pass the forward's dropout seed and
 * offset. */
HEADRACE_API headrace_status headrace_plan_run_backward(
    const headrace_plan* plan, const headrace_attention_tensors* tensors,
    const headrace_attention_gradients* gradients, const headrace_run_options* options,
    void* workspace, size_t workspace_bytes, void* stream);
/** HEADRACE_OK if a kernel of this build supports the problem on the device; else the error message
 * has the reasons. */
HEADRACE_API headrace_status headrace_attention_supports(const headrace_problem* problem,
                                                         const headrace_device_info* device);
/** Validates, plans and runs in one call. `workspace` NULL with 0 bytes: the call allocates and
 * frees one; on CUDA stream-ordered, from the device's default memory pool. */
HEADRACE_API headrace_status headrace_attention_forward(const headrace_attention_tensors* tensors,
                                                        const headrace_attention_options* options,
                                                        void* workspace, size_t workspace_bytes,
                                                        void* stream);
/** The same for the backward. */
HEADRACE_API headrace_status headrace_attention_backward(
    const headrace_attention_tensors* tensors, const headrace_attention_gradients* gradients,
    const headrace_attention_options* options, void* workspace, size_t workspace_bytes,
    void* stream);
/** Synchronizes with `stream`, then reads and clears the sticky error that kernels set if lengths,
 * pages, slots or positions in device memory are out of bounds. Kernels clamp such lengths to the
 * buffers and leave out such keys and tokens. */
HEADRACE_API headrace_status headrace_check(int32_t device_type, int32_t device_id, void* stream);

/* ---- the support matrix ---- */

/** Number of kernels of a headrace_device_type for a headrace_phase. Indices count from 0, in order
 * of preference. */
HEADRACE_API int headrace_num_kernels(int32_t device_type, int32_t phase);
/** A kernel's name, "cpu_avx2_fwd"; NULL for a bad index. */
HEADRACE_API const char* headrace_kernel_name(int32_t device_type, int32_t phase, int index);
/** One-line summary of what a kernel supports; NULL for a bad index. */
HEADRACE_API const char* headrace_kernel_summary(int32_t device_type, int32_t phase, int index);
/** Why a kernel of the problem's phase refuses the problem on the device; "" if it supports it,
 * NULL for a bad index or struct. */
HEADRACE_API const char* headrace_kernel_refusal(const headrace_problem* problem,
                                                 const headrace_device_info* device, int index);

/* ---- callbacks of the host program ---- */

/** Level of a log message. */
typedef enum headrace_log_level {
  HEADRACE_LOG_INFO = 0,   /**< information */
  HEADRACE_LOG_WARNING = 1 /**< a call is slower than necessary */
} headrace_log_level;
/** Receives a message, valid during the call, on the thread that made the plan. `user` is the
 * argument of headrace_set_log(). */
typedef void (*headrace_log_fn)(void* user, headrace_log_level level, const char* text);
/** Sets the log callback (it receives slow fallbacks and their reasons). Default and NULL: no
 * logging. */
HEADRACE_API void headrace_set_log(headrace_log_fn fn, void* user);

/** A task of an executor. */
typedef void (*headrace_task_fn)(void* task_arg, int index);
/** Calls task(task_arg, i) exactly once for every i in [0, num_tasks), on any number of threads,
 * and returns when all are done. `user` is the argument of headrace_set_executor(). If it breaks
 * this rule, the call that used it returns invalid_argument and its outputs are undefined. */
typedef void (*headrace_executor_fn)(void* user, int num_tasks, headrace_task_fn task,
                                     void* task_arg);
/** Runs tasks on the host program's threads instead of the built-in thread pool; NULL restores the
 * pool. May be called at any time: `run` and `user` change together. Running calls may still use
 * the previous executor, so its `user` must outlive them. */
HEADRACE_API void headrace_set_executor(headrace_executor_fn run, void* user);

#ifdef __cplusplus
} /* extern "C" */
#endif

#include "headrace/merge_states.h"
#include "headrace/softmax.h"
#include "headrace/sparq.h"

#endif /* HEADRACE_HEADRACE_H_ */
