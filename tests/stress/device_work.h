// What the stress suite computes on the device beside attention: data, comparisons, load.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"

namespace headrace::testing {

// `count` numbers, uniform in [-size, size], a pure function of index and seed.
void fill_uniform(void* to, DType dtype, std::int64_t count, std::uint64_t seed, float size,
                  cudaStream_t stream);
// Bytes 0 and 1, three of four 1.
void fill_mask(unsigned char* to, std::int64_t count, std::uint64_t seed, cudaStream_t stream);
void convert_to_f64(const void* from, DType dtype, std::int64_t count, double* to,
                    cudaStream_t stream);

// Adds the number of 32-bit words that differ to *num_wrong and notes the first of them; then fills
// `got` with NaNs, so that what the next call does not write is seen.
struct Difference {
  unsigned long long num_wrong;
  unsigned long long first;  // word; the least
};
void compare_and_poison(void* got, const void* expected, std::int64_t bytes, Difference* difference,
                        cudaStream_t stream);
// The same for sums of floats in no fixed order: elements that differ by more than
// `relative` * |expected| + `absolute` count.
void compare_near_and_poison(void* got, const void* expected, DType dtype, std::int64_t count,
                             float relative, float absolute, Difference* difference,
                             cudaStream_t stream);

// Rows of `dim` elements beside exact ones. *worst is the largest |got - exact| / max(|exact|, rms,
// sqrt(dim) / 16), norms of rows, rms over all rows; +inf where a row has a NaN. Inputs have
// elements of about 1, and so have results, unless they cancel: a gradient through one key is 0,
// and what rounding leaves of it is compared with a 16th of what others have.
struct RowError {
  double sum_of_squares;     // of all exact elements
  unsigned long long worst;  // the bits of a double
  unsigned long long row;    // of the worst, roughly: the last to raise it
};
void measure_rows(const void* got, DType dtype, const double* exact, std::int64_t rows, int dim,
                  RowError* error, cudaStream_t stream);

// Some multiprocessors read and write `bytes` of device memory and their shared memory for some
// tens of microseconds.
void make_load(void* memory, std::size_t bytes, cudaStream_t stream);

}  // namespace headrace::testing
