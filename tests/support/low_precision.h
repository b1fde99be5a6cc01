// What a straightforward implementation in the inputs' own 16-bit format would return: products
// accumulated in float, scores and probabilities rounded to that format, the result rounded once.
// A good kernel is closer to the truth than this.
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

// Its softmax before dropout, not rounded: [seqlen_k].
std::vector<float> low_precision_softmax(const RowRef& ref, const cpu::reference::Row& exact);

// A value as the format holds it; f32 stays.
float rounded_to(DType dtype, float value);

// `exact` is the row in double; its scores say which keys are visible. Writes [head_dim_v].
void low_precision_row(const RowRef& ref, const cpu::reference::Row& exact,
                       std::vector<double>& out);

}  // namespace headrace::testing
