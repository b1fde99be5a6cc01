#include "model/random_model.h"

#include <cmath>

#include "model/config.h"
#include "text/byte_level.h"
#include "weights/gguf.h"

namespace headrace::model {
namespace {

constexpr std::int64_t kNumBytes = 256;
constexpr std::int64_t kMaxTokens = std::int64_t{1} << 21;  // of a tokenizer
constexpr std::int64_t kNormal = 1, kControl = 3;           // of tokenizer.ggml.token_type

Status check_number(const char* name, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value >= low && value <= high) return std::nullopt;
  return invalid_argument("shape.{}={}: must be {} to {}; pass a published model's value", name,
                          value, low, high);
}

Status check_number(const char* name, double value, double low, double high) {
  if (value >= low && value <= high) return std::nullopt;  // false for NaN
  return invalid_argument("shape.{}={}: must be {} to {}; pass a published model's value", name,
                          value, low, high);
}

Status check_shape(const ModelShape& s) {
  if (s.architecture != "llama" && s.architecture != "qwen2")
    return unsupported("shape.architecture=\"{}\": supported are llama and qwen2; pass one of them",
                       s.architecture);
  // The limits of read_common_config(), so that the result can be loaded.
  HEADRACE_TRY(check_number("num_layers", s.num_layers, 1, kMaxLayers));
  HEADRACE_TRY(check_number("hidden_size", s.hidden_size, 1, kMaxSize));
  HEADRACE_TRY(check_number("ffn_size", s.ffn_size, 1, kMaxSize));
  HEADRACE_TRY(check_number("num_heads", s.num_heads, 1, kMaxHeads));
  HEADRACE_TRY(check_number("num_kv_heads", s.num_kv_heads, 1, kMaxHeads));
  HEADRACE_TRY(check_number("head_dim", s.head_dim, 2, kMaxHeadDim));
  HEADRACE_TRY(check_number("context_length", s.context_length, 1, kMaxContext));
  HEADRACE_TRY(check_number("window", s.window, 0, kMaxContext));
  HEADRACE_TRY(check_number("rms_eps", s.rms_eps, 0.0, 1.0));
  HEADRACE_TRY(check_number("rope_base", s.rope_base, 1.0, 1e12));
  HEADRACE_TRY(check_number("rope_linear_factor", s.rope_linear_factor, 1.0, 1e6));
  HEADRACE_TRY(check_number("vocab_size", s.vocab_size, kNumBytes + 2, kMaxTokens));
  HEADRACE_TRY(check_number("bos_token", s.bos_token, -1, s.vocab_size - 1));
  HEADRACE_TRY(check_number("eos_token", s.eos_token, -1, s.vocab_size - 1));
  if (s.num_heads % s.num_kv_heads != 0)
    return invalid_argument(
        "shape.num_heads={}: must be a multiple of num_kv_heads={}; change one of them",
        s.num_heads, s.num_kv_heads);
  if (s.head_dim % 2 != 0)
    return invalid_argument("shape.head_dim={}: must be even, as RoPE rotates pairs; pass {}",
                            s.head_dim, s.head_dim + 1);
  return std::nullopt;
}

// " aab": distinct words of a base-26 number.
std::string filler_word(std::int64_t index) {
  std::string letters;
  for (int digit = 0; digit < 5; ++digit, index /= 26)
    letters += static_cast<char>('a' + index % 26);
  return ' ' + std::string(letters.rbegin(), letters.rend());
}

void add_vocabulary(const ModelShape& shape, ModelFile& file) {
  std::vector<std::string> texts;
  std::vector<std::int64_t> types;
  for (std::int64_t id = 0, next = 0; id < shape.vocab_size; ++id) {
    const bool is_special = id == shape.bos_token || id == shape.eos_token;
    types.push_back(is_special ? kControl : kNormal);
    if (is_special) {
      texts.push_back(id == shape.eos_token ? "<|endoftext|>" : "<|beginoftext|>");
    } else {
      const std::string bytes = next < kNumBytes ? std::string(1, static_cast<char>(next))
                                                 : filler_word(next - kNumBytes);
      texts.push_back(text::byte_level_from_bytes(bytes));
      ++next;
    }
  }
  auto& metadata = file.metadata;
  metadata["tokenizer.ggml.model"] = std::string("gpt2");
  metadata["tokenizer.ggml.pre"] =
      std::string(shape.architecture == "qwen2" ? "qwen2" : "llama-bpe");
  metadata["tokenizer.ggml.tokens"] = std::move(texts);
  metadata["tokenizer.ggml.token_type"] = std::move(types);
  metadata["tokenizer.ggml.merges"] = std::vector<std::string>();
  // A bos that is also the eos does not begin texts: SmolLM2, Qwen2.5.
  metadata["tokenizer.ggml.add_bos_token"] =
      shape.bos_token >= 0 && shape.bos_token != shape.eos_token;
  if (shape.bos_token >= 0) metadata["tokenizer.ggml.bos_token_id"] = shape.bos_token;
  if (shape.eos_token >= 0) metadata["tokenizer.ggml.eos_token_id"] = shape.eos_token;
}

void add_hyperparameters(const ModelShape& shape, ModelFile& file) {
  const auto put = [&](const char* key, MetadataValue value) {
    file.metadata[format_text("{}.{}", shape.architecture, key)] = std::move(value);
  };
  file.metadata["general.architecture"] = shape.architecture;
  file.metadata["general.name"] = shape.name;
  put("block_count", shape.num_layers);
  put("embedding_length", shape.hidden_size);
  put("feed_forward_length", shape.ffn_size);
  put("context_length", shape.context_length);
  put("attention.head_count", shape.num_heads);
  put("attention.head_count_kv", shape.num_kv_heads);
  put("attention.key_length", shape.head_dim);
  put("attention.value_length", shape.head_dim);
  put("attention.layer_norm_rms_epsilon", shape.rms_eps);
  if (shape.window > 0) put("attention.sliding_window", shape.window);
  put("rope.dimension_count", shape.head_dim);
  put("rope.freq_base", shape.rope_base);
  if (shape.rope_linear_factor == 1) return;
  put("rope.scaling.type", std::string("linear"));
  put("rope.scaling.factor", shape.rope_linear_factor);
}

class TensorList {
 public:
  TensorList(RandomFile& random, WeightType type) : random_(random), type_(type) {}

