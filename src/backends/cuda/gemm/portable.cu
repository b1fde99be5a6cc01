// Products on any GPU from sm_80. A CTA has 64 tokens and 64 rows, a warp 16 of the tokens and all
// rows. Tiles of 64 columns come by cp.async, in swizzle atoms.
#include <type_traits>

#include "backends/cuda/device/barrier.cuh"
#include "backends/cuda/device/cp_async.cuh"
#include "backends/cuda/gemm/chains.cuh"
#include "backends/cuda/gemm/epilogue.cuh"
#include "backends/cuda/gemm/fragments.cuh"
#include "backends/cuda/gemm/portable.h"
#include "backends/cuda/runtime/launch.cuh"

namespace headrace::cuda::gemm {
namespace {

constexpr int kThreads = 128;
constexpr int kColumns = kSwizzleAtomCols, kStages = 3;
constexpr int kXBytes = kPortableTokens * kSwizzleRowBytes,
              kWBytes = kPortableRows * kSwizzleRowBytes;
constexpr int kStageBytes = kXBytes + kWBytes;
constexpr unsigned kSmemBytes = kStages * kStageBytes + 128;  // the swizzle needs rows of 128 bytes
static_assert(kSmemBytes <= kSmemLimitSm86);
// As many as the shared memory of Hopper holds. Without a limit the loops of one chain and of two
// together take 162 registers, each alone 96 and 128.
constexpr int kCtasPerSm = 4;

// Rows [first, first + kRows) of a matrix with `rows` rows, columns from `column` on. What does not
// exist becomes zeros.
template <int kRows>
__device__ __forceinline__ void copy_tile(u32 to, const void* matrix, std::int64_t stride,
                                          int first, int rows, int column, int columns) {
  constexpr int kChunks = kSwizzleRowBytes / 16;
#pragma unroll
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kChunks; i += kThreads) {
    const int row = first + i / kChunks, chunk = i % kChunks;
    const bool exists = row < rows && column + 8 * chunk < columns;
    const auto* from =
        static_cast<const char*>(matrix) + (exists ? 2 * (row * stride + column + 8 * chunk) : 0);
    cp_async_cg_16(chunk_address(to, i / kChunks, chunk), from, exists ? 16 : 0);
  }
}

template <class Element>
__global__ void __launch_bounds__(kThreads, kCtasPerSm)
    portable(const __grid_constant__ PortableParams p) {
  extern __shared__ unsigned char smem_raw[];
  const u32 smem = (smem_address(smem_raw) + 127) & ~127u;
  const int warp = static_cast<int>(threadIdx.x) >> 5, lane = static_cast<int>(threadIdx.x) & 31;
  const int matrix = p.tiles.matrix_of(static_cast<int>(blockIdx.x));
  const int first_row = p.tiles.row_of(static_cast<int>(blockIdx.x), matrix, kPortableRows);
  const int first_token = static_cast<int>(blockIdx.y) * kPortableTokens;
  const int num_stages = (p.columns + kColumns - 1) / kColumns;
  griddep_launch_dependents();
  griddep_wait();

  const auto copy_stage = [&](int i) {
    if (i < num_stages) {
      const u32 to = smem + static_cast<u32>(i % kStages * kStageBytes);
      copy_tile<kPortableTokens>(to, p.x, p.x_stride, first_token, p.num_tokens, i * kColumns,
                                 p.columns);
      const auto copy_rows = [&]<int kRows>(std::integral_constant<int, kRows>, u32 at, int m) {
        copy_tile<kRows>(at, p.w[m], p.columns, first_row, p.tiles.rows[matrix], i * kColumns,
                         p.columns);
      };
      if (p.tiles.is_paired == 0) {
        copy_rows(std::integral_constant<int, kPortableRows>(), to + kXBytes, matrix);
      } else {
        constexpr std::integral_constant<int, kPortableRows / 2> kHalf;
        copy_rows(kHalf, to + kXBytes, 0);
        copy_rows(kHalf, to + kXBytes + kHalf * kSwizzleRowBytes, 1);
      }
    }
    cp_async_commit_group();
  };
  for (int i = 0; i + 1 < kStages; ++i) copy_stage(i);
  float sum[kPortableRows / 2];
  const auto sum_stages = [&]<int kChains>(std::integral_constant<int, kChains>) {
    float d[kChains][kPortableRows / 8][4] = {};
    for (int i = 0; i < num_stages; ++i) {
      cp_async_wait_group<kStages - 2>();
      __syncthreads();
      copy_stage(i + kStages - 1);
      const u32 x = smem + static_cast<u32>(i % kStages * kStageBytes), w = x + kXBytes;
#pragma unroll
      for (int step = 0; step < kColumns / 16; ++step) {
        u32 a[4];
        ldmatrix_x4(a, chunk_address(x, warp * 16 + (lane & 15), 2 * step + (lane >> 4)));
#pragma unroll
        for (int j = 0; j < kPortableRows / 16; ++j) {
          u32 b[4];
          ldmatrix_x4(b, chunk_address(w, j * 16 + (lane & 7) + (lane >> 4) * 8,
                                       2 * step + (lane >> 3 & 1)));
          Element::mma(d[step % kChains][2 * j], a, b[0], b[1]);
          Element::mma(d[step % kChains][2 * j + 1], a, b[2], b[3]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kPortableRows / 2; ++i)
      sum[i] = add_chains<kChains>(d[0][i / 4][i % 4], d[kChains - 1][i / 4][i % 4]);
  };
  if (p.num_chains == 1)
    sum_stages(std::integral_constant<int, 1>());
  else
    sum_stages(std::integral_constant<int, 2>());
  store_tile<Element, kPortableRows>(
      p.out, sum, p.tiles.is_paired != 0, first_token + warp * 16 + lane / 4, p.num_tokens,
      p.tiles.first_row[matrix] + first_row, p.tiles.rows[matrix] - first_row);
}

template <class Element>
Status launch_variant(const char* name, const PortableCall& call) {
  const LaunchShape shape{
      .name = name,
      .grid = dim3(
          static_cast<unsigned>(call.params.tiles.count),
          static_cast<unsigned>((call.params.num_tokens + kPortableTokens - 1) / kPortableTokens)),
      .block = dim3(kThreads),
      .smem_bytes = kSmemBytes,
      .use_pdl = true};
  static AllowedSmem allowed;
  HEADRACE_TRY(allow_smem(shape, portable<Element>, allowed));
  return launch(shape, static_cast<cudaStream_t>(call.stream), portable<Element>, call.params);
}

}  // namespace

Status launch_portable(const PortableCall& call) {
  if (call.dtype == DType::bf16)
    return launch_variant<sm90::Bf16Element>("gemm_portable<bf16>", call);
  return launch_variant<sm90::F16Element>("gemm_portable<f16>", call);
}

}  // namespace headrace::cuda::gemm
