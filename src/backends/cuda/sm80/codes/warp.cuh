// The work of a warp of the kernel for codes (kernel.cuh): it streams blocks of 16 keys. Each lane
// copies the bytes that it multiplies itself, in the order of mma.sync's operands, through a ring
// of its own in shared memory, so that nothing is exchanged and no barrier is needed; the ring
// keeps the next blocks in flight.
//
//   S^T = K Q^T      A: 16 keys x 16 elements, B: 8 rows (queries x heads of a group)
//   O^T = V^T P^T    A: 16 elements of V x 16 keys; a lane's elements of O follow each other
//
// Codes are exact f16 numbers. The scale of a key multiplies its score, that of a value its weight:
// the reference of a row follows the largest score + log2 |scale of v|, so that weights * scale fit
// f16.
#pragma once

#include "backends/cuda/common/element.cuh"
#include "backends/cuda/common/lengths.cuh"
#include "backends/cuda/device/cp_async.cuh"
#include "backends/cuda/sm80/codes/formats.cuh"
#include "backends/cuda/sm80/codes/params.h"

namespace headrace::cuda::sm80::codes {

// The transpose of an 8 x 8 matrix of 16-bit elements.
__device__ __forceinline__ u32 movmatrix_trans(u32 x) {
  u32 y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
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

// The bytes of a lane in one block of keys.
template <int kDim, class Format>
struct Stage {
  static constexpr int kKeyBytes = kDim / 4 * Format::kBits / 8;    // of each of two keys
  static constexpr int kValueBytes = kDim / 8 * Format::kBits / 8;  // of each of four keys
  // K is copied in pieces of at most 16 bytes: piece i of a row has the parts of all four lanes.
  static constexpr int kPieceBytes = kKeyBytes < 16 ? kKeyBytes : 16;
  static constexpr int kPieces = kKeyBytes / kPieceBytes;
  // [piece][lane]: the lanes of an access, and those of a row of K, are neighbours.
  alignas(16) std::uint8_t k[2 * kPieces][32][kPieceBytes];
  // [key][value_slot()]
  alignas(16) std::uint8_t v[4][32][kValueBytes];
  float k_scale[2][32], v_scale[2][32];

  // The eight lanes of a row of V are neighbours, in an order in which eight lanes that follow each
  // other meet all banks.
  static __device__ __forceinline__ int value_slot(int g, int c) { return 8 * c + (g ^ (2 * c)); }
};

// kStages: of the ring.
template <class Element, int kDim, class Format, int kStages>
class Warp {
 public:
  static constexpr int kKeyElements = kDim / 4;    // of a key in a lane
  static constexpr int kValueElements = kDim / 8;  // of each of four keys in a lane
  using Ring = Stage<kDim, Format>;
  static constexpr int kKeyWords = Ring::kKeyBytes / 4;
  static constexpr int kValueWords = Ring::kValueBytes / 4;
  static constexpr int kSteps = kDim / 16;       // of the reduction of S
  static constexpr int kValueTiles = kDim / 16;  // of 16 elements of O^T
  static constexpr int kPieces = Ring::kPieces;
  static constexpr int kPieceWords = Ring::kPieceBytes / 4;
  static constexpr int kPieceElements = kKeyElements / kPieces;

  __device__ Warp(const Params& p, const Tile& tile, Ring* ring)
      : p_(p),
        tile_(tile),
        ring_(ring),
        lane_(static_cast<int>(threadIdx.x) % 32),
        g_(lane_ / 4),
        c_(lane_ % 4),
        value_slot_(Ring::value_slot(g_, c_)) {
    for (int i = 0; i < 2; ++i) position_[i] = position_of(2 * c_ + i);
    load_queries();
  }

  // Sums the blocks begin + first_block, + kWarps, ... of keys [begin, end) of codes.
  __device__ void add_blocks(int begin, int end, int first_block) {
    clear();
    const int first = begin / kBlockKeys, last = (end + kBlockKeys - 1) / kBlockKeys;
    const int mine = first + ((first_block - first) & (kWarps - 1));
    if (mine >= last) return;
    find_pages(mine, last);
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) fetch(mine + i * kWarps, last, i);
    int stage = 0;
    for (int block = mine; block < last; block += kWarps) {
      cp_async_wait_group<kStages - 2>();
      const Ring& from = ring_[stage];
      float s[4];
      multiply_keys(from, s);
      const Weights w = weights_of(from, s, block);
      multiply_values(from, block * kBlockKeys, w);
      // The stage of the block before this one has been read.
      const int free = stage == 0 ? kStages - 1 : stage - 1;
      fetch(block + (kStages - 1) * kWarps, last, free);
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    cp_async_wait_group<0>();
  }

  // The recent keys of the groups that begin in [begin, end) and belong to this warp.
  __device__ void add_recent(int begin, int end, int warp) {
    if (p_.k_recent.data == nullptr) return;
    const int first = max(group_of_row(0), begin / kBlockKeys);
    const int last = min(group_of_row(tile_.num_rows - 1) + 1, (end + kBlockKeys - 1) / kBlockKeys);
    for (int group = first; group < last; ++group)
      if (group % kWarps == warp) add_recent_group(group);
  }

  // [kTileRows][kDim] O, then the references and sums, of this warp.
  __device__ void store(float* o, float* reference, float* sum) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      for (int mask = 4; mask < 32; mask *= 2)
        sum_[i] += __shfl_xor_sync(0xffffffffu, sum_[i], mask);
      if (g_ == 0) {
        reference[2 * c_ + i] = reference_[i];
        sum[2 * c_ + i] = sum_[i];
      }
      float* row = o + (2 * c_ + i) * kDim + g_ * kValueElements;
      const float offset = Format::kValueOffset * weights_[i];
#pragma unroll
      for (int j = 0; j < kValueTiles; ++j)
        *reinterpret_cast<float2*>(row + 2 * j) =
            make_float2(o_[j][i] - offset, o_[j][i + 2] - offset);
    }
  }

