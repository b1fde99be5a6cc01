// A pre-norm decoder: embedding; layers of attention and SwiGLU feed-forward, each preceded by an
// RMS norm and added to the residual stream; a final norm and the output matrix (Touvron et al.
// 2023, section 2.2, 2302.13971). Llama, Mistral and Qwen2 are this decoder with different
// hyperparameters.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "executor/executor.h"
#include "model/config.h"
#include "weights/model_file.h"

namespace headrace::model {

struct LayerWeights {
  Buffer attn_norm, ffn_norm;     // float [hidden_size]
  std::array<Weight, 3> qkv;      // [heads * head_dim, hidden_size]
  Buffer qkv_bias;                // float [rows of q, k, v]; no data: no bias
  Weight attn_output;             // [hidden_size, num_heads * head_dim_v]
  std::array<Weight, 2> gate_up;  // [ffn_size, hidden_size]
  Weight down;                    // [hidden_size, ffn_size]
};

// Immutable after loading. The weights are in the memory of the device that prepared them.
struct Decoder {
  Config config;
  Weight embedding;              // [vocab_size, hidden_size]
  std::optional<Weight> output;  // empty: tied to the embedding
  Buffer output_norm;            // float [hidden_size]
  Buffer rope_frequencies;       // double [rope_dim / 2]
  Buffer channel_factors;        // float [num_layers, num_kv_heads, head_dim]; no data: no biases
  std::vector<LayerWeights> layers;

  const Weight& output_matrix() const { return output ? *output : embedding; }
  KvShape kv_shape(DType dtype) const;
  std::size_t weight_bytes() const;  // of the packed matrices

  // invalid_argument: a token outside of the vocabulary, as name[i]. may_be_drawn: one below 0 is
  // in memory of the device (Batch::drawn_tokens).
  Status check_tokens(const char* name, std::span<const std::int32_t> tokens,
                      bool may_be_drawn = false) const;

  // One step: appends the keys and values of the batch's tokens to the cache and writes logits
  // [logits_rows.size(), vocab_size] to memory that the device can write.
  Status forward(Executor& executor, const Batch& batch, const KvView& kv, float* logits) const;

  // Allocates the activations of steps of up to max_tokens tokens. out_of_memory.
  Status reserve(Executor& executor, std::int64_t max_tokens, DType cache_dtype) const;
};

struct LoadOptions {
  bool use_mmap = false;  // map the file instead of reading it
  // Called with the number of loaded weight bytes and the total; may be empty. A failure aborts
  // loading.
  std::function<Status(std::uint64_t done, std::uint64_t total)> progress;
};

// Reads the weights of a model file, tensor by tensor; the executor packs them. io_error: a tensor
// is missing or has an unexpected shape. unsupported: the decoder does not use one of the tensors.
Result<Decoder> load_decoder(const ModelFile& file, Executor& executor, const LoadOptions& options);

}  // namespace headrace::model
