// A warp of the kernel for codes with a scale for each key and head (kernel.cuh): it streams blocks
// of 16 keys, or of two times 16 with 4 bits, in the order of mma.sync's operands (rows.cuh).
//
// The scale of a key multiplies its score, that of a value its weight: the reference of a row
// follows the largest score + log2 |scale of v|, so that weights * scale fit f16.
#pragma once

#include "backends/cuda/sm80/codes/ring.cuh"

namespace headrace::cuda::sm80::codes {

// One block of keys: parts of 16, and their scales.
template <int kDim, class Format>
struct Stage {
  static constexpr int kParts = blocks_at_once(Format::kBits);
  static constexpr int kKeys = kParts * kBlockKeys;
  static constexpr int kKeyBytes = kDim / 4 * Format::kBits / 8;    // of each of two keys
  static constexpr int kValueBytes = kDim / 8 * Format::kBits / 8;  // of each of four keys
  // K is copied in pieces of at most 16 bytes: piece i of a row has the parts of all four lanes.
  static constexpr int kPieceBytes = kKeyBytes < 16 ? kKeyBytes : 16;
  static constexpr int kPieces = kKeyBytes / kPieceBytes;
  static constexpr int kValuePieces = 8 * kValueBytes / 16;  // of a row of V, 16 bytes each
  // [part][piece][lane]: the lanes of an access, and those of a row of K, are neighbours.
  alignas(16) std::uint8_t k[kParts][2 * kPieces][32][kPieceBytes];
  // [part][value_place()]
  alignas(16) std::uint8_t v[kParts][kBlockKeys * kValuePieces * 16];
  float k_scale[kKeys], v_scale[kKeys];

  // Byte `byte` of the row of V of a key. The lanes of an access, which read keys 4 c + i, meet all
  // banks.
  static __device__ __forceinline__ int value_place(int key, int byte) {
    return (16 * kValuePieces * key + byte) ^ (32 * (key / 4));
  }
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
  static constexpr int kParts = Stage_::kParts;
  using RingOf = BlockRing<Stage_, kStages_, kBlockKeys, kParts, kDim, kTileRows>;
  static constexpr int kKeyWords = Stage_::kKeyBytes / 4;
  static constexpr int kValueWords = Stage_::kValueBytes / 4;
  static constexpr int kSteps = kDim / 16;  // of the reduction of S
  static constexpr int kPieces = Stage_::kPieces, kValuePieces = Stage_::kValuePieces;
  static constexpr int kPieceWords = Stage_::kPieceBytes / 4;
  static constexpr int kPieceElements = kKeyElements / kPieces;

  // `common`: offsets and keys are read from start() on, queries and factors by add_until().
  __device__ Warp(const Params& p, const Tile& tile, Stage_* stages, Common<kDim>& common)
      : rows(p, tile),
        ring{.stages = stages, .address = kept_address(stages), .keys = common.keys},
        common_(common),
        offsets_(kept_address(common.offsets + rows.lane)),
        lane_place_(Stage_::value_place(rows.lane / kValuePieces, rows.lane % kValuePieces * 16) /
                    16),
        value_place_(Stage_::value_place(4 * rows.c, rows.g * Stage_::kValueBytes)) {}
  __device__ LaneOffsets lane_offsets() const {
    const Params& p = rows.p;
    const int of_scale = rows.lane % kBlockKeys;
    return {rows.offset_of(p.k, key_of(rows.g)) + rows.c * Stage_::kPieceBytes,
            rows.offset_of(p.v, rows.lane / kValuePieces) + rows.lane % kValuePieces * 16,
            rows.offset_of(p.k_scale, of_scale), rows.offset_of(p.v_scale, of_scale)};
  }
  __device__ void start() { ring.start(rows.p, rows.tile, copy()); }

