// Products of up to 16 tokens on Hopper, bound by the bandwidth of the weights.
//
// A warp multiplies 16 rows of weights, as A of mma.sync, with all tokens, as B. One producer warp
// loads weights by TMA, and begins before the kernel ahead of this one on the stream has ended: the
// weights do not depend on it. Another loads x. A stage has 128 columns of a group of tiles and of
// x, in swizzle atoms of 64 columns.
#include "backends/cuda/device/barrier.cuh"
#include "backends/cuda/device/tma.cuh"
#include "backends/cuda/gemm/epilogue.cuh"
#include "backends/cuda/gemm/stream.h"
#include "backends/cuda/runtime/launch.cuh"
#include "backends/cuda/sm90/shared.cuh"

namespace headrace::cuda::gemm {
namespace {

constexpr int kThreads = 32 * (kStreamWarps + 2);
constexpr int kAtoms = kStreamColumns / kSwizzleAtomCols;
constexpr int kTileBytes = kStreamRows * kStreamColumns * 2;
constexpr int kBarrierBytes = 16 * kStreamMaxStages;
constexpr unsigned kSmemBytes = kStreamRingBytes + kBarrierBytes + 1024;  // aligned to 1024
static_assert(2 * (kSmemBytes + 1024) <= 228 * 1024);  // two CTAs with what the system takes

// The ring of stages: `full` has an arrival of each producer, `empty` one of each warp that
// multiplies in the group.
struct Ring {
  u32 base, barriers;
  int stage_bytes, num_stages;
  int stage = 0;
  u32 parity = 0;

