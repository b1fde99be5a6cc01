// Copies matrices of model files to a device, in bf16. Threads read parts of a matrix into
// page-locked memory, from where they are copied: one thread, through pageable memory, took 15 s
// for 16 GB that were in the page cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/error.h"
#include "runtime/device.h"
#include "weights/weight.h"
#include "weights/weight_source.h"

namespace headrace {

// For one thread at a time. Its memory on the host is allocated by the first uploads.
class WeightUploader {
 public:
  explicit WeightUploader(Device& device) : device_(device) {}

  // On return the weights are there for work of every stream. out_of_memory, device_error, and
  // those of blocks.
  Result<Weight> upload(WeightType format, std::int64_t rows, std::int64_t columns,
                        const WeightBlocks& blocks, Stream stream);

 private:
  struct Worker {
    Buffer staging;                 // page-locked: bf16 rows
    std::vector<std::byte> blocks;  // of other formats
  };
  struct Job;
  Status reserve(std::int64_t num_parts, std::size_t part_bytes);
  Status upload_part(const Job& job, std::int64_t part, Worker& worker) const;
  Status upload_all(const Job& job, std::int64_t num_parts);

  Device& device_;
  std::vector<Worker> workers_;
};

}  // namespace headrace
