// Rows of a sequence, from cu_seqlens on the device. Bad values are clamped to the buffers.
#pragma once

#include <cstdint>

#include "backends/cuda/runtime/error_word.cuh"
#include "core/args.h"

namespace headrace::cuda {

__device__ inline void report_length_error(std::uint32_t* error_word, LengthError kind,
                                           std::int64_t batch_idx) {
  const std::uint32_t entry = static_cast<std::uint32_t>(batch_idx) & 0x3fffffffu;
  atomicCAS(error_word, 0u,
            static_cast<std::uint32_t>(kind) << 30 | entry);  // the first error stays
}

struct RowRange {
  std::int64_t begin, length;
  bool is_valid;
};

__device__ inline RowRange rows_of_sequence(const std::int32_t* cu_seqlens, std::int64_t batch_idx,
                                            std::int64_t batch, std::int64_t total,
                                            std::int64_t max_seqlen) {
  const std::int64_t begin = cu_seqlens[batch_idx], end = cu_seqlens[batch_idx + 1];
  const std::int64_t first = min(max(begin, std::int64_t{0}), total);
  const std::int64_t last = min(max(end, first), min(total, first + max_seqlen));
  const bool is_valid = first == begin && last == end && (batch_idx > 0 || begin == 0) &&
                        (batch_idx + 1 < batch || end == total);
  return {first, last - first, is_valid};
}

// `reports`: set in one thread per sequence of the grid; that thread sets the error word if a rule
// is broken.
__device__ inline Sequence device_sequence(const Problem& p, const Ragged& ragged,
                                           std::int64_t batch_idx, bool reports,
                                           std::uint32_t* error_word) {
  if (!p.is_ragged) return {.seqlen_q = p.seqlen_q, .seqlen_k = p.seqlen_k};
  const RowRange q =
      rows_of_sequence(ragged.cu_seqlens_q, batch_idx, p.batch, p.total_q, p.seqlen_q);
  const RowRange k =
      rows_of_sequence(ragged.cu_seqlens_k, batch_idx, p.batch, p.total_k, p.seqlen_k);
  if (reports) {
    if (!q.is_valid) report_length_error(error_word, LengthError::cu_seqlens_q, batch_idx);
    if (!k.is_valid) report_length_error(error_word, LengthError::cu_seqlens_k, batch_idx);
    if (p.has_tree_mask && q.length > k.length)
      report_length_error(error_word, LengthError::tree_mask, batch_idx);
  }
  return {.row_q = q.begin, .row_k = k.begin, .seqlen_q = q.length, .seqlen_k = k.length};
}

}  // namespace headrace::cuda
