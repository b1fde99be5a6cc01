#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "stress/device_work.h"

namespace headrace::testing {
namespace {

constexpr int kThreads = 256, kCtas = 1024;

__device__ std::uint64_t mix(std::uint64_t z) {  // splitmix64
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}
__device__ std::int64_t first_index() {
  return std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
}
__device__ std::int64_t index_step() { return std::int64_t{gridDim.x} * blockDim.x; }

template <class T>
__global__ void fill_uniform_kernel(T* to, std::int64_t count, std::uint64_t seed, float size) {
  for (std::int64_t i = first_index(); i < count; i += index_step()) {
    const std::uint64_t bits = mix((seed << 40) + static_cast<std::uint64_t>(i) + 1);
    to[i] = static_cast<T>((static_cast<float>(bits >> 40) * 0x1p-23f - 1.0f) * size);
  }
}

__global__ void fill_mask_kernel(unsigned char* to, std::int64_t count, std::uint64_t seed) {
  for (std::int64_t i = first_index(); i < count; i += index_step())
    to[i] = (mix((seed << 40) + static_cast<std::uint64_t>(i) + 1) & 3) != 0;
}

template <class T>
__device__ double to_double(T x) {
  return static_cast<double>(static_cast<float>(x));
}

template <class T>
__global__ void convert_kernel(const T* from, std::int64_t count, double* to) {
  for (std::int64_t i = first_index(); i < count; i += index_step()) to[i] = to_double(from[i]);
}

__device__ void note(Difference* difference, unsigned long long num_wrong,
                     unsigned long long first) {
  if (num_wrong == 0) return;
  atomicAdd(&difference->num_wrong, num_wrong);
  atomicMin(&difference->first, first);
}

__global__ void compare_kernel(unsigned* got, const unsigned* expected, std::int64_t count,
                               Difference* difference) {
  unsigned long long num_wrong = 0, first = ~0ull;
  for (std::int64_t i = first_index(); i < count; i += index_step()) {
    const bool is_wrong = got[i] != expected[i];
    got[i] = ~0u;
    if (is_wrong && first == ~0ull) first = static_cast<unsigned long long>(i);
    num_wrong += is_wrong;
  }
  note(difference, num_wrong, first);
}

template <class T>
__global__ void compare_near_kernel(T* got, const T* expected, std::int64_t count, float relative,
                                    float absolute, Difference* difference) {
  unsigned long long num_wrong = 0, first = ~0ull;
  for (std::int64_t i = first_index(); i < count; i += index_step()) {
    const float a = static_cast<float>(got[i]), b = static_cast<float>(expected[i]);
    got[i] = static_cast<T>(__int_as_float(-1));
    if (fabsf(a - b) <= relative * fabsf(b) + absolute) continue;
    if (first == ~0ull) first = static_cast<unsigned long long>(i);
    ++num_wrong;
  }
  note(difference, num_wrong, first);
}

__global__ void sum_squares_kernel(const double* exact, std::int64_t count, RowError* error) {
  double sum = 0;
  for (std::int64_t i = first_index(); i < count; i += index_step()) sum += exact[i] * exact[i];
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if (threadIdx.x % 32 == 0) atomicAdd(&error->sum_of_squares, sum);
}

// One warp per row.
template <class T>
__global__ void measure_kernel(const T* got, const double* exact, std::int64_t rows, int dim,
                               RowError* error) {
  const double mean_square = error->sum_of_squares / static_cast<double>(rows);
  for (std::int64_t row = first_index() / 32; row < rows; row += index_step() / 32) {
    double difference = 0, square = 0;
    for (int d = static_cast<int>(threadIdx.x) % 32; d < dim; d += 32) {
      const double x = exact[row * dim + d], e = to_double(got[row * dim + d]) - x;
      difference += e * e;
      square += x * x;
    }
    for (int step = 16; step > 0; step /= 2) {
      difference += __shfl_xor_sync(~0u, difference, step);
      square += __shfl_xor_sync(~0u, square, step);
    }
    if (threadIdx.x % 32 != 0) continue;
    const double limit = fmax(fmax(square, mean_square), dim / (16.0 * 16.0));
    const double ratio = isnan(difference) ? INFINITY : sqrt(difference / limit);
    // Bits of non-negative doubles are ordered like their values.
    const auto bits = static_cast<unsigned long long>(__double_as_longlong(ratio));
    if (atomicMax(&error->worst, bits) < bits) error->row = static_cast<unsigned long long>(row);
  }
}

// One warp per output.
template <class T>
__global__ void multiply_kernel(const DoubleProduct p) {
  const T *x = static_cast<const T*>(p.x), *weights = static_cast<const T*>(p.weights);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (std::int64_t i = first_index() / 32; i < p.num_tokens * p.rows; i += index_step() / 32) {
    const std::int64_t token = i / p.rows, row = i % p.rows;
    const auto sum_of = [&](std::int64_t w) {
      double sum = 0;
      for (std::int64_t c = lane; c < p.columns; c += 32)
        sum += to_double(x[token * p.columns + c]) * to_double(weights[w * p.columns + c]);
      for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
      return sum + (p.bias == nullptr ? 0 : static_cast<double>(p.bias[w]));
    };
    double result = sum_of(row);
    if (p.has_swiglu) result *= sum_of(p.rows + row) / (1 + exp(-result));
    if (p.old != nullptr) result += p.old[i];
    if (lane == 0) p.out[i] = result;
  }
}

// One thread per pair.
__global__ void rotate_kernel(const DoubleRotation r) {
  const std::int64_t half = r.head_dim / 2, per_token = r.num_heads * half;
  for (std::int64_t i = first_index(); i < r.num_tokens * per_token; i += index_step()) {
    const std::int64_t token = i / per_token, head = i % per_token / half, pair = i % half;
    double* x = r.x + token * r.stride + head * r.head_dim;
    double& a = r.is_halves ? x[pair] : x[2 * pair];
    double& b = r.is_halves ? x[pair + half] : x[2 * pair + 1];
    const double cos = r.cos[token * half + pair], sin = r.sin[token * half + pair], first = a;
    a = first * cos - b * sin;
    b = b * cos + first * sin;
  }
}

__global__ void load_kernel(float4* memory, std::int64_t count) {
  __shared__ float4 shared[1024];
  float4 sum = {};
  for (int round = 0; round < 4; ++round) {
    for (int i = static_cast<int>(threadIdx.x); i < 1024; i += static_cast<int>(blockDim.x)) {
      const std::int64_t at = (std::int64_t{blockIdx.x} * 4096 + round * 1024 + i) % count;
      shared[(i * 17 + round) % 1024] = memory[at];
    }
    __syncthreads();
    for (int i = 0; i < 256; ++i) sum.x += shared[(threadIdx.x + i * 33u) % 1024].y;
    __syncthreads();
    const std::int64_t at = (std::int64_t{blockIdx.x} * 4096 + round * 1024 + threadIdx.x) % count;
    memory[at] = sum;
  }
}

// Calls f with a pointer to the element type.
template <class Pointer, class F>
void with_type(Pointer data, DType dtype, F f) {
  constexpr bool kIsConst = std::is_const_v<std::remove_pointer_t<Pointer>>;
  const auto as = [&]<class T>(T) {
    f(reinterpret_cast<std::conditional_t<kIsConst, const T, T>*>(data));
  };
  if (dtype == DType::bf16) {
    as(__nv_bfloat16{});
  } else if (dtype == DType::f16) {
    as(__half{});
  } else {
    as(float{});
  }
}

}  // namespace

void fill_uniform(void* to, DType dtype, std::int64_t count, std::uint64_t seed, float size,
                  cudaStream_t stream) {
  with_type(to, dtype, [&](auto* x) {
    fill_uniform_kernel<<<kCtas, kThreads, 0, stream>>>(x, count, seed, size);
  });
}

void fill_mask(unsigned char* to, std::int64_t count, std::uint64_t seed, cudaStream_t stream) {
  fill_mask_kernel<<<kCtas, kThreads, 0, stream>>>(to, count, seed);
}

void convert_to_f64(const void* from, DType dtype, std::int64_t count, double* to,
                    cudaStream_t stream) {
  with_type(from, dtype,
            [&](const auto* x) { convert_kernel<<<kCtas, kThreads, 0, stream>>>(x, count, to); });
}

void compare_and_poison(void* got, const void* expected, std::int64_t bytes, Difference* difference,
                        cudaStream_t stream) {
  compare_kernel<<<kCtas, kThreads, 0, stream>>>(
      static_cast<unsigned*>(got), static_cast<const unsigned*>(expected), bytes / 4, difference);
}

void compare_near_and_poison(void* got, const void* expected, DType dtype, std::int64_t count,
                             float relative, float absolute, Difference* difference,
                             cudaStream_t stream) {
  with_type(got, dtype, [&]<class T>(T* x) {
    compare_near_kernel<<<kCtas, kThreads, 0, stream>>>(x, static_cast<const T*>(expected), count,
                                                        relative, absolute, difference);
  });
}

void measure_rows(const void* got, DType dtype, const double* exact, std::int64_t rows, int dim,
                  RowError* error, cudaStream_t stream) {
  sum_squares_kernel<<<kCtas, kThreads, 0, stream>>>(exact, rows * dim, error);
  with_type(got, dtype, [&](const auto* x) {
    measure_kernel<<<kCtas, kThreads, 0, stream>>>(x, exact, rows, dim, error);
  });
}

void multiply_in_double(const DoubleProduct& product, cudaStream_t stream) {
  with_type(product.x, product.dtype, [&]<class T>(const T*) {
    multiply_kernel<T><<<kCtas, kThreads, 0, stream>>>(product);
  });
}

void rotate_in_double(const DoubleRotation& rotation, cudaStream_t stream) {
  rotate_kernel<<<kCtas, kThreads, 0, stream>>>(rotation);
}

void make_load(void* memory, std::size_t bytes, cudaStream_t stream) {
  constexpr int kLoadCtas = 64;
  load_kernel<<<kLoadCtas, kThreads, 0, stream>>>(static_cast<float4*>(memory),
                                                  static_cast<std::int64_t>(bytes / 16));
}

}  // namespace headrace::testing
