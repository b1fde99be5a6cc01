// Memory for one attention call, forward or backward, with random inputs. The out and lse that a
// backward reads come from a forward, which must run first.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <vector>

#include "attention_shape.h"
#include "gpu.h"
#include "headrace/headrace.hpp"

namespace headrace::cli {

enum class Layout {
  bshd,  // the heads of a token are contiguous
  bhsd,  // the tokens of a head are contiguous; dense batches only
};

class AttentionData {
 public:
  AttentionData(const AttentionShape& shape, Layout layout);
  const AttentionTensors& tensors() const { return tensors_; }
  const AttentionGradients& gradients() const { return gradients_; }  // of a backward
  const AttentionOptions& options() const { return options_; }
  Workspace workspace(std::size_t bytes);
  // Copies everything to a GPU; later workspaces are allocated there, too.
  void move_to(Gpu& gpu, int device_id);

 private:
  struct Free {
    void operator()(std::byte* data) const;
  };
  std::byte* allocate(std::size_t bytes);
  TensorView floats(DType dtype, std::initializer_list<std::int64_t> shape);
  TensorView heads(const AttentionShape& shape, Layout layout, bool is_query, std::int64_t dim);
  void add_scores(const AttentionShape& shape);
  void add_ragged(const AttentionShape& shape);

  std::vector<std::unique_ptr<std::byte, Free>> buffers_;
  AttentionTensors tensors_;
  AttentionGradients gradients_;
  Gpu* gpu_ = nullptr;
  AttentionOptions options_;
  std::uint64_t random_state_ = 0x9E3779B97F4A7C15u;
};

}  // namespace headrace::cli