  // gain: standard deviation of the product, for an input of standard deviation 1.
  void matrix(const std::string& name, std::int64_t rows, std::int64_t columns, double gain = 1) {
    add({name, type_, {rows, columns}, 0, 0},
        {.deviation = static_cast<float>(gain / std::sqrt(static_cast<double>(columns)))});
  }
  void norm(const std::string& name, std::int64_t elements) {
    vector(name, elements, {.mean = 1, .deviation = 0.1f});
  }
  void bias(const std::string& name, std::int64_t elements) {
    vector(name, elements, {.deviation = 0.1f});
  }
  void vector(const std::string& name, std::int64_t elements, WeightFill fill) {
    add({name, WeightType::f32, {elements}, 0, 0}, std::move(fill));
  }

 private:
  void add(TensorInfo tensor, WeightFill fill) {
    random_.file.tensors.push_back(std::move(tensor));
    random_.fills.push_back(std::move(fill));
  }
  RandomFile& random_;
  WeightType type_;
};

void add_layer(const ModelShape& shape, std::int64_t layer, TensorList& tensors) {
  const std::string prefix = format_text("blk.{}.", layer);
  const std::int64_t hidden = shape.hidden_size, ffn = shape.ffn_size;
  const std::int64_t q = shape.num_heads * shape.head_dim, kv = shape.num_kv_heads * shape.head_dim;
  const double residual_gain = 1 / std::sqrt(2 * static_cast<double>(shape.num_layers));
  tensors.norm(prefix + "attn_norm.weight", hidden);
  tensors.matrix(prefix + "attn_q.weight", q, hidden);
  tensors.matrix(prefix + "attn_k.weight", kv, hidden);
  tensors.matrix(prefix + "attn_v.weight", kv, hidden);
  if (shape.architecture == "qwen2") {
    tensors.bias(prefix + "attn_q.bias", q);
    tensors.bias(prefix + "attn_k.bias", kv);
    tensors.bias(prefix + "attn_v.bias", kv);
  }
  tensors.matrix(prefix + "attn_output.weight", hidden, q, residual_gain);
  tensors.norm(prefix + "ffn_norm.weight", hidden);
  tensors.matrix(prefix + "ffn_gate.weight", ffn, hidden);
  tensors.matrix(prefix + "ffn_up.weight", ffn, hidden);
  tensors.matrix(prefix + "ffn_down.weight", hidden, ffn, residual_gain);
}

// The factors that llama3 scaling divides the frequencies by.
Status add_rope_factors(const ModelShape& shape, TensorList& tensors) {
  if (!shape.rope_llama3) return std::nullopt;
  RopeOptions options{
      .rot_dim = shape.head_dim, .base = shape.rope_base, .llama3 = {}, .freq_factors = {}};
  Result<std::vector<double>> plain = rope_frequencies(options);
  options.llama3 = shape.rope_llama3;
  Result<std::vector<double>> scaled = rope_frequencies(options);
  for (const auto* result : {&plain, &scaled})
    if (!result->ok()) return invalid_argument("shape.rope_llama3: {}", result->failure().message);
  std::vector<float> factors;
  for (std::size_t i = 0; i < plain.value().size(); ++i)
    factors.push_back(static_cast<float>(plain.value()[i] / scaled.value()[i]));
  tensors.vector("rope_freqs.weight", shape.head_dim / 2, {.values = std::move(factors)});
  return std::nullopt;
}

Status check_blocks(const ModelFile& file) {
  for (const TensorInfo& tensor : file.tensors) {
    const WeightTypeInfo& info = info_of(tensor.type);
    if (tensor.shape.back() % info.block_elements != 0)
      return invalid_argument(
          "weight_type={}: must divide rows into blocks of {}, '{}' has rows of {}; pass a type "
          "with smaller blocks",
          info.name, info.block_elements, tensor.name, tensor.shape.back());
  }
  return std::nullopt;
}

}  // namespace

Result<RandomFile> make_random_model(const ModelShape& shape, WeightType type, std::uint64_t seed) {
  if (auto bad = check_shape(shape)) return std::move(*bad);
  RandomFile random;
  random.seed = seed;
  random.file.path = shape.name;
  random.file.format = "GGUF";
  add_hyperparameters(shape, random.file);
  add_vocabulary(shape, random.file);
  TensorList tensors(random, type);
  tensors.matrix("token_embd.weight", shape.vocab_size, shape.hidden_size);
  tensors.norm("output_norm.weight", shape.hidden_size);
  if (!shape.has_tied_embeddings)
    tensors.matrix("output.weight", shape.vocab_size, shape.hidden_size);
  if (auto bad = add_rope_factors(shape, tensors)) return std::move(*bad);
  for (std::int64_t layer = 0; layer < shape.num_layers; ++layer) add_layer(shape, layer, tensors);
  if (auto bad = check_blocks(random.file)) return std::move(*bad);
  random.header = make_gguf_header(random.file);
  return random;
}

}  // namespace headrace::model
