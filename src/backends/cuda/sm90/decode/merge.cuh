// Partial results of a row and their sums, always in the order of keys: eight splits are a group,
// four groups a chunk, and chunks follow each other. A part without a visible key changes nothing,
// to the bit, so parts that no row sees may as well be absent.
#pragma once

#include "backends/cuda/common/row_epilogue.cuh"
#include "backends/cuda/sm90/decode/softmax.cuh"

namespace headrace::cuda::sm90::decode {

// Two neighbouring columns of a row.
struct Partial {
  float row_max = -HUGE_VALF;  // before the scale
  float sum = 0.0f;            // of P, in units of kPShift
  float2 o = {0.0f, 0.0f};     // mean of the values
};

__device__ __forceinline__ float weight_of(float row_max, float sum, float top, float scale_log2) {
  return sum * (row_max == -HUGE_VALF ? 0.0f : ex2_approx_ftz((row_max - top) * scale_log2));
}

// `sums`: of the splits; o_of(i): split i's two columns, read one after the other for few
// registers.
template <class ReadO>
__device__ __forceinline__ Partial merge_group(const float2 (&sums)[kGroupSplits], float scale_log2,
                                               const ReadO& o_of) {
  Partial all;
#pragma unroll
  for (int i = 0; i < kGroupSplits; ++i) all.row_max = fmaxf(all.row_max, sums[i].x);
  float weights[kGroupSplits];
#pragma unroll
  for (int i = 0; i < kGroupSplits; ++i)
    all.sum += weights[i] = weight_of(sums[i].x, sums[i].y, all.row_max, scale_log2);
  const float factor = all.sum == 0.0f ? 0.0f : rcp_approx(all.sum);
#pragma unroll
  for (int i = 0; i < kGroupSplits; ++i) {
    const float2 o = o_of(i);
    all.o.x = fmaf(o.x, weights[i] * factor, all.o.x);
    all.o.y = fmaf(o.y, weights[i] * factor, all.o.y);
  }
  return all;
}

// `next` follows `all`.
__device__ __forceinline__ void append(Partial& all, const Partial& next, float scale_log2) {
  if (next.sum == 0.0f) return;  // NaN is not
  if (all.sum == 0.0f) {
    all = next;
    return;
  }
  const float top = fmaxf(all.row_max, next.row_max);
  const float before = weight_of(all.row_max, all.sum, top, scale_log2);
  const float after = weight_of(next.row_max, next.sum, top, scale_log2);
  const float sum = before + after, factor = rcp_approx(sum);
  all.row_max = top;
  all.sum = sum;
  all.o.x = fmaf(next.o.x, after * factor, all.o.x * (before * factor));
  all.o.y = fmaf(next.o.y, after * factor, all.o.y * (before * factor));
}

// Which part of the problem an item is.
struct Item {
  int batch_idx, kv_head;
  int first;  // split or run, counted from key 0
  __device__ int head_idx(const Params& p) const { return batch_idx * p.num_kv_heads + kv_head; }
};
__device__ __forceinline__ Item item_of(const Params& p, int id) {
  const int rest = id / p.num_kv_heads, batch_idx = rest / p.work.items_per_head;
  return {batch_idx, id - rest * p.num_kv_heads,
          p.work.first_item + rest - batch_idx * p.work.items_per_head};
}

// Writes columns d and d + 1 of a row that is complete.
template <class Element>
__device__ __forceinline__ void write_row(const Params& p, const Item& item, int row, int d,
                                          const Partial& x) {
  const int q_idx = row / p.group, head = item.kv_head * p.group + row - q_idx * p.group;
  const RowEpilogue end = row_epilogue(p.problem, p.args, p.score_params, head,
                                       fmaf(x.row_max, p.scale_log2, -kPShift<Element>), x.sum,
                                       x.row_max * p.score_params.scale);
  if (d == 0) store_lse(p.args.lse, item.batch_idx, head, q_idx, end.lse);
  if (d >= p.problem.head_dim_v) return;
  const float factor = end.factor * x.sum;  // 1, but beside a sink
  auto* out = static_cast<typename Element::Stored*>(p.args.out.data) +
              row_offset(p.args.out, item.batch_idx, q_idx, head) + d;
  // Adding +0 gives an exact zero one sign.
  *reinterpret_cast<u32*>(out) =
      Element::pack(fmaf(x.o.x, factor, 0.0f), fmaf(x.o.y, factor, 0.0f));
}

// ---- in the workspace

struct PartialRow {
  float* o;
  RowSums* sums;
};
// Of partial result `idx`, counted from key 0; `copy` is that of (maximum, sum).
template <int kDim>
__device__ __forceinline__ PartialRow partial_row(const Params& p, const Item& item, int idx,
                                                  int row, int copy) {
  const std::int64_t at = (static_cast<std::int64_t>(item.head_idx(p)) * p.work.partials_per_head +
                           idx - p.work.first_partial) *
                              p.rows +
                          row;
  return {p.o_partial + at * kDim, p.row_sums + at * p.copies + copy};
}
__device__ __forceinline__ void store_row_sums(RowSums* to, float row_max, float sum) {
  __stcg(reinterpret_cast<float2*>(to), float2{row_max, sum});
}
template <int kDim>
__device__ __forceinline__ void store_partial(const Params& p, const Item& item, int idx, int row,
                                              int d, const Partial& x) {
  const PartialRow to = partial_row<kDim>(p, item, idx, row, 0);
  __stcg(reinterpret_cast<float2*>(to.o + d), x.o);
  if (d == 0) store_row_sums(to.sums, x.row_max, x.sum);
}

// Eight partial results from `first` on: loads of all are in flight together. Those outside of the
// head's are empty.
template <int kDim>
__device__ __forceinline__ void load_partials(const Params& p, const Item& item, int first, int row,
                                              int d, int copy, float2 (&sums)[kGroupSplits],
                                              float2 (&o)[kGroupSplits]) {
  const int begin = p.work.first_partial, end = begin + p.work.partials_per_head;
#pragma unroll
  for (int i = 0; i < kGroupSplits; ++i) {
    const int idx = first + i;
    if (idx < begin || idx >= end) {
      sums[i] = {-HUGE_VALF, 0.0f};
      o[i] = {0.0f, 0.0f};
      continue;
    }
    const PartialRow from = partial_row<kDim>(p, item, idx, row, copy);
    o[i] = __ldcg(reinterpret_cast<const float2*>(from.o + d));
    sums[i] = __ldcg(reinterpret_cast<const float2*>(from.sums));
  }
}

// All partial results of a head become rows: the same sums, in the same order, whatever the kind.
template <class V>
__device__ __forceinline__ void merge_partials(const Params& p, const Item& item, int row, int d,
                                               int copy) {
  const WorkPlan& work = p.work;
  const int end = work.first_partial + work.partials_per_head;
  float2 sums[kGroupSplits] = {}, o[kGroupSplits] = {};
  Partial chunk, all;
  const auto part = [&](int i) { return Partial{sums[i].x, sums[i].y, o[i]}; };
  const auto end_chunk = [&] {
    append(all, chunk, p.scale_log2);
    chunk = {};
  };
  for (int first = work.first_partial / kGroupSplits * kGroupSplits; first < end;
       first += kGroupSplits) {
    load_partials<V::kDim>(p, item, first, row, d, copy, sums, o);
    if constexpr (V::kKind == ItemKind::split) {
      append(chunk, merge_group(sums, p.scale_log2, [&](int i) { return o[i]; }), p.scale_log2);
      if (first / kGroupSplits % kChunkGroups == kChunkGroups - 1) end_chunk();
    } else if (work.partial_kind == PartialKind::group) {
#pragma unroll
      for (int i = 0; i < kGroupSplits; ++i) {
        append(chunk, part(i), p.scale_log2);
        if (i % kChunkGroups == kChunkGroups - 1) end_chunk();
      }
    } else {
#pragma unroll
      for (int i = 0; i < kGroupSplits; ++i) append(all, part(i), p.scale_log2);
    }
  }
  end_chunk();
  write_row<typename V::Element>(p, item, row, d, all);
}

}  // namespace headrace::cuda::sm90::decode
