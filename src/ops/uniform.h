// Uniform random numbers for sampling: a pure function of the seed, the sequence and the position,
// independent of the rest of the batch.
//
//   key     = (seed low, seed high)
//   counter = (position, purpose, sequence low, sequence high), through Philox4x32-10
#pragma once

#include <cstdint>

#include "core/philox.h"

namespace headrace {

// Different purposes at one position give independent numbers.
enum class UniformPurpose : std::uint32_t { sampling = 0 };

// In [0, 1), a multiple of 2^-53. position: the index of the token to draw, below 2^32.
constexpr double uniform_at(std::uint64_t seed, std::uint64_t sequence_id, std::int64_t position,
                            UniformPurpose purpose) {
  const PhiloxWords counter{
      {static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(purpose),
       static_cast<std::uint32_t>(sequence_id), static_cast<std::uint32_t>(sequence_id >> 32)}};
  const PhiloxWords random = philox4x32<10>(counter, static_cast<std::uint32_t>(seed),
                                            static_cast<std::uint32_t>(seed >> 32));
  const std::uint64_t bits = std::uint64_t{random.word[0]} << 32 | random.word[1];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

}  // namespace headrace
