// Unit tests of the PTX wrappers in device/ for sm_80 and newer.
#include "backends/cuda/device/cp_async.cuh"
#include "backends/cuda/device/mma.cuh"
#include "backends/cuda/device/reduce.cuh"
#include "core/dtype.h"
#include "cuda/gpu.h"

namespace headrace::cuda {
namespace {

using headrace::testing::OnDevice;

enum class Type { bf16, f16, tf32 };

// d [16, 8] = a [16, k] b [k, 8], k = 16 (8 for tf32); one warp, fragments by PTX's definition.
template <Type kType>
__global__ void multiply(const float* a, const float* b, float* d) {
  constexpr int kDepth = kType == Type::tf32 ? 8 : 16;
  const int g = static_cast<int>(threadIdx.x) / 4, t = static_cast<int>(threadIdx.x) % 4;
  float sum[4] = {};
  u32 fa[4], fb[2];
  const auto pack = [](float low, float high) {
    return kType == Type::bf16 ? cvt_rn_bf16x2(low, high) : cvt_rn_f16x2(low, high);
  };
  for (int i = 0; i < 4; ++i) {
    const int row = g + 8 * (i % 2);
    if constexpr (kType == Type::tf32) {
      fa[i] = cvt_rna_tf32(a[row * kDepth + t + 4 * (i / 2)]);
    } else {
      const float* at = a + row * kDepth + 2 * t + 8 * (i / 2);
      fa[i] = pack(at[0], at[1]);
    }
  }
  for (int i = 0; i < 2; ++i) {
    if constexpr (kType == Type::tf32) {
      fb[i] = cvt_rna_tf32(b[(t + 4 * i) * 8 + g]);
    } else {
      const int row = 2 * t + 8 * i;
      fb[i] = pack(b[row * 8 + g], b[(row + 1) * 8 + g]);
    }
  }
  if constexpr (kType == Type::bf16) mma_m16n8k16_bf16(sum, fa, fb[0], fb[1]);
  if constexpr (kType == Type::f16) mma_m16n8k16_f16(sum, fa, fb[0], fb[1]);
  if constexpr (kType == Type::tf32) mma_m16n8k8_tf32(sum, fa, fb[0], fb[1]);
  for (int i = 0; i < 4; ++i) d[(g + 8 * (i / 2)) * 8 + 2 * t + i % 2] = sum[i];
}

// Small integers: every product and sum is exact.
template <Type kType>
void check_multiply() {
  HEADRACE_NEEDS_GPU(80);
  constexpr int kDepth = kType == Type::tf32 ? 8 : 16;
  std::vector<float> a(16 * kDepth), b(kDepth * 8), d(16 * 8, -1);
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(i * 7 % 23) - 11;
  for (std::size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(i * 5 % 19) - 9;
  const OnDevice<float> on_a(a), on_b(b), on_d(d);
  multiply<kType><<<1, 32>>>(on_a.data(), on_b.data(), on_d.data());
  HEADRACE_EXPECT_CUDA(cudaDeviceSynchronize());
  const auto got = on_d.read();
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 8; ++j) {
      float sum = 0;
      for (int k = 0; k < kDepth; ++k)
        sum += a[static_cast<std::size_t>(i * kDepth + k)] * b[static_cast<std::size_t>(k * 8 + j)];
      EXPECT_EQ(got[static_cast<std::size_t>(i * 8 + j)], sum) << i << ", " << j;
    }
  }
}

TEST(MmaSync, Bf16) { check_multiply<Type::bf16>(); }
TEST(MmaSync, F16) { check_multiply<Type::f16>(); }
TEST(MmaSync, Tf32) { check_multiply<Type::tf32>(); }

// The registers [32, 4] of each lane, for matrices m with elements 64 m + 8 row + column.
template <bool kIsTransposed>
__global__ void load_matrices(u32* registers) {
  __shared__ alignas(16) unsigned short matrices[4 * 64];
  const int lane = static_cast<int>(threadIdx.x);
  for (int i = lane; i < 256; i += 32) matrices[i] = static_cast<unsigned short>(i);
  __syncwarp();
  u32 r[4];
  const u32 row = smem_address(matrices + 64 * (lane / 8) + 8 * (lane % 8));
  if constexpr (kIsTransposed) {
    ldmatrix_x4_trans(r, row);
  } else {
    ldmatrix_x4(r, row);
  }
  for (int m = 0; m < 4; ++m) registers[lane * 4 + m] = r[m];
}

TEST(Ldmatrix, GivesEachLaneItsElements) {
  HEADRACE_NEEDS_GPU(80);
  const OnDevice<u32> straight(std::vector<u32>(128)), transposed(std::vector<u32>(128));
  load_matrices<false><<<1, 32>>>(straight.data());
  load_matrices<true><<<1, 32>>>(transposed.data());
  HEADRACE_EXPECT_CUDA(cudaDeviceSynchronize());
  const auto rows = straight.read(), columns = transposed.read();
  for (u32 lane = 0; lane < 32; ++lane) {
    for (u32 m = 0; m < 4; ++m) {
      const u32 g = lane / 4, t = lane % 4;
      const u32 first = 64 * m + 8 * g + 2 * t, across = 64 * m + 8 * (2 * t) + g;
      EXPECT_EQ(rows[lane * 4 + m], first | (first + 1) << 16);
      EXPECT_EQ(columns[lane * 4 + m], across | (across + 8) << 16);
    }
  }
}

__global__ void copy_async(const unsigned char* from, unsigned char* to) {
  __shared__ alignas(16) unsigned char buffer[32 * 16];
  const int lane = static_cast<int>(threadIdx.x);
  for (int i = 0; i < 16; ++i) buffer[16 * lane + i] = 0xEE;
  cp_async_cg_16(smem_address(buffer + 16 * lane), from + 16 * lane, lane % 17);
  cp_async_commit_group();
  cp_async_wait_group<0>();
  __syncwarp();
  for (int i = 0; i < 16; ++i) to[16 * lane + i] = buffer[16 * lane + i];
}

TEST(CpAsync, CopiesAndFillsWithZeros) {
  HEADRACE_NEEDS_GPU(80);
  std::vector<unsigned char> from(512);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<unsigned char>(i * 3 + 1);
  const OnDevice<unsigned char> source(from), copy(std::vector<unsigned char>(512));
  copy_async<<<1, 32>>>(source.data(), copy.data());
  HEADRACE_EXPECT_CUDA(cudaDeviceSynchronize());
  const auto got = copy.read();
  for (std::size_t i = 0; i < 512; ++i)
    EXPECT_EQ(got[i], i % 16 < i / 16 % 17 ? from[i] : 0) << "byte " << i;
}

// Every CTA adds its index to all of 128 floats.
__global__ void add_everywhere(float* sums) {
  const auto x = static_cast<float>(blockIdx.x + 1);
  red_add_v4_f32(sums + 4 * threadIdx.x, x, 2 * x, 3 * x, 4 * x);
}

TEST(Reduce, AddsToFourFloats) {
  HEADRACE_NEEDS_GPU(80);
  const OnDevice<float> sums(std::vector<float>(128, 0.5f));
  add_everywhere<<<100, 32>>>(sums.data());
  HEADRACE_EXPECT_CUDA(cudaDeviceSynchronize());
  const auto got = sums.read();
  for (std::size_t i = 0; i < got.size(); ++i)
    EXPECT_EQ(got[i], 0.5f + 5050.0f * static_cast<float>(i % 4 + 1));
}

// CTAs update in index order, whichever starts first; 2 x + index does not commute.
__global__ void add_in_turn(u32* turn, u32* x) {
  const u32 mine = gridDim.x - 1 - blockIdx.x;
  while (ld_acquire(turn) != mine) {
  }
  *x = 2 * *x + mine;
  __threadfence();
  st_release(turn, mine + 1);
}

TEST(Reduce, ATurnSeesEarlierWrites) {
  HEADRACE_NEEDS_GPU(80);
  constexpr u32 kCtas = 16;  // all of them run at once
  const OnDevice<u32> turn(std::vector<u32>(1)), x(std::vector<u32>(1));
  add_in_turn<<<kCtas, 1>>>(turn.data(), x.data());
  HEADRACE_EXPECT_CUDA(cudaDeviceSynchronize());
  u32 expected = 0;
  for (u32 i = 0; i < kCtas; ++i) expected = 2 * expected + i;
  EXPECT_EQ(x.read()[0], expected);
}

}  // namespace
}  // namespace headrace::cuda
