// One step of a decoder.
#include "model/decoder.h"

namespace headrace::model {
namespace {

struct Activations {
  Rows x;        // the residual stream
  Rows normed;   // input of the linear layers behind a norm
  Rows qkv;      // heads of Q, K, V
  Rows q;        // after RoPE, in the dtype of the cache
  Rows attn;     // attention output
  Rows gate_up;  // [gate, up]
  Rows ffn;      // silu(gate) * up

  static Result<Activations> make(Executor& executor, const Config& config, std::int64_t num_tokens,
                                  DType cache_dtype);
};

Result<Activations> Activations::make(Executor& executor, const Config& c, std::int64_t num_tokens,
                                      DType cache_dtype) {
  const DType dtype = executor.activation_dtype();
  const std::int64_t q = c.num_heads * c.head_dim;
  const std::int64_t kv = c.num_kv_heads * (c.head_dim + c.head_dim_v);
  Activations a;
  const struct {
    Rows& rows;
    std::int64_t width;
    DType dtype;
  } parts[] = {{a.x, c.hidden_size, dtype},
               {a.normed, c.hidden_size, dtype},
               {a.qkv, q + kv, dtype},
               {a.q, q, cache_dtype},
               {a.attn, c.num_heads * c.head_dim_v, dtype},
               {a.gate_up, 2 * c.ffn_size, dtype},
               {a.ffn, c.ffn_size, dtype}};
  for (const auto& part : parts) {
    Result<Rows> rows = executor.alloc(num_tokens, part.width, part.dtype);
    if (!rows.ok()) return std::move(rows.failure());
    part.rows = rows.value();
  }
  return a;
}

Status run_layer(Executor& executor, const Decoder& decoder, std::int64_t index,
                 const Activations& a) {
  const LayerWeights& layer = decoder.layers[static_cast<std::size_t>(index)];
  const auto eps = static_cast<float>(decoder.config.rms_eps);
  const Buffer* bias = layer.qkv_bias.data() == nullptr ? nullptr : &layer.qkv_bias;

  HEADRACE_TRY(executor.rms_norm(a.x, layer.attn_norm, eps, a.normed));
  HEADRACE_TRY(executor.linear({.weights = layer.qkv, .bias = bias, .x = a.normed, .out = a.qkv}));
  HEADRACE_TRY(executor.rope_append(a.qkv, index, a.q));
  HEADRACE_TRY(executor.attention(a.q, index, a.attn));
  HEADRACE_TRY(executor.linear(
      {.weights = {&layer.attn_output, 1}, .x = a.attn, .out = a.x, .accumulate = true}));

  HEADRACE_TRY(executor.rms_norm(a.x, layer.ffn_norm, eps, a.normed));
  HEADRACE_TRY(executor.linear({.weights = layer.gate_up, .x = a.normed, .out = a.gate_up}));
  HEADRACE_TRY(executor.swiglu(a.gate_up, a.ffn));
  return executor.linear({.weights = {&layer.down, 1}, .x = a.ffn, .out = a.x, .accumulate = true});
}

}  // namespace

Status Decoder::check_tokens(const char* name, std::span<const std::int32_t> tokens,
                             bool may_be_drawn) const {
  for (std::size_t i = 0; i < tokens.size(); ++i)
    if ((tokens[i] < 0 && !may_be_drawn) || tokens[i] >= config.vocab_size)
      return invalid_argument("{}[{}]={}: must be 0 to {}; pass tokens of this model's vocabulary",
                              name, i, tokens[i], config.vocab_size - 1);
  return std::nullopt;
}

Status Decoder::forward(Executor& executor, const Batch& batch, const KvView& kv,
                        float* logits) const {
  const AttentionSpec attention{.num_heads = config.num_heads,
                                .window = config.window,
                                .rope_layout = config.rope_layout,
                                .rope_frequencies = rope_frequencies,
                                .channel_factors = channel_factors};
  HEADRACE_TRY(check_tokens("tokens", batch.tokens, batch.drawn_tokens != nullptr));
  HEADRACE_TRY(executor.begin_step(batch, kv, attention));
  Result<bool> is_repeated = executor.repeat_step(this, logits);
  if (!is_repeated.ok()) return std::move(is_repeated.failure());
  if (is_repeated.value()) return std::nullopt;
  Result<Activations> made =
      Activations::make(executor, config, batch.num_tokens(), kv.shape.dtype);
  if (!made.ok()) return std::move(made.failure());
  const Activations& a = made.value();
  HEADRACE_TRY(executor.embed(embedding, a.x));
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer)
    HEADRACE_TRY(run_layer(executor, *this, layer, a));
  if (batch.logits_rows.empty()) return executor.end_step();

  Rows last = a.normed;
  last.num_rows = static_cast<std::int64_t>(batch.logits_rows.size());
  HEADRACE_TRY(executor.gather(a.x, last));
  HEADRACE_TRY(executor.rms_norm(last, output_norm, static_cast<float>(config.rms_eps), last));
  HEADRACE_TRY(executor.linear({.weights = {&output_matrix(), 1},
                                .x = last,
                                .out = {.data = logits,
                                        .dtype = DType::f32,
                                        .num_rows = last.num_rows,
                                        .width = config.vocab_size}}));
  return executor.end_step();
}

Status Decoder::reserve(Executor& executor, std::int64_t max_tokens, DType cache_dtype) const {
  Result<Activations> made = Activations::make(executor, config, max_tokens, cache_dtype);
  return made.ok() ? Status() : std::move(made.failure());
}

}  // namespace headrace::model
