// After the main kernel: dQ from the blocks of sums.
#include "backends/cuda/common/padded_part.cuh"
#include "backends/cuda/device/reduce.cuh"
#include "backends/cuda/runtime/launch.cuh"
#include "backends/cuda/sm90/bwd/config.h"
#include "backends/cuda/sm90/bwd/launch.h"
#include "backends/cuda/sm90/element.cuh"

namespace headrace::cuda::sm90::bwd {
namespace {

// What a thread adds of group `group` of a part, two columns of either row: see config.h.
template <bool kIsFixed>
__device__ __forceinline__ float4 load_sums(const float* part, int group, int thread) {
  if constexpr (kIsFixed) {
    const auto* x = reinterpret_cast<const int2*>(part) + group * 256 + thread;
    const int2 a = split_pair(x[0]), b = split_pair(x[128]);
    return {static_cast<float>(a.x), static_cast<float>(a.y), static_cast<float>(b.x),
            static_cast<float>(b.y)};
  } else {
    return reinterpret_cast<const float4*>(part)[group * 128 + thread];
  }
}

// Part `part` of the block that begins `first_row` rows into `rows`: a thread has there what the
// thread of that number in the main kernel adds.
template <Tile kTile, class Element, bool kIsFixed>
__device__ void finish_part(const BackwardRows& c, const PaddedPart& rows, int first_row,
                            int part) {
  const Problem& p = c.problem;
  const int thread = static_cast<int>(threadIdx.x) & 127, lane = thread & 31, mine = lane & 1;
  const DqPlace place = dq_place(kTile, part, thread);
  const std::int64_t padded = padded_index(p, rows.head, rows.padded_row + first_row);
  const float* from = c.dq + padded * kTile.head_dim + part * kDqPart;
  const auto scale = static_cast<float>(p.softmax_scale);
  const Operand& dq = c.args.gradients.dq;
  const int chunks = static_cast<int>(p.head_dim) / 8;
  HalfChunk* to[2];
  float factor[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const std::int64_t row = rows.sequence.row_q + rows.first_row + first_row + place.row + 8 * r;
    auto* chunk = reinterpret_cast<Chunk*>(static_cast<typename Element::Stored*>(dq.data) +
                                           row_offset(dq, rows.batch_idx, row, rows.head));
    to[r] = reinterpret_cast<HalfChunk*>(chunk + place.chunk + mine) + (lane >> 1 & 1);
    factor[r] = kIsFixed ? scale / c.dq_scale[padded + place.row + 8 * r] : scale;
  }
#pragma unroll
  for (int j = 0; j < kDqGroups; j += 2) {
    u32 packed[2][2];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const float4 x = load_sums<kIsFixed>(from, j + k, thread);
      // Adding +0 gives an exact zero one sign.
      packed[0][k] = Element::pack(x.x * factor[0] + 0.0f, x.y * factor[0] + 0.0f);
      packed[1][k] = Element::pack(x.z * factor[1] + 0.0f, x.w * factor[1] + 0.0f);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const HalfChunk both = traded_with_neighbour(packed[r][0], packed[r][1], lane);
      const bool exists = first_row + place.row + 8 * r < rows.num_rows;
      if (exists && place.chunk + j + mine < chunks) to[r][2 * j] = both;
    }
  }
}

// Groups of 128 threads, a part each.
constexpr int finish_groups(const Tile& t) {
  constexpr int kMost = 4;
  const int parts = static_cast<int>(kRowPadding) / t.queries * dq_parts(t);
  return parts < kMost ? parts : kMost;
}

template <Tile kTileOfVariant, class ElementOfVariant, bool kIsFixedOfVariant>
struct FinishVariant {
  static constexpr Tile kTile = kTileOfVariant;
  using Element = ElementOfVariant;
  static constexpr bool kIsFixed = kIsFixedOfVariant;
};

template <class Variant>
__global__ void __launch_bounds__(128 * finish_groups(Variant::kTile))
    finish_dq_blocks(const __grid_constant__ BackwardRows c, std::int64_t num_parts) {
  constexpr Tile kTile = Variant::kTile;
  for (std::int64_t idx = blockIdx.x; idx < num_parts; idx += gridDim.x) {
    const PaddedPart rows = part_of(c, idx, false);
    const int blocks = (rows.num_rows + kTile.queries - 1) / kTile.queries;
    for (int i = static_cast<int>(threadIdx.x) / 128; i < blocks * dq_parts(kTile);
         i += finish_groups(kTile))
      finish_part<kTile, typename Variant::Element, Variant::kIsFixed>(
          c, rows, i / dq_parts(kTile) * kTile.queries, i % dq_parts(kTile));
  }
}

template <Tile kTile, bool kIsFixed>
Status launch_finish_of(const BackwardRows& rows, Stream stream) {
  constexpr std::int64_t kMaxCtas = (std::int64_t{1} << 31) - 1;
  const Problem& p = rows.problem;
  const std::int64_t num_parts = p.batch * p.num_heads * padded_parts(p);
  const LaunchShape shape{
      .name = "cuda_sm90_bwd's finish of dq",
      .grid = dim3(static_cast<unsigned>(num_parts < kMaxCtas ? num_parts : kMaxCtas)),
      .block = dim3(128 * finish_groups(kTile))};
  auto* s = static_cast<cudaStream_t>(stream);
  if (dtype_of(p) == DType::bf16)
    return launch(shape, s, finish_dq_blocks<FinishVariant<kTile, Bf16Element, kIsFixed>>, rows,
                  num_parts);
  return launch(shape, s, finish_dq_blocks<FinishVariant<kTile, F16Element, kIsFixed>>, rows,
                num_parts);
}

template <Tile kTile>
Status launch_finish(const BackwardRows& rows, Stream stream) {
  return rows.dq_scale != nullptr ? launch_finish_of<kTile, true>(rows, stream)
                                  : launch_finish_of<kTile, false>(rows, stream);
}

}  // namespace

Status launch_finish_hd64(const BackwardRows& rows, Stream stream) {
  return launch_finish<kTile64>(rows, stream);
}
Status launch_finish_hd128(const BackwardRows& rows, Stream stream) {
  return launch_finish<kTile128>(rows, stream);
}
Status launch_finish_hd192(const BackwardRows& rows, Stream stream) {
  return launch_finish<kTile192>(rows, stream);
}
Status launch_finish_hd256(const BackwardRows& rows, Stream stream) {
  return launch_finish<kTile256>(rows, stream);
}

}  // namespace headrace::cuda::sm90::bwd
