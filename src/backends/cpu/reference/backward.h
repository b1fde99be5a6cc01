// Gradients of attention in double, by definition: the oracle for every backward kernel, and the
// slow fallback.
//
// With P the softmax, Z the dropout factors, O = (P * Z) V and D = rowsum(dO * O):
//   dV = (P * Z)^T dO      dP = (dO V^T) * Z      dS = P * (dP - D + dlse)
// dS propagates through bias (unchanged), softcap (times 1 - tanh^2) and scale to Q and K. The sink
// is an additional column of S with V = 0. (Dao et al., FlashAttention, appendix B.2; the lse term
// follows from differentiating log-sum-exp.)
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
  std::vector<double> dbias;   // shape dbias_shape; empty if not requested
  std::vector<double> dsinks;  // [num_heads]; empty without sinks
  // [batch, head, query, key]; 1 for axes that dbias reduces
  std::array<std::int64_t, 4> dbias_shape{};
};

// Reads q, k, v, the mask and bias operands, dout and dlse; recomputes out and lse. Of the other
// gradient operands it only uses the strides of dbias.
Gradients attention_backward(const Problem& p, const AttentionArgs& args);

extern const Kernel kBackwardKernel;  // "cpu_reference"

}  // namespace headrace::cpu::reference
