// Selects the instruction set, lays out the workspace and distributes units and keys to threads.
#include "backends/cpu/sparq/sparq.h"

#include <algorithm>

#include "backends/cpu/thread_pool.h"
#include "base/math.h"

namespace headrace::cpu {

namespace scalar {
extern const SparqOps kSparqOps;
}
namespace avx2 {
extern const SparqOps kSparqOps;
}
namespace avx512 {
extern const SparqOps kSparqOps;
}
namespace neon {
extern const SparqOps kSparqOps;
}

std::span<const SparqOps* const> all_sparq_ops() {
  static constexpr const SparqOps* kAll[] = {
#if defined(__x86_64__)
    &avx512::kSparqOps,
    &avx2::kSparqOps,
#elif defined(__aarch64__)
    &neon::kSparqOps,
#endif
    &scalar::kSparqOps,
  };
  return kAll;
}

const SparqOps& sparq_ops(const DeviceInfo& device) {
  for (const SparqOps* ops : all_sparq_ops())
    if ((device.cpu_isa & ops->cpu_isa) == ops->cpu_isa) return *ops;
  return scalar::kSparqOps;
}

namespace {

constexpr std::int64_t kAlignment = 64;
constexpr std::int64_t kTaskKeys = 4 * kSparqTileKeys;
// Units per thread, from which on a thread computes whole units.
constexpr std::int64_t kManyUnits = 4;

// Hands out aligned parts of a unit's memory; of a null base only their size counts.
class Layout {
 public:
  explicit Layout(char* base) : base_(base) {}
  template <class T>
  void add(T*& part, std::int64_t count) {
    if (base_ != nullptr) part = reinterpret_cast<T*>(base_ + bytes_);
    bytes_ += round_up<std::int64_t>(count * static_cast<std::int64_t>(sizeof(T)), kAlignment);
  }
  std::int64_t bytes() const { return bytes_; }

 private:
  char* base_;
  std::int64_t bytes_ = 0;
};

// Returns the bytes of a unit's memory.
std::int64_t lay_out(const SparqArgs& args, char* base, SparqScratch& s) {
  const std::int64_t g = group_size(args);
  // A sequence with at most num_keys keys has no scores.
  const std::int64_t keys = args.seqlen_k > args.num_keys ? args.seqlen_k : 0;
  s.dim_stride = round_up<std::int64_t>(args.head_dim, kAlignment / sizeof(float));
  s.key_stride = round_up<std::int64_t>(keys, kAlignment / sizeof(float));
  s.num_tiles = ceil_div(keys, kSparqTileKeys);
  Layout layout(base);
  layout.add(s.q, g * s.dim_stride);
  layout.add(s.q_components, g * args.num_components);
  layout.add(s.components, args.num_components);
  layout.add(s.scores, g * s.key_stride);
  layout.add(s.tile_max, g * s.num_tiles);
  layout.add(s.tile_sum, g * s.num_tiles);
  layout.add(s.p, keys);
  layout.add(s.candidates, keys);
  layout.add(s.keys, args.num_keys);
  layout.add(s.weights, g * args.num_keys);
  layout.add(s.rows, args.num_keys);
  s.element_stride =
      round_up<std::int64_t>(std::max(args.head_dim, args.head_dim_v), kAlignment / sizeof(float));
  if (args.has_codes) layout.add(s.elements, args.num_keys * s.element_stride);
  return layout.bytes();
}

std::int64_t num_units(const SparqArgs& args) { return args.batch * args.num_kv_heads; }

// With few units every unit has its memory, and threads share the keys of a unit; with many, a
// thread computes one unit after the other in memory of its own, which stays in its cache.
bool has_many_units(const SparqArgs& args, std::int64_t num_threads) {
  return num_units(args) >= kManyUnits * num_threads;
}

struct Job {
  const SparqArgs& args;
  const SparqOps& ops;
  char* memory;
  std::int64_t unit_bytes, tasks_per_unit;

