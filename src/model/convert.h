// Model files with fewer KV heads: grouped-query attention from a checkpoint with more heads, by
// the mean of adjacent heads (Ainslie et al., "GQA", 2023, arXiv:2305.13245). A model loses quality
// until it is trained on.
#pragma once

#include <functional>
#include <string>

#include "base/error.h"
#include "weights/weight_type.h"

namespace headrace::model {

struct ConvertOptions {
  std::int64_t num_kv_heads = 0;       // divides that of the file
  WeightType type = WeightType::bf16;  // of the matrices that change: f32, bf16 or f16
  // Receives written and all bytes of weights; may be empty. A failure ends the writing.
  std::function<Status(std::uint64_t done, std::uint64_t total)> progress = {};
};

// Reads the GGUF file `input` and writes `output`, which appears when it is complete and replaces a
// file of that name. The rows of the K and V projections and their biases are means of f32 values,
// rounded once; the bytes of all other tensors stay. invalid_argument: the number of heads or the
// type. io_error: a file.
Status convert_model(const std::string& input, const std::string& output,
                     const ConvertOptions& options);

}  // namespace headrace::model
