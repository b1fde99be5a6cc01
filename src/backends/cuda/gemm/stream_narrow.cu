// Products of up to 16 tokens on Hopper, bound by the bandwidth of the weights: a warp multiplies
// 16 rows of weights with all tokens by mma.sync.
#include "backends/cuda/gemm/fragments.cuh"
#include "backends/cuda/gemm/stream.cuh"

namespace headrace::cuda::gemm {
namespace {

// An atom of a stage in registers: of a tile, and of x. A: rows first; B of 8 tokens: two steps by
// one ldmatrix, of 16 tokens: both halves of the tokens by one.
template <class Element, int kTokens>
struct Fragments {
  static constexpr int kSteps = kSwizzleAtomCols / 16, kStepsOfB = kTokens == 16 ? 1 : 2;
  u32 a[kSteps][4], b[kSteps / kStepsOfB][4];

  __device__ __forceinline__ void load(u32 w, u32 x, int lane) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int chunk = 2 * step;
      ldmatrix_x4(a[step], chunk_address(w, lane & 15, chunk + (lane >> 4)));
      if constexpr (kTokens == 16)
        ldmatrix_x4(b[step],
                    chunk_address(x, (lane & 7) + (lane >> 4) * 8, chunk + (lane >> 3 & 1)));
      else if (step % kStepsOfB == 0)
        ldmatrix_x4(b[step / kStepsOfB], chunk_address(x, lane & 7, chunk + (lane >> 3)));
    }
  }
  // Of the last loads, for released_behind(): loads return in order.
  __device__ __forceinline__ u32 last_words() const {
    return a[kSteps - 1][3] ^ b[kSteps / kStepsOfB - 1][3];
  }
  __device__ __forceinline__ void multiply(float (&d)[kTokens / 8][4]) const {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if constexpr (kTokens == 16) {
        Element::mma(d[0], a[step], b[step][0], b[step][1]);
        Element::mma(d[1], a[step], b[step][2], b[step][3]);
      } else {
        Element::mma(d[0], a[step], b[step / 2][step % 2 * 2], b[step / 2][step % 2 * 2 + 1]);
      }
    }
  }
};

// Each sum is one chain of products, 33 clocks a step. An atom is loaded before the products of the
// atom ahead of it, so that the chain does not wait for shared memory. (Two whole stages need too
// many registers for two CTAs on a multiprocessor.)
template <class Element, int kTokens>
__device__ void multiply_tiles(const StreamParams& p, StageRing ring, int warp, int lane) {
  static_assert(kNarrowStream.atoms == 2);
  constexpr int kTileBytes = stream_tile_bytes(kNarrowStream), kRows = kNarrowStream.tile_rows;
  const u32 w = static_cast<u32>(warp * kTileBytes);
  const u32 x = static_cast<u32>(p.plan.group * kTileBytes);
  StageRing ahead = ring;  // the stage that is loaded
  const auto load = [&](Fragments<Element, kTokens>& to, int atom) {
    const auto at = static_cast<u32>(atom * kSwizzleRowBytes);
    to.load(ahead.data() + w + kRows * at, ahead.data() + x + kTokens * at, lane);
  };
  // loads: of the next stage, which do not read this one, but check_sass.py cannot know.
  const auto release = [&](u32 loads) {
    __syncwarp();
    const u32 empty = sm90::released_behind(loads, ring.empty());
    if (lane == 0) mbarrier_arrive(empty);
    ring.next();
  };
  const auto multiply = [&](int tile) {
    float d[kTokens / 8][4] = {};
    Fragments<Element, kTokens> first, second;  // atoms of a stage
    mbarrier_wait(ahead.full(), ahead.parity);
    load(first, 0);
#pragma unroll 1
    for (int i = 0; i < p.plan.num_stage_loads; ++i) {
      load(second, 1);
      ahead.next();
      first.multiply(d);
      if (i + 1 < p.plan.num_stage_loads) {
        mbarrier_wait(ahead.full(), ahead.parity);
        load(first, 0);
      }
      second.multiply(d);
      release(first.last_words());
    }
    griddep_wait();  // out may be read by the kernel before, or written
    const int matrix = p.tiles.matrix_of(tile);
    const int row_0 = (tile - p.tiles.first_tile[matrix]) * kRows + lane / 4;
#pragma unroll
    for (int i = 0; i < kTokens / 2; ++i) {
      const int row = row_0 + (i & 2) * 4, token = i / 4 * 8 + 2 * (lane & 3) + (i & 1);
      if (row < p.tiles.rows[matrix] && token < p.num_tokens)
        store<Element>(p.out, token, p.tiles.first_row[matrix] + row, d[i / 4][i % 4]);
    }
  };
  for_each_tile(p, warp, multiply, [&] {
    for (int i = 0; i < p.plan.num_stage_loads; ++i) {
      mbarrier_wait(ring.full(), ring.parity);
      release(0);
    }
  });
}

template <class Element, int kTokens>
__global__ void __launch_bounds__(stream_threads(kNarrowStream), 2)
    stream_narrow(const __grid_constant__ StreamParams p, const __grid_constant__ Maps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ unsigned char smem_raw[];
  constexpr StreamShape kShape = kNarrowStream;
  run_stream<kShape.tile_rows, kShape.atoms, kShape.most_tiles, kShape.unit_warps,
             kShape.ring_bytes>(p, maps, smem_raw, [&](const StageRing& ring, int warp) {
    multiply_tiles<Element, kTokens>(p, ring, warp, static_cast<int>(threadIdx.x) & 31);
  });
#endif
}

template <class Element, int kTokens>
Status launch_variant(const char* name, const StreamCall& call) {
  static AllowedSmem allowed;
  return launch_stream(name, kNarrowStream, stream_narrow<Element, kTokens>, allowed, call);
}

}  // namespace

Status launch_narrow_stream(const StreamCall& call) {
  const bool is_bf16 = call.dtype == DType::bf16, is_8 = call.params.plan.tokens == 8;
  using sm90::Bf16Element, sm90::F16Element;
  if (is_bf16)
    return is_8 ? launch_variant<Bf16Element, 8>("gemm_stream<bf16, 8>", call)
                : launch_variant<Bf16Element, 16>("gemm_stream<bf16, 16>", call);
  return is_8 ? launch_variant<F16Element, 8>("gemm_stream<f16, 8>", call)
              : launch_variant<F16Element, 16>("gemm_stream<f16, 16>", call);
}

}  // namespace headrace::cuda::gemm
