// The word that kernels set if lengths, pages, slots or positions on the device break a rule.
#pragma once

#include <cstdint>

namespace headrace::cuda {

// The rule in the high bits, the low bits of the index of the sequence or token below. 0: no error.
enum class LengthError : std::uint32_t {
  cu_seqlens_q = 1,
  cu_seqlens_k = 2,
  tree_mask = 3,
  seqused_k = 4,
  block_table = 5,
  slot_mapping = 6,
  positions = 7
};
inline constexpr int kLengthErrorShift = 29;
inline constexpr std::uint32_t kLengthErrorEntry = (1u << kLengthErrorShift) - 1;

}  // namespace headrace::cuda