 private:
  using Steps = KeySteps<Format>;
  struct Weights {
    u32 b0, b1;  // P^T as B operand
  };

  __device__ int query_of(int row) const { return p_.by_group.divide(tile_.first_row + row); }
  // The diagonal key of a row.
  __device__ int position_of(int row) const {
    return query_of(row) + static_cast<int>(tile_.sequence.seqlen_k - tile_.sequence.seqlen_q);
  }
  __device__ int group_of_row(int row) const {
    const int position = position_of(row);
    return position < 0 ? 0 : position / kBlockKeys;
  }
  // The key of row `g` of an A operand of K; that of row g + 8 is two later. A lane's four keys of
  // V, 4 c to 4 c + 3, are then its columns of P.
  __device__ int key_of_lane() const { return 4 * (g_ >> 1) + (g_ & 1); }
  __device__ const typename Element::Stored* query_row(int row) const {
    const int query = query_of(row), head = tile_.first_row + row - query * p_.group;
    return static_cast<const typename Element::Stored*>(p_.q.data) +
           row_offset(p_.q, tile_.batch_idx, tile_.sequence.row_q + query,
                      std::int64_t{tile_.kv_head} * p_.group + head);
  }

  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      reference_[i] = -HUGE_VALF;
      sum_[i] = 0;
    }
#pragma unroll
    for (auto& tile : o_)
      for (float& x : tile) x = 0;
    for (float& x : weights_) x = 0;
  }

  // Q as B operand, divided by a power of two so that its largest element is in [1, 2).
  __device__ void load_queries() {
    float x[kKeyElements];
    float top = 0;
    const bool exists = g_ < tile_.num_rows;
    const auto* row = query_row(exists ? g_ : 0) + c_ * kPieceElements;
#pragma unroll
    for (int i = 0; i < kKeyElements; i += 8) {
      const int piece = i / kPieceElements, in_piece = i % kPieceElements;
      alignas(16) typename Element::Stored elements[8];
      load_words<4>(row + piece * 4 * kPieceElements + in_piece, reinterpret_cast<u32*>(elements));
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        x[i + j] = exists ? load_real(elements, j) : 0.0f;
        top = fmaxf(top, fabsf(x[i + j]));
      }
    }
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
    const int exponent = top > 0 && top < HUGE_VALF ? ilogbf(top) : 0;
    const float factor = ldexpf(1.0f, -exponent);
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
#pragma unroll
      for (int half = 0; half < 2; ++half)
        q_[s][half] = cvt_rn_f16x2(x[Steps::element(s, 2 * half)] * factor,
                                   x[Steps::element(s, 2 * half + 1)] * factor);
    }
    const float back = ldexpf(p_.scale_log2, exponent);
