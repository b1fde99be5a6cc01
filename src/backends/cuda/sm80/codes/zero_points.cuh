// A warp of the kernel for codes with zero points (kernel.cuh): it streams groups of 32 keys, whose
// channels have a scale and a zero point each, as every 32 elements of a value have.
//
//   q . k = sum of q_c zero_c + sum of (q_c scale_c) code_c
//   out_d = sum of p_j zero_jg + sum of (p_j scale_jg) code_jd
//
// Q is multiplied by the scales once for a group of keys. P is, for each group g of elements of V.
//
// A row of K or V is 16-byte pieces, of which an 8 x 8 matrix of ldmatrix takes one: 16-bit units
// of codes, transposed for V. A mask of the same digits of two units is an operand (formats.cuh).
// The units of a matrix of V are of two groups with 2 bits: lanes g < 4 of the first, the others of
// the second. So each row has two columns, one with the weights of either.
#pragma once

#include "backends/cuda/sm80/codes/ring.cuh"

namespace headrace::cuda::sm80::codes {

inline constexpr int kGroupKeys = 32;  // with the same scales of K; a warp's block

__device__ __forceinline__ u32 mul_f16x2(u32 x, u32 y) {
  asm("mul.rn.f16x2 %0, %0, %1;" : "+r"(x) : "r"(y));
  return x;
}
__device__ __forceinline__ u32 max_f16x2(u32 x, u32 y) {
  asm("max.f16x2 %0, %0, %1;" : "+r"(x) : "r"(y));
  return x;
}

// The copy of a group of keys.
template <int kDim, int kBits>
struct ZeroPointStage {
  static constexpr int kPieces = kDim * kBits / 128;  // of a row
  // [key][swizzled()]
  alignas(16) std::uint8_t k[kGroupKeys][kPieces][16], v[kGroupKeys][kPieces][16];
  alignas(16) u32 k_scale[kDim], v_scale[kGroupKeys][4];  // of V: kDim / 32 are used

  // The eight pieces of a matrix, rows of keys that follow each other, meet all banks.
  static __device__ __forceinline__ int swizzled(int key, int piece) {
    return piece ^ (key / (8 / kPieces) % kPieces);
  }
};

template <class Element_, int kDim_, int kBits, int kStages_>
class ZeroPointWarp {
 public:
  using Element = Element_;
  static constexpr int kDim = kDim_;
  using Stage_ = ZeroPointStage<kDim, kBits>;
  static constexpr int kUnit = 16 / kBits;   // codes of a unit
  static constexpr int kInByte = 8 / kBits;  // of them in its lower byte
  static constexpr int kPieces = Stage_::kPieces;
  static constexpr int kGroups = kDim / 32;  // of a value
  static constexpr int kCopies = kGroups / kPieces;
  static constexpr int kKeyScaleBytes = kDim / 32 * 4;  // that a lane copies
  using RowsOf = Rows<Element, kDim, kUnit, kCopies, kGroupKeys>;
  using RingOf = BlockRing<Stage_, kStages_, kGroupKeys, 1, kDim, kTileRows / kCopies>;
  static constexpr int kLaneRows = RowsOf::kLaneRows, kUnitTiles = RowsOf::kUnitTiles;

  // `common`: offsets and keys are read from start() on, queries and factors by add_until().
  __device__ ZeroPointWarp(const Params& p, const Tile& tile, Stage_* stages, Common<kDim>& common)
      : rows(p, tile),
        ring{.stages = stages, .address = kept_address(stages), .keys = common.keys},
        common_(common),
        offsets_(kept_address(common.offsets + rows.lane)) {}
  __device__ LaneOffsets lane_offsets() const {
    const Params& p = rows.p;
    const int key = rows.lane / kPieces, piece = rows.lane % kPieces;
    const bool is_whole = p.has_whole_scales;
    return {rows.offset_of(p.k, key) + piece * 16, rows.offset_of(p.v, key) + piece * 16,
            rows.offset_of(p.k_scale, 0) + rows.lane * (is_whole ? kKeyScaleBytes : 4),
            is_whole ? rows.offset_of(p.v_scale, rows.lane)
                     : rows.offset_of(p.v_scale, rows.lane / kGroups) + rows.lane % kGroups * 4};
  }

  __device__ void start() { ring.start(rows.p, rows.tile, copy()); }

