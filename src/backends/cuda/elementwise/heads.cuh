// Where the heads of a token are written by an append of the common case.
#pragma once

#include "backends/cuda/common/lengths.cuh"
#include "backends/cuda/elementwise/kv_append.h"

namespace headrace::cuda::append {

enum class HeadKind { q, k, v };

struct TokenPlace {
  int position;       // the row of the tables
  std::int64_t slot;  // of K and V; negative: not stored
};
__device__ __forceinline__ TokenPlace place_of(const VectorParams& p, HeadKind kind, int token) {
  return {p.positions == nullptr ? token : p.positions[token * p.position_stride],
          kind == HeadKind::q ? -1 : p.slot_mapping[token * p.slot_stride]};
}

// Whether the tables have the token's row.
__device__ __forceinline__ bool has_row(const VectorParams& p, const TokenPlace& place) {
  return place.position >= 0 && place.position < p.max_positions;
}

// Whether the token's heads are written. Reports a position or a slot that does not exist.
__device__ __forceinline__ bool is_stored(const VectorParams& p, HeadKind kind, int token,
                                          const TokenPlace& place) {
  if (!has_row(p, place)) {
    report_length_error(p.error_word, LengthError::positions, token);
    return false;
  }
  if (place.slot >= p.num_slots) {
    report_length_error(p.error_word, LengthError::slot_mapping, token);
    return false;
  }
  return kind == HeadKind::q || place.slot >= 0;
}

// The first element of a head that is written.
template <class Stored>
__device__ __forceinline__ Stored* head_of(const VectorParams& p, HeadKind kind, int token,
                                           int head, std::int64_t slot) {
  if (kind == HeadKind::q)
    return static_cast<Stored*>(p.q_out.data) + token * p.q_out.stride_token +
           head * p.q_out.stride_head;
  const PageRowsOf& pages = kind == HeadKind::k ? p.k_pages : p.v_pages;
  const int page = p.by_page_size.divide(static_cast<int>(slot)),
            in_page = static_cast<int>(slot) - page * p.page_size;
  return static_cast<Stored*>(pages.data) + page * pages.stride_page + in_page * pages.stride_slot +
         head * pages.stride_head;
}

}  // namespace headrace::cuda::append
