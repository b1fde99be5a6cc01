// Softmax along an axis and its backward. A row's bits depend on nothing but the row, the scale and
// the algorithm: not on other rows, the threads, the layout or the instruction set.
#pragma once

#include <span>

#include "backends/cpu/elementwise/elementwise.h"
#include "core/device.h"
#include "core/softmax_args.h"

namespace headrace::cpu {

// On the threads of the pool, as many as the device has units. Nothing is allocated or checked.
// Fails as parallel_for does.
[[nodiscard]] Status softmax_forward(const SoftmaxForwardArgs& args, const DeviceInfo& device);
[[nodiscard]] Status softmax_backward(const SoftmaxBackwardArgs& args, const DeviceInfo& device);

// Rows of this length and shorter keep their exponentials in the innermost cache with `safe`, which
// makes it the faster algorithm for them; for longer ones `online` saves a pass over memory.
inline constexpr std::int64_t kLongestKeptRow = 4096;

constexpr SoftmaxAlgorithm algorithm_of(const SoftmaxForwardArgs& args) {
  if (args.algorithm != SoftmaxAlgorithm::automatic) return args.algorithm;
  return args.rows.length <= kLongestKeptRow ? SoftmaxAlgorithm::safe : SoftmaxAlgorithm::online;
}

// Rows that do not lie contiguous are copied, this many at a time, a piece after the other.
inline constexpr int kPanelRows = 16;

// Both, compiled for one instruction set, on a range of rows.
struct SoftmaxOps {
  const char* name;
  std::uint32_t cpu_isa;  // headrace_cpu_isa bits that it needs
  void (*forward)(const SoftmaxForwardArgs& args, RowRange rows);
  void (*backward)(const SoftmaxBackwardArgs& args, RowRange rows);
};

// All of this build, the fastest first; the last one runs anywhere.
std::span<const SoftmaxOps* const> all_softmax_ops();

}  // namespace headrace::cpu
