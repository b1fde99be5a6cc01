// dQ from the blocks of float sums that the main kernel adds to.
#include "backends/cuda/common/padded_part.cuh"
#include "backends/cuda/runtime/launch.cuh"
#include "backends/cuda/sm90/bwd/config.h"
#include "backends/cuda/sm90/bwd/launch.h"
#include "backends/cuda/sm90/element.cuh"

namespace headrace::cuda::sm90::bwd {
namespace {

// A thread has in a block what the thread of that number in the main kernel adds: see dq_place().
template <Tile kTile, class Element>
__device__ void finish_block(const BackwardRows& c, const PaddedPart& part, int first_row) {
  const Problem& p = c.problem;
  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31, mine = lane & 1;
  const DqPlace place = dq_place(kTile, thread);
  const auto* from = reinterpret_cast<const float4*>(
                         c.dq + padded_index(p, part.head, part.padded_row + first_row) *
                                    kTile.head_dim) +
                     thread / 128 * (kDqGroups * 128) + thread % 128;
  const float scale = static_cast<float>(p.softmax_scale);
  const Operand& dq = c.args.gradients.dq;
  const int chunks = static_cast<int>(p.head_dim) / 8;
  HalfChunk* to[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const std::int64_t row =
        part.sequence.row_q + part.first_row + first_row + place.row + 8 * r;
    auto* chunk = reinterpret_cast<Chunk*>(static_cast<typename Element::Stored*>(dq.data) +
                                           row_offset(dq, part.batch_idx, row, part.head));
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
      const bool exists = first_row + place.row + 8 * r < part.num_rows;
      if (exists && place.chunk + j + mine < chunks) to[r][2 * j] = both;
    }
  }
}

template <Tile kTile, class Element>
struct FinishVariant {
  static __device__ void run(const BackwardRows& c, const PaddedPart& part) {
    for (int row = 0; row < part.num_rows; row += kTile.queries)
      finish_block<kTile, Element>(c, part, row);
  }
};

template <class Variant>
__global__ void __launch_bounds__(kThreads)
    finish_dq_blocks(const __grid_constant__ BackwardRows c, std::int64_t num_parts) {
  for (std::int64_t idx = blockIdx.x; idx < num_parts; idx += gridDim.x)
    Variant::run(c, part_of(c, idx, false));
}

template <Tile kTile>
Status launch_finish(const BackwardRows& rows, Stream stream) {
  constexpr std::int64_t kMaxCtas = (std::int64_t{1} << 31) - 1;
  const Problem& p = rows.problem;
  const std::int64_t num_parts = p.batch * p.num_heads * padded_parts(p);
  const LaunchShape shape{
      .name = "cuda_sm90_bwd's finish of dq",
      .grid = dim3(static_cast<unsigned>(num_parts < kMaxCtas ? num_parts : kMaxCtas)),
      .block = dim3(kThreads)};
  auto* s = static_cast<cudaStream_t>(stream);
  if (dtype_of(p) == DType::bf16)
    return launch(shape, s, finish_dq_blocks<FinishVariant<kTile, Bf16Element>>, rows, num_parts);
  return launch(shape, s, finish_dq_blocks<FinishVariant<kTile, F16Element>>, rows, num_parts);
}

}  // namespace

Status launch_finish_hd64(const BackwardRows& rows, Stream stream) {
  return launch_finish<kTile64>(rows, stream);
}
Status launch_finish_hd128(const BackwardRows& rows, Stream stream) {
  return launch_finish<kTile128>(rows, stream);
}

}  // namespace headrace::cuda::sm90::bwd
