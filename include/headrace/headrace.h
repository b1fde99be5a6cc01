/** @file
 * Headrace: exact, IO-aware attention. The C ABI: every way into the library goes through this
 * header.
 *
 * Conventions:
 *   - Every function returns a headrace_status (or a plain value that cannot fail). The text of the
 *     last error of the calling thread is headrace_last_error().
 *   - Every struct that may grow begins with `struct_size`, its sizeof in the caller's header. The
 *     init functions fill it in together with the defaults: call them, then set what you need. Of a
 *     struct without one the caller sets it. The library reads and writes that many bytes and no
 *     more, so that a program outlives the header it was compiled against; it refuses a size that
 *     it does not know.
 *   - Tensors are borrowed views: nothing is copied or kept after the call returns.
 *   - Strides are in elements, may be zero or negative for inputs; attention wants 1 for head_dim,
 *     softmax takes any.
 *   - Nothing is printed, no exception crosses this boundary, the library never exits or aborts.
 *   - Callbacks must not throw. What one throws is caught, and the call returns invalid_argument
 *     with a text that names the callback.
 *   - Thread safety: all functions may be called from any thread at any time. A plan is immutable
 *     and may be run by several threads at once as long as each brings its own workspace and
 *     outputs.
 */
#ifndef HEADRACE_HEADRACE_H_
#define HEADRACE_HEADRACE_H_

#include <stddef.h>
#include <stdint.h>

#define HEADRACE_VERSION_MAJOR 0 /**< of this header; 0: a minor version may change the ABI */
#define HEADRACE_VERSION_MINOR 1 /**< of this header */
#define HEADRACE_VERSION_PATCH 0 /**< of this header */

/** What the library exports. */
#if defined(_WIN32)
#define HEADRACE_API
#else
#define HEADRACE_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- status ---- */

/** How a call ended. Where it is not HEADRACE_OK, headrace_last_error() says more. */
typedef enum headrace_status {
  HEADRACE_OK = 0,               /**< done */
  HEADRACE_INVALID_ARGUMENT = 1, /**< an argument broke a rule: value, rule, remedy in the text */
  HEADRACE_UNSUPPORTED = 2,      /**< valid, but no kernel here takes it; the text lists why */
  HEADRACE_OUT_OF_MEMORY = 3,    /**< of the host or of the device */
  HEADRACE_DEVICE_ERROR = 4,     /**< CUDA or its driver failed; the text has their words */
  HEADRACE_IO_ERROR = 5, /**< a file cannot be read or is damaged; a model's logits are NaN */
  HEADRACE_INTERNAL = 6  /**< a bug of the library */
} headrace_status;

/** The last error on this thread; "" if there was none. Valid until the thread's next call. */
HEADRACE_API const char* headrace_last_error(void);
/** "invalid_argument", "unsupported", ... */
HEADRACE_API const char* headrace_status_name(headrace_status status);

/* ---- version and build ---- */

/** "MAJOR.MINOR.PATCH" of the library that is loaded (the macros above are this header's). */
HEADRACE_API const char* headrace_version(void);
/** One line on this build: version, compiler, dtypes, instruction sets, CUDA architectures. */
HEADRACE_API const char* headrace_build_info(void);
/** An environment variable that the library reads, by an index from 0; NULL for a bad one. */
HEADRACE_API const char* headrace_env_name(int index);
/** One line on what it does; NULL for a bad index. */
HEADRACE_API const char* headrace_env_text(int index);

/* ---- tensors ---- */

/** Type of the elements of a tensor. */
typedef enum headrace_dtype {
  HEADRACE_F32 = 0,  /**< IEEE binary32 */
  HEADRACE_F16 = 1,  /**< IEEE binary16 */
  HEADRACE_BF16 = 2, /**< the upper half of a binary32 */
  HEADRACE_F64 = 3,  /**< IEEE binary64; the reference kernel only */
  HEADRACE_I32 = 4,  /**< of lengths */
  HEADRACE_U32 = 5,  /**< of bit masks */
  HEADRACE_BOOL = 6  /**< one byte; 0 is false, anything else is true */
} headrace_dtype;