  // By one warp. Q is divided by a power of two so that its largest element is in [1/2, 1): times
  // any scale it stays a number of f16.
  __device__ void load_queries() const {
    float x[kDim / 4];
    float top = 0;
    const auto* row = rows.column_row();
#pragma unroll
    for (int i = 0; i < kDim / 4; i += 8) {
      alignas(16) typename Element::Stored elements[8];
      load_words<4>(row + first_channel(i / (2 * kUnit)) + i % (2 * kUnit),
                    reinterpret_cast<u32*>(elements));
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        x[i + j] = rows.has_column() ? load_real(elements, j) : 0.0f;
        top = fmaxf(top, fabsf(x[i + j]));
      }
    }
    const int exponent = rows.exponent_of_column(top) + 1;
    const float scale = ldexpf(1.0f, -exponent);
#pragma unroll
    for (int i = 0; i < kDim / 8; ++i) {
      const int first = i / kUnit * 2 * kUnit + i % kUnit;
      common_.queries[i / 4][rows.lane][i % 4] =
          cvt_rn_f16x2(x[first] * scale, x[first + kUnit] * scale);
    }
    float of_score[kLaneRows];
    rows.score_factors(exponent + 24, of_score);
    common_.factors[rows.lane] = make_float4(of_score[0], of_score[kLaneRows - 1], 0, 0);
  }

  // Sums this warp's groups of keys below `limit` that it has not summed yet.
  __device__ void add_until(int limit) {
    rows.clear();
    for (float& x : zeros_) x = 0;
    ring.add_until(rows.p, rows.tile, limit / kGroupKeys, copy(),
                   [this](Stage_& from, int block, bool is_readable) {
                     __syncwarp();
                     const int first_key = block * kGroupKeys;
                     const bool is_whole = is_readable && common_.all_see(first_key, kGroupKeys);
                     if (!is_whole) hide(from, first_key, is_readable);
                     float s[2][4];
                     multiply_keys(from, s);
                     u32 weights[2][2];  // of 16 keys each: of keys g and g + 8
                     if (is_whole)
                       weigh<true>(from, s, first_key, true, weights);
                     else
                       weigh<false>(from, s, first_key, is_readable, weights);
                     multiply_values(from, weights);
                     __syncwarp();  // every lane has read the stage
                   });
    finish();
  }

  RowsOf rows;
  RingOf ring;

 private:
  // Code i of both units.
  template <int kIndex>
  static __device__ __forceinline__ u32 pair(u32 units) {
    constexpr u32 kMask = ((1u << kBits) - 1) << kIndex % kInByte * kBits;
    return (kIndex < kInByte ? units : units >> 8) & (kMask | kMask << 16);
  }
  // How many times too large a pair is, in units of 2^-24.
  static constexpr float factor(int index) {
    return static_cast<float>(1 << index % kInByte * kBits);
  }

  // A lane's channels of a piece of K: two units, codes i of them a pair.
  __device__ int first_channel(int piece) const { return piece * 8 * kUnit + rows.c * 2 * kUnit; }

