// Products of up to 16 tokens on Hopper, bound by the bandwidth of the weights: a warp multiplies
// up to 16 rows of weights, operand A, with all tokens by mma.sync.
//
// One producer warp loads weights by TMA, and begins before the kernel ahead of this one on the
// stream has ended: the weights do not depend on it. A stage has some columns of a group of tiles,
// in swizzle atoms. The warps that multiply first copy the rows of x to shared memory, or their RMS
// norm. Where they do not fit, another producer warp loads x, and stages have columns of both.
#include "backends/cuda/device/tma.cuh"
#include "backends/cuda/elementwise/rms_norm.cuh"
#include "backends/cuda/gemm/append.cuh"
#include "backends/cuda/gemm/epilogue.cuh"
#include "backends/cuda/gemm/fragments.cuh"
#include "backends/cuda/runtime/launch.cuh"
#include "backends/cuda/sm90/shared.cuh"

namespace headrace::cuda::gemm {
namespace {

constexpr int kThreads = 32 * (kStreamWarps + 2);
// Named barriers: the second is that of the group's first tile.
[[maybe_unused]] constexpr int kRowBarrier = 1, kChainBarrier = 2;
// The ring is aligned to 1024 bytes; the rows of x are behind it, then barriers.
constexpr unsigned kSmemBytes = kStreamBytes + 16 * kStreamMaxStages + 1024;
// What the system takes of each CTA, and the sums of a norm and of chains.
static_assert(kStreamCtasPerSm * (kSmemBytes + 1024 + 256 + 2048) <= 228 * 1024);

// Before the kernel ahead has ended, x is not complete, and out may be read or written. With an
// append, attention begins no earlier than here: when all work before the product is complete.
__device__ __forceinline__ void wait_for_x(const StreamParams& p) {
  griddep_wait();
  if (p.has_append != 0) griddep_launch_dependents();
}

struct TileRange {
  int first, last;
};
__device__ __forceinline__ TileRange tiles_of_cta(const StreamParams& p) {
  const auto begin = [&](unsigned cta) {
    return static_cast<int>(std::int64_t{cta} * p.tiles.count / gridDim.x);
  };
  return {begin(blockIdx.x), begin(blockIdx.x + 1)};
}

// Calls begin(first tile, number of tiles) for each group, then load(first column) for each of its
// stages.
template <class Begin, class Load>
__device__ __forceinline__ void for_each_stage(const StreamParams& p, StageRing& ring, Begin begin,
                                               Load load) {
  const TileRange tiles = tiles_of_cta(p);
  StageProducer producer{ring};
  for (int tile = tiles.first; tile < tiles.last; tile += p.plan.group) {
    begin(tile, min(p.plan.group, tiles.last - tile));
    for (int i = 0; i < p.plan.num_stage_loads; ++i)
      producer.next([&] { load(i * kStreamColumns); });
  }
}

[[maybe_unused]] __device__ __forceinline__ void load_weights(const StreamParams& p,
                                                              const Maps& maps, StageRing ring,
                                                              int lane) {
  const int first_column = lane % kStreamAtoms * kSwizzleAtomCols;
  const u32 offset = static_cast<u32>(lane * kStreamAtomBytes);
  u32 bytes = 0;
  bool has_atom = false;
  TileSource from{};
  const auto begin = [&](int tile, int count) {
    bytes = static_cast<u32>(count * p.plan.tile_rows * kStreamRowBytes);
    has_atom = lane < count * kStreamAtoms;
    const int own = tile + lane / kStreamAtoms;
    from = p.has_append != 0 ? HeadTile::of(p, own).source(p, maps)
                             : TileSource::of(p.tiles, maps, own, p.plan.tile_rows);
  };
  for_each_stage(p, ring, begin, [&](int column) {
    if (lane == 0) mbarrier_arrive_expect_tx(ring.full(), bytes);
    if (has_atom)
      from.load<kStreamTileRows>(column + first_column, ring.data() + offset, ring.full());
    __syncwarp();
  });
}

// A box has all atoms of a stage, which is the faster, or one. (With weights in such boxes too, two
// tiles at a time, Qwen2.5 1.5B gained 7 % instead of 8.)
[[maybe_unused]] __device__ __forceinline__ void load_x(const StreamParams& p, const Maps& maps,
                                                        StageRing ring, int lane) {
  wait_for_x(p);
  const bool has_all = p.plan.x_box_atoms > 1;
  const int atom_bytes = p.num_tokens * kSwizzleRowBytes;
  const u32 offset = static_cast<u32>(p.plan.group * kStreamTileBytes + lane * atom_bytes);
  for_each_stage(
      p, ring, [](int, int) {},
      [&](int column) {
        if (lane == 0)
          mbarrier_arrive_expect_tx(ring.full(), static_cast<u32>(kStreamAtoms * atom_bytes));
        if (lane < kStreamAtoms / p.plan.x_box_atoms)
          cp_async_bulk_tensor_load(ring.data() + offset, &maps.x, ring.full(), kEvictLast,
                                    has_all ? 0 : column + lane * kSwizzleAtomCols, 0,
                                    has_all ? column / kSwizzleAtomCols : 0, 0);
        __syncwarp();
      });
}

constexpr int kRowThreads = 32 * kStreamWarps;  // that write the rows of x

// Zeros behind the last columns of the rows: weights that do not exist are zeros there too, and 0 x
// NaN would be NaN.
__device__ __forceinline__ void clear_row_ends(const StreamParams& p, u32 to, int thread) {
  const int num_columns = p.plan.num_stage_loads * kStreamColumns;
  for (int at = p.columns + thread * rms::kVec; at < num_columns; at += kRowThreads * rms::kVec)
    for (int token = 0; token < p.num_tokens; ++token)
      sm90::store_chunk(to + static_cast<u32>(token * p.row_pitch + 2 * at), sm90::Chunk{});
}

// Writes the rows of x to shared memory.
[[maybe_unused]] __device__ __forceinline__ void copy_rows(const StreamParams& p, u32 to,
                                                           int thread) {
  constexpr int kHeld = kMaxRowColumns / (kRowThreads * rms::kVec);  // vectors of a thread
  const auto column = [&](int i) { return (thread + i * kRowThreads) * rms::kVec; };
  clear_row_ends(p, to, thread);
  wait_for_x(p);
  for (int token = 0; token < p.num_tokens; ++token) {
    const auto* row = static_cast<const std::uint16_t*>(p.x) + token * p.x_stride;
    sm90::Chunk held[kHeld];
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
      if (column(i) < p.columns) held[i] = *reinterpret_cast<const sm90::Chunk*>(row + column(i));
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
      if (column(i) < p.columns)
        sm90::store_chunk(to + static_cast<u32>(token * p.row_pitch + 2 * column(i)), held[i]);
  }
  bar_sync(kRowBarrier, kRowThreads);
}

// The same, normalised: kStreamWarps warps, each with the work of two of rms_norm().
[[maybe_unused]] __device__ __forceinline__ void norm_rows(const StreamParams& p, u32 to, int warp,
                                                           int lane) {
  constexpr int kParts = rms::kThreads / kRowThreads;
  constexpr int kHeld = kMaxRowColumns / (rms::kThreads * rms::kVec);  // of a thread of rms_norm()
  __shared__ float sums[kMaxRows][rms::kWarps];
  const auto column = [&](int part, int i) {
    return (32 * (warp + part * kStreamWarps) + lane + i * rms::kThreads) * rms::kVec;
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
  clear_row_ends(p, to, warp * 32 + lane);
  wait_for_x(p);
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
      if (lane == 0) sums[token][warp + part * kStreamWarps] = sum[part];
    }
    bar_sync(kRowBarrier, kRowThreads);
    const float scale = rms::scale_of(sums[token], p.columns, p.norm.eps);
    for_each_vector([&](int part, int i, int at) {
      sm90::store_chunk(to + static_cast<u32>(token * p.row_pitch + 2 * at),
                        rms::scaled(x[part][i], scale, weights[part][i]));
    });
  }
  bar_sync(kRowBarrier, kRowThreads);
}

// For a tile of each group: multiply(tile), or skip() where the last group of the CTA has none.
template <class Body, class Skip>
__device__ __forceinline__ void for_each_tile(const StreamParams& p, int idx, Body body,
                                              Skip skip) {
  const TileRange tiles = tiles_of_cta(p);
  for (int tile = tiles.first + idx; tile < tiles.last + idx; tile += p.plan.group) {
    if (tile < tiles.last)
      body(tile);
    else
      skip();
  }
}

// What a chain takes of an atom of a stage, in registers: every kChains-th step of a tile, and of
// x. A: rows first; B of 8 tokens: two steps by one ldmatrix, of 16 tokens: both halves of the
// tokens by one.
template <class Element, int kTokens, bool kHasRows, int kChains>
struct Fragments {
  static constexpr int kSteps = kSwizzleAtomCols / 16 / kChains;
  static constexpr int kStepsOfB = kTokens == 16 ? 1 : 2;
  u32 a[kSteps][4], b[kSteps / kStepsOfB][4];

