// Gradients of attention in double, from the definition: the oracle for every backward kernel.
//
// With P the softmax, Z the dropout factors, O = (P * Z) V and D = rowsum(dO * O):
//   dV = (P * Z)^T dO      dP = (dO V^T) * Z      dS = P * (dP - D + dlse)
// dS passes through bias (as it is), softcap (times 1 - tanh^2) and scale to Q and K. The sink is
// one more column of S whose V is zero. (Dao et al., FlashAttention, appendix B.2; the lse term by
// differentiating log-sum-exp.)
#pragma once

#include <array>
#include <vector>

#include "core/args.h"

namespace headrace::cpu::reference {

// Contiguous, in double. Dense: rows = seqlen with a leading batch axis; ragged: all rows, no batch
// axis.
struct Gradients {
  std::vector<double> dq;  // [batch, seqlen_q, num_heads, head_dim]
  std::vector<double>
      dk;  // [batch, seqlen_k, num_kv_heads, head_dim], summed over the heads of a group
  std::vector<double> dv;  // [batch, seqlen_k, num_kv_heads, head_dim_v]
  std::vector<double>
      dbias;  // shape bias_shape, summed over the axes that broadcast; empty without bias
  std::vector<double> dsinks;  // [num_heads]; empty without sinks
  std::array<std::int64_t, 4>
      bias_shape{};  // [batch, head, query, key], 1 where the axis broadcasts
};

// dout: contiguous [batch, seqlen_q, num_heads, head_dim_v] (ragged [total_q, num_heads,
// head_dim_v]). dlse: gradient of the lse, contiguous like lse: [batch, num_heads, seqlen_q]
// (ragged [num_heads, total_q]); null: none.
Gradients attention_backward(const Problem& p, const AttentionArgs& args, const double* dout,
                             const double* dlse);

}  // namespace headrace::cpu::reference