#pragma unroll
    for (int i = 0; i < 2; ++i) score_factor_[i] = __shfl_sync(0xffffffffu, back, 4 * (2 * c_ + i));
  }

  // Lane i has the page of the i-th block of this warp.
  __device__ void find_pages(int block, int last) {
    const int mine = block + lane_ * kWarps;
    first_block_ = block;
    page_ = -1;
    if (mine >= last) return;
    const int page = p_.pages.by_page_size.divide(mine * kBlockKeys);
    page_ = p_.pages.block_table[tile_.batch_idx * p_.pages.stride_batch + page];
    if (page_ < 0 || page_ >= p_.pages.num_pages) {
      report_length_error(p_.lengths.error_word, LengthError::block_table, tile_.batch_idx);
      page_ = -1;
    }
  }

  __device__ bool is_readable(int block) const {
    return __shfl_sync(0xffffffffu, page_, (block - first_block_) / kWarps) >= 0;
  }

  // Starts the copies of a block, if there is one.
  __device__ void fetch(int block, int last, int stage) {
    if (block < last) {
      const int page = __shfl_sync(0xffffffffu, page_, (block - first_block_) / kWarps);
      const int key = block * kBlockKeys;
      const int slot = key - p_.pages.by_page_size.divide(key) * p_.pages.page_size;
      const std::int64_t at = max(page, 0);
      Ring& to = ring_[stage];
      const auto* k = static_cast<const std::uint8_t*>(p_.k.data) + at * p_.k.stride_batch +
                      tile_.kv_head * p_.k.stride_head + (slot + key_of_lane()) * p_.k.stride_seq +
                      c_ * Ring::kPieceBytes;
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int piece = 0; piece < kPieces; ++piece)
          cp_async<Ring::kPieceBytes>(smem_address(to.k[i * kPieces + piece][lane_]),
                                      k + 2 * i * p_.k.stride_seq + piece * 4 * Ring::kPieceBytes);
      const auto* v = static_cast<const std::uint8_t*>(p_.v.data) + at * p_.v.stride_batch +
                      tile_.kv_head * p_.v.stride_head + (slot + 4 * c_) * p_.v.stride_seq +
                      g_ * Ring::kValueBytes;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        cp_async<Ring::kValueBytes>(smem_address(to.v[i][value_slot_]), v + i * p_.v.stride_seq);
      fetch_scales(p_.k_scale, at, slot, to.k_scale);
      fetch_scales(p_.v_scale, at, slot, to.v_scale);
    }
    cp_async_commit_group();
  }
  __device__ void fetch_scales(const ScaleRows& x, std::int64_t page, int slot,
                               float (&to)[2][32]) {
    const float* from = x.data + page * x.stride_page + tile_.kv_head * x.stride_head +
                        (slot + key_of_lane()) * x.stride_slot;
#pragma unroll
    for (int i = 0; i < 2; ++i)
      cp_async<4>(smem_address(&to[i][lane_]), from + 2 * i * x.stride_slot);
  }

  // s: rows of keys key_of_lane() and + 2, columns 2 c and 2 c + 1.
  __device__ void multiply_keys(const Ring& from, float (&s)[4]) {
    u32 k[2][kKeyWords];
#pragma unroll
    for (int i = 0; i < 2 * kPieces; ++i)
      load_words<kPieceWords>(from.k[i][lane_], k[i / kPieces] + i % kPieces * kPieceWords);
    s[0] = s[1] = s[2] = s[3] = 0;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      u32 low[2], high[2];
      Steps::pairs(k[0], step, low);
      Steps::pairs(k[1], step, high);
      const u32 a[4] = {low[0], high[0], low[1], high[1]};
      mma_m16n8k16_f16(s, a, q_[step][0], q_[step][1]);
    }
  }

  // Whether a row sees a key as a code.
  __device__ bool sees(int position, int key) const {
    const int end = p_.k_recent.data == nullptr
                        ? position + 1
                        : (position < 0 ? 0 : position / kBlockKeys * kBlockKeys);
    const int begin = p_.window_left < 0 ? 0 : position - p_.window_left;
    return key >= begin && key < end;
  }

  __device__ Weights weights_of(const Ring& from, const float (&s)[4], int block) {
    float log2_scale[2], v_scale[2], score[4];
    const bool can_see = is_readable(block);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      v_scale[r] = from.v_scale[r][lane_];
      log2_scale[r] = __log2f(fmaxf(fabsf(v_scale[r]), 0x1p-100f));
      const float k_scale = from.k_scale[r][lane_];
      const int key = block * kBlockKeys + key_of_lane() + 2 * r;
#pragma unroll
      for (int i = 0; i < 2; ++i)
        score[2 * r + i] = can_see && sees(position_[i], key)
                               ? s[2 * r + i] * (k_scale * score_factor_[i])
                               : -HUGE_VALF;
    }
    return finish_weights<F16>(score, log2_scale, v_scale);
  }

  // Moves the references, rescales O and the sums, and returns the weights times the scales of V.
  template <class Number>
  __device__ Weights finish_weights(const float (&score)[4], const float (&log2_scale)[2],
                                    const float (&v_scale)[2]) {
    float shifted[4];
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int i = 0; i < 2; ++i) shifted[2 * r + i] = score[2 * r + i] + log2_scale[r];
    const bool is_larger = fmaxf(shifted[0], shifted[2]) > reference_[0] + kMostLog2 ||
                           fmaxf(shifted[1], shifted[3]) > reference_[1] + kMostLog2;
    if (__any_sync(0xffffffffu, is_larger)) move_references(shifted);
    float weight[4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float minus = reference_[i] == -HUGE_VALF ? 0.0f : reference_[i];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float p = ex2_approx_ftz(score[2 * r + i] - minus);
        sum_[i] += p;
        // Hidden keys have no scale: it may be NaN.
        weight[2 * r + i] = score[2 * r + i] == -HUGE_VALF ? 0.0f : p * v_scale[r];
      }
    }
    return {movmatrix_trans(Number::pack(weight[0], weight[1])),
            movmatrix_trans(Number::pack(weight[2], weight[3]))};
  }
  // Of each row by its own scores alone.
  __device__ __forceinline__ void move_references(const float (&shifted)[4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float top = fmaxf(shifted[i], shifted[2 + i]);
#pragma unroll
      for (int mask = 4; mask < 32; mask *= 2)
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, mask));
      if (!(top > reference_[i] + kMostLog2)) continue;
      const float after = top - kUsualLog2;
      const float factor = ex2_approx_ftz(reference_[i] - after);
      reference_[i] = after;
      sum_[i] *= factor;
      weights_[i] *= factor;