  // The lane's rows: of the tile, and of x in the stage or in the rows.
  __device__ __forceinline__ void load(u32 w_row, u32 x_row, int chain, int lane) {
    const auto chunk_of = [&](int step) { return 2 * (step * kChains + chain); };
    const auto x_chunk = [&](int chunk) {
      return kHasRows ? x_row + static_cast<u32>(16 * chunk) : swizzled_chunk(x_row, chunk);
    };
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      ldmatrix_x4(a[step], swizzled_chunk(w_row, chunk_of(step) + (lane >> 4)));
      if constexpr (kTokens == 16)
        ldmatrix_x4(b[step], x_chunk(chunk_of(step) + (lane >> 3 & 1)));
      else if (step % kStepsOfB == 0)
        ldmatrix_x4(b[step / kStepsOfB], x_chunk(chunk_of(step + (lane >> 4)) + (lane >> 3 & 1)));
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

// The elements of out that a thread of a warp has for a tile: those of its accumulators.
template <class Element, int kTokens>
struct OutElements {
  const StreamParams& p;
  int row_0, first_row, end_row, lane;  // rows of the matrix, which is at first_row of out

  __device__ __forceinline__ OutElements(const StreamParams& params, int tile, int lane_idx)
      : p(params), lane(lane_idx) {
    const int matrix = p.tiles.matrix_of(tile);
    const int first = p.tiles.row_of(tile, matrix, p.plan.tile_rows);
    row_0 = first + lane / 4;
    first_row = p.tiles.first_row[matrix];
    end_row = min(p.tiles.rows[matrix], first + p.plan.tile_rows);
  }
  __device__ __forceinline__ int row(int i) const { return row_0 + (i & 2) * 4; }
  __device__ __forceinline__ int token(int i) const { return i / 4 * 8 + 2 * (lane & 3) + (i & 1); }
  __device__ __forceinline__ bool exists(int i) const {
    return row(i) < end_row && token(i) < p.num_tokens && (p.tiles.is_paired == 0 || (i & 2) == 0);
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
        sum = silu(sum) * with_bias(d[i / 4][i % 4 | 2], row(i) + p.out.rows_of_gate);
      store_out<Element>(p.out, at(i), p.out.adds != 0 ? old[i] + sum : sum);
    }
  }
};

// The sums of two chains of a tile meet in the first one's warp.
template <int kTokens, int kChains>
__device__ __forceinline__ void meet_chains(float (&d)[kTokens / 8][4], int tile, int chain,
                                            int lane) {
  if constexpr (kChains == 2) {
    __shared__ float4 of_last[kStreamWarps / 2][kTokens / 8][32];
    if (chain == 1) {
#pragma unroll
      for (int n = 0; n < kTokens / 8; ++n)
        of_last[tile][n][lane] = {d[n][0], d[n][1], d[n][2], d[n][3]};
    }
    bar_sync(kChainBarrier + tile, 64);
#pragma unroll
    for (int n = 0; n < kTokens / 8 && chain == 0; ++n) {
      const float4 last = of_last[tile][n][lane];
      d[n][0] = add_chains<2>(d[n][0], last.x), d[n][1] = add_chains<2>(d[n][1], last.y);
      d[n][2] = add_chains<2>(d[n][2], last.z), d[n][3] = add_chains<2>(d[n][3], last.w);
    }
    bar_sync(kChainBarrier + tile, 64);  // before the sums of the next tile
  }
}

// A chain has a warp: a step takes 33 clocks of it, and the loads, waits and releases of a stage
// as long again. An atom is loaded before the products of the atom ahead of it, so that chains do
// not wait for shared memory. (Two whole stages need too many registers for two CTAs on a
// multiprocessor.) rows: of x, where they are not in the stages.
template <class Element, int kTokens, bool kHasRows, int kChains>
__device__ void multiply_tiles(const StreamParams& p, StageRing ring, u32 rows, int warp,
                               int lane) {
  const int tile_of_group = warp / kChains, chain = warp % kChains;
  using Atom = Fragments<Element, kTokens, kHasRows, kChains>;
  const u32 w = static_cast<u32>(tile_of_group * kStreamTileBytes + (lane & 15) * kSwizzleRowBytes);
  // Columns of the result behind num_tokens are those of the first token, and not stored.
  const int lane_token = (lane & 7) + (kTokens == 16 ? lane >> 4 << 3 : 0);
  const int token = lane_token < p.num_tokens ? lane_token : 0;
  const u32 x = kHasRows
                    ? rows + static_cast<u32>(token * p.row_pitch)
                    : static_cast<u32>(p.plan.group * kStreamTileBytes + token * kSwizzleRowBytes);
  const u32 x_atom_bytes = static_cast<u32>(p.num_tokens * kSwizzleRowBytes);
  StageRing ahead = ring;  // the stage that is loaded
  const auto load = [&](Atom& to, int stage_load, int atom) {
    const u32 at = static_cast<u32>(atom);
    const u32 x_row =
        kHasRows ? x + static_cast<u32>(stage_load * kStreamRowBytes) + at * kSwizzleRowBytes
                 : ahead.data() + x + at * x_atom_bytes;
    to.load(ahead.data() + w + at * kStreamAtomBytes, x_row, chain, lane);
  };
  // loads: of the next stage, which do not read this one, but check_sass.py cannot know.
  const auto release = [&](u32 loads) {
    __syncwarp();
    const u32 empty = sm90::released_behind(loads, ring.empty());
    if (lane == 0) mbarrier_arrive(empty);
    ring.next();
  };
  wait_for_x(p);
  const auto multiply = [&](int tile) {
    const OutElements<Element, kTokens> out(p, tile, lane);
    HeadElements<Element, kTokens> heads(p, tile, lane);
    float d[kTokens / 8][4] = {}, old[kTokens / 2];
    if (p.has_append != 0 && chain == 0) heads.load();
    if (p.out.adds != 0 && chain == 0) out.load(old);
    Atom held[2];  // in turns
    mbarrier_wait(ahead.full(), ahead.parity);
    load(held[0], 0, 0);
#pragma unroll 1
    for (int i = 0; i < p.plan.num_stage_loads; ++i) {
#pragma unroll
      for (int atom = 0; atom < kStreamAtoms - 2; ++atom) {
        load(held[(atom + 1) % 2], i, atom + 1);
        held[atom % 2].multiply(d);
      }
      load(held[1], i, kStreamAtoms - 1);
      ahead.next();
      // Asked for early, so that the answer comes beside the products.
      const bool has_next = i + 1 < p.plan.num_stage_loads;
      const bool is_full = !has_next || mbarrier_test_wait(ahead.full(), ahead.parity);
      held[0].multiply(d);
      if (!is_full) mbarrier_wait(ahead.full(), ahead.parity);
      if (has_next) load(held[0], i + 1, 0);
      held[1].multiply(d);
      release(held[0].last_words());
    }
    meet_chains<kTokens, kChains>(d, tile_of_group, chain, lane);
    if (chain == 0 && p.has_append != 0)
      heads.store(d);
    else if (chain == 0)
      out.store(d, old);
  };
  for_each_tile(p, tile_of_group, multiply, [&] {
    for (int i = 0; i < p.plan.num_stage_loads; ++i) {
      mbarrier_wait(ring.full(), ring.parity);
      release(0);
    }
  });
}

template <class Element, int kTokens, bool kHasRows>
__global__ void __launch_bounds__(kThreads, kStreamCtasPerSm)
    stream(const __grid_constant__ StreamParams p, const __grid_constant__ Maps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ unsigned char smem_raw[];
  StageRing ring{.base = (smem_address(smem_raw) + 1023) & ~1023u,
                 .barriers = 0,
                 .stage_bytes = p.plan.stage_bytes,
                 .num_stages = p.plan.num_stages};
  ring.barriers = ring.base + kStreamBytes;
  const u32 rows = ring.base + static_cast<u32>(p.plan.ring_bytes);
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) >> 5, 0);
  const int lane = static_cast<int>(threadIdx.x) & 31;
  // Arrivals of the producers, and of each warp that multiplies.
  const int num_warps = p.plan.group * p.num_chains;
  if (threadIdx.x == 0) ring.init_barriers(kHasRows ? 1 : 2, static_cast<u32>(num_warps));
  __syncthreads();
  if (p.has_append == 0) griddep_launch_dependents();
  if (warp == kStreamWarps) {
    load_weights(p, maps, ring, lane);
  } else if (warp == kStreamWarps + 1) {
    if constexpr (!kHasRows) load_x(p, maps, ring, lane);
  } else {
    if constexpr (kHasRows) {
      if (p.norm.weight != nullptr)
        norm_rows(p, rows, warp, lane);
      else
        copy_rows(p, rows, warp * 32 + lane);
    }
    if (warp >= num_warps) return;
    if (p.num_chains == 1)
      multiply_tiles<Element, kTokens, kHasRows, 1>(p, ring, rows, warp, lane);
    else
      multiply_tiles<Element, kTokens, kHasRows, 2>(p, ring, rows, warp, lane);
  }
#endif
}

