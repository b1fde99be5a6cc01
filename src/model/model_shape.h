// What determines the tensors of a model of a supported architecture: the fields of a config.json
// of Hugging Face, without weights and vocabulary.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/rope.h"

namespace headrace::model {

struct ModelShape {
  std::string name;
  std::string architecture;  // "llama" or "qwen2"
  std::int64_t num_layers = 0, hidden_size = 0, ffn_size = 0, vocab_size = 0;
  std::int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
  std::int64_t context_length = 0;
  std::int64_t window = 0;  // sliding window: visible keys per query; 0: all
  double rms_eps = 0, rope_base = 0;
  double rope_linear_factor = 1;
  std::optional<RopeLlama3Scaling> rope_llama3 = {};
  bool has_tied_embeddings = false;
  std::int64_t bos_token = -1, eos_token = -1;  // -1: none
};

// Published models.
std::span<const ModelShape> known_shapes();

}  // namespace headrace::model
