#include "executor/weight_uploader.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <new>
#include <span>

#include "backends/cpu/thread_pool.h"
#include "base/math.h"
#include "executor/common.h"
#include "weights/dequantise.h"

namespace headrace {
namespace {

// Of bf16. A thread reads it in about a millisecond, beside which a task and a copy cost little.
constexpr std::int64_t kPartBytes = 4 << 20;
constexpr int kMaxWorkers = 16;

Failure no_memory(const char* kind, std::size_t bytes, const DeviceInfo& device) {
  return {ErrorCode::out_of_memory,
          format_text("no {} for {} bytes of weights on device [{}]; free some or use a smaller "
                      "model",
                      kind, bytes, device_text(device))};
}

}  // namespace

struct WeightUploader::Job {
  WeightType format;
  std::int64_t rows, columns;
  const WeightBlocks& blocks;
  Stream stream;
  std::int64_t part_rows;
  std::byte* out;  // [rows, columns] on the device
};

Result<Weight> WeightUploader::upload(WeightType format, std::int64_t rows, std::int64_t columns,
                                      const WeightBlocks& blocks, Stream stream) {
  const std::size_t row_bytes = bytes_of(1, columns, DType::bf16);
  const std::size_t bytes = static_cast<std::size_t>(rows) * row_bytes;
  Weight weight{
      .format = format, .rows = rows, .columns = columns, .data = device_.allocate(bytes)};
  if (weight.data.data() == nullptr) return no_memory("memory", bytes, device_.info());
  const std::int64_t part_rows =
      std::max<std::int64_t>(1, kPartBytes / static_cast<std::int64_t>(row_bytes));
  const std::int64_t num_parts = ceil_div(rows, part_rows);
  const std::size_t part_bytes = static_cast<std::size_t>(part_rows) * row_bytes;
  if (Status bad = reserve(num_parts, part_bytes)) return std::move(*bad);
  const Job job{format, rows, columns, blocks, stream, part_rows, weight.data.data()};
  if (Status bad = upload_all(job, num_parts)) return std::move(*bad);
  return weight;
}

// Memory for as many parts at a time as there are threads.
Status WeightUploader::reserve(std::int64_t num_parts, std::size_t part_bytes) {
  Result<DeviceInfo> host = cpu_info();
  if (!host.ok()) return std::move(host.failure());
  const auto wanted = static_cast<std::size_t>(
      std::clamp<std::int64_t>(num_parts, 1, std::min(kMaxWorkers, host.value().num_units)));
  if (workers_.size() < wanted) workers_.resize(wanted);
  for (Worker& worker : workers_) {
    if (worker.staging.data() != nullptr && worker.staging.bytes() >= part_bytes) continue;
    worker.staging = device_.allocate_host(std::max<std::size_t>(part_bytes, kPartBytes));
    if (worker.staging.data() == nullptr)
      return no_memory("page-locked memory", part_bytes, device_.info());
  }
  return std::nullopt;
}

Status WeightUploader::upload_all(const Job& job, std::int64_t num_parts) {
  struct Parts {
    WeightUploader& uploader;
    const Job& job;
    std::mutex mutex = {};
    Status failure = {};  // the first one, behind which no part begins
  } parts{*this, job};
  const auto run = [](void* context, std::int64_t part, int worker) {
    auto& [uploader, of, mutex, first] = *static_cast<Parts*>(context);
    {
      const std::lock_guard lock(mutex);
      if (first) return;
    }
    Status failure;
    try {
      failure = uploader.upload_part(of, part, uploader.workers_[static_cast<std::size_t>(worker)]);
    } catch (const std::bad_alloc&) {
      failure = Failure{ErrorCode::out_of_memory, {}};
    }
    const std::lock_guard lock(mutex);
    if (failure && !first) first = std::move(failure);
  };
  HEADRACE_TRY(cpu::parallel_for(num_parts, static_cast<int>(workers_.size()), run, &parts));
  if (parts.failure && parts.failure->message.empty())
    return no_memory("memory of the host", kPartBytes, device_.info());
  return std::move(parts.failure);
}

// Waits for the copy, so that the worker's memory is free again.
Status WeightUploader::upload_part(const Job& job, std::int64_t part, Worker& worker) const {
  const std::int64_t first = part * job.part_rows;
  const std::int64_t num_rows = std::min(job.part_rows, job.rows - first);
  const auto row_bytes = static_cast<std::uint64_t>(info_of(job.format).bytes_of(job.columns));
  const auto begin = static_cast<std::uint64_t>(first) * row_bytes;
  const auto block_bytes = static_cast<std::size_t>(num_rows) * row_bytes;
  if (job.format == WeightType::bf16) {
    HEADRACE_TRY(job.blocks.read(begin, {worker.staging.data(), block_bytes}));
  } else {
    worker.blocks.resize(block_bytes);
    HEADRACE_TRY(job.blocks.read(begin, worker.blocks));
    bf16_rows(job.format, num_rows, job.columns, worker.blocks.data(),
              worker.staging.as<std::uint16_t>());
  }
  const std::array copy = {ByteCopy{worker.staging.data(),
                                    job.out + bytes_of(first, job.columns, DType::bf16),
                                    bytes_of(num_rows, job.columns, DType::bf16)}};
  HEADRACE_TRY(device_.copy(copy, job.stream));
  return device_.synchronise(job.stream);
}

}  // namespace headrace
