// A small model for tests.
#pragma once

#include "model/model_shape.h"

namespace headrace::model {

// Rows are whole blocks of every format.
inline ModelShape small_shape() {
  return {.name = "small",
          .architecture = "llama",
          .num_layers = 2,
          .hidden_size = 256,
          .ffn_size = 512,
          .vocab_size = 300,
          .num_heads = 4,
          .num_kv_heads = 2,
          .head_dim = 64,
          .context_length = 64,
          .rms_eps = 1e-5,
          .rope_base = 10000,
          .bos_token = 290,
          .eos_token = 3};
}

}  // namespace headrace::model
