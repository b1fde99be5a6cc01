// Llama 2 and 3, Mistral, SmolLM2: no biases. GGUF files permute the rows of Q and K so that RoPE
// rotates pairs (2i, 2i + 1).
#include "model/family.h"

namespace headrace::model {
namespace {

Result<Config> read(const ModelFile& file) {
  Result<Config> config = read_common_config(file, "llama");
  if (config.ok()) config.value().rope_layout = RopeLayout::interleaved;
  return config;
}

}  // namespace

const Family kLlama = {.architecture = "llama", .read_config = read};

}  // namespace headrace::model
