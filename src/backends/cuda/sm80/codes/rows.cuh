// The rows of a warp of the kernels for codes: where they stand in their sequence, what they have
// summed so far, and the recent keys of their own group, which are not quantised.
//
//   S^T = K Q^T      A: 16 keys x 16 elements, B: 8 columns
//   O^T = V^T P^T    A: 16 elements of V x 16 keys
//
// A lane is g = lane / 4, c = lane % 4. It has columns 2 c and 2 c + 1 of S^T and O^T.
#pragma once

#include "backends/cuda/common/element.cuh"
#include "backends/cuda/common/lengths.cuh"
#include "backends/cuda/sm80/codes/formats.cuh"
#include "backends/cuda/sm80/codes/params.h"

namespace headrace::cuda::sm80::codes {

// The transpose of an 8 x 8 matrix of 16-bit elements.
__device__ __forceinline__ u32 movmatrix_trans(u32 x) {
  u32 y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}
__device__ __forceinline__ float lg2_approx_ftz(float x) {
  asm("lg2.approx.ftz.f32 %0, %0;" : "+f"(x));
  return x;
}

// The lane and the thread, read anew: what follows from them is computed again where it is needed,
// instead of kept in registers, which the sums of a warp fill.
__device__ __forceinline__ int lane_again() {
  int lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}

__device__ __forceinline__ int thread_again() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

// The address of an object in shared memory, by a warp. It stays in a register: ptxas computes
// addresses anew for each use, with reads of special registers, but not what a shuffle returned.
__device__ __forceinline__ u32 kept_address(const void* p) {
  return __shfl_sync(0xffffffffu, smem_address(p), static_cast<int>(threadIdx.x) % 32);
}

template <int kWords>
__device__ __forceinline__ void load_words(const void* from, u32* to) {
  if constexpr (kWords == 1) {
    to[0] = *static_cast<const u32*>(from);
  } else if constexpr (kWords == 2) {
    const uint2 x = *static_cast<const uint2*>(from);
    to[0] = x.x;
    to[1] = x.y;
  } else {
    static_assert(kWords == 4);
    const uint4 x = *static_cast<const uint4*>(from);
    to[0] = x.x;
    to[1] = x.y;
    to[2] = x.z;
    to[3] = x.w;
  }
}

// Where the rows of a tile stand in their sequence.
struct Tile {
  std::int64_t batch_idx;
  Sequence sequence;
  int kv_head, first_row, num_rows;  // rows: query * group + head of the group
};

struct Weights {
  u32 b0, b1;  // P^T as B operand
};

// Where a block of keys lies. Page 0 if it cannot be read.
struct Place {
  u32 page, slot;
  bool is_readable;

  // `at`: an offset in a page, of its first slot.
  __device__ const std::byte* in(const PageRows& x, int at) const { return row(x, slot, at); }
  // Of rows of groups of keys.
  __device__ const std::byte* in_groups(const PageRows& x, int at, u32 group) const {
    return row(x, slot / group, at);
  }

 private:
  __device__ const std::byte* row(const PageRows& x, u32 idx, int at) const {
    return x.data + std::uint64_t{page} * x.stride_page +
           (static_cast<int>(idx) * x.stride_slot + at);
  }
};

struct Keys {
  int first, end;  // [first, end)
};

// What the warps of a CTA have in common, in shared memory: their sums fill the registers.
template <int kDim>
struct Common {
  LaneOffsets offsets[32];
  alignas(16) u32 queries[kDim / 32][32][4];  // Q as B operand: a lane's words, four at a time
  float4 factors[32];                         // of a lane's columns
  Keys keys;                                  // of which the CTA reads codes
  Keys seen_by_all;                           // codes that every row sees

  __device__ bool all_see(int first, int num_keys) const {
    return first >= seen_by_all.first && first + num_keys <= seen_by_all.end;
  }
};

// The pages of the blocks of a warp, which are kWarps apart: lane i has that of the i-th part, and
// its slot there. Parts without keys of the warp have no page and are not read: they are those of
// page 0.
template <int kPartKeys, int kParts>
struct PagesOfWarp {
  static constexpr int kBlocks = 32 / kParts;  // of which the lanes have the pages
  int first, page_of_lane;
  u32 slot_of_lane;