template <class Element, int kTokens, bool kHasRows = false>
Status launch_variant(const char* name, const StreamCall& call) {
  const LaunchShape shape{.name = name,
                          .grid = dim3(static_cast<unsigned>(call.params.plan.num_ctas)),
                          .block = dim3(kThreads),
                          .smem_bytes = kSmemBytes,
                          .use_pdl = true};
  static AllowedSmem allowed;
  HEADRACE_TRY(allow_smem(shape, stream<Element, kTokens, kHasRows>, allowed));
  return launch(shape, static_cast<cudaStream_t>(call.stream), stream<Element, kTokens, kHasRows>,
                call.params, call.maps);
}

}  // namespace

Status launch_stream(const StreamCall& call) {
  const bool is_bf16 = call.dtype == DType::bf16, is_8 = call.params.num_tokens <= 8;
  using sm90::Bf16Element, sm90::F16Element;
  if (call.params.plan.has_rows)
    return is_bf16 ? launch_variant<Bf16Element, 8, true>("gemm_stream<bf16, rows>", call)
                   : launch_variant<F16Element, 8, true>("gemm_stream<f16, rows>", call);
  if (is_bf16)
    return is_8 ? launch_variant<Bf16Element, 8>("gemm_stream<bf16, 8>", call)
                : launch_variant<Bf16Element, 16>("gemm_stream<bf16, 16>", call);
  return is_8 ? launch_variant<F16Element, 8>("gemm_stream<f16, 8>", call)
              : launch_variant<F16Element, 16>("gemm_stream<f16, 16>", call);
}

}  // namespace headrace::cuda::gemm