/** Where a tensor lies. */
typedef enum headrace_device_type {
  HEADRACE_CPU = 0, /**< memory of the host */
  HEADRACE_CUDA = 1 /**< memory of a GPU */
} headrace_device_type;

/** Axes that a tensor may have. */
#define HEADRACE_MAX_RANK 6

/** A borrowed view. `data == NULL && rank == 0` means "not given". */
typedef struct headrace_tensor {
  void* data;                         /**< of element [0, 0, ...] */
  int32_t dtype;                      /**< headrace_dtype */
  int32_t device_type;                /**< headrace_device_type */
  int32_t device_id;                  /**< CUDA: number of the device; CPU: 0 */
  int32_t rank;                       /**< axes, at most HEADRACE_MAX_RANK */
  int64_t shape[HEADRACE_MAX_RANK];   /**< of it the first `rank` count, as of strides */
  int64_t strides[HEADRACE_MAX_RANK]; /**< in elements */
} headrace_tensor;

/* ---- devices ---- */

/** Instruction sets: bits of headrace_device_info.cpu_isa. */
typedef enum headrace_cpu_isa {
  HEADRACE_ISA_AVX2 = 1,         /**< AVX2, FMA and F16C */
  HEADRACE_ISA_AVX512 = 2,       /**< AVX-512 F, BW, DQ and VL */
  HEADRACE_ISA_AVX512_BF16 = 4,  /**< AVX-512 BF16: dot products of bf16 */
  HEADRACE_ISA_NEON = 8,         /**< Arm's Advanced SIMD */
  HEADRACE_ISA_AVX512_VNNI = 16, /**< AVX-512 VNNI: dot products of bytes */
  /** AVX-512 BF16 at the rate of FMAs, as on AMD since Zen 4: a rate, not instructions. */
  HEADRACE_ISA_AVX512_BF16_FAST = 32
} headrace_cpu_isa;

/** A plain value: plans can be made for a device that is not there (explain, tests). */
typedef struct headrace_device_info {
  size_t struct_size;  /**< sizeof this struct: the caller sets it */
  int32_t device_type; /**< headrace_device_type */
  int32_t device_id;   /**< CUDA: number of the device; CPU: 0 */
  int32_t sm;          /**< CUDA: compute capability * 10, for example 90; CPU: 0 */
  int32_t num_units;   /**< CUDA: multiprocessors; CPU: threads that a call may use */
  uint32_t cpu_isa;    /**< CPU: headrace_cpu_isa bits */
  uint32_t smem_bytes; /**< CUDA: shared memory that a CTA may use; CPU: 0 */
  int64_t l2_bytes;    /**< CPU: of one core; CUDA: of the device */
  char name[96];       /**< ends with 0 */
} headrace_device_info;

/** The CPU of this process: instruction sets, threads by affinity; honours HEADRACE_CPU_ISA and
 * HEADRACE_NUM_THREADS. */
HEADRACE_API headrace_status headrace_cpu_info(headrace_device_info* device);
/** CUDA devices that this process sees; 0 where there is none. Fails where the build or the driver
 * has no CUDA. */
HEADRACE_API headrace_status headrace_num_cuda_devices(int32_t* num_devices);
/** One of them, by its number from 0. */
HEADRACE_API headrace_status headrace_cuda_info(int32_t device_id, headrace_device_info* device);
/** Parses "cpu", "cpu:avx2", "cpu:avx512:16", "cuda", "cuda:1" (both of this process), "sm90:132"
 * (any GPU) into a device description. */
HEADRACE_API headrace_status headrace_device_from_text(const char* text,
                                                       headrace_device_info* device);

/* ---- attention ---- */

/** Which keys the causal mask lets a query see. */
typedef enum headrace_causal {
  HEADRACE_CAUSAL_NONE = 0, /**< every key */
  HEADRACE_CAUSAL_BOTTOM_RIGHT =
      1, /**< query i sees keys j <= i + seqlen_k - seqlen_q: the last query sees the last key */
  HEADRACE_CAUSAL_TOP_LEFT = 2 /**< query i sees keys j <= i */
} headrace_causal;

