// Products of up to 16 tokens on Hopper, bound by the bandwidth of the weights: a warp multiplies
// 16 rows of weights, operand A, with all tokens by mma.sync.
//
// One producer warp loads weights by TMA, and begins before the kernel ahead of this one on the
// stream has ended: the weights do not depend on it. Another loads x. A stage has some columns of a
// group of tiles and of x, in swizzle atoms. With an RMS norm of x the warps that multiply compute
// it first, and keep its rows in shared memory.
#include "backends/cuda/device/tma.cuh"
#include "backends/cuda/elementwise/rms_norm.cuh"
#include "backends/cuda/gemm/epilogue.cuh"
#include "backends/cuda/gemm/fragments.cuh"
#include "backends/cuda/gemm/stages.cuh"
#include "backends/cuda/gemm/stream.h"
#include "backends/cuda/runtime/launch.cuh"
#include "backends/cuda/sm90/shared.cuh"

namespace headrace::cuda::gemm {
namespace {

constexpr int kThreads = 32 * (kStreamMaxTiles + 2);
constexpr int kNormBarrier = 1;
// The ring is aligned to 1024 bytes; barriers are behind it, then the rows of a norm.
constexpr unsigned smem_bytes(bool has_norm) {
  constexpr unsigned kOthers = 16 * kStreamMaxStages + 1024;
  return kOthers + (has_norm ? kStreamNormRingBytes + kNormBytes : kStreamRingBytes);
}
static_assert(kStreamCtasPerSm * (smem_bytes(false) + 1024) <= 228 * 1024);
static_assert(kStreamCtasPerSm * (smem_bytes(true) + 1024) <= 228 * 1024);

struct TileRange {
  int first, last;
};
__device__ __forceinline__ TileRange tiles_of_cta(const StreamParams& p) {
  const auto begin = [&](unsigned cta) {
    return static_cast<int>(std::int64_t{cta} * p.tiles.count / gridDim.x);
  };
  return {begin(blockIdx.x), begin(blockIdx.x + 1)};
}

// Calls load(first tile, number of tiles, first column) for each stage.
template <class Load>
__device__ __forceinline__ void for_each_stage(const StreamParams& p, StageRing& ring, Load load) {
  const TileRange tiles = tiles_of_cta(p);
  for (int tile = tiles.first; tile < tiles.last; tile += p.plan.group) {
    const int count = min(p.plan.group, tiles.last - tile);
    for (int i = 0; i < p.plan.num_stage_loads; ++i, ring.next()) {
      mbarrier_wait(ring.empty(), ring.parity ^ 1);
      load(tile, count, i * kStreamColumns);
    }
  }
}

[[maybe_unused]] __device__ __forceinline__ void load_weights(const StreamParams& p,
                                                              const Maps& maps, StageRing ring,
                                                              int lane) {
  for_each_stage(p, ring, [&](int tile, int count, int column) {
    constexpr int kAtomBytes = kStreamTileRows * kSwizzleRowBytes;
    if (lane == 0)
      mbarrier_arrive_expect_tx(ring.full(), static_cast<u32>(count * kStreamTileBytes));
    if (lane < count * kStreamAtoms) {
      const int mine = tile + lane / kStreamAtoms, atom = lane % kStreamAtoms;
      load_tile<kStreamTileRows>(p.tiles, maps, mine, column + atom * kSwizzleAtomCols,
                                 ring.data() + static_cast<u32>(lane * kAtomBytes), ring.full(),
                                 kEvictFirst);
    }
    __syncwarp();
  });
}

[[maybe_unused]] __device__ __forceinline__ void load_x(const StreamParams& p, const Maps& maps,
                                                        StageRing ring, int lane) {
  griddep_wait();
  const u32 offset = static_cast<u32>(p.plan.group * kStreamTileBytes);
  const int atom_bytes = p.plan.tokens * kSwizzleRowBytes;
  for_each_stage(p, ring, [&](int, int, int column) {
    if (lane == 0)
      mbarrier_arrive_expect_tx(ring.full(), static_cast<u32>(kStreamAtoms * atom_bytes));
    if (lane < kStreamAtoms)
      cp_async_bulk_tensor_load(ring.data() + offset + static_cast<u32>(lane * atom_bytes), &maps.x,
                                ring.full(), kEvictLast, column + lane * kSwizzleAtomCols, 0);
    __syncwarp();
  });
}

// Writes the normalised rows of x to shared memory, with zeros behind their last columns: weights
// that do not exist are zeros there too, and 0 x NaN would be NaN. By kStreamMaxTiles warps, each
// with the work of two of rms_norm().
[[maybe_unused]] __device__ __forceinline__ void norm_rows(const StreamParams& p, u32 to, int warp,
                                                           int lane) {
  constexpr int kThreads = 32 * kStreamMaxTiles, kParts = rms::kThreads / kThreads;
  constexpr int kHeld = 2;  // vectors of a thread of rms_norm(): 4096 columns
  __shared__ float sums[kNormTokens][rms::kWarps];
  const auto column = [&](int part, int i) {
    return (32 * (warp + part * kStreamMaxTiles) + lane + i * rms::kThreads) * rms::kVec;
  };
  const auto for_each_vector = [&](auto body) {
#pragma unroll
    for (int part = 0; part < kParts; ++part)
#pragma unroll
      for (int i = 0; i < kHeld; ++i)
        if (column(part, i) < p.columns) body(part, i, column(part, i));
  };
  rms::Weights weights[kParts][kHeld];
  for_each_vector(
      [&](int part, int i, int at) { weights[part][i] = rms::load_weights(p.norm.weight, at); });
  const int num_columns = p.plan.num_stage_loads * kStreamColumns;
  for (int at = p.columns + (warp * 32 + lane) * rms::kVec; at < num_columns;
       at += kThreads * rms::kVec)
    for (int token = 0; token < p.num_tokens; ++token)
      sm90::store_chunk(to + static_cast<u32>(token * p.norm_pitch + 2 * at), sm90::Chunk{});
  griddep_wait();
  sm90::Chunk x[kParts][kHeld], next[kParts][kHeld];
  const auto load = [&](int token) {
    const auto* row = static_cast<const __nv_bfloat16*>(p.x) + token * p.x_stride;
    for_each_vector([&](int part, int i, int at) {
      next[part][i] = *reinterpret_cast<const sm90::Chunk*>(row + at);
    });
  };
  load(0);
  for (int token = 0; token < p.num_tokens; ++token) {
    for_each_vector([&](int part, int i, int) { x[part][i] = next[part][i]; });
    if (token + 1 < p.num_tokens) load(token + 1);
    float sum[kParts] = {};
    for_each_vector([&](int part, int i, int) { rms::add_squares(x[part][i], sum[part]); });
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      sum[part] = rms::warp_sum(sum[part]);
      if (lane == 0) sums[token][warp + part * kStreamMaxTiles] = sum[part];
    }
    bar_sync(kNormBarrier, kThreads);
    const float scale = rms::scale_of(sums[token], p.columns, p.norm.eps);
    for_each_vector([&](int part, int i, int at) {
      sm90::store_chunk(to + static_cast<u32>(token * p.norm_pitch + 2 * at),
                        rms::scaled(x[part][i], scale, weights[part][i]));
    });
  }
  bar_sync(kNormBarrier, kThreads);
}

// For the tile of a warp in each group: multiply(tile), or skip() where the last group of the CTA
// has no tile for the warp.
template <class Body, class Skip>
__device__ __forceinline__ void for_each_tile(const StreamParams& p, int warp, Body body,
                                              Skip skip) {
  const TileRange tiles = tiles_of_cta(p);
  for (int tile = tiles.first + warp; tile < tiles.last + warp; tile += p.plan.group) {
    if (tile < tiles.last)
      body(tile);
    else
      skip();
  }
}

// An atom of a stage in registers: of a tile, and of x. A: rows first; B of 8 tokens: two steps by
// one ldmatrix, of 16 tokens: both halves of the tokens by one.
template <class Element, int kTokens>
struct Fragments {
  static constexpr int kSteps = kSwizzleAtomCols / 16, kStepsOfB = kTokens == 16 ? 1 : 2;
  u32 a[kSteps][4], b[kSteps / kStepsOfB][4];

