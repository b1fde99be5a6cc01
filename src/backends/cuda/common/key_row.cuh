// Device code that reads keys and values as a query sees them (core/key_row.h), an element at a
// time.
#pragma once

#include "backends/cuda/common/element.cuh"
#include "core/dtype.h"
#include "core/key_row.h"
#include "core/quantise.h"

namespace headrace::cuda {

// Whether the key's page exists; true without pages.
__device__ inline bool has_page(const Problem& p, const PagedKeys& paged, const Sequence& sequence,
                                std::int64_t batch_idx, std::int64_t key) {
  if (!has_pages(p)) return true;
  const std::int64_t page = pages_of(paged, sequence, batch_idx)[key / p.page_size];
  return page >= 0 && page < p.num_pages;
}

// The same of a recent key.
__device__ inline bool has_recent_page(const Problem& p, const RecentKeys& recent,
                                       const Sequence& sequence, std::int64_t batch_idx,
                                       std::int64_t key) {
  const std::int64_t entry = key / p.recent_group - first_recent_group(p, sequence);
  const std::int64_t page =
      entry < p.max_recent ? recent.table[batch_idx * recent.stride_table + entry] : -1;
  return page >= 0 && page < p.num_recent_pages;
}

// Whether the page of a key exists, in the form that the query at `position` sees.
__device__ inline bool has_page_of_row(const Problem& p, const AttentionArgs& args,
                                       const Sequence& sequence, std::int64_t batch_idx,
                                       std::int64_t position, std::int64_t key) {
  return is_recent(p, position, key) ? has_recent_page(p, args.recent, sequence, batch_idx, key)
                                     : has_page(p, args.paged, sequence, batch_idx, key);
}

template <class Real>
__device__ __forceinline__ Real with_zero_point(const ScaleWords& scales, std::int64_t d,
                                                int code) {
  const ScaleAndZero x = unpack_scale(scales.words[d / scales.channels]);
  return Real(x.zero) + Real(x.scale) * Real(code);
}

// Element d of a row; T: the elements of rows without codes.
template <class T>
__device__ __forceinline__ typename ComputeType<T>::type load_element(const KeyRow& row,
                                                                      std::int64_t d) {
  using Real = typename ComputeType<T>::type;
  const std::int64_t i = row.offset + d;
  const auto* bytes = static_cast<const std::uint8_t*>(row.data);
  switch (row.dtype) {
    case DType::i8:
      return Real(row.scale) * Real(static_cast<const std::int8_t*>(row.data)[i]);
    case DType::f8e4m3:
      return Real(row.scale) * Real(float_from_e4m3(bytes[i]));
    case DType::i4x2:
      return Real(row.scale) * Real((i % 2 == 0 ? bytes[i / 2] & 15 : bytes[i / 2] >> 4) - 8);
    case DType::u4x2:
      return with_zero_point<Real>(row.scales, d, unsigned_code(4, bytes, i));
    case DType::u2x4:
      return with_zero_point<Real>(row.scales, d, unsigned_code(2, bytes, i));
    default:
      return load_real(static_cast<const T*>(row.data), i);
  }
}

}  // namespace headrace::cuda
