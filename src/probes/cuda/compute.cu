// Peaks of a GPU's units, from registers and shared memory: tensor cores by wgmma where the chip
// has it, else by mma.sync; f32 FMAs and exponentials.
#include "backends/cuda/device/mma.cuh"
#include "backends/cuda/device/wgmma.cuh"
#include "backends/cuda/runtime/launch.cuh"
#include "probes/cuda/span.cuh"

namespace headrace::probes::gpu {
namespace {

using namespace headrace::cuda;

constexpr int kThreads = 256;

// ---- f32 FMAs, exponentials

constexpr int kChains = 8;
constexpr int kScalarSteps = 32 * kChains;  // of the unrolled loop

struct Fma {
  static constexpr double kOps = 2;
  static __device__ float step(float x, float factor) { return __fmaf_rn(x, factor, 1.0f); }
};
struct Exp2 {
  static constexpr double kOps = 1;
  static __device__ float step(float x, float) { return ex2_approx_ftz(-x); }
};

template <class Unit>
__global__ void __launch_bounds__(kThreads)
    scalar_kernel(i64 steps, float factor, float* sink, KernelSpan* span) {
  float x[kChains];
#pragma unroll
  for (int i = 0; i < kChains; ++i) x[i] = 0.01f * static_cast<float>(threadIdx.x + i);
  const SpanTimer timer;
  for (i64 step = 0; step < steps; ++step) {
#pragma unroll
    for (int i = 0; i < kScalarSteps; ++i) x[i % kChains] = Unit::step(x[i % kChains], factor);
  }
  timer.write(span);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kChains; ++i) sum += x[i];
  keep(sum, -1.0f, sink);
}

template <class Unit>
void add_scalar(Bench& bench, const char* resource, const char* operation) {
  constexpr int kCtasPerSm = 8;  // 2048 threads
  auto* sink = static_cast<float*>(bench.allocate(sizeof(float)));
  const int num_sms = bench.device().num_units;
  const double ops = Unit::kOps * kScalarSteps * kThreads * kCtasPerSm * num_sms;
  bench.add({CeilingKind::compute, resource, operation}, ops, num_sms, 0,
            [=](i64 steps, KernelSpan* span, cudaStream_t stream) {
              return launch({.name = "the FMA probe",
                             .grid = dim3(static_cast<unsigned>(kCtasPerSm * num_sms)),
                             .block = dim3(kThreads)},
                            stream, scalar_kernel<Unit>, steps, 0.5f, sink, span);
            });
}

// ---- operands: random signs and fractions, as zeros draw less power

template <u32 kOne, u32 kFree>
struct Pattern {
  static __device__ u32 word(u32 seed) { return kOne | (hash(seed) & kFree); }
};
// 0.125 to 0.25 in each format.
using Bf16Pattern = Pattern<0x3e003e00u, 0x807f807fu>;
using F16Pattern = Pattern<0x30003000u, 0x83ff83ffu>;
using Fp8Pattern = Pattern<0x20202020u, 0x87878787u>;
using Tf32Pattern = Pattern<0x3e000000u, 0x807fe000u>;

// ---- mma.sync

constexpr int kMmaSteps = 16;  // of the unrolled loop

struct MmaBf16 : Bf16Pattern {
  static constexpr int kDepth = 16;
  static __device__ void run(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    mma_m16n8k16_bf16(d, a, b0, b1);
  }
};
struct MmaF16 : F16Pattern {
  static constexpr int kDepth = 16;
  static __device__ void run(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    mma_m16n8k16_f16(d, a, b0, b1);
  }
};
struct MmaTf32 : Tf32Pattern {
  static constexpr int kDepth = 8;
  static __device__ void run(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    mma_m16n8k8_tf32(d, a, b0, b1);
  }
};

template <class Mma>
__global__ void __launch_bounds__(kThreads) mma_kernel(i64 steps, float* sink, KernelSpan* span) {
  float d[kChains][4] = {};
  u32 a[4], b[2];
#pragma unroll
  for (int i = 0; i < 4; ++i) a[i] = Mma::word(4 * threadIdx.x + i);
#pragma unroll
  for (int i = 0; i < 2; ++i) b[i] = Mma::word(0x10000 + 2 * threadIdx.x + i);
  const SpanTimer timer;
  for (i64 step = 0; step < steps; ++step) {
#pragma unroll
    for (int i = 0; i < kMmaSteps; ++i) Mma::run(d[i % kChains], a, b[0], b[1]);
  }
  timer.write(span);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kChains; ++i) sum += d[i][0] + d[i][1] + d[i][2] + d[i][3];
  keep(sum, 0.3f, sink);
}

template <class Mma>
void add_mma(Bench& bench, const char* operation) {
  constexpr int kCtasPerSm = 2;
  auto* sink = static_cast<float*>(bench.allocate(sizeof(float)));
  const int num_sms = bench.device().num_units;
  const double warps = kThreads / 32 * kCtasPerSm * num_sms;
  bench.add({CeilingKind::compute, "tensor core", operation},
            2. * 16 * 8 * Mma::kDepth * kMmaSteps * warps, num_sms, 0,
            [=](i64 steps, KernelSpan* span, cudaStream_t stream) {
              return launch({.name = "the mma.sync probe",
                             .grid = dim3(static_cast<unsigned>(kCtasPerSm * num_sms)),
                             .block = dim3(kThreads)},
                            stream, mma_kernel<Mma>, steps, sink, span);
            });
}

