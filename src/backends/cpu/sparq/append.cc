// The append of SparQ attention: keys by component, sums of values.
#include <algorithm>

#include "backends/cpu/simd/element.h"
#include "backends/cpu/sparq/sparq.h"
#include "backends/cpu/thread_pool.h"

namespace headrace::cpu {
namespace {

constexpr std::int64_t kMaxRun = 64;  // tokens; their keys stay in the L1 cache

std::int64_t slot_of(const SparqAppendArgs& args, std::int64_t token) {
  return args.slot_mapping[token * args.slot_stride];
}
// In k.
std::int64_t k_slot_of(const SparqAppendArgs& args, std::int64_t token) {
  return args.k_slots == nullptr ? slot_of(args, token) : args.k_slots[token * args.k_slot_stride];
}

// Tokens from `first` on whose slots follow each other in one page, of k and of the components.
std::int64_t length_of_run(const SparqAppendArgs& args, std::int64_t first) {
  const std::int64_t slot = slot_of(args, first), k_slot = k_slot_of(args, first);
  const std::int64_t most =
      std::min({kMaxRun, args.num_tokens - first, args.page_size - slot % args.page_size,
                args.k_page_size - k_slot % args.k_page_size});
  std::int64_t n = 1;
  while (n < most && slot_of(args, first + n) == slot + n &&
         k_slot_of(args, first + n) == k_slot + n)
    ++n;
  return n;
}

template <class E>
void copy_keys(const SparqAppendArgs& args, std::int64_t kv_head) {
  for (std::int64_t token = 0; token < args.num_tokens;) {
    const std::int64_t slot = slot_of(args, token), k_slot = k_slot_of(args, token);
    if (slot < 0 || k_slot < 0) {
      ++token;
      continue;
    }
    const std::int64_t n = length_of_run(args, token);
    const std::int64_t page = slot / args.page_size, first = slot % args.page_size;
    const E* k = static_cast<const E*>(args.k.data) +
                 row_offset(args.k, k_slot / args.k_page_size, k_slot % args.k_page_size, kv_head);
    E* to = static_cast<E*>(args.components.data) + page * args.components.stride_page +
            kv_head * args.components.stride_head + first;
    for (std::int64_t c = 0; c < args.head_dim; ++c)
      for (std::int64_t i = 0; i < n; ++i)
        to[c * args.components.stride_component + i] = k[i * args.k.stride_seq + c];
    token += n;
  }
}

void add_values(const SparqAppendArgs& args, const SparqOps& ops, std::int64_t kv_head) {
  float value[kMaxSparqDim];
  for (std::int64_t row = 0; row < args.batch; ++row) {
    float* sum = static_cast<float*>(args.v_sum.data) + row * args.v_sum.stride_batch +
                 kv_head * args.v_sum.stride_head;
    const auto [first, last] = tokens_of_row(args, row);
    for (std::int64_t token = first; token < last; ++token) {
      const std::int64_t slot = slot_of(args, token);
      if (slot < 0) continue;
      ops.load_row(value_row(args, slot, kv_head), args.head_dim_v, value);
      for (std::int64_t c = 0; c < args.head_dim_v; ++c) sum[c] += value[c];
    }
  }
}

struct Job {
  const SparqAppendArgs& args;
  const SparqOps& ops;
};

void append_head(void* context, std::int64_t kv_head, int) {
  const auto& [args, ops] = *static_cast<const Job*>(context);
  switch (args.dtype) {
    case DType::f16:
      copy_keys<F16>(args, kv_head);
      break;
    case DType::bf16:
      copy_keys<Bf16>(args, kv_head);
      break;
    default:
      copy_keys<float>(args, kv_head);
  }
  if (args.v_sum.data != nullptr) add_values(args, ops, kv_head);
}

}  // namespace

Status sparq_append(const SparqAppendArgs& args, const DeviceInfo& device) {
  Job job{args, sparq_ops(device)};
  return parallel_for(args.num_kv_heads, std::max(device.num_units, 1), append_head, &job);
}

}  // namespace headrace::cpu