#pragma unroll
      for (auto& tile : o_) {
        tile[i] *= factor;
        tile[i + 2] *= factor;
      }
    }
  }

  __device__ void multiply_values(const Ring& from, int first_key, const Weights& w) {
    u32 v[4][kValueWords];
#pragma unroll
    for (int i = 0; i < 4; ++i) load_words<kValueWords>(from.v[i][value_slot_], v[i]);
    const int num_keys = static_cast<int>(tile_.sequence.seqlen_k) - first_key;
    if (num_keys < kBlockKeys) {
      // Slots behind the last key may hold anything: 0 * NaN is NaN.
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (u32& word : v[i]) word = 4 * c_ + i < num_keys ? word : 0;
    }
    if constexpr (Format::kValueOffset != 0) {
      constexpr u32 kOnes = 0x3c003c00;
      const u32 ones[4] = {kOnes, kOnes, kOnes, kOnes};
      mma_m16n8k16_f16(weights_, ones, w.b0, w.b1);
    }
    multiply_value_tiles<0>(v, w);
  }
  template <int kTile>
  __device__ __forceinline__ void multiply_value_tiles(const u32 (&v)[4][kValueWords],
                                                       const Weights& w) {
    if constexpr (kTile < kValueTiles) {
      const u32 a[4] = {
          value_pair<Format, 2 * kTile>(v[0], v[1]), value_pair<Format, 2 * kTile + 1>(v[0], v[1]),
          value_pair<Format, 2 * kTile>(v[2], v[3]), value_pair<Format, 2 * kTile + 1>(v[2], v[3])};
      mma_m16n8k16_f16(o_[kTile], a, w.b0, w.b1);
      multiply_value_tiles<kTile + 1>(v, w);
    }
  }

  // A group of recent keys: elements of the dtype of q, and no scales.
  __device__ void add_recent_group(int group) {
    const int entry = group - static_cast<int>(first_group());
    const int page = entry < p_.max_recent
                         ? p_.recent_table[tile_.batch_idx * p_.stride_recent_table + entry]
                         : -1;
    if (page < 0 || page >= p_.num_recent_pages) {
      report_length_error(p_.lengths.error_word, LengthError::block_table, tile_.batch_idx);
      return;
    }
    using Stored = typename Element::Stored;
    const auto rows = [&](const Operand& x) {
      return static_cast<const Stored*>(x.data) + page * x.stride_batch +
             tile_.kv_head * x.stride_head;
    };
    float s[4] = {};
    const Stored* k =
        rows(p_.k_recent) + key_of_lane() * p_.k_recent.stride_seq + c_ * kKeyElements;
    const bool exists = g_ < tile_.num_rows;
    const Stored* q = query_row(exists ? g_ : 0) + c_ * kKeyElements;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      u32 low[2], high[2], b[2];
      load_words<2>(k + 4 * step, low);
      load_words<2>(k + 2 * p_.k_recent.stride_seq + 4 * step, high);
      load_words<2>(q + 4 * step, b);
      const u32 a[4] = {low[0], high[0], low[1], high[1]};
      Element::mma(s, a, exists ? b[0] : 0, exists ? b[1] : 0);
    }
    float score[4];
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int key = group * kBlockKeys + key_of_lane() + 2 * r, position = position_[i];
        const int begin = p_.window_left < 0 ? 0 : position - p_.window_left;
        const bool is_seen = key >= begin && key <= position && position / kBlockKeys == group;
        score[2 * r + i] = is_seen ? s[2 * r + i] * p_.scale_log2 : -HUGE_VALF;
      }
    const float zeros[2] = {}, ones[2] = {1, 1};
    const Weights w = finish_weights<Element>(score, zeros, ones);
    multiply_recent_values(rows(p_.v_recent), group, w);
  }
  __device__ void multiply_recent_values(const typename Element::Stored* rows, int group,
                                         const Weights& w) {
    // Slots behind the last key may hold anything: 0 * NaN is NaN.
    const int num_keys = static_cast<int>(tile_.sequence.seqlen_k) - group * kBlockKeys;
    u32 v[4][kValueElements / 2];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const auto* row = rows + (4 * c_ + i) * p_.v_recent.stride_seq + g_ * kValueElements;
#pragma unroll
      for (int word = 0; word < kValueElements / 2; word += 4)
        load_words<4>(row + 2 * word, v[i] + word);
#pragma unroll
      for (u32& word : v[i]) word = 4 * c_ + i < num_keys ? word : 0;
    }
