// One row of the attention matrix in double: the reference for every kernel.
#pragma once

#include <cstdint>
#include <vector>

#include "core/args.h"

namespace headrace::cpu::reference {

// Results of one (batch entry, head, query). Reused between calls to save allocations.
struct Row {
  std::vector<double> scores;   // [seqlen_k] after scale, softcap, ALiBi, bias; -inf if invisible
  std::vector<double> softmax;  // [seqlen_k] before dropout; 0 if invisible
  std::vector<double> probs;    // [seqlen_k] after dropout: the weights of V
  std::vector<double> out;      // [head_dim_v] unrounded
  std::vector<double>
      abs_out;  // [head_dim_v] sum over keys of probs * |v|: scale of rounding errors
  double lse = 0;
  double score_magnitude = 0;    // max over visible keys of |scale| * sum |q||k|
  std::int64_t num_visible = 0;  // number of unmasked keys
  bool is_empty = true;          // no visible key, or every visible score is -inf
};

void attention_row(const Problem& p, const AttentionArgs& args, const Sequence& sequence,
                   std::int64_t batch_idx, std::int64_t head, std::int64_t q_idx, Row& row);

// Whether the query sees the key under all masks.
bool is_visible(const Problem& p, const AttentionArgs& args, const Sequence& sequence,
                std::int64_t batch_idx, std::int64_t head, std::int64_t q_idx, std::int64_t k_idx);

// Whether dropout keeps the element.
bool is_kept(const Problem& p, const AttentionArgs& args, std::int64_t batch_idx, std::int64_t head,
             std::int64_t q_idx, std::int64_t k_idx);
double keep_factor(const Problem& p);

// The derivative of tanh, 1 - tanh^2, as 4 e / (1 + e)^2 with e = exp(-2 |x|): the difference would
// cancel where tanh is nearly 1.
double softcap_slope(double x);

}  // namespace headrace::cpu::reference