  SparqUnit unit(std::int64_t index) const {
    SparqUnit unit{index / args.num_kv_heads, index % args.num_kv_heads, args.seqlen_k};
    if (args.paged.seqused_k != nullptr)
      unit.seqlen_k = args.paged.seqused_k[unit.batch_idx * args.paged.seqused_stride];
    return unit;
  }
  SparqScratch scratch(std::int64_t index) const {
    SparqScratch scratch{};
    lay_out(args, memory + index * unit_bytes, scratch);
    return scratch;
  }
  bool has_scores(const SparqUnit& unit) const { return unit.seqlen_k > args.num_keys; }
};

Status run_units(Job& job, int num_threads) {
  return parallel_for(
      num_units(job.args), num_threads,
      [](void* context, std::int64_t task, int worker) {
        const auto& j = *static_cast<const Job*>(context);
        const SparqUnit unit = j.unit(task);
        const SparqScratch scratch = j.scratch(worker);
        j.ops.prepare(j.args, unit, scratch);
        if (j.has_scores(unit)) j.ops.score(j.args, unit, scratch, {0, unit.seqlen_k});
        j.ops.attend(j.args, unit, scratch);
      },
      &job);
}

Status run_keys(Job& job, int num_threads) {
  const std::int64_t units = num_units(job.args);
  HEADRACE_TRY(parallel_for(
      units, num_threads,
      [](void* context, std::int64_t task, int) {
        const auto& j = *static_cast<const Job*>(context);
        j.ops.prepare(j.args, j.unit(task), j.scratch(task));
      },
      &job));
  HEADRACE_TRY(parallel_for(
      units * job.tasks_per_unit, num_threads,
      [](void* context, std::int64_t task, int) {
        const auto& j = *static_cast<const Job*>(context);
        const std::int64_t index = task / j.tasks_per_unit;
        const SparqUnit unit = j.unit(index);
        const std::int64_t first = task % j.tasks_per_unit * kTaskKeys;
        if (!j.has_scores(unit) || first >= unit.seqlen_k) return;
        j.ops.score(j.args, unit, j.scratch(index),
                    {first, std::min(first + kTaskKeys, unit.seqlen_k)});
      },
      &job));
  return parallel_for(
      units, num_threads,
      [](void* context, std::int64_t task, int) {
        const auto& j = *static_cast<const Job*>(context);
        j.ops.attend(j.args, j.unit(task), j.scratch(task));
      },
      &job);
}

}  // namespace

std::size_t sparq_workspace_bytes(const SparqArgs& args, const DeviceInfo& device) {
  SparqScratch scratch;
  const std::int64_t threads = std::max(device.num_units, 1);
  const std::int64_t slots = has_many_units(args, threads) ? threads : num_units(args);
  const std::int64_t bytes = saturating_product({slots, lay_out(args, nullptr, scratch)});
  return static_cast<std::size_t>(std::min(bytes, INT64_MAX - kAlignment) + kAlignment);
}

Status sparq_attention(const SparqArgs& args, const DeviceInfo& device, const SparqOps& ops,
                       void* workspace) {
  if (num_units(args) == 0) return std::nullopt;
  const int threads = std::max(device.num_units, 1);
  const auto address = reinterpret_cast<std::uintptr_t>(workspace);
  SparqScratch sizes;
  Job job{args, ops, static_cast<char*>(workspace) + (-address % kAlignment),
          lay_out(args, nullptr, sizes),
          std::max<std::int64_t>(1, ceil_div(args.seqlen_k, kTaskKeys))};
  return has_many_units(args, threads) ? run_units(job, threads) : run_keys(job, threads);
}

Status sparq_attention(const SparqArgs& args, const DeviceInfo& device, void* workspace) {
  return sparq_attention(args, device, sparq_ops(device), workspace);
}

}  // namespace headrace::cpu
