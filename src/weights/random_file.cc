#include "weights/random_file.h"

#include <algorithm>
#include <mutex>
#include <span>

#include "base/math.h"
#include "core/aligned.h"
#include "weights/quantise.h"
#include "weights/random_normal.h"

namespace headrace {
namespace {

// Elements of a task: whole blocks of every format, small enough for the L2 cache.
constexpr std::int64_t kChunk = 1 << 16;
constexpr std::int64_t kRound = 1024 * kChunk;  // elements between two calls of progress

std::int64_t elements_of(const TensorInfo& tensor) {
  std::int64_t elements = 1;
  for (const std::int64_t n : tensor.shape) elements *= n;
  return elements;
}

std::uint64_t bytes_of(WeightType type, std::int64_t elements) {
  const WeightTypeInfo& info = info_of(type);
  return static_cast<std::uint64_t>(info.bytes_of(elements));
}

// Elements [first, first + out.size()) of tensor `idx`.
void fill(const RandomFile& random, std::size_t idx, std::int64_t first, std::span<float> out) {
  const WeightFill& rule = random.fills[idx];
  if (!rule.values.empty()) {
    std::copy_n(rule.values.begin() + first, out.size(), out.begin());
    return;
  }
  random_normals(random.seed, static_cast<std::uint32_t>(idx), first, out);
  for (float& value : out) value = rule.mean + rule.deviation * value;
}

Status write_chunk(const RandomFile& random, std::size_t idx, std::int64_t first,
                   const OutputFile& out) {
  const TensorInfo& tensor = random.file.tensors[idx];
  const std::int64_t count = std::min(kChunk, elements_of(tensor) - first);
  const std::uint64_t bytes = bytes_of(tensor.type, count);
  const Aligned<float> values(static_cast<std::size_t>(count));
  const Aligned<std::byte> blocks(bytes);
  if (values.get() == nullptr || blocks.get() == nullptr)
    return Failure{ErrorCode::out_of_memory,
                   format_text("no memory for {} weights; close other programs", count)};
  fill(random, idx, first, {values.get(), static_cast<std::size_t>(count)});
  quantise(tensor.type, values.get(), count, blocks.get());
  return out.write(blocks.get(), bytes, tensor.offset + bytes_of(tensor.type, first));
}

// Runs task(i) for every i in [0, num_tasks) and returns the first failure.
Status run_all(const ParallelFor& parallel_for, std::int64_t num_tasks,
               const std::function<Status(std::int64_t)>& task) {
  std::mutex mutex;
  Status failure;
  HEADRACE_TRY(parallel_for(num_tasks, [&](std::int64_t i) {
    Status result = task(i);
    const std::lock_guard lock(mutex);
    if (result && !failure) failure = std::move(result);
  }));
  return failure;
}

}  // namespace

Status write_random_file(const RandomFile& random, const OutputFile& out,
                         const ParallelFor& parallel_for, const WriteProgress& progress) {
  HEADRACE_TRY(out.write(random.header.data(), random.header.size(), 0));
  std::uint64_t total = 0, done = 0;
  for (const TensorInfo& tensor : random.file.tensors) total += tensor.bytes;
  for (std::size_t idx = 0; idx < random.file.tensors.size(); ++idx) {
    const TensorInfo& tensor = random.file.tensors[idx];
    const std::int64_t elements = elements_of(tensor);
    for (std::int64_t first = 0; first < elements; first += kRound) {
      const std::int64_t count = std::min(kRound, elements - first);
      HEADRACE_TRY(run_all(parallel_for, ceil_div(count, kChunk), [&](std::int64_t i) {
        return write_chunk(random, idx, first + i * kChunk, out);
      }));
      done += bytes_of(tensor.type, count);
      if (progress) HEADRACE_TRY(progress(done, total));
    }
  }
  return std::nullopt;
}

}  // namespace headrace
