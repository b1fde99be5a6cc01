// GGUF files with random weights. The bytes depend on the seed alone, not on the number of threads.
#pragma once

#include <functional>
#include <vector>

#include "weights/model_file.h"
#include "weights/output_file.h"

namespace headrace {

// The elements of a tensor: normal numbers, or given values.
struct WeightFill {
  float mean = 0, deviation = 0;
  std::vector<float> values = {};  // not empty: these
};

struct RandomFile {
  ModelFile file;                 // of make_gguf_header()
  std::string header;             // likewise
  std::vector<WeightFill> fills;  // of each tensor
  std::uint64_t seed = 0;
};

// Runs task(i) once for every i in [0, num_tasks), on any threads, and returns when all have ended.
using ParallelFor =
    std::function<Status(std::int64_t num_tasks, const std::function<void(std::int64_t)>& task)>;
// Receives written and all bytes of weights, on the calling thread; may be empty. A failure ends
// the writing.
using WriteProgress = std::function<Status(std::uint64_t done, std::uint64_t total)>;

Status write_random_file(const RandomFile& random, const OutputFile& out,
                         const ParallelFor& parallel_for, const WriteProgress& progress);

}  // namespace headrace
