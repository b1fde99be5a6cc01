// The operators of a step on a CUDA device, as a list. A step is recorded first and run at its end,
// so that one that repeats is launched as a graph.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <variant>
#include <vector>

#include "backends/cuda/backend.h"
#include "executor/common.h"

namespace headrace::cuda_step {

// The arguments of the operators of Executor.
struct Embed {
  const void* embedding;
  const std::int32_t* drawn_tokens;
  Rows out;
  bool operator==(const Embed&) const = default;
};
struct Gather {
  Rows x, out;
  bool operator==(const Gather&) const = default;
};
struct Norm {
  Rows x;
  const float* weight;
  float eps;
  Rows out;
  bool operator==(const Norm&) const = default;
};
struct Append {
  Rows qkv;
  std::int64_t layer;
  Rows q;
  bool operator==(const Append&) const = default;
};
struct Multiply {
  std::array<cuda::Matrix, cuda::kMaxStackedMatrices> matrices;
  std::size_t num_matrices;
  const float* bias;
  Rows x, out;
  bool adds_to_out;
  bool has_swiglu = false;
  cuda::InputNorm norm = {};
  std::optional<Append> append = {};  // in place of out
  bool operator==(const Multiply&) const = default;
};
// The angles of the step's tokens, for all layers.
struct Angles {
  bool operator==(const Angles&) const = default;
};
struct Attend {
  Rows q;
  std::int64_t layer;
  Rows out;
  bool follows_append;  // of a product
  bool operator==(const Attend&) const = default;
};
struct Activate {
  Rows gate_up, out;
  bool operator==(const Activate&) const = default;
};
using Operator = std::variant<Angles, Embed, Gather, Norm, Multiply, Append, Attend, Activate>;

// What the launches of a step depend on beside its operators.
struct Shape {
  StepSize prefill, decode;  // of their sequences
  std::int64_t num_logits, num_heads, window, page_size, num_pages, layer_bytes;
  DType cache_dtype, k_dtype, v_dtype;
  const void *k, *v, *recent, *arrays, *attn_out, *workspace, *angles, *frequencies, *drawn_tokens;
  bool operator==(const Shape&) const = default;
};

// Steps of one key and shape have equal operators.
struct Key {
  const void* decoder = nullptr;  // null: of no other step
  const float* logits = nullptr;
  std::uint64_t activations = 0;  // Activations::version()
  bool operator==(const Key&) const = default;
};

struct Step {
  Key key{};
  Shape shape{};
  std::vector<Operator> operators;
};

// Whether the last operator is a product that appends.
inline bool ends_with_append(const Step& step) {
  const auto* product = std::get_if<Multiply>(&step.operators.back());
  return product != nullptr && product->append.has_value();
}

// The longest sequence that the graph of a step with one of this length serves: at most an eighth
// longer, or 255 tokens, so that a sequence that doubles its length needs up to eight graphs.
std::int64_t bucket_of_length(std::int64_t length);

// Graphs of the steps that were run last.
class Graphs {
 public:
  // Runs a step by `enqueue`, which enqueues its operators on `stream`. A step that has been run
  // before, with equal operators and shape, is captured, and from then on launched as a graph.
  Status run(const Step& step, int device_id, Stream stream,
             const std::function<Status()>& enqueue);
  // Launches the graph of a step with this key and shape; false: there is none.
  Result<bool> repeat(const Step& step, Stream stream);

 private:
  struct Entry {
    Step step;
    cuda::Graph graph;  // empty until the second run
    std::uint64_t num_runs = 0;
    std::uint64_t last_run = 0;  // counted over all steps
  };
  Entry& entry_of(const Step& step);

  std::vector<Entry> entries_;
  std::uint64_t num_runs_ = 0;
};

}  // namespace headrace::cuda_step
