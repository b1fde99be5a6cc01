/** @file
 * Softmax along one axis and its gradient. Included by headrace.h, which has the conventions.
 */
#ifndef HEADRACE_SOFTMAX_H_
#define HEADRACE_SOFTMAX_H_

#include "headrace/headrace.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Softmax algorithms. */
typedef enum headrace_softmax_algorithm {
  HEADRACE_SOFTMAX_AUTO = 0,  /**< the faster one; depends only on device and axis length */
  HEADRACE_SOFTMAX_SAFE = 1,  /**< three passes: maximum, sum, results */
  HEADRACE_SOFTMAX_ONLINE = 2 /**< two passes: maximum and sum, results (Milakov and Gimelshein
                                 2018) */
} headrace_softmax_algorithm;

/** Options of softmax. */
typedef struct headrace_softmax_options {
  size_t struct_size; /**< sizeof this struct, set by the init function */
  double scale;       /**< default 1; multiplies x; finite as f32, any sign */
  int32_t axis;       /**< default -1; negative values count from the end */
  int32_t algorithm;  /**< headrace_softmax_algorithm; ignored by the backward */
} headrace_softmax_options;

/** For bindings that cannot use this header: struct_size is the sizeof of their declaration. */
HEADRACE_API headrace_status headrace_softmax_options_init_sized(headrace_softmax_options* options,
                                                                 size_t struct_size);
/** Sets the defaults and struct_size. */
static inline headrace_status headrace_softmax_options_init(headrace_softmax_options* options) {
  return headrace_softmax_options_init_sized(options, sizeof *options);
}

/** y = softmax(scale * x) along one axis; any strides, also along that axis. A row of only -inf
 * gives zeros and an lse of -inf; a row with NaN or +inf gives NaN. */
typedef struct headrace_softmax_tensors {
  size_t struct_size;  /**< sizeof this struct, set by the init function */
  headrace_tensor x;   /**< rank 1 to 6; f32, f16 or bf16 */
  headrace_tensor y;   /**< written: shape and dtype of x; may be x itself (the same view) */
  headrace_tensor lse; /**< optional, written: f32, natural log of the sum of exp(scale * x), the
                          shape of x without the axis */
} headrace_softmax_tensors;

/** For bindings that cannot use this header: struct_size is the sizeof of their declaration. */
HEADRACE_API headrace_status headrace_softmax_tensors_init_sized(headrace_softmax_tensors* tensors,
                                                                 size_t struct_size);
/** Zeroes all fields (nothing given) and sets struct_size. */
static inline headrace_status headrace_softmax_tensors_init(headrace_softmax_tensors* tensors) {
  return headrace_softmax_tensors_init_sized(tensors, sizeof *tensors);
}

/** dx = scale * y * (dy - sum(y * dy)), with the sum along the axis: the gradient with respect to
 * x, from the forward's y and the gradient dy with respect to y. */
typedef struct headrace_softmax_backward_tensors {
  size_t struct_size; /**< sizeof this struct, set by the init function */
  headrace_tensor y;  /**< rank 1 to 6; f32, f16 or bf16 */
  headrace_tensor dy; /**< shape and dtype of y */
  headrace_tensor dx; /**< written: shape and dtype of y; may be y or dy itself (the same view) */
} headrace_softmax_backward_tensors;

/** headrace_softmax_backward_tensors_init() for bindings that cannot use this header: struct_size
 * is the sizeof of their declaration. */
HEADRACE_API headrace_status headrace_softmax_backward_tensors_init_sized(
    headrace_softmax_backward_tensors* tensors, size_t struct_size);
/** Zeroes all fields (nothing given) and sets struct_size. */
static inline headrace_status headrace_softmax_backward_tensors_init(
    headrace_softmax_backward_tensors* tensors) {
  return headrace_softmax_backward_tensors_init_sized(tensors, sizeof *tensors);
}

/** Needs no workspace and allocates nothing. `options` NULL: the defaults. `stream` as in
 * headrace_plan_run(): NULL on CPU; on CUDA the work is enqueued on it. */
HEADRACE_API headrace_status headrace_softmax_forward(const headrace_softmax_tensors* tensors,
                                                      const headrace_softmax_options* options,
                                                      void* stream);
/** The gradient, with the same rules. */
HEADRACE_API headrace_status
headrace_softmax_backward(const headrace_softmax_backward_tensors* tensors,
                          const headrace_softmax_options* options, void* stream);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* HEADRACE_SOFTMAX_H_ */
