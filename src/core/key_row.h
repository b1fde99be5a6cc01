// One key or value as a query sees it: in 16 or 32 bits, or as codes with their scales.
#pragma once

#include "core/args.h"

namespace headrace {

// K or V of one key of a KV head. An element is scale * code or, with words, zero point + scale *
// code.
struct KeyRow {
  const void* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t offset = 0;  // of the first element, in elements also of packed codes
  float scale = 1;
  ScaleWords scales = {};  // of codes with zero points; `words` is null without
};

// Whether a query sees the key unquantised.
constexpr bool is_recent(const Problem& p, std::int64_t position, std::int64_t key) {
  return has_recent(p) && key >= first_recent(p, position);
}

// Of a key that the query at `position` sees. Reads the page tables and, without zero points, the
// scale.
constexpr KeyRow key_row(const Problem& p, const AttentionArgs& args, const Sequence& sequence,
                         std::int64_t batch_idx, std::int64_t kv_head, std::int64_t position,
                         std::int64_t key, bool is_of_k) {
  if (is_recent(p, position, key)) {
    const Operand& x = is_of_k ? args.recent.k : args.recent.v;
    return {.data = x.data,
            .dtype = dtype_of(p),
            .offset = recent_offset(p, args.recent, x, sequence, batch_idx, key, kv_head)};
  }
  const Operand& x = is_of_k ? args.k : args.v;
  const DType dtype = is_of_k ? k_dtype_of(p) : v_dtype_of(p);
  KeyRow row{.data = x.data,
             .dtype = dtype,
             .offset = elements_of(
                 dtype, key_offset(p, args.paged, x, sequence, batch_idx, key, kv_head))};
  if (has_zero_points(dtype))
    row.scales = scale_words(p, args, sequence, batch_idx, key, kv_head, is_of_k);
  else
    row.scale = scale_of(p, args.paged, is_of_k ? args.k_scale : args.v_scale, sequence, batch_idx,
                         key, kv_head);
  return row;
}

}  // namespace headrace
