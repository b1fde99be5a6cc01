// The numbers of a decoder-only transformer: what a family reads from a model file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/rope.h"

namespace headrace::model {

struct Config {
  std::string architecture;  // "llama"
  std::string name;          // what the file calls itself; may be empty
  std::int64_t num_layers = 0, hidden_size = 0, ffn_size = 0, vocab_size = 0;
  std::int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0, head_dim_v = 0;
  std::int64_t context_length = 0;  // tokens it was trained for
  std::int64_t window = 0;          // keys visible to a query, its own included; 0: all
  double rms_eps = 0;
  RopeLayout rope_layout = RopeLayout::interleaved;
  std::int64_t rope_dim = 0;  // leading elements of a head that rotate
  double rope_base = 0;
  double rope_linear_factor = 1;  // positions are divided by it
  bool has_qkv_bias = false;
};

}  // namespace headrace::model