// ---- wgmma: 64 x 256 accumulators a warpgroup, two warpgroups an SM, A and B in shared memory.
// Rows are 128 bytes under the 128-byte swizzle, four instructions deep.

constexpr int kWgmmaN = 256;
constexpr u32 kRowBytes = 128, kDepthBytes = 32;
constexpr u32 kABytes = 64 * kRowBytes, kBBytes = kWgmmaN * kRowBytes;
constexpr u32 kWgmmaSmem = 2 * kABytes + kBBytes + 1024;  // swizzle atoms are aligned to 1024

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HEADRACE_WGMMA_OF(depth, ptx)                                                      \
  asm volatile(                                                                            \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"                                        \
      "wgmma.mma_async.sync.aligned.m64n256k" depth ".f32." ptx "." ptx " {" HEADRACE_N_16 \
      "}, %128, %129, p, 1, 1;\n}"                                                         \
      : HEADRACE_D_16                                                                      \
      : "l"(a), "l"(b), "r"(1))
#endif

struct WgmmaBf16 : Bf16Pattern {
  static constexpr int kDepth = 16;
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  static __device__ __forceinline__ void run(float (&d)[kWgmmaN / 2], u64 a, u64 b) {
    WgmmaM64K16<Bf16, kWgmmaN>::ss<Major::k>(d, a, b, 1);
  }
#endif
};
struct WgmmaF16 : F16Pattern {
  static constexpr int kDepth = 16;
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  static __device__ __forceinline__ void run(float (&d)[kWgmmaN / 2], u64 a, u64 b) {
    WgmmaM64K16<F16, kWgmmaN>::ss<Major::k>(d, a, b, 1);
  }
#endif
};
struct WgmmaFp8 : Fp8Pattern {
  static constexpr int kDepth = 32;
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  static __device__ __forceinline__ void run(float (&d)[kWgmmaN / 2], u64 a, u64 b) {
    HEADRACE_WGMMA_OF("32", "e4m3");
  }
#endif
};
struct WgmmaTf32 : Tf32Pattern {
  static constexpr int kDepth = 8;
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  static __device__ __forceinline__ void run(float (&d)[kWgmmaN / 2], u64 a, u64 b) {
    HEADRACE_WGMMA_OF("8", "tf32");
  }
#endif
};

template <class Wgmma>
__global__ void __launch_bounds__(kThreads, 1)
    wgmma_kernel(i64 steps, float* sink, KernelSpan* span) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ unsigned char smem[];
  const u32 begin = (smem_address(smem) + 1023) / 1024 * 1024;
  auto* words = reinterpret_cast<u32*>(smem + (begin - smem_address(smem)));
  for (u32 i = threadIdx.x; i < (2 * kABytes + kBBytes) / 4; i += kThreads)
    words[i] = Wgmma::word(i);
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  const u64 a = wgmma_descriptor(begin + threadIdx.x / 128 * kABytes, 0);
  const u64 b = wgmma_descriptor(begin + 2 * kABytes, 0);
  float d[kWgmmaN / 2] = {};
  const SpanTimer timer;
  for (i64 step = 0; step < steps; ++step) {
    warpgroup_fence_operand(d);
    wgmma_fence();
#pragma unroll
    for (u32 k = 0; k < kRowBytes; k += kDepthBytes)
      Wgmma::run(d, wgmma_descriptor_advance(a, k), wgmma_descriptor_advance(b, k));
    wgmma_commit_group();
    warpgroup_fence_operand(d);
    wgmma_wait_group<1>();
  }
  wgmma_wait_group<0>();
  warpgroup_fence_operand(d);
  timer.write(span);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kWgmmaN / 2; ++i) sum += d[i];
  keep(sum, 0.3f, sink);
#endif
}

// False: the chip or the build has no wgmma.
template <class Wgmma>
bool add_wgmma(Bench& bench, const char* operation) {
  if (bench.device().sm != 90) return false;
  static AllowedSmem allowed;
  auto* sink = static_cast<float*>(bench.allocate(sizeof(float)));
  const int num_sms = bench.device().num_units;
  constexpr int kInstructions = 2 * kRowBytes / kDepthBytes;  // of both warpgroups
  return bench.add({CeilingKind::compute, "tensor core", operation},
                   2. * 64 * kWgmmaN * Wgmma::kDepth * kInstructions * num_sms, num_sms, 0,
                   [=](i64 steps, KernelSpan* span, cudaStream_t stream) -> Status {
                     const LaunchShape shape = {.name = "the wgmma probe",
                                                .grid = dim3(static_cast<unsigned>(num_sms)),
                                                .block = dim3(kThreads),
                                                .smem_bytes = kWgmmaSmem};
                     HEADRACE_TRY(allow_smem(shape, wgmma_kernel<Wgmma>, allowed));
                     return launch(shape, stream, wgmma_kernel<Wgmma>, steps, sink, span);
                   });
}

}  // namespace

void add_compute(Bench& bench) {
  if (!add_wgmma<WgmmaBf16>(bench, "bf16")) add_mma<MmaBf16>(bench, "bf16");
  if (!add_wgmma<WgmmaF16>(bench, "f16")) add_mma<MmaF16>(bench, "f16");
  (void)add_wgmma<WgmmaFp8>(bench, "fp8");
  if (!add_wgmma<WgmmaTf32>(bench, "tf32")) add_mma<MmaTf32>(bench, "tf32");
  add_scalar<Fma>(bench, "FMA", "f32");
  add_scalar<Exp2>(bench, "MUFU", "exp2");
}

}  // namespace headrace::probes::gpu
