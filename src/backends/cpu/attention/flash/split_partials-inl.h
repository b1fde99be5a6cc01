// The partial results of the splits of a KV head, and the order in which they merge.
#pragma once

#include <algorithm>
#include <atomic>

#include "backends/cpu/attention/flash/flash.h"
#include "backends/cpu/attention/partial_rows-inl.h"

namespace headrace::cpu::flash {

// Of the key tasks of a sequence, in memory that they share; or of a row tile that computes all
// splits, in the worker's own memory.
template <class Vec>
struct SplitPartials {
  const Call& call;
  const SequencePlan& work_plan;
  int64_t head_idx;  // batch entry and KV head
  int64_t key_task;
  float* scratch;

  bool has_key_tasks() const { return work_plan.num_key_tasks > 1; }
  PartialRows<Vec> of_task(int64_t task) const {
    const Partials& partials = call.plan->partials;
    return {
        call.partial + head_idx * partials.head_floats + task * partials.rows * partials.row_floats,
        partials.row_floats, call.plan->scratch.o_stride};
  }
  // Without key tasks: of the current group of splits (0), of all groups so far (1).
  PartialRows<Vec> of_tile(int i) const {
    const Scratch& x = call.plan->scratch;
    return {scratch + x.partials + i * x.partial_rows * x.partial, x.partial, x.o_stride};
  }
  PartialRows<Vec> of_split() const { return has_key_tasks() ? of_task(key_task) : of_tile(0); }

  // Without key tasks: merges the finished group of splits into those before it.
  void merge_group(int64_t num_rows) const {
    for (int64_t r = 0; r < num_rows; ++r) {
      of_tile(1).merge(r, of_tile(0)[r]);
      of_tile(0).clear(r);
    }
  }

  // Whether no other task is left that adds to these rows. The last task merges in the order of the
  // keys: which one it is changes no bit.
  bool are_last(int64_t num_rows) const {
    if (!has_key_tasks()) {
      merge_group(num_rows);
      return true;
    }
    std::atomic_ref<uint32_t> finished(call.num_finished[head_idx]);
    return finished.fetch_add(1, std::memory_order_acq_rel) + 1 == work_plan.num_key_tasks;
  }

  // A whole row. In the order of a task that computes all splits: within each group, then the
  // groups.
  Partial merged(int64_t r) const {
    if (!has_key_tasks()) return of_tile(1)[r];
    const int64_t tasks = work_plan.num_key_tasks, group = kGroupSplits / work_plan.task_splits;
    for (int64_t first = 0; first < tasks; first += group) {
      for (int64_t task = first + 1; task < std::min(first + group, tasks); ++task)
        of_task(first).merge(r, of_task(task)[r]);
      if (first > 0) of_task(0).merge(r, of_task(first)[r]);
    }
    return of_task(0)[r];
  }
};

}  // namespace headrace::cpu::flash
