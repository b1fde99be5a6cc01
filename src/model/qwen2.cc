// Qwen2 and Qwen2.5: biases of Q, K and V; RoPE rotates pairs (i, i + rope_dim / 2).
#include "model/family.h"

namespace headrace::model {
namespace {

Result<Config> read(const ModelFile& file) {
  Result<Config> config = read_common_config(file, "qwen2");
  if (config.ok()) {
    config.value().rope_layout = RopeLayout::halves;
    config.value().has_qkv_bias = true;
  }
  return config;
}

}  // namespace

const Family kQwen2 = {.architecture = "qwen2", .read_config = read};

}  // namespace headrace::model
