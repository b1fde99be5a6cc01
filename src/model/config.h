// The hyperparameters of a decoder-only transformer, read from a model file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/rope.h"

namespace headrace::model {

// Limits far above real models: no product of two of them overflows 64 bits.
inline constexpr std::int64_t kMaxLayers = 1024, kMaxContext = std::int64_t{1} << 24;
inline constexpr std::int64_t kMaxSize = std::int64_t{1} << 20, kMaxVocab = std::int64_t{1} << 24;
inline constexpr std::int64_t kMaxHeads = 4096, kMaxHeadDim = 576;

struct Config {
  std::string architecture;  // "llama"
  std::string name;          // the model's name in the file; may be empty
  std::int64_t num_layers = 0, hidden_size = 0, ffn_size = 0, vocab_size = 0;
  std::int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0, head_dim_v = 0;
  std::int64_t context_length = 0;  // maximum sequence length
  std::int64_t window = 0;  // sliding window: visible keys per query, including its own; 0: all
  double rms_eps = 0;
  RopeLayout rope_layout = RopeLayout::interleaved;
  std::int64_t rope_dim = 0;  // leading elements of a head that RoPE rotates
  double rope_base = 0;
  double rope_linear_factor = 1;  // divides positions
  bool has_qkv_bias = false;
};

}  // namespace headrace::model
