// Unit tests of the PTX wrappers in device/ for Hopper: mbarriers, TMA, wgmma, stmatrix.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "backends/cuda/device/barrier.cuh"
#include "backends/cuda/device/mma.cuh"
#include "backends/cuda/device/tma.cuh"
#include "backends/cuda/device/wgmma.cuh"
#include "backends/cuda/runtime/tensor_map.cuh"
#include "cuda/gpu.h"

namespace headrace::cuda {
namespace {

using headrace::testing::OnDevice;
using Bits = unsigned short;  // bits of a 16-bit element

TensorMap map_of(const TensorMapSpec& spec, const void* data, std::int64_t row_stride) {
  const std::int64_t strides[] = {1, row_stride};
  EXPECT_EQ(tensor_map_refusal(spec, data, strides), "");
  TensorMap map{};
  const Status bad = encode_tensor_map(spec, data, strides, map);
  EXPECT_FALSE(bad) << bad->message;
  return map;
}

// ---- TMA

constexpr int kBoxRows = 32, kBoxColumns = 64, kBoxBytes = kBoxRows * kBoxColumns * 2;

__global__ void load_box(const __grid_constant__ TensorMap map, int column, int row, Bits* image) {
  __shared__ alignas(1024) Bits box[kBoxRows * kBoxColumns];
  __shared__ alignas(8) u64 barrier;
  const u32 at = smem_address(&barrier);
  if (threadIdx.x == 0) {
    mbarrier_init(at, 1);
    fence_mbarrier_init();
    mbarrier_arrive_expect_tx(at, kBoxBytes);
    cp_async_bulk_tensor_load(smem_address(box), &map, at, kEvictNormal, column, row);
  }
  __syncthreads();
  mbarrier_wait(at, 0);
  for (int i = static_cast<int>(threadIdx.x); i < kBoxRows * kBoxColumns; i += 32)
    image[i] = box[i];
}

// Element (r, c) of the tensor is its index + 1; out-of-bounds elements are zero.
void check_box(bool is_swizzled, int column, int row) {
  constexpr int kRows = 50, kColumns = 72;
  std::vector<Bits> tensor(kRows * kColumns);
  for (std::size_t i = 0; i < tensor.size(); ++i) tensor[i] = static_cast<Bits>(i + 1);
  const OnDevice<Bits> on_device(tensor), image(std::vector<Bits>(kBoxRows * kBoxColumns));
  const TensorMapSpec spec{.dtype = DType::bf16,
                           .rank = 2,
                           .sizes = {kColumns, kRows},
                           .box = {kBoxColumns, kBoxRows},
                           .is_swizzled = is_swizzled};
  load_box<<<1, 32>>>(map_of(spec, on_device.data(), kColumns), column, row, image.data());
  HEADRACE_EXPECT_CUDA(cudaDeviceSynchronize());
  const auto got = image.read();
  int wrong = 0;
  for (int r = 0; r < kBoxRows; ++r) {
    for (int c = 0; c < kBoxColumns; ++c) {
      const u32 plain = static_cast<u32>(2 * (r * kBoxColumns + c));
      const u32 offset = is_swizzled ? swizzle128(plain) : plain;
      const bool is_inside =
          r + row < kRows && c + column < kColumns && r + row >= 0 && c + column >= 0;
      const int expected = is_inside ? (r + row) * kColumns + c + column + 1 : 0;
      wrong += got[offset / 2] != static_cast<Bits>(expected);
    }
  }
  EXPECT_EQ(wrong, 0) << "swizzled " << is_swizzled << ", box at " << column << ", " << row;
}

TEST(Tma, BoxLiesAsTheSwizzleFormulaSays) {
  HEADRACE_NEEDS_GPU(90);
  for (const bool is_swizzled : {false, true})
    for (const int row : {0, 7, 40, -3})
      for (const int column : {0, 8, 16, -8}) check_box(is_swizzled, column, row);
}

__global__ void store_box(const __grid_constant__ TensorMap map, int column, int row, bool adds) {
  __shared__ alignas(1024) float box[8 * 32];
  for (int i = static_cast<int>(threadIdx.x); i < 8 * 32; i += 32)
    box[swizzle128(static_cast<u32>(4 * i)) / 4] = static_cast<float>(i + 1);
  fence_proxy_async();
  __syncwarp();
  if (threadIdx.x == 0) {
    if (adds) {
      cp_reduce_async_bulk_tensor_add(&map, smem_address(box), column, row);
    } else {
      cp_async_bulk_tensor_store(&map, smem_address(box), column, row);
    }
    cp_async_bulk_commit_group();
    cp_async_bulk_wait_group_read<0>();
    cp_async_bulk_wait_group<0>();
  }
}

TEST(Tma, StoresAndAddsWithinTheTensor) {
  HEADRACE_NEEDS_GPU(90);
  constexpr int kRows = 12, kColumns = 40;
  for (const bool adds : {false, true}) {
    const OnDevice<float> tensor(std::vector<float>(kRows * kColumns, 1000));
    const TensorMapSpec spec{
        .dtype = DType::f32, .rank = 2, .sizes = {kColumns, kRows}, .box = {32, 8}};
    store_box<<<1, 32>>>(map_of(spec, tensor.data(), kColumns), 16, 6, adds);
    HEADRACE_EXPECT_CUDA(cudaDeviceSynchronize());
    const auto got = tensor.read();
    for (int r = 0; r < kRows; ++r) {
      for (int c = 0; c < kColumns; ++c) {
        const bool is_box = r >= 6 && c >= 16;
        const float value = static_cast<float>((r - 6) * 32 + c - 16 + 1);
        EXPECT_EQ(got[static_cast<std::size_t>(r * kColumns + c)],
                  is_box ? value + (adds ? 1000 : 0) : 1000)
            << r << ", " << c << " adds " << adds;
      }
    }
  }
}

__global__ void add_in_bulk(float* to) {
  __shared__ alignas(16) float values[64];
  for (int i = static_cast<int>(threadIdx.x); i < 64; i += 32) values[i] = static_cast<float>(i);
  fence_proxy_async();
  __syncwarp();
  if (threadIdx.x == 0) {
    cp_reduce_async_bulk_add_f32(to, smem_address(values), sizeof values);
    cp_async_bulk_commit_group();
    cp_async_bulk_wait_group<0>();
  }
}

TEST(Tma, AddsConsecutiveFloats) {
  HEADRACE_NEEDS_GPU(90);
  const OnDevice<float> sums(std::vector<float>(64, 0.5f));
  add_in_bulk<<<16, 32>>>(sums.data());
  HEADRACE_EXPECT_CUDA(cudaDeviceSynchronize());
  const auto got = sums.read();
  for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(got[i], 0.5f + 16 * static_cast<float>(i));
}

TEST(TensorMap, MovesToAnotherAddress) {
  HEADRACE_NEEDS_GPU(90);
  std::vector<Bits> values(2 * kBoxRows * kBoxColumns);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<Bits>(i + 1);
  const OnDevice<Bits> tensor(values), image(std::vector<Bits>(kBoxRows * kBoxColumns));
  const TensorMapSpec spec{
      .sizes = {kBoxColumns, kBoxRows}, .box = {kBoxColumns, kBoxRows}, .is_swizzled = false};
  TensorMap map = map_of(spec, tensor.data(), kBoxColumns);
  EXPECT_FALSE(move_tensor_map(map, tensor.data() + kBoxRows * kBoxColumns));
  load_box<<<1, 32>>>(map, 0, 0, image.data());
  HEADRACE_EXPECT_CUDA(cudaDeviceSynchronize());
  EXPECT_EQ(image.read()[0], kBoxRows * kBoxColumns + 1);
}

TEST(TensorMap, SaysWhyItRefuses) {
  const TensorMapSpec spec{.sizes = {64, 32}, .box = {64, 32}};
  const std::int64_t odd[] = {1, 65}, negative[] = {1, -64}, good[] = {1, 64};
  auto* aligned = reinterpret_cast<void*>(4096);
  EXPECT_EQ(tensor_map_refusal(spec, aligned, good), "");
  EXPECT_NE(tensor_map_refusal(spec, aligned, odd), "");
  EXPECT_NE(tensor_map_refusal(spec, aligned, negative), "");
  EXPECT_NE(tensor_map_refusal(spec, reinterpret_cast<void*>(4098), good), "");
}

// ---- mbarriers

// A producer warp fills a ring of two stages, a consumer warp empties it, for `rounds` rounds.
__global__ void pass_through_ring(int rounds, int* received) {
  __shared__ int stages[2];
  __shared__ alignas(8) u64 barriers[4];  // full, full, empty, empty
  const auto full = [&](int i) { return smem_address(&barriers[i % 2]); };
  const auto empty = [&](int i) { return smem_address(&barriers[2 + i % 2]); };
  if (threadIdx.x == 0)
    for (int i = 0; i < 4; ++i) mbarrier_init(smem_address(&barriers[i]), i < 2 ? 1 : 32);
  fence_mbarrier_init();
  __syncthreads();
  const bool is_producer = threadIdx.x < 32;
  for (int i = 0; i < rounds; ++i) {
    const u32 parity = static_cast<u32>(i / 2 % 2);
    if (!is_producer) {
      mbarrier_wait(full(i), parity);
      if (threadIdx.x == 32) received[i] = stages[i % 2];
      mbarrier_arrive(empty(i));
    } else if (threadIdx.x == 0) {
      mbarrier_wait(
          empty(i),
          parity ^ 1);  // on a fresh barrier the phase before the first counts as complete
      stages[i % 2] = 100 + i;
      mbarrier_arrive(full(i));
    }
  }
}

TEST(Mbarrier, PhasesAlternate) {
  HEADRACE_NEEDS_GPU(90);
  for (const int rounds : {1, 2, 3, 5, 64}) {
    const OnDevice<int> received(std::vector<int>(64));
    pass_through_ring<<<1, 64>>>(rounds, received.data());
    HEADRACE_EXPECT_CUDA(cudaDeviceSynchronize());
    const auto got = received.read();
    for (int i = 0; i < rounds; ++i) EXPECT_EQ(got[static_cast<std::size_t>(i)], 100 + i);
  }
}

// The same between whole warps: all lanes write or read, and one lane arrives for its warp.
__global__ void pass_between_warps(int rounds, int* received) {
  __shared__ int stages[2][32];
  __shared__ alignas(8) u64 barriers[4];  // full, full, empty, empty
  const auto full = [&](int i) { return smem_address(&barriers[i % 2]); };
  const auto empty = [&](int i) { return smem_address(&barriers[2 + i % 2]); };
  if (threadIdx.x == 0)
    for (int i = 0; i < 4; ++i) mbarrier_init(smem_address(&barriers[i]), 1);
  fence_mbarrier_init();
  __syncthreads();
  const bool is_producer = threadIdx.x < 32;
  const int lane = static_cast<int>(threadIdx.x) & 31;
  for (int i = 0; i < rounds; ++i) {
    const u32 parity = static_cast<u32>(i / 2 % 2);
    mbarrier_wait(is_producer ? empty(i) : full(i), is_producer ? parity ^ 1 : parity);
    if (is_producer)
      stages[i % 2][lane] = 100 * i + lane;
    else
      received[32 * i + lane] = stages[i % 2][31 - lane];
    __syncwarp();
    if (lane == 0) mbarrier_arrive(is_producer ? full(i) : empty(i));
  }
}

TEST(Mbarrier, OneLaneArrivesForItsWarp) {
  HEADRACE_NEEDS_GPU(90);
  constexpr int kRounds = 64;
  const OnDevice<int> received(std::vector<int>(32 * kRounds));
  pass_between_warps<<<1, 64>>>(kRounds, received.data());
  HEADRACE_EXPECT_CUDA(cudaDeviceSynchronize());
  const auto got = received.read();
  for (int i = 0; i < 32 * kRounds; ++i)
    EXPECT_EQ(got[static_cast<std::size_t>(i)], 100 * (i / 32) + 31 - i % 32);
}

__global__ void __launch_bounds__(256, 1) move_registers(int* sums) {
  if (threadIdx.x < 128) {
    setmaxnreg_dec<40>();
    bar_arrive(1, 256);
  } else {
    setmaxnreg_inc<232>();
    bar_sync(1, 256);
    if (elect_sync()) atomicAdd(sums, 1);
  }
}

TEST(Registers, MoveBetweenWarpgroups) {
  HEADRACE_NEEDS_GPU(90);
  const OnDevice<int> sums(std::vector<int>(1));
  move_registers<<<4, 256>>>(sums.data());
  HEADRACE_EXPECT_CUDA(cudaDeviceSynchronize());
  EXPECT_EQ(sums.read()[0], 4 * 4);  // CTAs, warps of the second warpgroup
}

// ---- stmatrix

template <bool kIsTransposed>
__global__ void store_matrices(Bits* matrices) {
  __shared__ alignas(16) Bits buffer[4 * 64];
  const int lane = static_cast<int>(threadIdx.x);
  const u32 g = threadIdx.x / 4, t = threadIdx.x % 4;
  u32 r[4];
  for (u32 m = 0; m < 4; ++m) {
    const u32 first = 64 * m + 8 * g + 2 * t;
    r[m] = first | (first + 1) << 16;
  }
  const u32 row = smem_address(buffer + 64 * (lane / 8) + 8 * (lane % 8));
  if constexpr (kIsTransposed) {
    stmatrix_x4_trans(row, r);
  } else {
    stmatrix_x4(row, r);
  }
  __syncwarp();
  for (int i = lane; i < 256; i += 32) matrices[i] = buffer[i];
}

TEST(Stmatrix, PutsEachLanesElements) {
  HEADRACE_NEEDS_GPU(90);
  const OnDevice<Bits> straight(std::vector<Bits>(256)), transposed(std::vector<Bits>(256));
  store_matrices<false><<<1, 32>>>(straight.data());
  store_matrices<true><<<1, 32>>>(transposed.data());
  HEADRACE_EXPECT_CUDA(cudaDeviceSynchronize());
  const auto rows = straight.read(), columns = transposed.read();
  for (std::size_t i = 0; i < 256; ++i) {
    EXPECT_EQ(rows[i], i);
    EXPECT_EQ(columns[i], i / 64 * 64 + i % 8 * 8 + i / 8 % 8);
  }
}

// ---- wgmma

template <class Type>
struct Element;
template <>
struct Element<Bf16> {
  using type = __nv_bfloat16;
  static constexpr DType dtype = DType::bf16;
};
template <>
struct Element<F16> {
  using type = __half;
  static constexpr DType dtype = DType::f16;
};

constexpr int kDepth = 64;  // k of the test: four wgmmas

// d [64, N] = a [64, 64] b [64, N]. a is K-major; b is stored as [N, 64] (K-major) or as boxes of
// 64 columns, [N / 64][64, 64] (MN-major).
template <class Type, int N, Major kMajorB, bool kFromRegisters>
__global__ void __launch_bounds__(128, 1)
    warpgroup_multiply(const __grid_constant__ TensorMap map_a,
                       const __grid_constant__ TensorMap map_b, float* d) {
  extern __shared__ unsigned char unaligned[];
  constexpr int kBoxB = kMajorB == Major::k ? N : 64, kBoxes = kMajorB == Major::k ? 1 : N / 64;
  const u32 start = (smem_address(unaligned) + 1023) / 1024 * 1024;
  const u32 a = start, b = start + 64 * 128, barrier = b + 128 * kBoxB * kBoxes;
  if (threadIdx.x == 0) {
    mbarrier_init(barrier, 1);
    fence_mbarrier_init();
    mbarrier_arrive_expect_tx(barrier, 64 * 128 + 128 * kBoxB * kBoxes);
    cp_async_bulk_tensor_load(a, &map_a, barrier, kEvictNormal, 0, 0);
    for (int i = 0; i < kBoxes; ++i)
      cp_async_bulk_tensor_load(b + i * 8192, &map_b, barrier, kEvictNormal, 64 * i, 0);
  }
  __syncthreads();
  mbarrier_wait(barrier, 0);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  float sum[N / 2] = {};
  u32 fragments[kDepth / 16][4];
  for (int k = 0; k < kDepth / 16; ++k) {
    const int row = 16 * warp + lane % 16, column = 16 * k + lane / 16 * 8;
    ldmatrix_x4(fragments[k], a + swizzle128(static_cast<u32>(row * 128 + column * 2)));
  }
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < kDepth / 16; ++k) {
    const u64 at_a = wgmma_descriptor(a + 32 * k, 16);
    const u64 at_b = kMajorB == Major::k ? wgmma_descriptor(b + 32 * k, 16)
                                         : wgmma_descriptor(b + 2048 * k, 8192);
    if constexpr (kFromRegisters) {
      WgmmaM64K16<Type, N>::template rs<kMajorB>(sum, fragments[k], at_b, k > 0);
    } else {
      WgmmaM64K16<Type, N>::template ss<kMajorB>(sum, at_a, at_b, k > 0);
    }
  }
  wgmma_commit_group();
  wgmma_wait_group<0>();
  warpgroup_fence_operand(sum);
  const int g = lane / 4, t = lane % 4;
#pragma unroll
  for (int i = 0; i < N / 2; ++i)
    d[(16 * warp + g + 8 * (i / 2 % 2)) * N + 8 * (i / 4) + 2 * t + i % 2] = sum[i];
}

template <class Type, int N, Major kMajorB, bool kFromRegisters>
void check_warpgroup() {
  using T = typename Element<Type>::type;
  std::vector<T> a(64 * kDepth), b(kDepth * N);
  const auto value_a = [](int i, int k) { return static_cast<float>((i * 7 + k * 3) % 17 - 8); };
  const auto value_b = [](int k, int j) { return static_cast<float>((k * 5 + j * 11) % 13 - 6); };
  for (int k = 0; k < kDepth; ++k) {
    for (int i = 0; i < 64; ++i) a[static_cast<std::size_t>(i * kDepth + k)] = T(value_a(i, k));
    for (int j = 0; j < N; ++j)
      b[static_cast<std::size_t>(kMajorB == Major::k ? j * kDepth + k : k * N + j)] =
          T(value_b(k, j));
  }
  const OnDevice<T> on_a(a), on_b(b);
  const OnDevice<float> on_d(std::vector<float>(64 * N, -1));
  const TensorMapSpec spec_a{.dtype = Element<Type>::dtype, .sizes = {kDepth, 64}, .box = {64, 64}};
  constexpr bool kIsK = kMajorB == Major::k;
  const TensorMapSpec spec_b{.dtype = Element<Type>::dtype,
                             .sizes = {kIsK ? kDepth : N, kIsK ? N : kDepth},
                             .box = {64, kIsK ? N : 64}};
  const int bytes = 1024 + 64 * 128 + 128 * (N + 63) + 64;
  const auto kernel = warpgroup_multiply<Type, N, kMajorB, kFromRegisters>;
  HEADRACE_EXPECT_CUDA(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  kernel<<<1, 128, bytes>>>(map_of(spec_a, on_a.data(), kDepth),
                            map_of(spec_b, on_b.data(), kIsK ? kDepth : N), on_d.data());
  HEADRACE_EXPECT_CUDA(cudaDeviceSynchronize());
  const auto got = on_d.read();
  int wrong = 0;
  for (int i = 0; i < 64; ++i) {
    for (int j = 0; j < N; ++j) {
      float sum = 0;
      for (int k = 0; k < kDepth; ++k) sum += value_a(i, k) * value_b(k, j);
      wrong += got[static_cast<std::size_t>(i * N + j)] != sum;
    }
  }
  EXPECT_EQ(wrong, 0) << "N " << N << ", B " << (kMajorB == Major::k ? "K" : "MN")
                      << "-major, A from " << (kFromRegisters ? "registers" : "shared memory");
}

template <class Type, int N>
void check_forms() {
  check_warpgroup<Type, N, Major::k, false>();
  check_warpgroup<Type, N, Major::k, true>();
  if constexpr (N % 64 == 0) {
    check_warpgroup<Type, N, Major::mn, false>();
    check_warpgroup<Type, N, Major::mn, true>();
  }
}

TEST(WgmmaOnGpu, Bf16) {
  HEADRACE_NEEDS_GPU(90);
  check_forms<Bf16, 32>();
  check_forms<Bf16, 48>();
  check_forms<Bf16, 64>();
  check_forms<Bf16, 80>();
  check_forms<Bf16, 96>();
  check_forms<Bf16, 112>();
  check_forms<Bf16, 128>();
  check_forms<Bf16, 144>();
  check_forms<Bf16, 160>();
  check_forms<Bf16, 176>();
  check_forms<Bf16, 192>();
  check_forms<Bf16, 256>();
}

TEST(WgmmaOnGpu, F16) {
  HEADRACE_NEEDS_GPU(90);
  check_forms<F16, 32>();
  check_forms<F16, 64>();
  check_forms<F16, 128>();
  check_forms<F16, 256>();
}

}  // namespace
}  // namespace headrace::cuda
