// Softmax along an axis and its backward. A row's bits depend only on the row, the scale and the
// algorithm: not on other rows, the threads, the layout or the instruction set.
#pragma once

#include <span>

#include "backends/cpu/elementwise/elementwise.h"
#include "core/device.h"
#include "core/softmax_args.h"

namespace headrace::cpu {

// Runs on as many pool threads as the device has units. Allocates and checks nothing. Fails like
// parallel_for.
[[nodiscard]] Status softmax_forward(const SoftmaxForwardArgs& args, const DeviceInfo& device);
[[nodiscard]] Status softmax_backward(const SoftmaxBackwardArgs& args, const DeviceInfo& device);

// Up to this row length `safe` keeps the exponentials in the L1 cache and is the faster algorithm;
// for longer rows `online` saves a pass over memory.
inline constexpr std::int64_t kMaxCachedRow = 4096;

constexpr SoftmaxAlgorithm algorithm_of(const SoftmaxForwardArgs& args) {
  if (args.algorithm != SoftmaxAlgorithm::automatic) return args.algorithm;
  return args.rows.length <= kMaxCachedRow ? SoftmaxAlgorithm::safe : SoftmaxAlgorithm::online;
}

// Non-contiguous rows are copied to panels of this many rows, piece by piece.
inline constexpr int kPanelRows = 16;

// Forward and backward on a range of rows, compiled for one instruction set.
struct SoftmaxOps {
  const char* name;
  std::uint32_t cpu_isa;  // required headrace_cpu_isa bits
  void (*forward)(const SoftmaxForwardArgs& args, RowRange rows);
  void (*backward)(const SoftmaxBackwardArgs& args, RowRange rows);
};

// All of this build, the fastest first; the last one runs on any CPU.
std::span<const SoftmaxOps* const> all_softmax_ops();

}  // namespace headrace::cpu