/** What a call shall compute beside softmax(q k^T * softmax_scale) v. Order of the score terms:
 * scale, softcap, ALiBi and bias, mask; sinks join the denominator only. Sources are in
 * headrace.hpp. */
typedef struct headrace_attention_options {
  size_t struct_size;      /**< sizeof this struct: the init function fills it in */
  double softmax_scale;    /**< NaN: head_dim^-0.5 (head_dim of q and k) */
  double softcap;          /**< 0: none; else c: score = c * tanh(score / c) */
  double dropout_p;        /**< probability of dropping, 0 <= p < 1 */
  uint64_t dropout_seed;   /**< with dropout_offset the key of Philox4x32-7: the same numbers, the
                              same mask */
  uint64_t dropout_offset; /**< of calls that share a seed */
  int64_t window_left;     /**< keys visible left of the diagonal, inclusive; -1: open */
  int64_t window_right;    /**< keys visible right of the diagonal, inclusive; -1: open */
  int64_t max_seqlen_q;    /**< ragged batches only: an upper bound of lengths, as is total_q */
  int64_t max_seqlen_k;    /**< the same for keys */
  int32_t causal; /**< headrace_causal; also aligns the window and ALiBi (top-left only when asked
                     for) */
  int32_t num_splits;      /**< key splits; 0: by the rule, from the sequence's own lengths */
  int32_t strict_fallback; /**< 1: unsupported where only the last kernel of the list would run */
  int32_t strict_rows;     /**< 1: a row's bits do not depend on seqlen_q (prefill = decode) */
  int32_t checked;         /**< 1: lengths that live on a device are validated on the host first
                              (synchronises) */
  int32_t deterministic;   /**< 1: a backward with the same bits in each run, as always on CPU */
} headrace_attention_options;

/** For languages that cannot use this header: struct_size is the sizeof of their declaration. */
HEADRACE_API headrace_status
headrace_attention_options_init_sized(headrace_attention_options* options, size_t struct_size);
/** Fills in the defaults and struct_size. */
static inline headrace_status headrace_attention_options_init(headrace_attention_options* options) {
  return headrace_attention_options_init_sized(options, sizeof *options);
}

/** The tensors of one call, dense, or ragged (cu_seqlens_q and cu_seqlens_k given): the first two
 * axes of q, k, v and out are then one of all rows, [total, heads, dim]. Everything below `out` is
 * optional; leave it zeroed when absent. */
typedef struct headrace_attention_tensors {
  size_t struct_size;  /**< sizeof this struct: the init function fills it in */
  headrace_tensor q;   /**< [batch, seqlen_q, num_heads, head_dim]; f32, f16, bf16 or f64 */
  headrace_tensor k;   /**< [batch, seqlen_k, num_kv_heads, head_dim], dtype of q */
  headrace_tensor v;   /**< [batch, seqlen_k, num_kv_heads, head_dim_v], dtype of q */
  headrace_tensor out; /**< written: [batch, seqlen_q, num_heads, head_dim_v], dtype of q */
  headrace_tensor lse; /**< f32 out (f64 with f64 inputs), natural log: [batch, num_heads,
                          seqlen_q], ragged [num_heads, total_q] */
  headrace_tensor
      cu_seqlens_q; /**< i32 [batch + 1], starts at 0, never decreases, ends at total_q */
  headrace_tensor cu_seqlens_k; /**< i32 [batch + 1] */
  headrace_tensor
      alibi_slopes; /**< f32 [num_heads] or [batch, num_heads]: score += -slope * |i + shift - j| */
  headrace_tensor bias; /**< dtype of q or f32; [batch, num_heads, seqlen_q, seqlen_k], any axis may
                           have size 1 or stride 0; ragged [num_heads, total_q, max_seqlen_k] */
  headrace_tensor mask; /**< bool, true = keep; shaped like bias */
  headrace_tensor tree_mask; /**< u32 [batch, seqlen_q, words], ragged [total_q, words]: bit j of
                                row i says whether query i sees key seqlen_k - seqlen_q + j; earlier
                                keys are all visible, bits beyond seqlen_q are ignored; words >=
                                ceil(seqlen_q / 32), seqlen_q <= seqlen_k */
  headrace_tensor sinks;     /**< f32 [num_heads]: a logit that joins the denominator only */
  headrace_tensor probs; /**< f32 out [batch, num_heads, seqlen_q, seqlen_k], for debugging small
                            shapes: softmax after dropout; dense batches only; f64 if the
                            inputs are */
} headrace_attention_tensors;