#pragma unroll
    for (int j = 0; j < kValueTiles; ++j) {
      const u32 a[4] = {
          __byte_perm(v[0][j], v[1][j], 0x5410), __byte_perm(v[0][j], v[1][j], 0x7632),
          __byte_perm(v[2][j], v[3][j], 0x5410), __byte_perm(v[2][j], v[3][j], 0x7632)};
      Element::mma(o_[j], a, w.b0, w.b1);
    }
  }
  __device__ std::int64_t first_group() const {
    const std::int64_t position = tile_.sequence.seqlen_k - tile_.sequence.seqlen_q;
    return position < 0 ? 0 : position / kBlockKeys;
  }

  // The largest weight so far is 2^7 when a reference moves, and 2^15 before it must, so that most
  // blocks move none. Weights down to 2^-21 of the largest are normal numbers of f16.
  static constexpr float kUsualLog2 = 7, kMostLog2 = 15;

  const Params& p_;
  const Tile& tile_;
  Ring* const ring_;  // [kStages], of this warp
  const int lane_, g_, c_, value_slot_;
  int position_[2];
  u32 q_[kSteps][2];
  float score_factor_[2];
  int first_block_ = 0, page_ = -1;  // see find_pages()
  // Of rows 2 c and 2 c + 1; sums of this lane's keys.
  float reference_[2], sum_[2];
  float o_[kValueTiles][4];
  float weights_[4];  // their sums, as O would have them for V of ones
};

}  // namespace headrace::cuda::sm80::codes
