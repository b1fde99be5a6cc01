// A product of Q, K and V that ends with RoPE and the append to a cache, with the bits of the
// append kernel behind it.
#pragma once

#include "backends/cuda/elementwise/heads.cuh"
#include "backends/cuda/elementwise/rotate.cuh"
#include "backends/cuda/gemm/stages.cuh"
#include "backends/cuda/gemm/stream.h"

namespace headrace::cuda::gemm {

// A tile has eight pairs of a head: two runs of eight of its rows. Pairs are (low[i], high[i])
// where the head rotates by halves, else (low[0], low[1]), ..., (high[6], high[7]).
struct HeadTile {
  int matrix, head, chunk;
  int low, high;  // the first rows of the runs, in the head

  static __device__ __forceinline__ HeadTile of(const StreamParams& p, int tile) {
    const int matrix = p.tiles.matrix_of(tile), at = tile - p.tiles.first_tile[matrix];
    const int head = p.append.by_chunks.divide(at), chunk = at - head * p.append.num_chunks;
    const int low = (p.append.is_halves != 0 ? 8 : 16) * chunk;
    return {matrix, head, chunk, low,
            low + (p.append.is_halves != 0 ? 8 * p.append.num_chunks : 8)};
  }
  __device__ __forceinline__ int first_row(const StreamParams& p) const {
    return head * 16 * p.append.num_chunks;
  }
  // Where TMA finds them: runs that follow each other are one box.
  __device__ __forceinline__ TileSource source(const StreamParams& p, const Maps& maps) const {
    const int row = first_row(p);
    const TensorMap* map = &maps.w[matrix];
    return {map, p.append.is_halves != 0 ? map : nullptr, row + low, row + high};
  }
};

// What a thread of a warp writes of a tile of kTokens tokens: its accumulators, four of every eight
// tokens, those of two tokens in a row of each run.
template <class Element, int kTokens>
class HeadElements {
 public:
  __device__ __forceinline__ HeadElements(const StreamParams& params, int tile, int lane)
      : p_(params.append),
        at_(HeadTile::of(params, tile)),
        kind_(static_cast<append::HeadKind>(at_.matrix)),
        lane_(lane),
        num_tokens_(params.num_tokens),
        bias_(params.out.bias == nullptr ? nullptr
                                         : params.out.bias + params.tiles.first_row[at_.matrix] +
                                               at_.first_row(params) + lane / 4) {}

  // What arrives beside the products: without positions no load waits for another.
  __device__ __forceinline__ void load() {
    if (bias_ != nullptr) {
      bias_low_ = bias_[at_.low];
      bias_high_ = bias_[at_.high];
    }
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      if (token(j) >= num_tokens_) continue;
      place_[j] = append::place_of(p_, kind_, token(j));
      if (kind_ == append::HeadKind::v || !append::has_row(p_, place_[j])) continue;
#pragma unroll
      for (int run = 0; run < 2; ++run) {
        cos_[j][run] = p_.cos[place_[j].position * p_.cos_stride + pair(run)];
        sin_[j][run] = p_.sin[place_[j].position * p_.sin_stride + pair(run)];
      }
    }
  }

  __device__ __forceinline__ void store(const float (&d)[kTokens / 8][4]) const {
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      float low = rounded(d[j / 2][j % 2], bias_low_),
            high = rounded(d[j / 2][j % 2 | 2], bias_high_);
      if (kind_ != append::HeadKind::v) {
        if (p_.is_halves != 0) {
          append::rotate_pair(low, high, cos_[j][0], sin_[j][0]);
        } else {
          rotate_neighbours(low, cos_[j][0], sin_[j][0]);
          rotate_neighbours(high, cos_[j][1], sin_[j][1]);
        }
      }
      if (token(j) >= num_tokens_ || !append::is_stored(p_, kind_, token(j), place_[j])) continue;
      auto* to = append::head_of<Stored>(p_, kind_, token(j), at_.head, place_[j].slot) + lane_ / 4;
      to[at_.low] = static_cast<Stored>(low);
      to[at_.high] = static_cast<Stored>(high);
    }
  }

 private:
  using Stored = typename Element::Stored;
  static constexpr int kHeld = kTokens / 4;  // tokens

  __device__ __forceinline__ int token(int j) const { return j / 2 * 8 + 2 * (lane_ & 3) + j % 2; }
  __device__ __forceinline__ int pair(int run) const {
    return 8 * at_.chunk + (p_.is_halves != 0 ? lane_ / 4 : 4 * run + lane_ / 8);
  }
  // With the bias, as the product would be stored.
  __device__ __forceinline__ float rounded(float sum, float bias) const {
    return static_cast<float>(static_cast<Stored>(bias_ == nullptr ? sum : sum + bias));
  }
  // The other element of the pair is in the thread of the row beside it.
  __device__ __forceinline__ void rotate_neighbours(float& x, float cos, float sin) const {
    const float other = __shfl_xor_sync(0xffffffffu, x, 4);
    const bool is_second = (lane_ & 4) != 0;
    float first = is_second ? other : x, second = is_second ? x : other;
    append::rotate_pair(first, second, cos, sin);
    x = is_second ? second : first;
  }

  const append::VectorParams& p_;
  const HeadTile at_;
  const append::HeadKind kind_;
  const int lane_, num_tokens_;
  const float* bias_;  // of the lane's first row
  float bias_low_ = 0, bias_high_ = 0;
  float cos_[kHeld][2] = {}, sin_[kHeld][2] = {};  // of both runs
  append::TokenPlace place_[kHeld] = {};
};

}  // namespace headrace::cuda::gemm