/** For languages that cannot use this header: struct_size is the sizeof of their declaration. */
HEADRACE_API headrace_status
headrace_attention_tensors_init_sized(headrace_attention_tensors* tensors, size_t struct_size);
/** Fills in zeros: nothing given and struct_size. */
static inline headrace_status headrace_attention_tensors_init(headrace_attention_tensors* tensors) {
  return headrace_attention_tensors_init_sized(tensors, sizeof *tensors);
}

/** What the backward adds to the tensors of its forward. All of headrace_attention_tensors are read
 * then: q, k, v, out and lse are required and hold what the forward was given and wrote, everything
 * else is as it was there; probs must be absent. Outputs are overwritten, not added to. Gradients
 * are of sum(out * dout) + sum(lse * dlse). A row that sees no key gives exactly 0. */
typedef struct headrace_attention_gradients {
  size_t struct_size;     /**< sizeof this struct: the init function fills it in */
  headrace_tensor dout;   /**< shape and dtype of out */
  headrace_tensor dlse;   /**< optional; shape and dtype of lse */
  headrace_tensor dq;     /**< written: shape and dtype of q */
  headrace_tensor dk;     /**< written: shape and dtype of k, summed over the heads of a group */
  headrace_tensor dv;     /**< written: shape and dtype of v, summed over the heads of a group */
  headrace_tensor dbias;  /**< optional, written: shape and dtype of bias; summed over the axes
                             where that has size 1 */
  headrace_tensor dsinks; /**< optional, written: f32 [num_heads] */
} headrace_attention_gradients;

/** For languages that cannot use this header: struct_size is the sizeof of their declaration. */
HEADRACE_API headrace_status headrace_attention_gradients_init_sized(
    headrace_attention_gradients* gradients, size_t struct_size);
/** Fills in zeros: nothing given and struct_size. */
static inline headrace_status headrace_attention_gradients_init(
    headrace_attention_gradients* gradients) {
  return headrace_attention_gradients_init_sized(gradients, sizeof *gradients);
}

/** What a problem or a kernel computes. */
typedef enum headrace_phase {
  HEADRACE_FORWARD = 0, /**< out, and lse where it is given */
  HEADRACE_BACKWARD = 1 /**< gradients */
} headrace_phase;

/** Shapes and features of one call, validated; no pointers. */
typedef struct headrace_problem {
  size_t struct_size;      /**< sizeof this struct: the init function fills it in */
  int64_t batch;           /**< sequences */
  int64_t seqlen_q;        /**< rows of q a sequence; ragged: max_seqlen_q */
  int64_t seqlen_k;        /**< rows of k and v a sequence; ragged: max_seqlen_k */
  int64_t total_q;         /**< ragged: rows of q; dense: 0 */
  int64_t total_k;         /**< ragged: rows of k and v; dense: 0 */
  int64_t num_heads;       /**< of q and out: a multiple of num_kv_heads */
  int64_t num_kv_heads;    /**< of k and v */
  int64_t head_dim;        /**< of q and k, 1 to 576 */
  int64_t head_dim_v;      /**< of v and out, 1 to 576 */
  int64_t window_left;     /**< in keys, inclusive; -1: open */
  int64_t window_right;    /**< in keys, inclusive; -1: open */
  double softmax_scale;    /**< of q k^T; NaN: head_dim^-0.5 */
  double softcap;          /**< bound of the scaled scores; 0: none */
  double dropout_p;        /**< probability of dropping, 0 <= p < 1 */
  int32_t dtype;           /**< headrace_dtype of q, k, v and out */
  int32_t bias_dtype;      /**< headrace_dtype; -1: no bias */
  int32_t causal;          /**< headrace_causal */
  int32_t num_splits;      /**< 0: by the rule */
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
  int32_t alignment; /**< of q, k, v and out (backward: of dout, dq, dk and dv too): the largest
                        power of two, at most 16, that divides their addresses and strides in bytes;
                        0 counts as 16 */
  int32_t has_negative_strides; /**< one of them runs backwards along an axis */
  int32_t phase;                /**< headrace_phase */
  int32_t has_dlse;             /**< backward: dlse is given */
  int32_t has_dbias;            /**< backward: dbias is written */
  int32_t has_dsinks;           /**< backward: dsinks are written */
  int32_t deterministic;        /**< as in headrace_attention_options */
  int32_t reserved;             /**< 0 */
} headrace_problem;