  __device__ void find(const Params& p, const Tile& tile, int block, const Keys& keys) {
    first = block;
    page_of_lane = 0;
    slot_of_lane = 0;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int key = ((block + lane / kParts * kWarps) * kParts + lane % kParts) * kPartKeys;
    if (key >= keys.end || key + kPartKeys <= keys.first) return;
    slot_of_lane = static_cast<u32>(key - p.pages.by_page_size.divide(key) * p.pages.page_size);
    page_of_lane = p.pages.page_of(tile.batch_idx, static_cast<int>(tile.sequence.row_k), key);
    if (page_of_lane >= 0 && page_of_lane < p.pages.num_pages) return;
    report_length_error(p.lengths.error_word, LengthError::block_table, tile.batch_idx);
    page_of_lane = -1;
  }
  __device__ bool has(int block) const { return at(block) < kBlocks; }
  // By all lanes, which may ask for different parts.
  __device__ Place place_of(int block, int part) const {
    const int lane = at(block) * kParts + part;
    const int page = __shfl_sync(0xffffffffu, page_of_lane, lane);
    const u32 slot = __shfl_sync(0xffffffffu, slot_of_lane, lane);
    return {static_cast<u32>(max(page, 0)), slot, page >= 0};
  }

 private:
  __device__ int at(int block) const {
    return static_cast<int>(static_cast<u32>(block - first) / kWarps);
  }
};

// kUnit: elements of V that follow each other in a lane, in tiles of two (O^T has them in rows g
// and g + 8); kCopies: columns that each row has.
template <class Element, int kDim, int kUnit, int kCopies, int kGroup>
struct Rows {
  static constexpr int kValueTiles = kDim / 16;
  static constexpr int kLaneRows = 2 / kCopies;  // rows of a lane
  static constexpr int kUnitTiles = kUnit / 2;
  // The largest weight so far is 2^7 when a reference moves, and 2^15 before it must, so that most
  // blocks move none. Weights down to 2^-21 of the largest are normal numbers of f16.
  static constexpr float kUsualLog2 = 7, kMostLog2 = 15;

  const Params& p;
  const Tile& tile;
  const int lane, g, c;
  int position[kLaneRows];                     // diagonal keys
  float reference[kLaneRows], sum[kLaneRows];  // sums of this lane's keys
  float o[kValueTiles][4];

  __device__ Rows(const Params& params, const Tile& of)
      : p(params), tile(of), lane(static_cast<int>(threadIdx.x) % 32), g(lane / 4), c(lane % 4) {
    for (int i = 0; i < kLaneRows; ++i) position[i] = position_of(c * kLaneRows + i);
  }

  // The element of V or O in row g of a tile; that of row g + 8 follows.
  static __device__ int element_of(int tile_idx, int g) {
    return tile_idx / kUnitTiles * 8 * kUnit + g * kUnit + 2 * (tile_idx % kUnitTiles);
  }
  __device__ int query_of(int row) const { return p.by_group.divide(tile.first_row + row); }
  __device__ int position_of(int row) const {
    return query_of(row) + static_cast<int>(tile.sequence.seqlen_k - tile.sequence.seqlen_q);
  }
  __device__ const typename Element::Stored* query_row(int row) const {
    const int query = query_of(row), head = tile.first_row + row - query * p.group;
    return static_cast<const typename Element::Stored*>(p.q.data) +
           row_offset(p.q, tile.batch_idx, tile.sequence.row_q + query,
                      std::int64_t{tile.kv_head} * p.group + head);
  }
  __device__ int offset_of(const PageRows& x, int slot) const {
    return slot * x.stride_slot + tile.kv_head * x.stride_head;
  }
  // The row of column g, of which a B operand of Q needs elements.
  __device__ bool has_column() const { return g / kCopies < tile.num_rows; }
  __device__ const typename Element::Stored* column_row() const {
    return query_row(has_column() ? g / kCopies : 0);
  }

