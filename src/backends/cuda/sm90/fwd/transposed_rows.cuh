// The rows of an item of the transposed kernel: where P of them lies in shared memory, and where
// their results go.
#pragma once

#include "backends/cuda/common/row_epilogue.cuh"
#include "backends/cuda/sm90/element.cuh"
#include "backends/cuda/sm90/fwd/transposed_items.cuh"

namespace headrace::cuda::sm90::fwd {

// What a thread has of S or O: of 64 keys or columns registers of kMine rows.
template <int kRows>
struct TransposedThread {
  static constexpr int kRegisters = kRows / 2, kMine = kRows / 4;

  // Which of its rows register i belongs to, and the register of a row, eight keys or columns on
  // with h = 1.
  static constexpr int mine_of(int i) { return i % kRegisters / 4 * 2 + i % 2; }
  static constexpr int register_of(int j, int h) { return j / 2 * 4 + h * 2 + j % 2; }
};

// Of a row of a split.
struct RowEnd {
  float factor, lse;  // factor: for O
  SplitWeight weight;
  bool overflows;
};

// Addresses. P has buffers for the k-block that is computed and the one to its right, or more; what
// warps exchange has two.
template <Tile kTile>
struct TransposedBuffers {
  static constexpr TransposedSmem kSmem = transposed_smem(kTile);
  static constexpr int kKeys = kTile.keys, kRows = kTile.transposed_rows;

  u32 smem;

  // With 16 rows halves of a key's rows change places every two keys, against bank conflicts.
  __device__ __forceinline__ u32 prob(int buffer, int key, int row) const {
    const int place = kRows == 16 ? row ^ (key >> 1 & 1) * 8 : row;
    return smem +
           static_cast<u32>(kSmem.offset_probs + ((buffer * kKeys + key) * kRows + place) * 4);
  }
  // O, [row][column], in the place of P. Pairs of rows exchange eights of columns, against
  // bank conflicts.
  __device__ __forceinline__ u32 staged(int row, int column) const {
    const int place = column ^ (row >> 1 & 3) * 8;
    return smem + static_cast<u32>(kSmem.offset_probs + (row * kTile.head_dim + place) * 4);
  }
  __device__ __forceinline__ u32 packed(int buffer) const {
    return smem + static_cast<u32>(kSmem.offset_packed + buffer * kKeys * kRows * 2);
  }
  __device__ __forceinline__ u32 exchange(int buffer, int i, int row) const {
    return smem + static_cast<u32>(kSmem.offset_exchange + ((buffer * 8 + i) * kRows + row) * 4);
  }
  __device__ __forceinline__ u32 row_sum(int warp, int row) const {
    return smem + static_cast<u32>(kSmem.offset_row_sums + (warp * kRows + row) * 4);
  }

  __device__ __forceinline__ float load_prob(int buffer, int key, int lane) const {
    return __uint_as_float(load_shared(prob(buffer, key, lane % kRows)));
  }
  // What thread `warp` of row lane % rows adds of a k-block, and the largest P.
  __device__ __forceinline__ float sum_of_probs(int buffer, int warp, int lane, float& max) const {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kKeys / 8; ++i) {
      const float x = load_prob(buffer, 8 * i + 2 * warp + lane / kRows % 2, lane);
      sum += x;
      max = fmaxf(max, x);
    }
    max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, kRows));
    return sum + __shfl_xor_sync(0xffffffffu, sum, kRows);
  }
};

// The rows of a thread, in the order of its registers, and last the one whose P it adds: row
// lane % rows, of keys 2 w and the next of each 8 in warp w.
template <int kRows>
__device__ __forceinline__ int row_of_thread(int j, int lane) {
  return j == TransposedThread<kRows>::kMine ? lane % kRows : 8 * (j / 2) + 2 * (lane & 3) + j % 2;
}

template <Tile kTile, class Element>
struct TransposedRows {
  static constexpr int kRows = kTile.transposed_rows;

  const Params& p;
  const SplitItem& item;

  __device__ __forceinline__ int query_of(int row) const {
    return row * p.tiles.pack_inverse >> 16;
  }
  __device__ __forceinline__ bool exists(int row) const {
    return row < p.tiles.group_queries * p.tiles.pack && query_of(row) < item.seqlen_q;
  }
  __device__ __forceinline__ bool has_splits() const { return p.splits.max_splits != 0; }
  __device__ __forceinline__ std::int64_t partial_row(int row) const {
    const std::int64_t head = std::int64_t{item.batch} * p.tiles.tile_heads + item.head;
    return (head * p.splits.max_splits + item.split) * p.splits.rows + row;
  }
  __device__ __forceinline__ int head_of(int row) const {
    return (item.head - query_of(row)) * p.tiles.pack + row;
  }
  __device__ __forceinline__ void write_lse(int row, float lse) const {
    store_lse(p.rows.lse, item.batch, head_of(row), item.row_q + query_of(row), lse);
  }
  __device__ __forceinline__ typename Element::Stored* out_address(int row) const {
    return static_cast<typename Element::Stored*>(p.out.data) +
           row_offset(p.out, p.sizes.is_ragged != 0 ? 0 : item.batch, item.row_q + query_of(row),
                      head_of(row));
  }

  // No row sees a key of the split. O of such a split is not read. By a warp.
  __device__ __forceinline__ void store_empty(int lane) const {
    const int columns = static_cast<int>(p.sizes.head_dim_v);
    for (int row = 0; row < kRows; ++row) {
      if (!exists(row)) continue;
      if (has_splits()) {
        if (lane == 0) p.splits.weights[partial_row(row)] = {-INFINITY, 0.0f};
        continue;
      }
      auto* to = reinterpret_cast<Chunk*>(out_address(row));
      if (lane < columns / 8) to[lane] = Chunk{};
      if (lane == 0) write_lse(row, -INFINITY);
    }
  }

  __device__ __forceinline__ void write_end(int row, const RowEnd& end) const {
    if (has_splits())
      p.splits.weights[partial_row(row)] = end.weight;
    else
      write_lse(row, end.lse);
  }
  // Eight means of the row, of a split in float. `staged`: O. Whether they are finite in the output
  // dtype.
  __device__ __forceinline__ bool write_chunk(u32 staged, int row, int chunk, float factor,
                                              bool is_written) const {
    Chunk halves[2], packed;
    u32 zero = 0;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      halves[h] = load_chunk(staged + static_cast<u32>(16 * h));
#pragma unroll
      for (u32& x : halves[h].words) x = __float_as_uint(__uint_as_float(x) * factor);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        u32& x = packed.words[2 * h + i];
        x = Element::pack(__uint_as_float(halves[h].words[2 * i]),
                          __uint_as_float(halves[h].words[2 * i + 1]));
        zero = Element::times_zero_plus(x, zero);
      }
    }
    if (!is_written || 8 * chunk >= p.sizes.head_dim_v) return zero == 0;
    if (has_splits()) {
      float* const to = p.splits.out + partial_row(row) * p.sizes.head_dim_v + 8 * chunk;
      reinterpret_cast<Chunk*>(to)[0] = halves[0];
      reinterpret_cast<Chunk*>(to)[1] = halves[1];
    } else {
      reinterpret_cast<Chunk*>(out_address(row))[chunk] = packed;
    }
    return zero == 0;
  }
};

}  // namespace headrace::cuda::sm90::fwd
