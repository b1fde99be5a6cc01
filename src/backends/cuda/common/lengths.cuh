// Rows of a sequence, from cu_seqlens on the device. Bad values are clamped to the buffers.
#pragma once

#include <cstdint>

#include "backends/cuda/common/kernel_args.h"
#include "backends/cuda/runtime/length_error.h"

namespace headrace::cuda {

__device__ inline void report_length_error(std::uint32_t* error_word, LengthError kind,
                                           std::int64_t batch_idx) {
  const std::uint32_t entry = static_cast<std::uint32_t>(batch_idx) & kLengthErrorEntry;
  atomicCAS(error_word, 0u,
            static_cast<std::uint32_t>(kind) << kLengthErrorShift | entry);  // the first stays
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
__device__ inline Sequence device_sequence(const Sizes& sizes, const Lengths& lengths,
                                           std::int64_t batch_idx, bool reports) {
  if (!sizes.is_ragged) return {.seqlen_q = sizes.seqlen_q, .seqlen_k = sizes.seqlen_k};
  const RowRange q = rows_of_sequence(lengths.ragged.cu_seqlens_q, batch_idx, sizes.batch,
                                      sizes.total_q, sizes.seqlen_q);
  const RowRange k = rows_of_sequence(lengths.ragged.cu_seqlens_k, batch_idx, sizes.batch,
                                      sizes.total_k, sizes.seqlen_k);
  if (reports) {
    if (!q.is_valid) report_length_error(lengths.error_word, LengthError::cu_seqlens_q, batch_idx);
    if (!k.is_valid) report_length_error(lengths.error_word, LengthError::cu_seqlens_k, batch_idx);
    if (lengths.has_tree_mask && q.length > k.length)
      report_length_error(lengths.error_word, LengthError::tree_mask, batch_idx);
  }
  return {.row_q = q.begin, .row_k = k.begin, .seqlen_q = q.length, .seqlen_k = k.length};
}

// The entries of block_table that page_indptr gives a sequence; none where an offset leaves the
// table.
struct PageRange {
  std::int32_t begin, count;
};
__device__ __forceinline__ PageRange pages_of_sequence(const UsedKeys& keys,
                                                       std::int64_t batch_idx) {
  const std::int32_t begin = keys.page_indptr[batch_idx];
  const std::int32_t end = min(keys.page_indptr[batch_idx + 1], keys.num_entries);
  return begin < 0 || begin >= end ? PageRange{0, 0} : PageRange{begin, end - begin};
}
// row_k of the Sequence.
__device__ __forceinline__ std::int32_t first_entry(const UsedKeys& keys, std::int64_t batch_idx) {
  return keys.page_indptr == nullptr ? 0 : pages_of_sequence(keys, batch_idx).begin;
}

// seqlen_k becomes seqused_k, at most seqlen_k and the keys that the sequence has pages for, and
// row_k the first entry of its pages. So no kernel reads an entry of another sequence.
__device__ inline void take_used_keys(const Lengths& lengths, const UsedKeys& keys,
                                      std::int64_t batch_idx, bool reports, Sequence& sequence) {
  const std::int64_t used = keys.seqused_k[batch_idx * keys.stride];
  std::int64_t clamped = min(max(used, std::int64_t{0}), sequence.seqlen_k);
  if (reports && used != clamped)
    report_length_error(lengths.error_word, LengthError::seqused_k, batch_idx);
  if (keys.page_indptr != nullptr) {
    const PageRange pages = pages_of_sequence(keys, batch_idx);
    const std::int64_t in_pages = std::int64_t{pages.count} * keys.page_size;
    if (reports && clamped > in_pages)
      report_length_error(lengths.error_word, LengthError::block_table, batch_idx);
    clamped = min(clamped, in_pages);
    sequence.row_k = pages.begin;
  }
  if (reports && lengths.has_tree_mask && sequence.seqlen_q > clamped)
    report_length_error(lengths.error_word, LengthError::tree_mask, batch_idx);
  sequence.seqlen_k = clamped;
}

// The same as device_sequence() with seqused_k and pages, which only some kernels take.
__device__ inline Sequence sequence_with_used_keys(const Sizes& sizes, const Lengths& lengths,
                                                   const UsedKeys& keys, std::int64_t batch_idx,
                                                   bool reports) {
  Sequence sequence{.seqlen_q = sizes.seqlen_q, .seqlen_k = sizes.seqlen_k};
  if (keys.has_ragged_keys) {
    sequence = device_sequence(sizes, lengths, batch_idx, reports);
  } else if (sizes.is_ragged) {
    const RowRange q = rows_of_sequence(lengths.ragged.cu_seqlens_q, batch_idx, sizes.batch,
                                        sizes.total_q, sizes.seqlen_q);
    if (reports && !q.is_valid)
      report_length_error(lengths.error_word, LengthError::cu_seqlens_q, batch_idx);
    sequence.row_q = q.begin;
    sequence.seqlen_q = q.length;
  }
  if (keys.seqused_k != nullptr) take_used_keys(lengths, keys, batch_idx, reports, sequence);
  return sequence;
}

}  // namespace headrace::cuda
