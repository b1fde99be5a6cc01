// A pre-norm decoder: embedding, then layers of attention and SwiGLU feed-forward, each behind an
// RMS norm and added to the stream, then a norm and the output matrix (Touvron et al. 2023, section
// 2.2, 2302.13971). Llama, Mistral and Qwen2 are this decoder with different numbers.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backends/cpu/gemm/gemm.h"
#include "core/aligned.h"
#include "core/device.h"
#include "core/rope_table.h"
#include "kv_cache/kv_cache.h"
#include "model/config.h"
#include "weights/model_file.h"

namespace headrace::model {

struct LayerWeights {
  std::vector<float> attn_norm, ffn_norm;  // [hidden_size]
  cpu::PackedMatrix q, k, v;               // [heads * head_dim, hidden_size]
  std::vector<float> qkv_bias;             // rows of q, k, v; may be empty
  cpu::PackedMatrix attn_output;           // [hidden_size, num_heads * head_dim_v]
  cpu::PackedMatrix gate, up;              // [ffn_size, hidden_size]
  cpu::PackedMatrix down;                  // [hidden_size, ffn_size]
};

struct Decoder {
  Config config;
  DeviceInfo device;
  cpu::MatmulMode mode = cpu::MatmulMode::normal;
  cpu::PackedMatrix embedding;              // [vocab_size, hidden_size]
  std::optional<cpu::PackedMatrix> output;  // empty: the embedding is the output matrix too
  std::vector<float> output_norm;           // [hidden_size]
  std::vector<float> rope_factors;          // [rope_dim / 2] that slow frequencies down, or empty
  std::vector<LayerWeights> layers;

  const cpu::PackedMatrix& output_matrix() const { return output ? *output : embedding; }
  KvShape kv_shape(DType dtype) const;
  std::int64_t weight_bytes() const;  // as they lie in memory
};

struct LoadOptions {
  DeviceInfo device;
  cpu::MatmulMode mode = cpu::MatmulMode::normal;
  bool use_mmap = false;  // weights are read from a mapping of the file instead of by reads
  // Called with the bytes of weights that are done and all of them; may be empty. A failure ends
  // the loading.
  std::function<Status(std::uint64_t done, std::uint64_t total)> progress;
};

// Reads and packs the weights of a model file, tensor by tensor. io_error: a tensor is missing or
// has another shape than the numbers of the model ask for. unsupported: a tensor that this decoder
// would leave out.
Result<Decoder> load_decoder(const ModelFile& file, const LoadOptions& options);

// The memory of forward(), for up to max_tokens at once of a sequence of up to max_seqlen.
struct DecoderScratch {
  static Result<DecoderScratch> make(const Decoder& decoder, std::int64_t max_tokens,
                                     std::int64_t max_seqlen, DType cache_dtype);

  std::int64_t max_tokens = 0;
  Aligned<float> x;        // [max_tokens, hidden_size]: the stream
  Aligned<float> normed;   // [max_tokens, hidden_size]
  Aligned<float> qkv;      // [max_tokens, rows of q, k, v]
  Aligned<float> gate_up;  // [max_tokens, 2 * ffn_size]
  Aligned<float> ffn;      // [max_tokens, ffn_size]
  Aligned<float> attn;     // [max_tokens, num_heads * head_dim_v]
  RopeTable rope;
  std::vector<std::int32_t> positions;  // [max_tokens]
  Aligned<std::byte> q, attn_out;       // rows of heads, in the cache's dtype
  Aligned<std::byte> products;          // of cpu::multiply
  Aligned<std::byte> attention;         // workspace of the plans, attention_bytes
  std::size_t attention_bytes = 0;
};

// Tokens of one sequence, at the positions behind the cache's length; the cache grows by them. The
// final norm of each token's stream lies in scratch.normed afterwards. Tokens are ids below
// vocab_size. At most scratch.max_tokens of them.
Status forward(const Decoder& decoder, std::span<const std::int32_t> tokens, KvCache& cache,
               DecoderScratch& scratch);

// Logits of rows of `normed`: out [num_rows, vocab_size].
[[nodiscard]] Status logits_of(const Decoder& decoder, const float* normed, std::int64_t num_rows,
                               float* out, DecoderScratch& scratch);

}  // namespace headrace::model
