// The stress suite's own device work: data, comparisons, load.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"

namespace headrace::testing {

// Fills with `count` values, uniform in [-size, size], a pure function of index and seed.
void fill_uniform(void* to, DType dtype, std::int64_t count, std::uint64_t seed, float size,
                  cudaStream_t stream);
// Fills with bytes 0 and 1, three of four are 1.
void fill_mask(unsigned char* to, std::int64_t count, std::uint64_t seed, cudaStream_t stream);
void convert_to_f64(const void* from, DType dtype, std::int64_t count, double* to,
                    cudaStream_t stream);

// Adds the number of differing 32-bit words to the Difference and records the first; then fills
// `got` with NaNs, so that elements that the next call does not write are detected.
struct Difference {
  unsigned long long num_wrong;
  unsigned long long first;  // smallest index of a differing word
};
void compare_and_poison(void* got, const void* expected, std::int64_t bytes, Difference* difference,
                        cudaStream_t stream);
// The same for floating-point sums in no fixed order: counts elements that differ by more than
// `relative` * |expected| + `absolute`.
void compare_near_and_poison(void* got, const void* expected, DType dtype, std::int64_t count,
                             float relative, float absolute, Difference* difference,
                             cudaStream_t stream);

// Compares rows of `dim` elements with exact ones. *worst is the largest |got - exact| /
// max(|exact|, rms, sqrt(dim) / 16), with norms of rows and the rms over all rows; +inf if a row
// has a NaN. Elements of inputs and results are about 1 unless they cancel: a gradient through a
// single key is 0, and its rounding error is compared with 1/16 of a normal element.
struct RowError {
  double sum_of_squares;     // over all exact elements
  unsigned long long worst;  // the bits of a double
  unsigned long long row;    // approximately the worst row: the last to raise it
};
void measure_rows(const void* got, DType dtype, const double* exact, std::int64_t rows, int dim,
                  RowError* error, cudaStream_t stream);

// out = x * weights^T + bias + old, or silu(gate) * up of the first and the second half of the
// weights' rows, summed in double. x: [num_tokens, columns]; weights: [rows, columns], twice as
// many rows with has_swiglu; bias and old may be null.
struct DoubleProduct {
  const void *x, *weights;
  DType dtype;
  const float* bias;
  const double* old;  // [num_tokens, rows]
  bool has_swiglu;
  double* out;  // [num_tokens, rows]
  std::int64_t num_tokens, rows, columns;
};
void multiply_in_double(const DoubleProduct& product, cudaStream_t stream);

// Rotates the first heads of every row: by halves, or neighbours. Tables: [num_tokens, head_dim/2].
struct DoubleRotation {
  double* x;
  const float *cos, *sin;
  std::int64_t num_tokens, stride, num_heads, head_dim;
  bool is_halves;
};
void rotate_in_double(const DoubleRotation& rotation, cudaStream_t stream);

// Loads some multiprocessors for tens of microseconds: reads and writes `bytes` of device memory
// and shared memory.
void make_load(void* memory, std::size_t bytes, cudaStream_t stream);

}  // namespace headrace::testing
