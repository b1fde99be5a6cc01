// Dropout masks, drawn by a warpgroup of its own beside the loads and the products.
//
// The masks of a k-block have a bit for each element of P. Consumer thread t of warpgroup g has
// the words [block of 64 keys][g][t]: bit i for the lower half of its packed P 16 block + i, bit 16
// + i for the upper half; 1 is dropped. They go through a ring of kMaskStages in shared memory.
#pragma once

#include "backends/cuda/sm90/fwd/tile_context.cuh"
#include "core/philox.h"

namespace headrace::cuda::sm90::fwd {

// ---- Philox
// The operands of the first rounds of Philox are mostly the same for all keys of a row.
struct PhiloxRow {
  u32 first, second, third, third_low;
};
struct PhiloxKeys {
  u32 key0, key1, first;
};
inline constexpr u32 kPhiloxFactor0 = 0xD2511F53u, kPhiloxFactor1 = 0xCD9E8D57u;
inline constexpr u32 kPhiloxStep0 = 0x9E3779B9u, kPhiloxStep1 = 0xBB67AE85u;
__device__ __forceinline__ u64 wide_product(u32 x, u32 y) {
  u64 product;  // of a u64 product nvcc adds zeros to the upper half
  asm volatile("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(x), "r"(y));
  return product;
}
__device__ __forceinline__ u32 low_word(u64 x) { return static_cast<u32>(x); }
__device__ __forceinline__ u32 high_word(u64 x) { return static_cast<u32>(x >> 32); }

__device__ __forceinline__ PhiloxKeys philox_keys(const ScoreArgs& args) {
  PhiloxKeys x;
  x.key0 = low_word(args.dropout_seed);
  x.key1 = high_word(args.dropout_seed) ^ high_word(args.dropout_offset);
  x.first = high_word(wide_product(kPhiloxFactor0, low_word(args.dropout_offset))) ^ x.key1;
  return x;
}
__device__ __forceinline__ PhiloxRow philox_row(const ScoreArgs& args, const PhiloxKeys& keys,
                                                u32 batch_head, u32 query) {
  const u64 of_offset = wide_product(kPhiloxFactor0, low_word(args.dropout_offset));
  const u64 of_query = wide_product(kPhiloxFactor1, query);
  const u64 second = wide_product(kPhiloxFactor0, high_word(of_query) ^ batch_head ^ keys.key0);
  const u64 third = wide_product(
      kPhiloxFactor1, high_word(second) ^ low_word(of_offset) ^ (keys.key1 + kPhiloxStep1));
  PhiloxRow row;
  row.second = low_word(of_query) ^ (keys.key0 + kPhiloxStep0);
  row.first = low_word(second) ^ (keys.key1 + 2 * kPhiloxStep1);
  row.third = high_word(third) ^ (keys.key0 + 2 * kPhiloxStep0);
  row.third_low = low_word(third);
  return row;
}
// Words of the 8 keys of (block of 64 keys, half, lane) for several rows: `last` is the last word
// of the counter. The rows are interleaved round by round: one row alone is a dependency chain, and
// nvcc would compute the rows one after the other to save registers.
template <int kRows>
__device__ __forceinline__ void philox_words(const PhiloxKeys& keys, const PhiloxRow (&row)[kRows],
                                             u32 last, u32 (&x)[kRows][4]) {
  const u64 second = wide_product(kPhiloxFactor1, keys.first ^ last);
#pragma unroll
  for (int k = 0; k < kRows; ++k) {
    const u64 third = wide_product(kPhiloxFactor0, high_word(second) ^ row[k].second);
    x[k][0] = row[k].third ^ low_word(second);
    x[k][1] = row[k].third_low;
    x[k][2] = high_word(third) ^ row[k].first;
    x[k][3] = low_word(third);
  }
#pragma unroll
  for (u32 i = 3; i < kPhiloxRounds; ++i) {
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const u64 product0 = wide_product(kPhiloxFactor0, x[k][0]);
      const u64 product1 = wide_product(kPhiloxFactor1, x[k][2]);
      x[k][0] = high_word(product1) ^ x[k][1] ^ (keys.key0 + i * kPhiloxStep0);
      x[k][1] = low_word(product1);
      x[k][2] = high_word(product0) ^ x[k][3] ^ (keys.key1 + i * kPhiloxStep1);
      x[k][3] = low_word(product0);
    }
  }
}
// The words of 16 packed P become 16 bits of each half of a sum: add_bits() of all of them, each at
// its place, minus bits_of_none(). `limit`: threshold - 1 in both halves.
__device__ __forceinline__ u32 add_bits(u32 word, u32 limit, int place, u32 sum) {
  const u32 clamped = __vminu2(__vmaxu2(word, limit), limit + 0x00010001u);
  return sum + (clamped << place);
}
__device__ __forceinline__ u32 bits_of_none(u32 limit) { return limit * 0xffffu; }
// Bits (i, 16 + i) and (8 + i, 24 + i) as pairs of 16-bit masks.
__device__ __forceinline__ void expand_bits(u32 bits, int i, u32& first, u32& second) {
  const u32 shifted = bits << (7 - i);  // to the highest bits of bytes, which prmt repeats
  asm("prmt.b32 %0, %1, 0, 0xAA88;" : "=r"(first) : "r"(shifted));
  asm("prmt.b32 %0, %1, 0, 0xBB99;" : "=r"(second) : "r"(shifted));
}

// ---- the mask warpgroup
template <Tile kTile>
class DropoutMaskProducer {
 public:
  __device__ __forceinline__ DropoutMaskProducer(const Params& p, u32 smem)
      : p_(p), smem_(smem), lane_(static_cast<int>(threadIdx.x) & 31) {
    keys_ = philox_keys(p.scores);
    limit_ = (p.scores.params.keep_threshold - 1) * 0x00010001u;
  }

