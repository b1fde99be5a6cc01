// What surrounds the main kernel: turns set to zero, dQ from the blocks of float sums.
#include "backends/cuda/common/padded_part.cuh"
#include "backends/cuda/runtime/launch.cuh"
#include "backends/cuda/sm90/bwd/config.h"
#include "backends/cuda/sm90/bwd/launch.h"
#include "backends/cuda/sm90/element.cuh"

namespace headrace::cuda::sm90::bwd {
namespace {

// Part `part` of the block that begins `first_row` rows into `rows`: a thread has there what the
// thread of that number in the main kernel adds.
template <Tile kTile, class Element>
__device__ void finish_part(const BackwardRows& c, const PaddedPart& rows, int first_row,
                            int part) {
  const Problem& p = c.problem;
  const int thread = static_cast<int>(threadIdx.x) & 127, lane = thread & 31, mine = lane & 1;
  const DqPlace place = dq_place(kTile, part, thread);
  const float* block =
      c.dq + padded_index(p, rows.head, rows.padded_row + first_row) * kTile.head_dim;
  const auto* from = reinterpret_cast<const float4*>(block + part * kDqPart) + thread;
  const auto scale = static_cast<float>(p.softmax_scale);
  const Operand& dq = c.args.gradients.dq;
  const int chunks = static_cast<int>(p.head_dim) / 8;
  HalfChunk* to[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const std::int64_t row = rows.sequence.row_q + rows.first_row + first_row + place.row + 8 * r;
    auto* chunk = reinterpret_cast<Chunk*>(static_cast<typename Element::Stored*>(dq.data) +
                                           row_offset(dq, rows.batch_idx, row, rows.head));
    to[r] = reinterpret_cast<HalfChunk*>(chunk + place.chunk + mine) + (lane >> 1 & 1);
  }
#pragma unroll
  for (int j = 0; j < kDqGroups; j += 2) {
    const float4 x = from[j * 128], y = from[(j + 1) * 128];
    // Adding +0 gives an exact zero one sign.
    const u32 packed[2][2] = {{Element::pack(x.x * scale + 0.0f, x.y * scale + 0.0f),
                               Element::pack(y.x * scale + 0.0f, y.y * scale + 0.0f)},
                              {Element::pack(x.z * scale + 0.0f, x.w * scale + 0.0f),
                               Element::pack(y.z * scale + 0.0f, y.w * scale + 0.0f)}};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const HalfChunk both = traded_with_neighbour(packed[r][0], packed[r][1], lane);
      const bool exists = first_row + place.row + 8 * r < rows.num_rows;
      if (exists && place.chunk + j + mine < chunks) to[r][2 * j] = both;
    }
  }
}

inline constexpr int kFinishGroups = 4;  // of 128 threads, a part each

template <Tile kTileOfVariant, class ElementOfVariant>
struct FinishVariant {
  static constexpr Tile kTile = kTileOfVariant;
  using Element = ElementOfVariant;
};

template <class Variant>
__global__ void __launch_bounds__(128 * kFinishGroups)
    finish_dq_blocks(const __grid_constant__ BackwardRows c, std::int64_t num_parts) {
  constexpr Tile kTile = Variant::kTile;
  for (std::int64_t idx = blockIdx.x; idx < num_parts; idx += gridDim.x) {
    const PaddedPart rows = part_of(c, idx, false);
    const int blocks = (rows.num_rows + kTile.queries - 1) / kTile.queries;
    for (int i = static_cast<int>(threadIdx.x) / 128; i < blocks * dq_parts(kTile);
         i += kFinishGroups)
      finish_part<kTile, typename Variant::Element>(c, rows, i / dq_parts(kTile) * kTile.queries,
                                                    i % dq_parts(kTile));
  }
}

template <Tile kTile>
Status launch_finish(const BackwardRows& rows, Stream stream) {
  constexpr std::int64_t kMaxCtas = (std::int64_t{1} << 31) - 1;
  const Problem& p = rows.problem;
  const std::int64_t num_parts = p.batch * p.num_heads * padded_parts(p);
  const LaunchShape shape{
      .name = "cuda_sm90_bwd's finish of dq",
      .grid = dim3(static_cast<unsigned>(num_parts < kMaxCtas ? num_parts : kMaxCtas)),
      .block = dim3(128 * kFinishGroups)};
  auto* s = static_cast<cudaStream_t>(stream);
  if (dtype_of(p) == DType::bf16)
    return launch(shape, s, finish_dq_blocks<FinishVariant<kTile, Bf16Element>>, rows, num_parts);
  return launch(shape, s, finish_dq_blocks<FinishVariant<kTile, F16Element>>, rows, num_parts);
}

}  // namespace

Status clear_turns(std::uint32_t* turns, std::int64_t count, Stream stream) {
  const auto bytes = static_cast<std::size_t>(count) * sizeof *turns;
  return cuda_status(cudaMemsetAsync(turns, 0, bytes, static_cast<cudaStream_t>(stream)),
                     "clearing {} bytes of turns", bytes);
}

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