  // Of the largest element of the row of column g, of whose elements this lane has a quarter.
  __device__ int exponent_of_column(float top) const {
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
    return top > 0 && top < HUGE_VALF ? ilogbf(top) : 0;
  }
  // Scores in the log2 domain are products times 2^exponent, that of column g, times the scale.
  __device__ void score_factors(int exponent, float (&to)[kLaneRows]) const {
    const float factor = ldexpf(p.scale_log2, min(exponent, 127));
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i)
      to[i] = __shfl_sync(0xffffffffu, factor, 4 * (2 * c + i * kCopies));
  }

  // Codes that the row of a position sees.
  __device__ int begin_of(int at) const {
    return p.window_left < 0 ? 0 : max(at - p.window_left, 0);
  }
  __device__ int end_of(int at) const {
    return p.k_recent.data == nullptr ? at + 1 : (at < 0 ? 0 : at / kGroup * kGroup);
  }
  __device__ bool sees(int i, int key) const {
    return key >= begin_of(position[i]) && key < end_of(position[i]);
  }
  // The last row sees the most keys.
  __device__ Keys seen_by_any() const {
    return {begin_of(position_of(0)), end_of(position_of(tile.num_rows - 1))};
  }
  __device__ Keys seen_by_all() const {
    return {begin_of(position_of(tile.num_rows - 1)), end_of(position_of(0))};
  }

  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i) {
      reference[i] = -HUGE_VALF;
      sum[i] = 0;
    }
#pragma unroll
    for (auto& of_tile : o)
      for (float& x : of_tile) x = 0;
  }

  // Moves the references of rows whose weights times scales of V could exceed f16: log2 of the
  // largest is `top`. Each row by its own alone. `rescale` multiplies what else depends on one.
  template <class Rescale>
  __device__ __forceinline__ void follow(const float (&top)[kLaneRows], const Rescale& rescale) {
    bool is_larger = false;
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i) is_larger |= top[i] > reference[i] + kMostLog2;
    if (!__any_sync(0xffffffffu, is_larger)) return;
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i) {
      float most = top[i];
#pragma unroll
      for (int mask = 4; mask < 32; mask *= 2)
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, mask));
      if (!(most > reference[i] + kMostLog2)) continue;
      const float after = most - kUsualLog2;
      const float factor = ex2_approx_ftz(reference[i] - after);
      reference[i] = after;
      sum[i] *= factor;
      rescale(i, factor);
#pragma unroll
      for (auto& of_tile : o) {
#pragma unroll
        for (int column = i; column < 2; column += kLaneRows) {
          of_tile[column] *= factor;
          of_tile[column + 2] *= factor;
        }
      }
    }
  }
  __device__ __forceinline__ float weight(int i, float score) {
    const float w = ex2_approx_ftz(score - (reference[i] == -HUGE_VALF ? 0.0f : reference[i]));
    sum[i] += w;
    return w;
  }

  // The recent keys of positions [begin, end), in blocks of 16 of which this warp has some.
  __device__ void add_recent(int begin, int end, int warp) {
    if (p.k_recent.data == nullptr) return;
    const int first = max(end_of(position_of(0)), begin) / kBlockKeys;
    const int last = min(position_of(tile.num_rows - 1) + 1, end);
    for (int block = first; block * kBlockKeys < last; ++block)
      if (block % kWarps == warp) add_recent_block(block * kBlockKeys);
  }

  // piece(i) has rows i * kPieceRows and the following ones.
  template <int kPieceRows, class Piece>
  __device__ void store(const Piece& piece) {
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i) {
#pragma unroll
      for (int mask = 4; mask < 32; mask *= 2) sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], mask);
      const int own = c * kLaneRows + i;
      auto& to = piece(own / kPieceRows);
      const int row = own % kPieceRows;
      if (g == 0) {
        to.reference[row] = reference[i];
        to.sum[row] = sum[i];
      }