  // For every k-block, in the order of the consumers.
  __device__ __forceinline__ void run() {
    for (Ring<kTileInfoStages> tile_info;; tile_info.next()) {
      mbarrier_wait(barrier(kBarriers.tile_info_full + tile_info.stage), tile_info.parity);
      const auto info = [&](std::size_t offset) {
        return static_cast<int>(load_shared(smem_ + kSmem.offset_tile_info +
                                            tile_info.stage * static_cast<int>(sizeof(TileInfo)) +
                                            static_cast<int>(offset)));
      };
      const int tile = info(offsetof(TileInfo, tile));
      const int n_max = info(offsetof(TileInfo, k_block_max));
      const int n_min = info(offsetof(TileInfo, k_block_min));
      if (tile == kEnd) return;
      if (tile >= 0 && n_max > n_min) {
        find_rows(tile_info.stage);
        for (int n = n_max - 1; n >= n_min; --n) produce(n);  // consumes the loaded words
      }
      __syncwarp();
      const u32 done = released_behind(static_cast<u32>(tile ^ n_max ^ n_min),
                                       barrier(kBarriers.tile_done + tile_info.stage));
      if (lane_ == 0) mbarrier_arrive(done);
    }
  }

 private:
  static constexpr SmemPlan kSmem = smem_plan(kTile);
  static constexpr BarrierPlan kBarriers = barrier_plan(kTile);
  static constexpr int kBlocks = kTile.keys / 64, kGroups = kTile.warpgroups;
  static_assert(!kTile.has_mask_warpgroup || kTile.keys % 64 == 0);

  __device__ __forceinline__ u32 barrier(int i) const {
    return smem_ + kSmem.offset_barriers + 8 * i;
  }

  // The rows of the consumer threads with the index of this thread.
  __device__ __forceinline__ void find_rows(int slot) {
    const WorkTile work{.slot = slot};
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const TileContext<kTile> consumer(p_, smem_, g);
      const TileOrigin at = consumer.origin(work);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = consumer.group_row(r);
        const std::int64_t head = at.batch * p_.sizes.num_heads + consumer.head_of(at, row);
        rows_[2 * g + r] = philox_row(p_.scores, keys_, static_cast<u32>(head),
                                      static_cast<u32>(at.query + consumer.query_of(row)));
      }
    }
  }

  __device__ __forceinline__ void produce(int n) {
    mbarrier_wait(barrier(kBarriers.mask_empty + stage_.stage), stage_.parity ^ 1);
    const u32 to =
        smem_ + kSmem.offset_masks + stage_.stage * kSmem.mask_stage + 4 * (threadIdx.x & 127);
#pragma unroll 1
    for (int block = 0; block < kBlocks; ++block) {
      u32 bits[kGroups] = {};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const u32 last = static_cast<u32>(n * kBlocks + block) * 8 +
                         2 * static_cast<u32>(lane_ & 3) + static_cast<u32>(half);
        u32 word[2 * kGroups][4];
        philox_words(keys_, rows_, last, word);
#pragma unroll
        for (int k = 0; k < 2 * kGroups; ++k)
#pragma unroll
          for (int i = 0; i < 4; ++i)
            bits[k / 2] = add_bits(word[k][i], limit_, 2 * (4 * half + i) + k % 2, bits[k / 2]);
      }
#pragma unroll
      for (int g = 0; g < kGroups; ++g)
        store_shared(to + 4 * 128 * (block * kGroups + g), bits[g] - bits_of_none(limit_));
    }
    __syncwarp();
    if (lane_ == 0) mbarrier_arrive(barrier(kBarriers.mask_full + stage_.stage));
    stage_.next();
  }

  const Params& p_;
  const u32 smem_;
  const int lane_;
  PhiloxKeys keys_;
  u32 limit_;
  PhiloxRow rows_[2 * kGroups];  // two of each consumer thread
  Ring<kMaskStages> stage_;
};

}  // namespace headrace::cuda::sm90::fwd