/** For languages that cannot use this header: struct_size is the sizeof of their declaration. */
HEADRACE_API headrace_status headrace_problem_init_sized(headrace_problem* problem,
                                                         size_t struct_size);
/** Fills in the defaults (f32, every size 1, everything else absent) and struct_size. */
static inline headrace_status headrace_problem_init(headrace_problem* problem) {
  return headrace_problem_init_sized(problem, sizeof *problem);
}
/** Validates the tensors and options of one call and fills `problem`. Reads shapes, strides and
 * addresses only. */
HEADRACE_API headrace_status headrace_attention_problem(const headrace_attention_tensors* tensors,
                                                        const headrace_attention_options* options,
                                                        headrace_problem* problem);
/** The same for the backward. */
HEADRACE_API headrace_status headrace_attention_backward_problem(
    const headrace_attention_tensors* tensors, const headrace_attention_gradients* gradients,
    const headrace_attention_options* options, headrace_problem* problem);

/** A chosen kernel and its schedule; immutable. */
typedef struct headrace_plan headrace_plan;

/** Chooses the kernel of the problem's phase and its schedule. Pure: reads no device, keeps no
 * pointer. */
HEADRACE_API headrace_status headrace_plan_attention(const headrace_problem* problem,
                                                     const headrace_device_info* device,
                                                     headrace_plan** plan);
HEADRACE_API void headrace_plan_destroy(headrace_plan* plan); /**< NULL is fine */
/** Bytes that a run needs on the device of the plan; NULL: 0. */
HEADRACE_API size_t headrace_plan_workspace_bytes(const headrace_plan* plan);
/** 1 where only the last kernel of the list accepts, which is slow; NULL: 0. */
HEADRACE_API int headrace_plan_is_fallback(const headrace_plan* plan);
/** The name of the kernel, valid as long as the plan; NULL: "". */
HEADRACE_API const char* headrace_plan_kernel(const headrace_plan* plan);
/** Many lines of text: the kernels in order, why each refused, the schedule of the one that was
 * chosen. Valid as long as the plan. */
HEADRACE_API const char* headrace_plan_explain(const headrace_plan* plan);
/** What may differ from one run of a plan to the next; all other options are part of the plan. */
typedef struct headrace_run_options {
  size_t struct_size;      /**< sizeof this struct: the init function fills it in */
  uint64_t dropout_seed;   /**< as in headrace_attention_options */
  uint64_t dropout_offset; /**< as in headrace_attention_options */
} headrace_run_options;

/** For languages that cannot use this header: struct_size is the sizeof of their declaration. */
HEADRACE_API headrace_status headrace_run_options_init_sized(headrace_run_options* options,
                                                             size_t struct_size);
/** Fills in zeros and struct_size. */
static inline headrace_status headrace_run_options_init(headrace_run_options* options) {
  return headrace_run_options_init_sized(options, sizeof *options);
}
/** Runs the plan. `tensors` must have the shapes and features of the plan's problem; `options`
 * NULL: zeros; the workspace has at least headrace_plan_workspace_bytes() bytes (any alignment;
 * NULL when that is 0) on the plan's device. No allocation, no synchronisation with the device. On
 * CPU `stream` is NULL and the result is there on return. On CUDA the work is enqueued on `stream`,
 * a cudaStream_t of the plan's device (NULL: the default stream), and the caller's current device
 * stays current. */
HEADRACE_API headrace_status headrace_plan_run(const headrace_plan* plan,
                                               const headrace_attention_tensors* tensors,
                                               const headrace_run_options* options, void* workspace,
                                               size_t workspace_bytes, void* stream);
