// Gradients of attention in double, from the definition: the oracle for every backward kernel, and
// the last kernel of their list.
//
// With P the softmax, Z the dropout factors, O = (P * Z) V and D = rowsum(dO * O):
//   dV = (P * Z)^T dO      dP = (dO V^T) * Z      dS = P * (dP - D + dlse)
// dS passes through bias (as it is), softcap (times 1 - tanh^2) and scale to Q and K. The sink is
// one more column of S whose V is zero. (Dao et al., FlashAttention, appendix B.2; the lse term by
// differentiating log-sum-exp.)
#pragma once

#include <array>
#include <vector>

#include "core/kernel.h"

namespace headrace::cpu::reference {

// Contiguous, in double. Dense: rows = seqlen with a leading batch axis; ragged: all rows, no batch
// axis.
struct Gradients {
  std::vector<double> dq;  // [batch, seqlen_q, num_heads, head_dim]
  std::vector<double>
      dk;  // [batch, seqlen_k, num_kv_heads, head_dim], summed over the heads of a group
  std::vector<double> dv;      // [batch, seqlen_k, num_kv_heads, head_dim_v]
  std::vector<double> dbias;   // shape dbias_shape; empty where it is not wanted
  std::vector<double> dsinks;  // [num_heads]; empty without sinks
  // [batch, head, query, key], 1 where the strides of args.gradients.dbias sum over the axis
  std::array<std::int64_t, 4> dbias_shape{};
};

// Reads q, k, v and what masks and adds to the scores, dout and dlse; not out and lse, which it
// computes again. Of the other gradient operands it reads the strides of dbias alone.
Gradients attention_backward(const Problem& p, const AttentionArgs& args);

extern const Kernel kBackwardKernel;  // "cpu_reference"

}  // namespace headrace::cpu::reference