  // x(token, chunk): address of 16 bytes of the atom.
  template <class AddressOfX>
  __device__ __forceinline__ void load(u32 w, AddressOfX x, int lane) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int chunk = 2 * step;
      ldmatrix_x4(a[step], chunk_address(w, lane & 15, chunk + (lane >> 4)));
      if constexpr (kTokens == 16)
        ldmatrix_x4(b[step], x((lane & 7) + (lane >> 4) * 8, chunk + (lane >> 3 & 1)));
      else if (step % kStepsOfB == 0)
        ldmatrix_x4(b[step / kStepsOfB], x(lane & 7, chunk + (lane >> 3)));
    }
  }
  // Of the last loads, for released_behind(): loads return in order.
  __device__ __forceinline__ u32 last_words() const {
    return a[kSteps - 1][3] ^ b[kSteps / kStepsOfB - 1][3];
  }
  template <int kChains>
  __device__ __forceinline__ void multiply(float (&d)[kChains][kTokens / 8][4]) const {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      float(&sum)[kTokens / 8][4] = d[step % kChains];
      if constexpr (kTokens == 16) {
        Element::mma(sum[0], a[step], b[step][0], b[step][1]);
        Element::mma(sum[1], a[step], b[step][2], b[step][3]);
      } else {
        Element::mma(sum[0], a[step], b[step / 2][step % 2 * 2], b[step / 2][step % 2 * 2 + 1]);
      }
    }
  }
};

