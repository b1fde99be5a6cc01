// Merge of attention states, compiled for every instruction set. A row's bits depend on its states
// and their order alone.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "backends/cpu/attention/partial_rows-inl.h"
#include "core/merge_states_args.h"

namespace headrace::cpu {

// Kernels: ElementwiseKernels of the instruction set, which read and write rows.
template <class Vec, class Kernels>
struct MergeStates {
  static constexpr int64_t kMaxFloats = kMaxStateDim + 16;
  static constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

  // Whole vectors; what lies past head_dim_v stays 0.
  struct Scratch {
    alignas(64) float merged[kMaxFloats] = {};  // with the maximum and the sum
    alignas(64) float state[kMaxFloats] = {};
  };

  static void merge_row(const MergeStatesArgs& args, const StateRow& at, Scratch& scratch) {
    const int64_t width = (args.head_dim_v + Vec::kWidth - 1) / Vec::kWidth * Vec::kWidth;
    const PartialRows<Vec> rows{scratch.merged, kMaxFloats, width};
    rows.clear(0);
    for (int i = 0; i < args.num_states; ++i) {
      const float lse = args.lses[i][at.in(args.state_lse)];
      if (lse == kMinusInf) continue;
      Kernels::read_row(args.dtype, args.outs[i], at.in(args.state), args.head_dim_v,
                        scratch.state);
      // out with its lse is a partial result whose sum is 1 relative to that.
      rows.merge(0, {scratch.state, std::isnan(lse) ? lse : 1.0f, lse, 1.0f});
    }
    const Partial all = rows[0];
    const bool is_empty = all.sum == 0.0f;  // false for NaN
    if (is_empty) std::fill(scratch.merged, scratch.merged + args.head_dim_v, 0.0f);
    Kernels::write_row(args.out_dtype, args.out.data, at.in(args.out), args.head_dim_v,
                       scratch.merged);
    if (args.lse.data == nullptr) return;
    static_cast<float*>(args.lse.data)[at.in(args.lse)] =
        is_empty ? kMinusInf
                 : static_cast<float>(static_cast<double>(all.maximum) +
                                      std::log(static_cast<double>(all.sum)));
  }

  static void run(const MergeStatesArgs& args, RowRange rows) {
    Scratch scratch;
    for (int64_t row = rows.first; row < rows.last; ++row)
      merge_row(args, state_row(args, row), scratch);
  }
};

}  // namespace headrace::cpu