  __device__ auto copy() {
    return [this](const auto& place_of, u32 to) {
      const Params& p = rows.p;
      const Place place = place_of(0);
      const LaneOffsets at = load_offsets(offsets_);
      const std::byte *k = place.in(p.k, at.k), *v = place.in(p.v, at.v);
      const u32 lane = static_cast<u32>(rows.lane);
      const int first_key = static_cast<int>(lane / kPieces);
      const int piece = static_cast<int>(lane % kPieces);
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        const int keys = 32 / kPieces * i, key = keys + first_key;
        const u32 row = to + static_cast<u32>(16 * (key * kPieces + Stage_::swizzled(key, piece)));
        cp_async_of_line<16>(row + static_cast<u32>(offsetof(Stage_, k)),
                             k + keys * p.k.stride_slot);
        cp_async_of_line<16>(row + static_cast<u32>(offsetof(Stage_, v)),
                             v + keys * p.v.stride_slot);
      }
      const std::byte* k_scale = place.in_groups(p.k_scale, at.k_scale, kGroupKeys);
      const std::byte* v_scale = place.in(p.v_scale, at.v_scale);
      const u32 to_k = to + static_cast<u32>(offsetof(Stage_, k_scale));
      const u32 to_v = to + static_cast<u32>(offsetof(Stage_, v_scale));
      if (p.has_whole_scales) {
        cp_async_of_line<kKeyScaleBytes>(to_k + kKeyScaleBytes * lane, k_scale);
        cp_async_of_line<4 * kGroups>(to_v + 16 * lane, v_scale);
        return;
      }
      // Words may lie at any address of four bytes.
#pragma unroll
      for (int i = 0; i < kDim / 32; ++i) {
        cp_async_of_line<4>(to_k + 4 * (static_cast<u32>(32 * i) + lane), k_scale + 128 * i);
        const int keys = 32 / kGroups * i;
        cp_async_of_line<4>(
            to_v + 16 * (static_cast<u32>(keys) + lane / kGroups) + lane % kGroups * 4,
            v_scale + keys * p.v_scale.stride_slot);
      }
    };
  }

  // Keys that no row sees may have any scale, NaN too: 0 * NaN is NaN.
  __device__ void hide(Stage_& from, int first_key, bool is_readable) {
    if (!is_readable || first_key + rows.lane < rows.begin_of(rows.position_of(0)))
      *reinterpret_cast<uint4*>(from.v_scale[rows.lane]) = make_uint4(0, 0, 0, 0);
    __syncwarp();
  }

  // s[b]: rows of keys 16 b + g and + 8, columns 2 c and 2 c + 1.
  __device__ void multiply_keys(const Stage_& from, float (&s)[2][4]) {
    // Two sums, as an mma.sync waits some thirty cycles for the one whose sum it adds to.
    float of_zeros[2][4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) s[0][i] = s[1][i] = 0;
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      u32 q[kUnit];  // times the scales
      scale_queries(from, piece, q, of_zeros);
      u32 units[4];  // of eight keys each
      ldmatrix_x4(units, smem_address(from.k[rows.lane][Stage_::swizzled(rows.lane, piece)]));
      multiply_key_pairs<0>(units, q, s);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float zeros = (of_zeros[0][i] + of_zeros[1][i]) * 0x1p-24f;
      s[0][i] += zeros;
      s[1][i] += zeros;
    }
  }
  template <int kIndex>
  __device__ __forceinline__ void multiply_key_pairs(const u32 (&units)[4], const u32* q,
                                                     float (&s)[2][4]) {
    if constexpr (kIndex < kUnit) {
#pragma unroll
      for (int b = 0; b < 2; ++b) {
        const u32 a[4] = {pair<kIndex>(units[2 * b]), pair<kIndex>(units[2 * b + 1]),
                          pair<kIndex + 1>(units[2 * b]), pair<kIndex + 1>(units[2 * b + 1])};
        mma_m16n8k16_f16(s[b], a, q[kIndex], q[kIndex + 1]);
      }
      multiply_key_pairs<kIndex + 2>(units, q, s);
    }
  }
  __device__ __forceinline__ void scale_queries(const Stage_& from, int piece, u32 (&q)[kUnit],
                                                float (&of_zeros)[2][4]) {
    u32 words[2 * kUnit], unscaled[kUnit];
#pragma unroll
    for (int i = 0; i < 2 * kUnit; i += 4)
      load_words<4>(from.k_scale + first_channel(piece) + i, words + i);
#pragma unroll
    for (int i = 0; i < kUnit; i += 4)
      load_words<4>(common_.queries[(piece * kUnit + i) / 4][rows.lane], unscaled + i);
#pragma unroll
    for (int i = 0; i < kUnit; i += 2) {
      u32 zero[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const u32 scale = __byte_perm(words[i + j], words[i + j + kUnit], 0x5410);
        zero[j] = __byte_perm(words[i + j], words[i + j + kUnit], 0x7632);
        q[i + j] = mul_f16x2(unscaled[i + j], scale);
        if (factor(i + j) != 1) {
          const float less = 1 / factor(i + j);
          q[i + j] = mul_f16x2(q[i + j], cvt_rn_f16x2(less, less));
        }
      }
      const u32 a[4] = {zero[0], zero[0], zero[1], zero[1]};
      mma_m16n8k16_f16(of_zeros[i / 2 % 2], a, unscaled[i], unscaled[i + 1]);
    }
  }

  // Weights as pairs of columns, without the scales of V. kIsWhole: every row sees every key.
  template <bool kIsWhole>
  __device__ __forceinline__ void weigh(const Stage_& from, const float (&s)[2][4], int first_key,
                                        bool is_readable, u32 (&weights)[2][2]) {
    const float4 factors = common_.factors[rows.lane];
    const float score_factor[2] = {factors.x, factors.y};
    float score[2][2][kLaneRows], top[kLaneRows];
#pragma unroll
    for (float& x : top) x = -HUGE_VALF;
    u32 most = 0x00003c00;  // at least 1: weights without scales must fit f16 as well
#pragma unroll
    for (int b = 0; b < 2; ++b)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int key = 16 * b + 8 * r + rows.g;
        most = max_f16x2(most, most_of(from.v_scale[key]));
#pragma unroll
        for (int i = 0; i < kLaneRows; ++i) {
          const bool is_seen = kIsWhole || (is_readable && rows.sees(i, first_key + key));
          score[b][r][i] = is_seen ? s[b][2 * r + i * kCopies] * score_factor[i] : -HUGE_VALF;
          top[i] = fmaxf(top[i], score[b][r][i]);
        }
      }
    const float log2_scale = lg2_approx_ftz(__half2float(__ushort_as_half(most & 0xffffu)));
