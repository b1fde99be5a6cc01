// Philox4x32-7 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC
// 2011) and the map from an element of the attention matrix to its 16 random bits. The map is part
// of the contract: the same mask on every backend and in the backward pass. No host standard header
// besides <cstdint>, so device code can share it.
//
//   key     = (seed low, seed high ^ offset high)
//   counter = (offset low, batch * num_heads + head, query, 2 * group + half)
//
// A group is the 16 columns of a 64-key block with equal (key % 8) / 2: the columns of a row that
// one thread of a tensor-core accumulator fragment holds. Its 16 x 16 bits are two Philox outputs:
// `half` 0 covers the first 32 keys of the block, 1 the other 32. Within a half, word
// (key % 32) / 8 holds a pair: the low 16 bits for the even key, the high ones for the odd.
#pragma once

#include <cstdint>

namespace headrace {

struct PhiloxWords {
  std::uint32_t word[4];
};

// Seven rounds pass every test that ten pass, and the random numbers bound the speed of dropout
// (docs/design/0003-dropout-rounds.md).
inline constexpr int kPhiloxRounds = 7;

template <int kRounds>
constexpr PhiloxWords philox4x32(PhiloxWords counter, std::uint32_t key0, std::uint32_t key1) {
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53u} * counter.word[0];
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57u} * counter.word[2];
    counter = {{static_cast<std::uint32_t>(product1 >> 32) ^ counter.word[1] ^ key0,
                static_cast<std::uint32_t>(product1),
                static_cast<std::uint32_t>(product0 >> 32) ^ counter.word[3] ^ key1,
                static_cast<std::uint32_t>(product0)}};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

struct DropoutRow {  // all elements of one (batch, head, query)
  std::uint64_t seed, offset;
  std::uint32_t batch_head, query;

  // Random bits of the 8 keys of one (64-wide block, half, lane = (key % 8) / 2).
  constexpr PhiloxWords group(std::int64_t block, int half, int lane) const {
    const std::uint32_t group_idx = static_cast<std::uint32_t>(block * 4 + lane);
    const PhiloxWords counter{{static_cast<std::uint32_t>(offset), batch_head, query,
                               2 * group_idx + static_cast<std::uint32_t>(half)}};
    return philox4x32<kPhiloxRounds>(
        counter, static_cast<std::uint32_t>(seed),
        static_cast<std::uint32_t>(seed >> 32) ^ static_cast<std::uint32_t>(offset >> 32));
  }

  constexpr std::uint32_t bits16(std::int64_t key) const {
    const auto words =
        group(key / 64, static_cast<int>(key % 64 / 32), static_cast<int>(key % 8 / 2));
    return words.word[key % 32 / 8] >> (key % 2 * 16) & 0xFFFFu;
  }
};

// An element is kept if its 16 bits are below the threshold. Kept elements are scaled by 65536 /
// threshold, so that the expected value is exact for the quantized probability.
constexpr std::uint32_t dropout_keep_threshold(double dropout_p) {
  const double keep = (1.0 - dropout_p) * 65536.0 + 0.5;
  return keep < 1.0 ? 1u : static_cast<std::uint32_t>(keep);
}

}  // namespace headrace
