#include "executor/cuda_step.h"

#include <algorithm>
#include <bit>

#include "base/math.h"

namespace headrace::cuda_step {
namespace {

// A bound on the memory of graphs. Decode steps of one sequence need a new graph every few hundred
// tokens (bucket_of_length()), and each size of a batch needs its own.
constexpr std::size_t kMaxEntries = 64;

}  // namespace

std::int64_t bucket_of_length(std::int64_t length) {
  constexpr std::int64_t kLeast = 256;
  const auto power = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(length)));
  return round_up(length, std::max(kLeast, power / 8));
}

// The entry of the step, new if there is none.
Graphs::Entry& Graphs::entry_of(const Step& step) {
  ++num_runs_;
  const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return entry.step.shape == step.shape && entry.step.operators == step.operators;
  });
  if (found != entries_.end()) {
    found->step.key = step.key;
    found->last_run = num_runs_;
    return *found;
  }
  if (entries_.size() == kMaxEntries)
    entries_.erase(
        std::min_element(entries_.begin(), entries_.end(),
                         [](const Entry& a, const Entry& b) { return a.last_run < b.last_run; }));
  return entries_.emplace_back(
      Entry{.step = step, .graph = {}, .num_runs = 0, .last_run = num_runs_});
}

Status Graphs::run(const Step& step, int device_id, Stream stream,
                   const std::function<Status()>& enqueue) {
  Entry& entry = entry_of(step);
  if (entry.graph != nullptr) return cuda::launch_graph(entry.graph, stream);
  if (++entry.num_runs == 1) return enqueue();
  HEADRACE_TRY(cuda::begin_capture(device_id, stream));
  Status failure = enqueue();
  Result<cuda::Graph> graph = cuda::end_capture(device_id, stream);
  if (failure) return failure;
  if (!graph.ok()) return std::move(graph.failure());
  entry.graph = std::move(graph.value());
  return cuda::launch_graph(entry.graph, stream);
}

Result<bool> Graphs::repeat(const Step& step, Stream stream) {
  const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return entry.graph != nullptr && entry.step.key == step.key && entry.step.shape == step.shape;
  });
  if (step.key.decoder == nullptr || found == entries_.end()) return false;
  found->last_run = ++num_runs_;
  if (Status failed = cuda::launch_graph(found->graph, stream)) return std::move(*failed);
  return true;
}

}  // namespace headrace::cuda_step