  // By one warp. Q is divided by a power of two so that its largest element is in [2^14, 2^15):
  // then elements that are divided by key_factor() stay normal numbers of f16.
  __device__ void load_queries() const {
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
      u32 q[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float of_half = factor / Steps::key_factor(half);
        q[half] = cvt_rn_f16x2(x[Steps::element(s, 2 * half)] * of_half,
                               x[Steps::element(s, 2 * half + 1)] * of_half);
        common_.queries[s / 2][rows.lane][s % 2 * 2 + half] = q[half];
      }
      if constexpr (Format::kOffset != 0) {
        u32 pairs[2];
        Steps::offset_pairs(pairs);
        const u32 a[4] = {pairs[0], pairs[0], pairs[1], pairs[1]};
        mma_m16n8k16_f16(offset, a, q[0], q[1]);
      }
    }
    float of_score[2];
    rows.score_factors(exponent - Format::kUnitLog2, of_score);
    common_.factors[rows.lane] = make_float4(of_score[0], of_score[1], -offset[0], -offset[1]);
  }

  // Sums this warp's blocks of keys below `limit` that it has not summed yet.
  __device__ void add_until(int limit) {
    rows.clear();
    for (float& x : weights_) x = 0;
    ring.add_until(rows.p, rows.tile, limit / Stage_::kKeys, copy(),
                   [this](const Stage_& from, int block, bool is_readable) {
                     __syncwarp();  // what others copied has arrived
                     float s[kParts][4];
#pragma unroll
                     for (int part = 0; part < kParts; ++part) multiply_keys(from, part, s[part]);
                     const int first_key = block * Stage_::kKeys;
                     Weights w[kParts];
                     if (is_readable && common_.all_see(first_key, Stage_::kKeys))
                       weigh<true>(from, s, first_key, true, w);
                     else
                       weigh<false>(from, s, first_key, is_readable, w);
#pragma unroll
                     for (int part = 0; part < kParts; ++part)
                       multiply_values(from, part, first_key, w[part]);
                     __syncwarp();  // others have read it
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

  __device__ auto copy() {
    return [this](const auto& place_of, u32 to) {
      const Params& p = rows.p;
      const LaneOffsets at = load_offsets(offsets_);
      const u32 lane = static_cast<u32>(rows.lane);
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const Place place = place_of(part);
        const std::byte *k = place.in(p.k, at.k), *v = place.in(p.v, at.v);
        const u32 to_k = to + static_cast<u32>(offsetof(Stage_, k) + sizeof(Stage_::k[0]) * part) +
                         static_cast<u32>(lane_place_ * Stage_::kPieceBytes);
#pragma unroll
        for (int i = 0; i < 2 * kPieces; ++i)
          cp_async_of_line<Stage_::kPieceBytes>(
              to_k + static_cast<u32>(sizeof(Stage_::k[0][0])) * i,
              k + 2 * (i / kPieces) * p.k.stride_slot + i % kPieces * 4 * Stage_::kPieceBytes);
        const u32 to_v = to + static_cast<u32>(offsetof(Stage_, v) + sizeof(Stage_::v[0]) * part);
        // value_place() of copy i, whose keys are 32 / kValuePieces i behind those of the first.
#pragma unroll
        for (int i = 0; i < kValuePieces / 2; ++i)
          cp_async_of_line<16>(to_v +
                                   static_cast<u32>(16 * (lane_place_ ^ (16 / kValuePieces * i))) +
                                   static_cast<u32>(512 * i),
                               v + 32 / kValuePieces * i * p.v.stride_slot);
      }
      // Lane i has those of key i.
      const Place place = place_of(kParts == 1 ? 0 : rows.lane / kBlockKeys);
      if (Stage_::kKeys < 32 && lane >= Stage_::kKeys) return;
      const u32 of_scale = to + lane * 4;
      cp_async_of_line<4>(of_scale + static_cast<u32>(offsetof(Stage_, k_scale)),
                          place.in(p.k_scale, at.k_scale));
      cp_async_of_line<4>(of_scale + static_cast<u32>(offsetof(Stage_, v_scale)),
                          place.in(p.v_scale, at.v_scale));
    };
  }

  // s: rows of keys key_of(rows.g) and + 2, columns 2 c and 2 c + 1.
  __device__ __forceinline__ void multiply_keys(const Stage_& from, int part, float (&s)[4]) {
    u32 k[2][kKeyWords];
#pragma unroll
    for (int i = 0; i < 2 * kPieces; ++i)
      load_words<kPieceWords>(from.k[part][i][lane_place_],
                              k[i / kPieces] + i % kPieces * kPieceWords);
    const float4 factors = common_.factors[rows.lane];
    // Two sums, as an mma.sync waits some thirty cycles for the one whose sum it adds to.
    float odd[4] = {};
    s[0] = s[2] = factors.z;
    s[1] = s[3] = factors.w;
#pragma unroll
    for (int step = 0; step < kSteps; step += 2) {
      u32 q[4];
      load_words<4>(common_.queries[step / 2][rows.lane], q);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        u32 low[2], high[2];
        Steps::pairs(k[0], step + i, low);
        Steps::pairs(k[1], step + i, high);
        const u32 a[4] = {low[0], high[0], low[1], high[1]};
        mma_m16n8k16_f16(i == 0 ? s : odd, a, q[2 * i], q[2 * i + 1]);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) s[i] += odd[i];
  }

  // kIsWhole: every row sees every key of the block.
  template <bool kIsWhole>
  __device__ __forceinline__ void weigh(const Stage_& from, const float (&s)[kParts][4],
                                        int first_key, bool is_readable, Weights (&to)[kParts]) {
    const float4 factors = common_.factors[rows.lane];
    const float score_factor[2] = {factors.x, factors.y};
    float v_scale[kParts][2], score[kParts][2][2], top[2] = {-HUGE_VALF, -HUGE_VALF};
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int in_block = part * kBlockKeys + key_of(rows.g) + 2 * r, key = first_key + in_block;
        v_scale[part][r] = from.v_scale[in_block];
        const float log2_scale = lg2_approx_ftz(fmaxf(fabsf(v_scale[part][r]), 0x1p-100f));
        const float k_scale = from.k_scale[in_block];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const bool is_seen = kIsWhole || (is_readable && rows.sees(i, key));
          score[part][r][i] =
              is_seen ? s[part][2 * r + i] * (k_scale * score_factor[i]) : -HUGE_VALF;
          top[i] = fmaxf(top[i], score[part][r][i] + log2_scale);
        }
      }
    }
    rows.follow(top, [this](int i, float factor) { weights_[i] *= factor; });
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      u32 packed[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float w[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          w[i] = rows.weight(i, score[part][r][i]) * v_scale[part][r];
          // Hidden keys have no scale: it may be NaN.
          if (!kIsWhole && score[part][r][i] == -HUGE_VALF) w[i] = 0;
        }
        packed[r] = movmatrix_trans(cvt_rn_f16x2(w[0], w[1]));
      }
      to[part] = {packed[0], packed[1]};
    }
  }

  __device__ __forceinline__ void multiply_values(const Stage_& from, int part, int first_key,
                                                  const Weights& w) {
    u32 v[4][kValueWords];
#pragma unroll
    for (int i = 0; i < 4; ++i) load_words<kValueWords>(value_row(from, part, i), v[i]);
    static_assert(Format::kIsInteger || kParts == 1);  // `first_key` is that of the part
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
  // The lane's codes of key 4 c + i. Its place follows from that of key 4 c: i changes only bits
  // that the swizzle of key 4 c leaves apart.
  __device__ __forceinline__ const std::uint8_t* value_row(const Stage_& from, int part,
                                                           int i) const {
    const int bytes = 16 * kValuePieces * i;
    return from.v[part] + (value_place_ ^ bytes % 128) + bytes / 128 * 128;
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

  Common<kDim>& common_;
  const u32 offsets_;      // the address of the lane's
  const int lane_place_;   // of the piece of V that the lane copies first; of K as well
  const int value_place_;  // of key 4 c
  float weights_[4];       // their sums, as O would have them for V of ones
};

}  // namespace headrace::cuda::sm80::codes
