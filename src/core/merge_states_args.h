// The pointers of one validated merge of attention states. Strides are in elements; head_dim_v is
// contiguous.
#pragma once

#include "core/args.h"
#include "headrace/tensor.hpp"

namespace headrace {

inline constexpr int kMaxStates = HEADRACE_MAX_STATES;
inline constexpr int kMaxStateDim = 576;  // of head_dim_v

struct MergeStatesArgs {
  int num_states = 0;
  std::int64_t batch = 1, seqlen = 0, num_heads = 0, head_dim_v = 0;
  DType dtype = DType::f32;            // of the states; f32, f16 or bf16
  DType out_dtype = DType::f32;        // the same choice
  const void* outs[kMaxStates] = {};   // [batch, seqlen, num_heads, head_dim_v]
  const float* lses[kMaxStates] = {};  // [batch, num_heads, seqlen]
  Operand state;                       // the strides of all outs; its data is not used
  LseOperand state_lse;                // the strides of all lses
  Operand out;
  LseOperand lse;  // data may be null
};

constexpr std::int64_t num_rows(const MergeStatesArgs& args) {
  return args.batch * args.seqlen * args.num_heads;
}

// Element offsets of a row of a merge; rows are counted in the order [batch, seqlen, num_heads].
struct StateRow {
  std::int64_t batch_idx, q_idx, head;

  constexpr std::int64_t in(const Operand& x) const {
    return row_offset(x, batch_idx, q_idx, head);
  }
  constexpr std::int64_t in(const LseOperand& x) const {
    return batch_idx * x.stride_batch + head * x.stride_head + q_idx * x.stride_q;
  }
};
constexpr StateRow state_row(const MergeStatesArgs& args, std::int64_t row_idx) {
  const std::int64_t token = row_idx / args.num_heads;
  return {token / args.seqlen, token % args.seqlen, row_idx % args.num_heads};
}

}  // namespace headrace
