// Partial results of a row and their sums, always in the order of keys: eight splits are a group,
// groups are appended to a chunk and chunks to the row. A part without a visible key changes
// nothing, to the bit, so parts that no row sees may as well be absent. Products and sums that
// several code paths compute are rounded explicitly: the compiler would fuse some of them.
#pragma once

#include "backends/cuda/common/row_epilogue.cuh"
#include "backends/cuda/sm90/decode/softmax.cuh"

namespace headrace::cuda::sm90::decode {

// Neighbouring columns of a row.
template <int kColumns>
struct Partial {
  float row_max = -HUGE_VALF;  // before the scale
  float sum = 0.0f;            // of P, in units of kPShift
  float o[kColumns] = {};      // mean of the values
};

__device__ __forceinline__ float rescale_factor(float row_max, float top, float scale_log2) {
  return row_max == -HUGE_VALF ? 0.0f : ex2_approx_ftz((row_max - top) * scale_log2);
}
__device__ __forceinline__ float weight_of(float row_max, float sum, float top, float scale_log2) {
  return __fmul_rn(sum, rescale_factor(row_max, top, scale_log2));
}

// What a row of a group takes of each of its splits.
struct GroupWeights {
  float row_max = -HUGE_VALF, sum = 0.0f;  // of the group
  float of_split[kGroupSplits];            // of which sum is the sum
  float factor;                            // of all weights
};
// sums_of(i): (maximum, sum) of split i.
template <class ReadSums>
__device__ __forceinline__ GroupWeights group_weights(float scale_log2, const ReadSums& sums_of) {
  GroupWeights w;
#pragma unroll
  for (int i = 0; i < kGroupSplits; ++i) w.row_max = fmaxf(w.row_max, sums_of(i).x);
#pragma unroll
  for (int i = 0; i < kGroupSplits; ++i) {
    w.of_split[i] = weight_of(sums_of(i).x, sums_of(i).y, w.row_max, scale_log2);
    w.sum = __fadd_rn(w.sum, w.of_split[i]);
  }
  w.factor = w.sum == 0.0f ? 0.0f : rcp_approx(w.sum);
  return w;
}

// o_of(i): two columns of split i, read one after the other for few registers.
template <class ReadSums, class ReadO>
__device__ __forceinline__ Partial<2> merge_group(float scale_log2, const ReadSums& sums_of,
                                                  const ReadO& o_of) {
  const GroupWeights w = group_weights(scale_log2, sums_of);
  Partial<2> all{w.row_max, w.sum};
#pragma unroll
  for (int i = 0; i < kGroupSplits; ++i) {
    const float2 o = o_of(i);
    const float weight = __fmul_rn(w.of_split[i], w.factor);
    all.o[0] = fmaf(o.x, weight, all.o[0]);
    all.o[1] = fmaf(o.y, weight, all.o[1]);
  }
  return all;
}

// `next` has the keys after those of `all`. append_parts() computes the same for many parts.
template <int kColumns>
__device__ __forceinline__ void append(Partial<kColumns>& all, const Partial<kColumns>& next,
                                       float scale_log2) {
  if (next.sum == 0.0f) return;  // not for NaN
  if (all.sum == 0.0f) {
    all = next;
    return;
  }
  const float top = fmaxf(all.row_max, next.row_max);
  const float before = weight_of(all.row_max, all.sum, top, scale_log2);
  const float after = weight_of(next.row_max, next.sum, top, scale_log2);
  const float sum = __fadd_rn(before, after), factor = rcp_approx(sum);
  const float keep = __fmul_rn(before, factor), add = __fmul_rn(after, factor);
  all.row_max = top;
  all.sum = sum;
#pragma unroll
  for (int i = 0; i < kColumns; ++i) all.o[i] = fmaf(next.o[i], add, __fmul_rn(all.o[i], keep));
}

// Appends kPartsAtOnce partial results: lane i has (maximum, sum) of result i, and all lanes have
// some columns of every result. The maxima and factors are computed in parallel; only the sums are
// sequential. `smem`: kPartsAtOnce pairs of the warp.
template <int kColumns>
__device__ __forceinline__ void append_parts(Partial<kColumns>& all, float2 sums,
                                             const float (&o)[kPartsAtOnce][kColumns],
                                             float scale_log2, u32 smem, int lane) {
  constexpr unsigned kAll = 0xffffffffu;
  const auto share = [&](float x, float y) {  // broadcasts the lanes' pairs
    __syncwarp();
    if (lane < kPartsAtOnce) {
      store_shared(smem + 8 * static_cast<u32>(lane), __float_as_uint(x));
      store_shared(smem + 8 * static_cast<u32>(lane) + 4, __float_as_uint(y));
    }
    __syncwarp();
  };
  const auto shared = [&](int i) { return load_shared2(smem + 8 * static_cast<u32>(i)); };
  float top = sums.x;
#pragma unroll
  for (int step = 1; step < kPartsAtOnce; step *= 2) {
    const float below = __shfl_up_sync(kAll, top, step);
    top = lane >= step ? fmaxf(top, below) : top;
  }
  top = fmaxf(top, all.row_max);
  const float above = __shfl_up_sync(kAll, top, 1);
  const float top_before = lane == 0 ? all.row_max : above;
  const float after = weight_of(sums.x, sums.y, top, scale_log2);
  share(rescale_factor(top_before, top, scale_log2), after);
  float sum_before = 0.0f, before = 0.0f, sum = 0.0f;  // of the lane's result
#pragma unroll
  for (int i = 0; i < kPartsAtOnce; ++i) {
    const float2 factors = shared(i);
    const float rescaled = __fmul_rn(all.sum, factors.x), next = __fadd_rn(rescaled, factors.y);
    sum_before = lane == i ? all.sum : sum_before;
    before = lane == i ? rescaled : before;
    sum = lane == i ? next : sum;
    all.sum = next;
  }
  all.row_max = __shfl_sync(kAll, top, kPartsAtOnce - 1);
  const float factor = rcp_approx(sum);
  const bool is_empty = sums.y == 0.0f, is_first = sum_before == 0.0f;  // false for NaN
  share(is_empty   ? 1.0f
        : is_first ? 0.0f
                   : __fmul_rn(before, factor),
        is_empty   ? 0.0f
        : is_first ? 1.0f
                   : __fmul_rn(after, factor));
#pragma unroll
  for (int i = 0; i < kPartsAtOnce; ++i) {
    const float2 factors = shared(i);
#pragma unroll
    for (int j = 0; j < kColumns; ++j)
      all.o[j] = fmaf(o[i][j], factors.y, __fmul_rn(all.o[j], factors.x));
  }
}

// Writes columns from d on of a complete row.
template <class Element, int kColumns>
__device__ __forceinline__ void write_row(const Params& p, const SinkArgs& sinks, const Item& item,
                                          int row, int d, const Partial<kColumns>& x) {
  const int q_idx = p.by_group.divide(row), head = item.kv_head * p.group + row - q_idx * p.group;
  const RowEpilogue end =
      row_epilogue(sinks, 1.0f, head, fmaf(x.row_max, p.scale_log2, -kPShift<Element>), x.sum,
                   x.row_max * p.scale);
  if (d == 0) store_lse(p.row_args.lse, item.batch_idx, head, item.row_q + q_idx, end.lse);
  if (d >= p.sizes.head_dim_v) return;
  const float factor = end.factor * x.sum;  // 1 without a sink
  auto* out = static_cast<typename Element::Stored*>(p.out.data) +
              row_offset(p.out, item.batch_idx, item.row_q + q_idx, head) + d;
  // Adding +0 turns -0 into +0.
#pragma unroll
  for (int i = 0; i < kColumns; i += 2)
    reinterpret_cast<u32*>(out)[i / 2] =
        Element::pack(fmaf(x.o[i], factor, 0.0f), fmaf(x.o[i + 1], factor, 0.0f));
}

template <class Element, int kColumns>
__device__ __forceinline__ void write_row(const Params& p, const Item& item, int row, int d,
                                          const Partial<kColumns>& x) {
  write_row<Element>(p, p.row_args.sinks, item, row, d, x);
}

// ---- in the workspace

struct PartialRow {
  float* o;
  RowSums* sums;
};
template <int kDim>
__device__ __forceinline__ PartialRow partial_row(const Params& p, int slot, int row) {
  const std::int64_t at = static_cast<std::int64_t>(slot) * p.rows + row;
  return {p.o_partial + at * kDim, p.row_sums + at};
}
__device__ __forceinline__ void store_row_sums(RowSums* to, float row_max, float sum) {
  __stcg(reinterpret_cast<float2*>(to), float2{row_max, sum});
}
template <int kDim, int kColumns>
__device__ __forceinline__ void store_partial(const Params& p, int slot, int row, int d,
                                              const Partial<kColumns>& x) {
  const PartialRow to = partial_row<kDim>(p, slot, row);
#pragma unroll
  for (int i = 0; i < kColumns; i += 2)
    __stcg(reinterpret_cast<float2*>(to.o + d + i), float2{x.o[i], x.o[i + 1]});
  if (d == 0) store_row_sums(to.sums, x.row_max, x.sum);
}

template <int kDim, int kColumns>
__device__ __forceinline__ Partial<kColumns> load_partial(const Params& p, int slot, int row,
                                                          int d) {
  const PartialRow from = partial_row<kDim>(p, slot, row);
  const float2 sums = __ldcg(reinterpret_cast<const float2*>(from.sums));
  Partial<kColumns> x{sums.x, sums.y};
#pragma unroll
  for (int i = 0; i < kColumns; i += 2) {
    const float2 o = __ldcg(reinterpret_cast<const float2*>(from.o + d + i));
    x.o[i] = o.x, x.o[i + 1] = o.y;
  }
  return x;
}

// What a head has summed of a shared prefix: its whole chunks, and the groups behind them. It is
// complete when the kernel before is: items begin beside that.
inline constexpr int kNoState = -1, kWholeChunks = 0, kOpenChunk = 1;
template <int kDim, int kColumns>
__device__ __forceinline__ Partial<kColumns> load_state(const Params& p, const Item& item,
                                                        int state, int row, int d) {
  const int slot = p.prefix.state_slot(p.batch * p.num_kv_heads, item.head_idx(p), state);
  griddep_wait();
  return load_partial<kDim, kColumns>(p, slot, row, d);
}
// `chunk` becomes the whole chunks of the prefix and itself.
template <int kDim, int kColumns>
__device__ __forceinline__ void append_to_chunks(const Params& p, const Item& item, int row, int d,
                                                 Partial<kColumns>& chunk) {
  auto all = load_state<kDim, kColumns>(p, item, kWholeChunks, row, d);
  append(all, chunk, p.scale_log2);
  chunk = all;
}

// Partial results of a head that are appended: result i is in slot first + max(offset + step * i,
// 0).
struct Parts {
  int first, offset, step, count;
  __device__ int slot(int i) const { return first + max(offset + step * i, 0); }
};

// Appends the parts of a row to `all`, one warp: each lane has the columns from d on.
template <int kDim, int kColumns>
__device__ __forceinline__ void append_slots(const Params& p, const Parts& parts, int row, int d,
                                             u32 smem, int lane, Partial<kColumns>& all) {
#pragma unroll 1
  for (int first = 0; first < parts.count; first += kPartsAtOnce) {
    float2 sums = {-HUGE_VALF, 0.0f};
    if (lane < min(kPartsAtOnce, parts.count - first))
      sums = __ldcg(reinterpret_cast<const float2*>(
          partial_row<kDim>(p, parts.slot(first + lane), row).sums));
    float o[kPartsAtOnce][kColumns] = {};
#pragma unroll
    for (int i = 0; i < kPartsAtOnce; ++i) {
      if (first + i >= parts.count) continue;
      const float* from = partial_row<kDim>(p, parts.slot(first + i), row).o + d;
      if constexpr (kColumns == 4) {
        const float4 x = __ldcg(reinterpret_cast<const float4*>(from));
        o[i][0] = x.x, o[i][1] = x.y, o[i][2] = x.z, o[i][3] = x.w;
      } else {
        const float2 x = __ldcg(reinterpret_cast<const float2*>(from));
        o[i][0] = x.x, o[i][1] = x.y;
      }
    }
    append_parts(all, sums, o, p.scale_log2, smem, lane);
  }
}

// Appends `count` groups of a row, as chunks.
template <class Read>
__device__ __forceinline__ Partial<2> append_groups(int first_group, int count, float scale_log2,
                                                    const Read& read) {
  Partial<2> chunk, all;
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    append(chunk, read(i), scale_log2);
    if ((first_group + i) % kChunkGroups != kChunkGroups - 1) continue;
    append(all, chunk, scale_log2);
    chunk = {};
  }
  append(all, chunk, scale_log2);
  return all;
}

}  // namespace headrace::cuda::sm90::decode
