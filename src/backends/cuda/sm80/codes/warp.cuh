// A warp of the kernel for codes with a scale for each key and head (kernel.cuh): it streams blocks
// of 16 keys. Each lane copies the codes that it multiplies itself, in the order of mma.sync's
// operands (rows.cuh); scales alone are read by others.
//
// The scale of a key multiplies its score, that of a value its weight: the reference of a row
// follows the largest score + log2 |scale of v|, so that weights * scale fit f16.
#pragma once

#include "backends/cuda/sm80/codes/ring.cuh"

namespace headrace::cuda::sm80::codes {

// One block of keys: the codes of a lane, and scales.
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
  float k_scale[kBlockKeys], v_scale[kBlockKeys];

  // The eight lanes of a row of V are neighbours, in an order in which eight lanes that follow each
  // other meet all banks.
  static __device__ __forceinline__ int value_slot(int g, int c) { return 8 * c + (g ^ (2 * c)); }
};

template <class Element_, int kDim_, class Format, int kStages_>
class Warp {
 public:
  using Element = Element_;
  static constexpr int kDim = kDim_;
  static constexpr int kGroup = 16;                // keys of a recent group
  static constexpr int kKeyElements = kDim / 4;    // of a key in a lane
  static constexpr int kValueElements = kDim / 8;  // of each of four keys in a lane
  using Stage_ = Stage<kDim, Format>;
  using RowsOf = Rows<Element, kDim, kValueElements, 1, kGroup>;
  using RingOf = BlockRing<Stage_, kStages_, kBlockKeys, kDim, kTileRows>;
  static constexpr int kKeyWords = Stage_::kKeyBytes / 4;
  static constexpr int kValueWords = Stage_::kValueBytes / 4;
  static constexpr int kSteps = kDim / 16;  // of the reduction of S
  static constexpr int kPieces = Stage_::kPieces;
  static constexpr int kPieceWords = Stage_::kPieceBytes / 4;
  static constexpr int kPieceElements = kKeyElements / kPieces;

  // `offsets`: lane_offsets() of all lanes.
  __device__ Warp(const Params& p, const Tile& tile, Stage_* stages, const LaneOffsets* offsets)
      : rows(p, tile),
        ring{.stages = stages, .address = kept_address(stages)},
        offsets_(kept_address(offsets + rows.lane)),
        value_slot_(Stage_::value_slot(rows.g, rows.c)) {}
  __device__ LaneOffsets lane_offsets() const {
    const Params& p = rows.p;
    const int of_scale = rows.lane % kBlockKeys;
    return {rows.offset_of(p.k, key_of(rows.g)) + rows.c * Stage_::kPieceBytes,
            rows.offset_of(p.v, 4 * rows.c) + rows.g * Stage_::kValueBytes,
            rows.offset_of(p.k_scale, of_scale), rows.offset_of(p.v_scale, of_scale)};
  }

  // Before add_until(): the blocks of codes of keys [begin, end).
  __device__ void start(int begin, int end) {
    ring.start(rows.p, rows.tile, begin, end, copy());
    load_queries();  // while the first copies are under way
  }
  // Sums this warp's blocks of keys below `limit` that it has not summed yet.
  __device__ void add_until(int limit) {
    rows.clear();
    for (float& x : weights_) x = 0;
    ring.add_until(rows.p, rows.tile, limit / kBlockKeys, copy(),
                   [this](const Stage_& from, int block, bool is_readable) {
                     __syncwarp();  // the scales of others have arrived
                     float s[4];
                     multiply_keys(from, s);
                     const int first_key = block * kBlockKeys;
                     const Weights w = is_readable && rows.all_see(first_key, kBlockKeys)
                                           ? weights_of<true>(from, s, first_key, true)
                                           : weights_of<false>(from, s, first_key, is_readable);
                     multiply_values(from, first_key, w);
                     __syncwarp();  // others have read them
                   });
    take_offsets();
  }

