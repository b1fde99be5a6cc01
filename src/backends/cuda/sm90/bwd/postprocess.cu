// After the main kernel: dQ from the blocks of its accumulator.
#include "backends/cuda/common/padded_block.cuh"
#include "backends/cuda/device/reduce.cuh"
#include "backends/cuda/runtime/launch.cuh"
#include "backends/cuda/sm90/bwd/block_iterator.cuh"
#include "backends/cuda/sm90/bwd/config.h"
#include "backends/cuda/sm90/bwd/postprocess.h"
#include "backends/cuda/sm90/element.cuh"

namespace headrace::cuda::sm90::bwd {
namespace {

// A thread's elements of a part, 16 bytes a group: two columns of each of two rows (config.h).
struct Sums {
  uint4 words[kDqGroups];
};
template <bool kIsFixed>
__device__ __forceinline__ Sums load_sums(const float* part, int thread) {
  Sums sums;
#pragma unroll
  for (int j = 0; j < kDqGroups; ++j) {
    if constexpr (kIsFixed) {
      const auto* x = reinterpret_cast<const uint2*>(part) + j * 256 + thread;
      const uint2 a = x[0], b = x[128];
      sums.words[j] = {a.x, a.y, b.x, b.y};
    } else {
      sums.words[j] = reinterpret_cast<const uint4*>(part)[j * 128 + thread];
    }
  }
  return sums;
}
// `count`: number of contributions to the sums.
template <bool kIsFixed>
__device__ __forceinline__ float4 sums_of(const uint4& x, u32 count) {
  if constexpr (kIsFixed) {
    const int2 a = unpack_fixed_sums(pack_u64(x.x, x.y), count),
               b = unpack_fixed_sums(pack_u64(x.z, x.w), count);
    return {static_cast<float>(a.x), static_cast<float>(a.y), static_cast<float>(b.x),
            static_cast<float>(b.y)};
  } else {
    return {__uint_as_float(x.x), __uint_as_float(x.y), __uint_as_float(x.z), __uint_as_float(x.w)};
  }
}

// Number of contributions to a dQ block, over the CTAs of all key blocks. Computed by a warp.
template <Tile kTile>
__device__ __forceinline__ u32 count_of_block(const BlockParams& params, const PaddedBlock& rows,
                                              int block) {
  const int kv_head = static_cast<int>(rows.head) / params.group;
  const auto batch_idx = static_cast<int>(rows.batch_idx);
  const int key_blocks = (static_cast<int>(rows.sequence.seqlen_k) + kTile.keys - 1) / kTile.keys;
  int times = 0;
  for (int i = static_cast<int>(threadIdx.x) & 31; i < key_blocks; i += 32) {
    const KeyBlock keys = key_block_of<kTile>(params, rows.sequence, batch_idx, kv_head, i);
    times += BlockIterator<kTile>(params, keys).visits(block) ? 1 : 0;
  }
  return __reduce_add_sync(0xffffffffu, static_cast<u32>(times));
}

// Part `part` of the block that starts `first_row` rows into `rows`: a thread has the elements that
// the thread with its index adds in the main kernel.
template <Tile kTile, class Element, bool kIsFixed>
__device__ void postprocess_part(const PostprocessParams& params, const PaddedBlock& rows,
                                 int first_row, int part) {
  const int thread = static_cast<int>(threadIdx.x) & 127, lane = thread & 31, mine = lane & 1;
  const DqPlace place = dq_place(kTile, part, thread);
  const std::int64_t padded =
      padded_offset(params.blocks.sizes, rows.head, rows.padded_row + first_row);
  const Sums sums =
      load_sums<kIsFixed>(params.rows.dq_accum + padded * kTile.head_dim + part * kDqPart, thread);
  const Operand& dq = params.dq;
  const int chunks = static_cast<int>(params.blocks.sizes.head_dim) / 8;
  HalfChunk* to[2];
  float factor[2] = {params.scale, params.scale};
  u32 count = 0;
  if constexpr (kIsFixed) {
    const u32 scales =
        *reinterpret_cast<const u32*>(params.rows.dq_scale + dq_scale_index(padded + place.row));
    const auto first_block = static_cast<int>(rows.first_row) / kTile.queries;
    count = count_of_block<kTile>(params.blocks, rows, first_block + first_row / kTile.queries);
    factor[0] /= Bf16Element::unpack(scales).x;
    factor[1] /= Bf16Element::unpack(scales).y;
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const std::int64_t row = rows.sequence.row_q + rows.first_row + first_row + place.row + 8 * r;
    auto* chunk = reinterpret_cast<Chunk*>(static_cast<typename Element::Stored*>(dq.data) +
                                           row_offset(dq, rows.batch_idx, row, rows.head));
    to[r] = reinterpret_cast<HalfChunk*>(chunk + place.chunk + mine) + (lane >> 1 & 1);
  }
#pragma unroll
  for (int j = 0; j < kDqGroups; j += 2) {
    u32 packed[2][2];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const float4 x = sums_of<kIsFixed>(sums.words[j + k], count);
      // Adding +0 turns -0 into +0.
      packed[0][k] = Element::pack(x.x * factor[0] + 0.0f, x.y * factor[0] + 0.0f);
      packed[1][k] = Element::pack(x.z * factor[1] + 0.0f, x.w * factor[1] + 0.0f);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const HalfChunk both = exchange_with_neighbour_lane(packed[r][0], packed[r][1], lane);
      const bool exists = first_row + place.row + 8 * r < rows.num_rows;
      if (exists && place.chunk + j + mine < chunks) to[r][2 * j] = both;
    }
  }
}

constexpr int kPostprocessCtas =
    2;  // of a multiprocessor: loads of one overlap stores of the other
// Groups of 128 threads, one part each.
constexpr int postprocess_groups(const Tile& t) {
  constexpr int kMost = 4;
  const int parts = static_cast<int>(kRowPadding) / t.queries * dq_parts(t);
  return parts < kMost ? parts : kMost;
}

template <Tile kTileOfVariant, class ElementOfVariant, bool kIsFixedOfVariant>
struct PostprocessVariant {
  static constexpr Tile kTile = kTileOfVariant;
  using Element = ElementOfVariant;
  static constexpr bool kIsFixed = kIsFixedOfVariant;
};

template <class Variant>
__global__ void __launch_bounds__(128 * postprocess_groups(Variant::kTile), kPostprocessCtas)
    postprocess_dq(const __grid_constant__ PostprocessParams params, std::int64_t num_parts) {
  constexpr Tile kTile = Variant::kTile;
  for (std::int64_t idx = blockIdx.x; idx < num_parts; idx += gridDim.x) {
    const PaddedBlock rows = padded_block(params.blocks.sizes, params.blocks.lengths, idx, false);
    const int query_blocks = (rows.num_rows + kTile.queries - 1) / kTile.queries;
    for (int i = static_cast<int>(threadIdx.x) / 128; i < query_blocks * dq_parts(kTile);
         i += postprocess_groups(kTile))
      postprocess_part<kTile, typename Variant::Element, Variant::kIsFixed>(
          params, rows, i / dq_parts(kTile) * kTile.queries, i % dq_parts(kTile));
  }
}

template <Tile kTile, bool kIsFixed>
Status launch_postprocess_of(const PostprocessParams& params, DType dtype, Stream stream) {
  const std::int64_t num_parts = num_padded_blocks(params.blocks.sizes);
  const LaunchShape shape{
      .name = "cuda_sm90_bwd's postprocess of dq",
      .grid = dim3(static_cast<unsigned>(num_parts < kMaxGridX ? num_parts : kMaxGridX)),
      .block = dim3(128 * postprocess_groups(kTile))};
  auto* s = static_cast<cudaStream_t>(stream);
  if (dtype == DType::bf16)
    return launch(shape, s, postprocess_dq<PostprocessVariant<kTile, Bf16Element, kIsFixed>>,
                  params, num_parts);
  return launch(shape, s, postprocess_dq<PostprocessVariant<kTile, F16Element, kIsFixed>>, params,
                num_parts);
}

template <Tile kTile>
Status launch_postprocess(const PostprocessParams& params, DType dtype, Stream stream) {
  return params.rows.dq_scale != nullptr
             ? launch_postprocess_of<kTile, true>(params, dtype, stream)
             : launch_postprocess_of<kTile, false>(params, dtype, stream);
}

}  // namespace

Status launch_postprocess_hd64(const PostprocessParams& params, DType dtype, Stream stream) {
  return launch_postprocess<kTile64>(params, dtype, stream);
}
Status launch_postprocess_hd128(const PostprocessParams& params, DType dtype, Stream stream) {
  return launch_postprocess<kTile128>(params, dtype, stream);
}
// The query blocks of both are the same.
static_assert(kTile192v128.head_dim == kTile192.head_dim && kTile192v128.keys == kTile192.keys &&
              kTile192v128.queries == kTile192.queries &&
              kTile192v128.is_specialized == kTile192.is_specialized);
Status launch_postprocess_hd192(const PostprocessParams& params, DType dtype, Stream stream) {
  return launch_postprocess<kTile192>(params, dtype, stream);
}
Status launch_postprocess_hd256(const PostprocessParams& params, DType dtype, Stream stream) {
  return launch_postprocess<kTile256>(params, dtype, stream);
}

}  // namespace headrace::cuda::sm90::bwd