  __device__ u32 full() const { return barriers + static_cast<u32>(16 * stage); }
  __device__ u32 empty() const { return full() + 8; }
  __device__ u32 data() const { return base + static_cast<u32>(stage * stage_bytes); }
  __device__ void next() {
    if (++stage == num_stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

struct Tiles {
  int first, last;
};
__device__ __forceinline__ Tiles tiles_of_cta(const StreamParams& p) {
  const auto begin = [&](unsigned cta) {
    return static_cast<int>(std::int64_t{cta} * p.tiles.count / gridDim.x);
  };
  return {begin(blockIdx.x), begin(blockIdx.x + 1)};
}

// Calls load(first tile, number of tiles, first column) for each stage. A warp that has no tile in
// the last group arrives at `empty` all the same.
template <class Load>
__device__ __forceinline__ void for_each_stage(const StreamParams& p, Ring& ring, Load load) {
  const Tiles tiles = tiles_of_cta(p);
  for (int tile = tiles.first; tile < tiles.last; tile += p.plan.group) {
    const int count = min(p.plan.group, tiles.last - tile);
    for (int i = 0; i < p.num_stage_loads; ++i, ring.next()) {
      mbarrier_wait(ring.empty(), ring.parity ^ 1);
      load(tile, count, i * kStreamColumns);
    }
  }
}

__device__ void load_weights(const StreamParams& p, const Maps& maps, Ring ring, int lane) {
  for_each_stage(p, ring, [&](int tile, int count, int column) {
    if (lane == 0) mbarrier_arrive_expect_tx(ring.full(), static_cast<u32>(count * kTileBytes));
    if (lane < count * kAtoms) {
      const int mine = tile + lane / kAtoms, atom = lane % kAtoms;
      const int matrix = p.tiles.matrix_of(mine);
      cp_async_bulk_tensor_load(
          ring.data() + static_cast<u32>(lane * kStreamRows * kSwizzleRowBytes), &maps.w[matrix],
          ring.full(), kEvictFirst, column + atom * kSwizzleAtomCols,
          (mine - p.tiles.first_tile[matrix]) * kStreamRows);
    }
    __syncwarp();
  });
}

__device__ void load_x(const StreamParams& p, const Maps& maps, Ring ring, int lane) {
  griddep_wait();
  const u32 offset = static_cast<u32>(p.plan.group * kTileBytes);
  for_each_stage(p, ring, [&](int, int, int column) {
    if (lane == 0)
      mbarrier_arrive_expect_tx(ring.full(), static_cast<u32>(p.plan.tokens * kStreamColumns * 2));
    if (lane < kAtoms)
      cp_async_bulk_tensor_load(
          ring.data() + offset + static_cast<u32>(lane * p.plan.tokens * kSwizzleRowBytes), &maps.x,
          ring.full(), kEvictLast, column + lane * kSwizzleAtomCols, 0);
    __syncwarp();
  });
}

template <class Element>
__device__ __forceinline__ void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  if constexpr (Element::kHasFloatRange)
    mma_m16n8k16_bf16(d, a, b0, b1);
  else
    mma_m16n8k16_f16(d, a, b0, b1);
}

// Address of a 16-byte chunk of a row in an atom.
__device__ __forceinline__ u32 chunk_address(u32 atom, int row, int chunk) {
  return atom + static_cast<u32>(row * kSwizzleRowBytes + ((chunk ^ (row & 7)) << 4));
}

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
  __device__ __forceinline__ void multiply(float (&d)[kTokens / 8][4]) const {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if constexpr (kTokens == 16) {
        mma<Element>(d[0], a[step], b[step][0], b[step][1]);
        mma<Element>(d[1], a[step], b[step][2], b[step][3]);
      } else {
        mma<Element>(d[0], a[step], b[step / 2][step % 2 * 2], b[step / 2][step % 2 * 2 + 1]);
      }
    }
  }
};

// Each sum is one chain of products, 33 clocks a step. An atom is loaded before the products of the
// atom ahead of it, so that the chain does not wait for shared memory. (Two whole stages need too
// many registers for two CTAs on a multiprocessor.)
template <class Element, int kTokens>
__device__ void multiply_tiles(const StreamParams& p, Ring ring, int warp, int lane) {
  static_assert(kAtoms == 2);
  const Tiles tiles = tiles_of_cta(p);
  const u32 w = static_cast<u32>(warp * kTileBytes);
  const u32 x = static_cast<u32>(p.plan.group * kTileBytes);
  Ring ahead = ring;  // the stage that is loaded
  const auto load = [&](Fragments<Element, kTokens>& to, int atom) {
    const auto at = static_cast<u32>(atom * kSwizzleRowBytes);
    to.load(ahead.data() + w + kStreamRows * at, ahead.data() + x + kTokens * at, lane);
  };
  const auto release = [&] {
    __syncwarp();
    if (lane == 0) mbarrier_arrive(ring.empty());
    ring.next();
  };
  for (int tile = tiles.first + warp; tile < tiles.last + warp; tile += p.plan.group) {
    if (tile >= tiles.last) {  // the last group of the CTA has fewer tiles than warps
      for (int i = 0; i < p.num_stage_loads; ++i) {
        mbarrier_wait(ring.full(), ring.parity);
        release();
      }
      return;
    }
    float d[kTokens / 8][4] = {};
    Fragments<Element, kTokens> first, second;  // atoms of a stage
    mbarrier_wait(ahead.full(), ahead.parity);
    load(first, 0);
#pragma unroll 1
    for (int i = 0; i < p.num_stage_loads; ++i) {
      load(second, 1);
      ahead.next();
      first.multiply(d);
      if (i + 1 < p.num_stage_loads) {
        mbarrier_wait(ahead.full(), ahead.parity);
        load(first, 0);
      }
      second.multiply(d);
      release();
    }
    griddep_wait();  // out may be read by the kernel before, or written
    const int matrix = p.tiles.matrix_of(tile);
    const int row_0 = (tile - p.tiles.first_tile[matrix]) * kStreamRows + lane / 4;
#pragma unroll
    for (int i = 0; i < kTokens / 2; ++i) {
      const int row = row_0 + (i & 2) * 4, token = i / 4 * 8 + 2 * (lane & 3) + (i & 1);
      if (row < p.tiles.rows[matrix] && token < p.num_tokens)
        store<Element>(p.out, token, p.tiles.first_row[matrix] + row, d[i / 4][i % 4]);
    }
  }
}

template <class Element, int kTokens>
__global__ void __launch_bounds__(kThreads, 2)
    stream(const __grid_constant__ StreamParams p, const __grid_constant__ Maps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ unsigned char smem_raw[];
  Ring ring{.base = (smem_address(smem_raw) + 1023) & ~1023u,
            .barriers = 0,
            .stage_bytes = p.plan.stage_bytes,
            .num_stages = p.plan.num_stages};
  ring.barriers = ring.base + kStreamRingBytes;
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) >> 5, 0);
  const int lane = static_cast<int>(threadIdx.x) & 31;
  if (threadIdx.x == 0) {
    for (int i = 0; i < ring.num_stages; ++i) {
      mbarrier_init(ring.barriers + static_cast<u32>(16 * i), 2);
      mbarrier_init(ring.barriers + static_cast<u32>(16 * i + 8), static_cast<u32>(p.plan.group));
    }
    fence_mbarrier_init();
    fence_proxy_async();
  }
  __syncthreads();
  griddep_launch_dependents();
  if (warp == kStreamWarps)
    load_weights(p, maps, ring, lane);
  else if (warp == kStreamWarps + 1)
    load_x(p, maps, ring, lane);
  else if (warp < p.plan.group)
    multiply_tiles<Element, kTokens>(p, ring, warp, lane);
#endif
}

template <class Element, int kTokens>
Status launch_variant(const char* name, const StreamCall& call) {
  const LaunchShape shape{.name = name,
                          .grid = dim3(static_cast<unsigned>(call.params.plan.num_ctas)),
                          .block = dim3(kThreads),
                          .smem_bytes = kSmemBytes,
                          .use_pdl = true};
  static AllowedSmem allowed;
  HEADRACE_TRY(allow_smem(shape, stream<Element, kTokens>, allowed));
  return launch(shape, static_cast<cudaStream_t>(call.stream), stream<Element, kTokens>,
                call.params, call.maps);
}

}  // namespace

Status launch_stream(const StreamCall& call) {
  const bool is_bf16 = call.dtype == DType::bf16, is_narrow = call.params.plan.tokens == 8;
  using sm90::Bf16Element, sm90::F16Element;
  if (is_bf16)
    return is_narrow ? launch_variant<Bf16Element, 8>("gemm_stream<bf16, 8>", call)
                     : launch_variant<Bf16Element, 16>("gemm_stream<bf16, 16>", call);
  return is_narrow ? launch_variant<F16Element, 8>("gemm_stream<f16, 8>", call)
                   : launch_variant<F16Element, 16>("gemm_stream<f16, 16>", call);
}

}  // namespace headrace::cuda::gemm