// The elements of out that a thread of a warp has for a tile: those of its accumulators.
template <class Element, int kTokens>
struct OutElements {
  const StreamParams& p;
  int row_0, first_row, rows, lane;

  __device__ __forceinline__ OutElements(const StreamParams& params, int tile, int lane_idx)
      : p(params), lane(lane_idx) {
    const int matrix = p.tiles.matrix_of(tile);
    row_0 = p.tiles.row_of(tile, matrix, kStreamTileRows) + lane / 4;
    first_row = p.tiles.first_row[matrix];
    rows = p.tiles.rows[matrix];
  }
  __device__ __forceinline__ int row(int i) const { return row_0 + (i & 2) * 4; }
  __device__ __forceinline__ int token(int i) const { return i / 4 * 8 + 2 * (lane & 3) + (i & 1); }
  __device__ __forceinline__ bool exists(int i) const {
    return row(i) < rows && token(i) < p.num_tokens && (p.tiles.is_paired == 0 || (i & 2) == 0);
  }
  __device__ __forceinline__ std::int64_t at(int i) const {
    return token(i) * p.out.stride + first_row + row(i);
  }

  // What the product adds to.
  __device__ __forceinline__ void load(float (&old)[kTokens / 2]) const {
#pragma unroll
    for (int i = 0; i < kTokens / 2; ++i)
      if (exists(i)) old[i] = load_out<Element>(p.out, at(i));
  }
  __device__ __forceinline__ void store(const float (&d)[kTokens / 8][4],
                                        const float (&old)[kTokens / 2]) const {
    const auto with_bias = [&](float sum, int of_row) {
      return p.out.bias == nullptr ? sum : sum + p.out.bias[of_row];
    };
#pragma unroll
    for (int i = 0; i < kTokens / 2; ++i) {
      if (!exists(i)) continue;
      float sum = with_bias(d[i / 4][i % 4], first_row + row(i));
      if (p.tiles.is_paired != 0)
        sum = swiglu(sum, with_bias(d[i / 4][i % 4 | 2], row(i) + p.out.rows_of_gate));
      store_out<Element>(p.out, at(i), p.out.adds != 0 ? old[i] + sum : sum);
    }
  }
};

// A step takes 33 clocks of its chain. An atom is loaded before the products of the atom ahead of
// it, so that chains do not wait for shared memory. (Two whole stages need too many registers for
// two CTAs on a multiprocessor.) normed: the rows of a norm.
template <class Element, int kTokens, bool kHasNorm, int kChains>
__device__ void multiply_tiles(const StreamParams& p, StageRing ring, u32 normed, int warp,
                               int lane) {
  static_assert(kStreamAtoms == 2);
  const u32 w = static_cast<u32>(warp * kStreamTileBytes);
  const u32 x = static_cast<u32>(p.plan.group * kStreamTileBytes);
  StageRing ahead = ring;  // the stage that is loaded
  const auto load = [&](Fragments<Element, kTokens>& to, int stage_load, int atom) {
    const auto at = static_cast<u32>(atom * kSwizzleRowBytes);
    const u32 w_atom = ahead.data() + w + kStreamTileRows * at;
    if constexpr (kHasNorm) {
      // Columns of the result behind num_tokens are those of the first token, and not stored.
      const u32 first = normed + static_cast<u32>(stage_load * kStreamRowBytes) + at;
      to.load(
          w_atom,
          [&](int token, int chunk) {
            const int row = token < p.num_tokens ? token : 0;
            return first + static_cast<u32>(row * p.norm_pitch + 16 * chunk);
          },
          lane);
    } else {
      const u32 x_atom = ahead.data() + x + kTokens * at;
      to.load(
          w_atom, [&](int token, int chunk) { return chunk_address(x_atom, token, chunk); }, lane);
    }
  };
  // loads: of the next stage, which do not read this one, but check_sass.py cannot know.
  const auto release = [&](u32 loads) {
    __syncwarp();
    const u32 empty = sm90::released_behind(loads, ring.empty());
    if (lane == 0) mbarrier_arrive(empty);
    ring.next();
  };
  griddep_wait();  // out may be read by the kernel before, or written; x is complete no earlier
  const auto multiply = [&](int tile) {
    const OutElements<Element, kTokens> out(p, tile, lane);
    float d[kChains][kTokens / 8][4] = {}, old[kTokens / 2];
    if (p.out.adds != 0) out.load(old);
    Fragments<Element, kTokens> first, second;  // atoms of a stage
    mbarrier_wait(ahead.full(), ahead.parity);
    load(first, 0, 0);
#pragma unroll 1
    for (int i = 0; i < p.plan.num_stage_loads; ++i) {
      load(second, i, 1);
      ahead.next();
      first.multiply(d);
      if (i + 1 < p.plan.num_stage_loads) {
        mbarrier_wait(ahead.full(), ahead.parity);
        load(first, i + 1, 0);
      }
      second.multiply(d);
      release(first.last_words());
    }
#pragma unroll
    for (int i = 0; i < kTokens / 2; ++i)
      d[0][i / 4][i % 4] = add_chains<kChains>(d[0][i / 4][i % 4], d[kChains - 1][i / 4][i % 4]);
    out.store(d[0], old);
  };
  for_each_tile(p, warp, multiply, [&] {
    for (int i = 0; i < p.plan.num_stage_loads; ++i) {
      mbarrier_wait(ring.full(), ring.parity);
      release(0);
    }
  });
}

