// What a step on the CPU computes for SparQ attention, beside the append and the attention of its
// executor.
#pragma once

#include <vector>

#include "executor/executor.h"

namespace headrace {

class CpuSparq {
 public:
  explicit CpuSparq(Device& device) : device_(device) {}

  // The memory of a step with batch.sparq. out_of_memory.
  Status begin_step(const Batch& batch, const KvView& kv, const AttentionSpec& spec);
  // Behind the append of a layer: the new keys by component, and the sums of the values before the
  // pages that begin with a new token.
  Status append(const Batch& batch, const KvView& kv, std::int64_t layer);
  // out: [num_seqs, num_heads * head_dim_v] in the dtype of the cache.
  Status attention(const Batch& batch, const KvView& kv, std::int64_t layer, const Rows& q,
                   void* out);

 private:
  Status begin_page(const KvView& kv, std::int64_t layer, const std::int32_t* pages,
                    std::int64_t page_idx);
  // Of all keys, [num_seqs, num_kv_heads, head_dim_v].
  Status sum_values(const Batch& batch, const KvView& kv, std::int64_t layer);
  Status add_values(const KvView& kv, std::int64_t layer, std::int64_t page,
                    std::int64_t num_tokens, float* sum);

  Device& device_;
  Buffer workspace_, sums_;
  std::vector<std::int64_t> slots_;  // of one page
  SparqArgs args_;                   // of every layer of the step, but for its operands
};

}  // namespace headrace
