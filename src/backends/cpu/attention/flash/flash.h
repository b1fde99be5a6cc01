// A call of the flash kernel, and its compiled instances.
#pragma once

#include "backends/cpu/attention/flash/config.h"
#include "core/args.h"
#include "core/plan.h"

namespace headrace::cpu::flash {

// What a call needs of the problem alone.
struct ForwardPlan {
  SequencePlan sequence;  // of sequences with the lengths of the problem
  Scratch scratch;
  Partials partials;
  int64_t units_per_head;     // tasks per (batch entry, KV heads of a task): row tiles or key tasks
  int32_t rows_per_head;      // direct path: scratch rows for each KV head of a task
  bool has_integer_products;  // direct path: of Q and P with 8-bit and 4-bit codes
  int64_t num_counters;       // of finished key tasks
  size_t scratch_bytes, partial_bytes;
};

// The data of all tasks; shared by the workers and immutable while they run.
struct Call {
  const Problem* problem;
  const AttentionArgs* args;
  Tile tile;
  int num_threads;
  int64_t num_tasks;
  const ForwardPlan* plan;
  int64_t heads_per_task;  // KV heads per task
  float* worker_scratch;   // [num_workers, scratch.total], 64-byte aligned
  float* partial;          // [batch, num_kv_heads, key tasks, rows, row_floats]
  uint32_t* num_finished;  // [batch, num_kv_heads] finished key tasks, initially zero
};

// A task: a row tile of one (batch entry, KV head) over all of its keys, or all rows over some of
// the splits (a key task); or of several KV heads, one key tile after the other.
struct Work {
  int64_t batch_idx, first_head;
  Sequence sequence;
  SequencePlan plan;
  int64_t key_task, split_idx, end_split;
  int64_t first_row, num_rows;  // 0: nothing to do
  bool has_key_tasks() const { return plan.num_key_tasks > 1; }
};
inline Work work_of(const Call& call, int64_t index) {
  const Problem& p = *call.problem;
  const int64_t units_per_head = call.plan->units_per_head;
  const int64_t head_groups = p.num_kv_heads / call.heads_per_task;
  const int64_t entry_units = units_per_head * head_groups;
  Work work{};
  work.batch_idx = index / entry_units;
  work.sequence = sequence_of(p, *call.args, work.batch_idx);
  work.plan = has_device_lengths(p)
                  ? plan_sequence(p, work.sequence.seqlen_q, work.sequence.seqlen_k,
                                  min_key_tasks(p, call.num_threads))
                  : call.plan->sequence;
  const bool is_split = work.has_key_tasks();
  // Task order: the tiles of a head are consecutive, because they share its K and V. The key
  // tasks of all heads over the same keys are consecutive: in [batch, seqlen, heads, dim] these
  // keys are adjacent, so hardware prefetches past a row fetch the next head's.
  const int64_t entry_unit = index % entry_units;
  const int64_t unit = is_split ? entry_unit / head_groups : entry_unit % units_per_head;
  const int64_t heads = is_split ? entry_unit % head_groups : entry_unit / units_per_head;
  work.first_head = heads * call.heads_per_task;
  const int64_t all_rows = work.sequence.seqlen_q * group_size(p);
  const int64_t num_tiles = ceil_div(all_rows, call.tile.m);
  // Causal tiles differ in length: the longest first, so that no thread starts a long one last.
  const int64_t tile_idx = num_tiles - 1 - unit;
  work.key_task = is_split ? unit : 0;
  work.split_idx = work.key_task * work.plan.task_splits;
  work.end_split = std::min(work.split_idx + work.plan.task_splits, work.plan.num_splits);
  work.first_row = is_split ? 0 : tile_idx * call.tile.m;
  const int64_t num_units = is_split ? work.plan.num_key_tasks : num_tiles;
  work.num_rows = unit < num_units ? std::min(call.tile.m, all_rows - work.first_row) : 0;
  return work;
}

// Rows see nothing in splits before and after these.
inline void skip_invisible_splits(const Problem& p, Work& work) {
  const int64_t seqlen_q = work.sequence.seqlen_q, seqlen_k = work.sequence.seqlen_k;
  const int64_t group = group_size(p), last_row = work.first_row + work.num_rows - 1;
  KeyRange all{seqlen_k, 0};
  for (int64_t q_idx = work.first_row / group; q_idx <= last_row / group; ++q_idx) {
    const KeyRange keys = visible_keys(p, q_idx, seqlen_q, seqlen_k);
    if (keys.begin < keys.end) all = {std::min(all.begin, keys.begin), std::max(all.end, keys.end)};
  }
  work.split_idx = std::max(work.split_idx, all.begin / work.plan.split_keys);
  work.end_split = std::min(work.end_split, ceil_div(all.end, work.plan.split_keys));
}

// An instance: one instruction set. `task` is task_body[dtype] for f32, f16, bf16 (null: not
// compiled).
using TaskBody = void (*)(void* call, int64_t task, int worker);
struct Instance {
  IsaShape shape;
  TaskBody task_body[3];  // by DType
};

// Instances for other architectures are only declared.
namespace scalar {
extern const Instance kInstance;
}
namespace avx2 {
extern const Instance kInstance;
}
namespace avx512 {
extern const Instance kInstance;
}
namespace avx512bf16 {
extern const Instance kInstance;
}
namespace neon {
extern const Instance kInstance;
}

}  // namespace headrace::cpu::flash