/** Runs the plan of a backward problem, by the same rules; dropout seed and offset are those of the
 * forward. */
HEADRACE_API headrace_status headrace_plan_run_backward(
    const headrace_plan* plan, const headrace_attention_tensors* tensors,
    const headrace_attention_gradients* gradients, const headrace_run_options* options,
    void* workspace, size_t workspace_bytes, void* stream);
/** HEADRACE_OK where a kernel of this build takes the problem on the device, else the reasons in
 * the error text. */
HEADRACE_API headrace_status headrace_attention_supports(const headrace_problem* problem,
                                                         const headrace_device_info* device);
/** Validate + plan + run in one call. `workspace` NULL with 0 bytes: one is allocated for the call
 * and freed; on CUDA in the order of the stream, from the device's default memory pool. */
HEADRACE_API headrace_status headrace_attention_forward(const headrace_attention_tensors* tensors,
                                                        const headrace_attention_options* options,
                                                        void* workspace, size_t workspace_bytes,
                                                        void* stream);
/** The same for the backward. */
HEADRACE_API headrace_status headrace_attention_backward(
    const headrace_attention_tensors* tensors, const headrace_attention_gradients* gradients,
    const headrace_attention_options* options, void* workspace, size_t workspace_bytes,
    void* stream);
/** Waits for `stream`, then reads and clears the sticky error that kernels set when lengths on the
 * device were out of bounds. Such lengths are clamped to the buffer. */
HEADRACE_API headrace_status headrace_check(int32_t device_type, int32_t device_id, void* stream);

/* ---- softmax ---- */

/** How softmax reads a row. */
typedef enum headrace_softmax_algorithm {
  HEADRACE_SOFTMAX_AUTO = 0,  /**< the faster one, by the device and the axis' length alone */
  HEADRACE_SOFTMAX_SAFE = 1,  /**< three passes: the maximum, the sum, the weights */
  HEADRACE_SOFTMAX_ONLINE = 2 /**< two passes: maximum and sum together, then the weights (Milakov
                                 and Gimelshein 2018) */
} headrace_softmax_algorithm;

/** What softmax shall compute. */
typedef struct headrace_softmax_options {
  size_t struct_size; /**< sizeof this struct: the init function fills it in */
  double scale;       /**< 1; of the exponents: finite as f32, of any sign */
  int32_t axis;       /**< -1; counts from the end where it is negative */
  int32_t algorithm;  /**< headrace_softmax_algorithm; the backward has one and ignores it */
} headrace_softmax_options;

/** For languages that cannot use this header: struct_size is the sizeof of their declaration. */
HEADRACE_API headrace_status headrace_softmax_options_init_sized(headrace_softmax_options* options,
                                                                 size_t struct_size);
/** Fills in the defaults and struct_size. */
static inline headrace_status headrace_softmax_options_init(headrace_softmax_options* options) {
  return headrace_softmax_options_init_sized(options, sizeof *options);
}

/** y = softmax(scale * x) along one axis; any strides, also along that axis. A row that is -inf
 * throughout gives zeros and an lse of -inf; one with NaN or +inf is NaN throughout. */
typedef struct headrace_softmax_tensors {
  size_t struct_size;  /**< sizeof this struct: the init function fills it in */
  headrace_tensor x;   /**< rank 1 to 6; f32, f16 or bf16 */
  headrace_tensor y;   /**< written: shape and dtype of x; may be x itself (the same view) */
  headrace_tensor lse; /**< optional, written: f32, natural log of the sum of exp(scale * x), the
                          shape of x without the axis */
} headrace_softmax_tensors;

/** For languages that cannot use this header: struct_size is the sizeof of their declaration. */
HEADRACE_API headrace_status headrace_softmax_tensors_init_sized(headrace_softmax_tensors* tensors,
                                                                 size_t struct_size);
/** Fills in zeros: nothing given and struct_size. */
static inline headrace_status headrace_softmax_tensors_init(headrace_softmax_tensors* tensors) {
  return headrace_softmax_tensors_init_sized(tensors, sizeof *tensors);
}