  RowsOf rows;
  RingOf ring;

 private:
  using Steps = KeySteps<Format>;

  // The key of row `g` of an A operand of K; that of row g + 8 is two later. A lane's four keys of
  // V, 4 c to 4 c + 3, are then its columns of P.
  static __device__ int key_of(int g) { return 4 * (g >> 1) + (g & 1); }

  // Q as B operand, divided by a power of two so that its largest element is in [2^14, 2^15): then
  // elements that are divided by key_factor() stay normal numbers of f16.
  __device__ void load_queries() {
    float x[kKeyElements];
    float top = 0;
    const bool exists = rows.has_column();
    const auto* row = rows.column_row() + rows.c * kPieceElements;
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
    const int exponent = rows.exponent_of_column(top) - 14;
    const float factor = ldexpf(1.0f, -exponent);
    float offset[4] = {};
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float of_half = factor / Steps::key_factor(half);
        q_[s][half] = cvt_rn_f16x2(x[Steps::element(s, 2 * half)] * of_half,
                                   x[Steps::element(s, 2 * half + 1)] * of_half);
      }
      if constexpr (Format::kOffset != 0) {
        u32 pairs[2];
        Steps::offset_pairs(pairs);
        const u32 a[4] = {pairs[0], pairs[0], pairs[1], pairs[1]};
        mma_m16n8k16_f16(offset, a, q_[s][0], q_[s][1]);
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) key_offset_[i] = -offset[i];
    rows.score_factors(exponent - Format::kUnitLog2, score_factor_);
  }

  __device__ auto copy() {
    return [this](const Place& place, u32 to) {
      const Params& p = rows.p;
      const LaneOffsets at = load_offsets(offsets_);
      const u32 lane = static_cast<u32>(rows.lane);
      const std::byte *k = place.in(p.k, at.k), *v = place.in(p.v, at.v);
      const u32 to_k = to + static_cast<u32>(offsetof(Stage_, k)) + lane * Stage_::kPieceBytes;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int piece = 0; piece < kPieces; ++piece)
          cp_async_of_line<Stage_::kPieceBytes>(
              to_k + static_cast<u32>(sizeof(Stage_::k[0])) * (i * kPieces + piece),
              k + 2 * i * p.k.stride_slot + piece * 4 * Stage_::kPieceBytes);
      }
      if (lane < kBlockKeys) {
        const u32 of_scale = to + lane * 4;
        cp_async_of_line<4>(of_scale + static_cast<u32>(offsetof(Stage_, k_scale)),
                            place.in(p.k_scale, at.k_scale));
        cp_async_of_line<4>(of_scale + static_cast<u32>(offsetof(Stage_, v_scale)),
                            place.in(p.v_scale, at.v_scale));
      }
      const u32 to_v = to + static_cast<u32>(offsetof(Stage_, v)) +
                       static_cast<u32>(value_slot_) * Stage_::kValueBytes;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        cp_async_of_line<Stage_::kValueBytes>(to_v + static_cast<u32>(sizeof(Stage_::v[0])) * i,
                                              v + i * p.v.stride_slot);
    };
  }

  // s: rows of keys key_of(rows.g) and + 2, columns 2 c and 2 c + 1.
  __device__ void multiply_keys(const Stage_& from, float (&s)[4]) {
    u32 k[2][kKeyWords];
#pragma unroll
    for (int i = 0; i < 2 * kPieces; ++i)
      load_words<kPieceWords>(from.k[i][rows.lane], k[i / kPieces] + i % kPieces * kPieceWords);
    // Two sums, as an mma.sync waits some thirty cycles for the one whose sum it adds to.
    float odd[4] = {};
    s[0] = s[2] = key_offset_[0];
    s[1] = s[3] = key_offset_[1];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      u32 low[2], high[2];
      Steps::pairs(k[0], step, low);
      Steps::pairs(k[1], step, high);
      const u32 a[4] = {low[0], high[0], low[1], high[1]};
      mma_m16n8k16_f16(step % 2 == 0 ? s : odd, a, q_[step][0], q_[step][1]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) s[i] += odd[i];
  }

  // kIsWhole: every row sees every key of the block.
  template <bool kIsWhole>
  __device__ __forceinline__ Weights weights_of(const Stage_& from, const float (&s)[4],
                                                int first_key, bool is_readable) {
    float v_scale[2], score[2][2], top[2] = {-HUGE_VALF, -HUGE_VALF};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int in_block = key_of(rows.g) + 2 * r, key = first_key + in_block;
      v_scale[r] = from.v_scale[in_block];
      const float log2_scale = lg2_approx_ftz(fmaxf(fabsf(v_scale[r]), 0x1p-100f));
      const float k_scale = from.k_scale[in_block];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const bool is_seen = kIsWhole || (is_readable && rows.sees(i, key));
        score[r][i] = is_seen ? s[2 * r + i] * (k_scale * score_factor_[i]) : -HUGE_VALF;
        top[i] = fmaxf(top[i], score[r][i] + log2_scale);
      }
    }
    rows.follow(top, [this](int i, float factor) { weights_[i] *= factor; });
    u32 packed[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float w[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        w[i] = rows.weight(i, score[r][i]) * v_scale[r];
        // Hidden keys have no scale: it may be NaN.
        if (!kIsWhole && score[r][i] == -HUGE_VALF) w[i] = 0;
      }
      packed[r] = movmatrix_trans(cvt_rn_f16x2(w[0], w[1]));
    }
    return {packed[0], packed[1]};
  }

  __device__ void multiply_values(const Stage_& from, int first_key, const Weights& w) {
    u32 v[4][kValueWords];
#pragma unroll
    for (int i = 0; i < 4; ++i) load_words<kValueWords>(from.v[i][value_slot_], v[i]);
    if (const int num_keys = static_cast<int>(rows.tile.sequence.seqlen_k) - first_key;
        !Format::kIsInteger && num_keys < kBlockKeys) {
      // Slots behind the last key may hold NaN, and 0 * NaN is NaN.
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (u32& word : v[i]) word = 4 * rows.c + i < num_keys ? word : 0;
    }
    if constexpr (Format::kOffset != 0) {
      constexpr u32 kOnes = 0x3c003c00;
      const u32 ones[4] = {kOnes, kOnes, kOnes, kOnes};
      mma_m16n8k16_f16(weights_, ones, w.b0, w.b1);
    }
    multiply_value_tiles<0>(v, w);
  }
  template <int kTile>
  __device__ __forceinline__ void multiply_value_tiles(const u32 (&v)[4][kValueWords],
                                                       const Weights& w) {
    if constexpr (kTile < RowsOf::kValueTiles) {
      const u32 a[4] = {
          value_pair<Format, 2 * kTile>(v[0], v[1]), value_pair<Format, 2 * kTile + 1>(v[0], v[1]),
          value_pair<Format, 2 * kTile>(v[2], v[3]), value_pair<Format, 2 * kTile + 1>(v[2], v[3])};
      mma_m16n8k16_f16(rows.o[kTile], a, w.b0, w.b1);
      multiply_value_tiles<kTile + 1>(v, w);
    }
  }

  // O of sums of stored codes as O of codes.
  __device__ void take_offsets() {
    constexpr float kUnit = 1 << -Format::kUnitLog2;
#pragma unroll
    for (auto& tile : rows.o)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        tile[i] = tile[i] * (kUnit / Steps::key_factor(i / 2)) - Format::kOffset * weights_[i % 2];
  }

  const u32 offsets_;  // the address of the lane's
  const int value_slot_;
  u32 q_[kSteps][2];
  float score_factor_[2], key_offset_[2];
  float weights_[4];  // their sums, as O would have them for V of ones
};

}  // namespace headrace::cuda::sm80::codes