#pragma unroll
      for (int j = 0; j < kValueTiles; ++j) {
        // Of two copies the one of this lane's groups of V (zero_points.cuh).
        const bool is_second = kCopies == 2 ? g >= 4 : i == 1;
        *reinterpret_cast<float2*>(to.o[row] + element_of(j, g)) =
            is_second ? make_float2(o[j][1], o[j][3]) : make_float2(o[j][0], o[j][2]);
      }
    }
  }

 private:
  // Elements of the dtype of q, and no scales.
  __device__ void add_recent_block(int first_key) {
    const int first_group = max(position_of_query(0), 0) / kGroup;
    const int entry = first_key / kGroup - first_group;
    const int page =
        entry < p.max_recent ? p.recent_table[tile.batch_idx * p.stride_recent_table + entry] : -1;
    if (page < 0 || page >= p.num_recent_pages) {
      report_length_error(p.lengths.error_word, LengthError::block_table, tile.batch_idx);
      return;
    }
    using Stored = typename Element::Stored;
    const auto rows = [&](const Operand& x) {
      return static_cast<const Stored*>(x.data) + page * x.stride_batch +
             tile.kv_head * x.stride_head + first_key % kGroup * x.stride_seq;
    };
    float s[4] = {};
    const int again = lane_again();
    const Stored* k = rows(p.k_recent) + again / 4 * p.k_recent.stride_seq + again % 4 * (kDim / 4);
    const Stored* q = column_row() + again % 4 * (kDim / 4);
#pragma unroll 4  // all eight would take more registers than there are
    for (int step = 0; step < kDim / 16; ++step) {
      u32 low[2], high[2], b[2];
      load_words<2>(k + 4 * step, low);
      load_words<2>(k + 8 * p.k_recent.stride_seq + 4 * step, high);
      load_words<2>(q + 4 * step, b);
      const u32 a[4] = {low[0], high[0], low[1], high[1]};
      Element::mma(s, a, has_column() ? b[0] : 0, has_column() ? b[1] : 0);
    }
    float score[2][kLaneRows], top[kLaneRows];
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int key = first_key + again / 4 + 8 * r, at = position[i];
        const bool is_seen = key >= begin_of(at) && key <= at && at / kGroup == key / kGroup;
        score[r][i] = is_seen ? s[2 * r + i * kCopies] * p.scale_log2 : -HUGE_VALF;
      }
      top[i] = fmaxf(score[0][i], score[1][i]);
    }
    follow(top, [](int, float) {});
    u32 packed[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float w[kLaneRows];
#pragma unroll
      for (int i = 0; i < kLaneRows; ++i) w[i] = weight(i, score[r][i]);
      packed[r] = movmatrix_trans(Element::pack(w[0], w[kLaneRows - 1]));
    }
    add_recent_values(rows(p.v_recent), first_key, {packed[0], packed[1]});
  }
  __device__ void add_recent_values(const typename Element::Stored* rows, int first_key,
                                    const Weights& w) {
    // Slots behind the last key may hold anything: 0 * NaN is NaN.
    const int num_keys = static_cast<int>(tile.sequence.seqlen_k) - first_key;
    const int again = lane_again();
    constexpr int kLoaded = kUnitTiles < 4 ? kUnitTiles : 4;  // tiles, by one load of each key
#pragma unroll
    for (int first = 0; first < kValueTiles; first += kLoaded) {
      u32 v[4][kLoaded];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = 2 * (again % 4) + i % 2 + i / 2 * 8;  // a weight of the B operand
        load_words<kLoaded>(rows + key * p.v_recent.stride_seq + element_of(first, again / 4),
                            v[i]);
#pragma unroll
        for (u32& word : v[i]) word = key < num_keys ? word : 0;
      }
#pragma unroll
      for (int j = 0; j < kLoaded; ++j) {
        const u32 a[4] = {
            __byte_perm(v[0][j], v[1][j], 0x5410), __byte_perm(v[0][j], v[1][j], 0x7632),
            __byte_perm(v[2][j], v[3][j], 0x5410), __byte_perm(v[2][j], v[3][j], 0x7632)};
        Element::mma(o[first + j], a, w.b0, w.b1);
      }
    }
  }
  __device__ int position_of_query(int query) const {
    return query + static_cast<int>(tile.sequence.seqlen_k - tile.sequence.seqlen_q);
  }
};

}  // namespace headrace::cuda::sm80::codes