/** dx = scale * y * (dy - sum(y * dy)), the sum along the axis: the gradient of the loss with
 * respect to x, from y of the forward and the gradient dy with respect to y. */
typedef struct headrace_softmax_backward_tensors {
  size_t struct_size; /**< sizeof this struct: the init function fills it in */
  headrace_tensor y;  /**< rank 1 to 6; f32, f16 or bf16 */
  headrace_tensor dy; /**< shape and dtype of y */
  headrace_tensor dx; /**< written: shape and dtype of y; may be y or dy itself (the same view) */
} headrace_softmax_backward_tensors;

/** headrace_softmax_backward_tensors_init() for languages that cannot use this header: struct_size
 * is the sizeof of their declaration. */
HEADRACE_API headrace_status headrace_softmax_backward_tensors_init_sized(
    headrace_softmax_backward_tensors* tensors, size_t struct_size);
/** Fills in zeros: nothing given and struct_size. */
static inline headrace_status headrace_softmax_backward_tensors_init(
    headrace_softmax_backward_tensors* tensors) {
  return headrace_softmax_backward_tensors_init_sized(tensors, sizeof *tensors);
}

/** No workspace, no allocation. `options` NULL: the defaults. `stream` as in headrace_plan_run:
 * NULL on CPU, where the result is there on return; on CUDA the work is enqueued on it. */
HEADRACE_API headrace_status headrace_softmax_forward(const headrace_softmax_tensors* tensors,
                                                      const headrace_softmax_options* options,
                                                      void* stream);
/** The gradient, by the same rules. */
HEADRACE_API headrace_status
headrace_softmax_backward(const headrace_softmax_backward_tensors* tensors,
                          const headrace_softmax_options* options, void* stream);

/* ---- the support matrix ---- */

/** How many kernels a headrace_device_type has for a headrace_phase. An index counts them from 0,
 * in the order in which they are asked. */
HEADRACE_API int headrace_num_kernels(int32_t device_type, int32_t phase);
/** Name of a kernel, "cpu_avx2_fwd"; NULL for a bad index. */
HEADRACE_API const char* headrace_kernel_name(int32_t device_type, int32_t phase, int index);
/** One line on what a kernel takes; NULL for a bad index. */
HEADRACE_API const char* headrace_kernel_summary(int32_t device_type, int32_t phase, int index);
/** Why the kernel of the problem's phase refuses this problem on this device; "" when it takes it,
 * NULL for a bad index or struct. */
HEADRACE_API const char* headrace_kernel_refusal(const headrace_problem* problem,
                                                 const headrace_device_info* device, int index);

/* ---- the host program's say ---- */

/** How important a text of the log is. */
typedef enum headrace_log_level {
  HEADRACE_LOG_INFO = 0,   /**< good to know */
  HEADRACE_LOG_WARNING = 1 /**< a call is slower than it could be */
} headrace_log_level;
/** Receives a text that is valid during the call, on the thread that made the plan. `user` is that
 * of headrace_set_log(). */
typedef void (*headrace_log_fn)(void* user, headrace_log_level level, const char* text);
/** Who receives what the library would like to say (a fallback and its reasons). Default and NULL:
 * nobody. */
HEADRACE_API void headrace_set_log(headrace_log_fn fn, void* user);

/** One of the tasks that an executor is given. */
typedef void (*headrace_task_fn)(void* task_arg, int index);
/** Calls task(task_arg, i) exactly once for every i in [0, num_tasks), on as many threads as it
 * likes, and returns when all are done. `user` is that of headrace_set_executor(). Where it breaks
 * this rule the call that needed it returns invalid_argument, and its outputs have no meaning. */
typedef void (*headrace_executor_fn)(void* user, int num_tasks, headrace_task_fn task,
                                     void* task_arg);
/** The host program's own threads instead of the library's. NULL restores the built-in pool. May be
 * called at any time: `run` and `user` change together, and a call that is running may still use
 * the executor before, so `user` must outlive such calls. */
HEADRACE_API void headrace_set_executor(headrace_executor_fn run, void* user);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* HEADRACE_HEADRACE_H_ */
