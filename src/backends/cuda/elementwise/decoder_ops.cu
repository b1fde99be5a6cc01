// Kernels of a decoder between its products and attention. A thread has 8 elements at a time.
#include "backends/cuda/common/element.cuh"
#include "backends/cuda/common/silu.cuh"
#include "backends/cuda/device/barrier.cuh"
#include "backends/cuda/elementwise/angle.h"
#include "backends/cuda/elementwise/decoder_ops.h"
#include "backends/cuda/elementwise/rms_norm.cuh"
#include "backends/cuda/runtime/device.cuh"
#include "backends/cuda/runtime/launch.cuh"
#include "backends/cuda/sm90/element.cuh"

namespace headrace::cuda {
namespace {

using Bf16Pair = sm90::Bf16Element;

constexpr int kThreads = 256, kVec = 8;

// Element `i` of rows of bf16; i is a multiple of kVec.
__device__ __forceinline__ sm90::Chunk load_vec(const void* x, std::int64_t i) {
  return *reinterpret_cast<const sm90::Chunk*>(static_cast<const __nv_bfloat16*>(x) + i);
}
__device__ __forceinline__ void store_vec(void* x, std::int64_t i, const sm90::Chunk& c) {
  *reinterpret_cast<sm90::Chunk*>(static_cast<__nv_bfloat16*>(x) + i) = c;
}

__device__ __forceinline__ std::int64_t vec_of_thread() {
  return (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kVec;
}

__global__ void __launch_bounds__(kThreads) gather_kernel(const GatherRows p) {
  griddep_launch_dependents();
  griddep_wait();
  const std::int32_t row = p.rows[blockIdx.x];
  const std::int64_t from = (row < 0 ? p.drawn[-1 - row] : row) * p.width;
  const std::int64_t to = blockIdx.x * p.width;
  for (std::int64_t i = threadIdx.x * kVec; i < p.width; i += kThreads * kVec)
    store_vec(p.out, to + i, load_vec(p.x, from + i));
}

__global__ void __launch_bounds__(kThreads) rope_angles_kernel(const RopeAngles p) {
  griddep_launch_dependents();
  griddep_wait();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= p.num_tokens * p.num_pairs) return;
  const std::int64_t token = i / p.num_pairs;
  const CosSin angle = cos_sin(p.positions[token], p.frequencies[i - token * p.num_pairs]);
  p.cos[i] = angle.cos;
  p.sin[i] = angle.sin;
}

// A CTA per row. The first kHeld vectors of a thread stay in registers: rows of up to 8192 elements
// are read once, and the weights while the kernel before this one ends.
__global__ void __launch_bounds__(kThreads) rms_norm_kernel(const RmsNorm p) {
  static_assert(kThreads == rms::kThreads && kVec == rms::kVec);
  constexpr int kHeld = 4;
  __shared__ float warp_sums[rms::kWarps];
  const std::int64_t first = threadIdx.x * kVec;
  const auto column = [&](int i) { return first + std::int64_t{i} * (kThreads * kVec); };
  griddep_launch_dependents();
  rms::Weights weights[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i)
    if (column(i) < p.width) weights[i] = rms::load_weights(p.weight, column(i));
  griddep_wait();
  const std::int64_t row = blockIdx.x * p.width;
  sm90::Chunk x[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i)
    if (column(i) < p.width) x[i] = load_vec(p.x, row + column(i));
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kHeld; ++i)
    if (column(i) < p.width) rms::add_squares(x[i], sum);
  for (std::int64_t at = column(kHeld); at < p.width; at += kThreads * kVec)
    rms::add_squares(load_vec(p.x, row + at), sum);
  sum = rms::warp_sum(sum);
  if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = sum;
  __syncthreads();
  const float scale = rms::scale_of(warp_sums, p.width, p.eps);
#pragma unroll
  for (int i = 0; i < kHeld; ++i)
    if (column(i) < p.width)
      store_vec(p.out, row + column(i), rms::scaled(x[i], scale, weights[i]));
  for (std::int64_t at = column(kHeld); at < p.width; at += kThreads * kVec)
    store_vec(p.out, row + at,
              rms::scaled(load_vec(p.x, row + at), scale, rms::load_weights(p.weight, at)));
}

__global__ void __launch_bounds__(kThreads) swiglu_kernel(const SwiGlu p) {
  griddep_launch_dependents();
  griddep_wait();
  const std::int64_t i = vec_of_thread();
  if (i >= p.num_rows * p.width) return;
  const std::int64_t row = i / p.width, from = i + row * p.width;  // = row * 2 * width + column
  const sm90::Chunk gate = load_vec(p.gate_up, from), up = load_vec(p.gate_up, from + p.width);
  sm90::Chunk out;
#pragma unroll
  for (int w = 0; w < kVec / 2; ++w) {
    const float2 g = Bf16Pair::unpack(gate.words[w]), u = Bf16Pair::unpack(up.words[w]);
    out.words[w] = Bf16Pair::pack(silu(g.x) * u.x, silu(g.y) * u.y);
  }
  store_vec(p.out, i, out);
}

template <class T>
struct alignas(16) Elements {
  T e[kVec];
};

template <class T>
__global__ void __launch_bounds__(kThreads) to_bf16_kernel(const ToBf16 p) {
  griddep_launch_dependents();
  griddep_wait();
  const std::int64_t i = vec_of_thread();
  if (i >= p.num_elements) return;
  const Elements<T> x = *reinterpret_cast<const Elements<T>*>(static_cast<const T*>(p.x) + i);
  sm90::Chunk out;
#pragma unroll
  for (int w = 0; w < kVec / 2; ++w)
    out.words[w] = Bf16Pair::pack(load_real(x.e, 2 * w), load_real(x.e, 2 * w + 1));
  store_vec(p.out, i, out);
}

template <class Call>
Status launch_on(int device_id, const char* name, std::int64_t num_ctas, void (*kernel)(Call),
                 const Call& call, Stream stream) {
  if (num_ctas == 0) return std::nullopt;
  const DeviceScope scope(device_id);
  if (scope.status()) return scope.status();
  const LaunchShape shape{.name = name,
                          .grid = dim3(static_cast<unsigned>(num_ctas)),
                          .block = dim3(kThreads),
                          .use_pdl = true};
  return launch(shape, static_cast<cudaStream_t>(stream), kernel, call);
}

std::int64_t ctas_of(std::int64_t num_elements) {
  constexpr std::int64_t kPerCta = kThreads * kVec;
  return (num_elements + kPerCta - 1) / kPerCta;
}

}  // namespace

Status gather_rows(const GatherRows& call, int device_id, Stream stream) {
  return launch_on(device_id, "gather_rows", call.num_rows, gather_kernel, call, stream);
}

Status rope_angles(const RopeAngles& call, int device_id, Stream stream) {
  return launch_on(device_id, "rope_angles",
                   (call.num_tokens * call.num_pairs + kThreads - 1) / kThreads, rope_angles_kernel,
                   call, stream);
}

Status rms_norm(const RmsNorm& call, int device_id, Stream stream) {
  return launch_on(device_id, "rms_norm", call.num_rows, rms_norm_kernel, call, stream);
}

Status swiglu(const SwiGlu& call, int device_id, Stream stream) {
  return launch_on(device_id, "swiglu", ctas_of(call.num_rows * call.width), swiglu_kernel, call,
                   stream);
}

Status to_bf16(const ToBf16& call, int device_id, Stream stream) {
  const bool is_f16 = call.dtype == DType::f16;
  return launch_on(device_id, is_f16 ? "to_bf16<f16>" : "to_bf16<f32>", ctas_of(call.num_elements),
                   is_f16 ? to_bf16_kernel<__half> : to_bf16_kernel<float>, call, stream);
}

}  // namespace headrace::cuda
