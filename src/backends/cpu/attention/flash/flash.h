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
  int64_t units_per_head;  // tasks per (batch entry, KV heads of a task): row tiles or key tasks
  int64_t rows_per_head;   // scratch rows for each KV head of a task
  int64_t num_counters;    // of finished key tasks
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