#pragma unroll
    for (float& x : top) x += log2_scale;
    rows.follow(top, [this](int i, float factor) {
#pragma unroll
      for (int column = i; column < 2; column += kLaneRows) zeros_[column] *= factor;
    });
#pragma unroll
    for (int b = 0; b < 2; ++b)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float w[kLaneRows];
#pragma unroll
        for (int i = 0; i < kLaneRows; ++i) w[i] = rows.weight(i, score[b][r][i]);
        weights[b][r] = cvt_rn_f16x2(w[0], w[kLaneRows - 1]);
      }
  }
  // The largest scale of the groups of a value, in the lower half.
  static __device__ __forceinline__ u32 most_of(const u32 (&words)[4]) {
    u32 x[kGroups];
    load_words<kGroups>(words, x);
    u32 most = x[0];
#pragma unroll
    for (int i = 1; i < kGroups; ++i) most = max_f16x2(most, x[i]);
    return most;
  }

  __device__ void multiply_values(const Stage_& from, const u32 (&weights)[2][2]) {
    u32 words[4];  // of eight keys each: units g are a scale and a zero point of a group in turn
    ldmatrix_x4_trans(words, smem_address(from.v_scale[rows.lane]));
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      const u32 a[4] = {words[2 * b], 0, words[2 * b + 1], 0};
      mma_m16n8k16_f16(zeros_, a, movmatrix_trans(weights[b][0]), movmatrix_trans(weights[b][1]));
    }
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      u32 units[4];  // of eight keys each
      ldmatrix_x4_trans(units, smem_address(from.v[rows.lane][Stage_::swizzled(rows.lane, piece)]));
#pragma unroll
      for (int b = 0; b < 2; ++b) {
        u32 w[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          u32 scales[kCopies];
          load_words<kCopies>(from.v_scale[16 * b + 8 * r + rows.g] + piece * kCopies, scales);
          const u32 both = __byte_perm(scales[0], scales[kCopies - 1], 0x5410);
          w[r] = movmatrix_trans(mul_f16x2(weights[b][r], both));
        }
        multiply_value_pairs<0>(units[2 * b], units[2 * b + 1], {w[0], w[1]},
                                rows.o + piece * kUnitTiles);
      }
    }
  }
  template <int kIndex>
  static __device__ __forceinline__ void multiply_value_pairs(u32 low_keys, u32 high_keys,
                                                              const Weights& w, float (*o)[4]) {
    if constexpr (kIndex < kUnit) {
      const u32 a[4] = {pair<kIndex>(low_keys), pair<kIndex + 1>(low_keys), pair<kIndex>(high_keys),
                        pair<kIndex + 1>(high_keys)};
      mma_m16n8k16_f16(o[kIndex / 2], a, w.b0, w.b1);
      multiply_value_pairs<kIndex + 2>(low_keys, high_keys, w, o);
    }
  }

  // O of sums of codes as O of values. Lane 4 (2 group + 1) + c has the sum of a group's zero
  // points.
  __device__ void finish() {
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      const int group = piece * kCopies + (kCopies == 2 ? rows.g / 4 : 0);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float zero = __shfl_sync(0xffffffffu, zeros_[i], 4 * (2 * group + 1) + rows.c);
#pragma unroll
        for (int j = 0; j < kUnitTiles; ++j) {
          float(&o)[4] = rows.o[piece * kUnitTiles + j];
          o[i] = o[i] * (0x1p24f / factor(2 * j)) + zero;
          o[i + 2] = o[i + 2] * (0x1p24f / factor(2 * j + 1)) + zero;
        }
      }
    }
  }

  Common<kDim>& common_;
  const u32 offsets_;  // the address of the lane's
  float zeros_[4];     // sums of weights times zero points, see finish()
};

}  // namespace headrace::cuda::sm80::codes