template <class Element, int kTokens, bool kHasNorm>
__global__ void __launch_bounds__(kThreads, kStreamCtasPerSm)
    stream(const __grid_constant__ StreamParams p, const __grid_constant__ Maps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ unsigned char smem_raw[];
  StageRing ring{.base = (smem_address(smem_raw) + 1023) & ~1023u,
                 .barriers = 0,
                 .stage_bytes = p.plan.stage_bytes,
                 .num_stages = p.plan.num_stages};
  ring.barriers = ring.base + (kHasNorm ? kStreamNormRingBytes : kStreamRingBytes);
  const u32 normed = ring.barriers + 16 * kStreamMaxStages;
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) >> 5, 0);
  const int lane = static_cast<int>(threadIdx.x) & 31;
  // Arrivals of the producers, and of each warp of a group.
  if (threadIdx.x == 0) ring.init_barriers(kHasNorm ? 1 : 2, static_cast<u32>(p.plan.group));
  __syncthreads();
  griddep_launch_dependents();
  if (warp == kStreamMaxTiles) {
    load_weights(p, maps, ring, lane);
  } else if (warp == kStreamMaxTiles + 1) {
    if constexpr (!kHasNorm) load_x(p, maps, ring, lane);
  } else {
    if constexpr (kHasNorm) norm_rows(p, normed, warp, lane);
    if (warp >= p.plan.group) return;
    if (p.num_chains == 1)
      multiply_tiles<Element, kTokens, kHasNorm, 1>(p, ring, normed, warp, lane);
    else
      multiply_tiles<Element, kTokens, kHasNorm, 2>(p, ring, normed, warp, lane);
  }
#endif
}

template <class Element, int kTokens, bool kHasNorm = false>
Status launch_variant(const char* name, const StreamCall& call) {
  const LaunchShape shape{.name = name,
                          .grid = dim3(static_cast<unsigned>(call.params.plan.num_ctas)),
                          .block = dim3(kThreads),
                          .smem_bytes = smem_bytes(kHasNorm),
                          .use_pdl = true};
  static AllowedSmem allowed;
  HEADRACE_TRY(allow_smem(shape, stream<Element, kTokens, kHasNorm>, allowed));
  return launch(shape, static_cast<cudaStream_t>(call.stream), stream<Element, kTokens, kHasNorm>,
                call.params, call.maps);
}

}  // namespace

Status launch_stream(const StreamCall& call) {
  const bool is_bf16 = call.dtype == DType::bf16, is_8 = call.params.plan.tokens == 8;
  using sm90::Bf16Element, sm90::F16Element;
  if (call.params.norm.weight != nullptr)
    return launch_variant<Bf16Element, 8, true>("gemm_stream<bf16, 8, norm>", call);
  if (is_bf16)
    return is_8 ? launch_variant<Bf16Element, 8>("gemm_stream<bf16, 8>", call)
                : launch_variant<Bf16Element, 16>("gemm_stream<bf16, 16>", call);
  return is_8 ? launch_variant<F16Element, 8>("gemm_stream<f16, 8>", call)
              : launch_variant<F16Element, 16>("gemm_stream<f16, 16>", call);
}

}  // namespace headrace::cuda::gemm
