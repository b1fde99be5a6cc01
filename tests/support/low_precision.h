// The result of a straightforward implementation in the inputs' own 16-bit dtype: products
// accumulated in float, scores and probabilities rounded to the dtype, the result rounded once. A
// good kernel is more accurate.
#pragma once

#include <vector>

#include "backends/cpu/reference/row.h"

namespace headrace::testing {

// One (batch entry, head, query) of a call.
struct RowRef {
  const Problem* problem;
  const AttentionArgs* args;
  Sequence sequence;
  std::int64_t batch_idx, head, q_idx;
};

// Its unrounded softmax before dropout: [seqlen_k].
std::vector<float> low_precision_softmax(const RowRef& ref, const cpu::reference::Row& exact);

// Rounds to the dtype; f32 is unchanged.
float rounded_to(DType dtype, float value);

// `exact`: the row in double; its scores determine the visible keys. Writes [head_dim_v].
void low_precision_row(const RowRef& ref, const cpu::reference::Row& exact,
                       std::vector<double>& out);

}  // namespace headrace::testing
