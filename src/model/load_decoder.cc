// Loads the weights of a decoder from a model file. Tensor names are GGUF's; readers of other
// formats translate theirs.
#include <set>

#include "model/channel_factors.h"
#include "model/decoder.h"
#include "model/family.h"
#include "weights/dequantise.h"
#include "weights/weight_source.h"

namespace headrace::model {
namespace {

using Shape = std::vector<std::int64_t>;

std::string shape_text(const Shape& shape) {
  std::string text = "[";
  for (const std::int64_t n : shape) text += format_text("{}{}", text.size() > 1 ? ", " : "", n);
  return text + "]";
}

// Reads tensors one by one. After the first failure, calls do nothing.
class Loader {
 public:
  Loader(const ModelFile& file, Executor& executor, const LoadOptions& options, WeightSource source)
      : file_(file), executor_(executor), options_(options), source_(std::move(source)) {
    for (const TensorInfo& tensor : file.tensors) total_bytes_ += tensor.bytes;
  }

  // `values`, if not null: its elements, too.
  void matrix(const std::string& name, std::int64_t rows, std::int64_t columns, Weight& out,
              std::vector<float>* values = nullptr) {
    read(name, {rows, columns}, [&](const TensorInfo& tensor) -> Status {
      const WeightBlocks blocks(source_, tensor);
      Result<Weight> prepared = executor_.prepare(tensor.type, rows, columns, blocks);
      if (!prepared.ok()) return named(name, std::move(prepared.failure()));
      out = std::move(prepared.value());
      if (values == nullptr) return std::nullopt;
      values->resize(static_cast<std::size_t>(rows * columns));
      return elements_of(tensor, rows * columns, values->data());
    });
  }

  // Appends the elements to `out`.
  void vector(const std::string& name, std::int64_t elements, std::vector<float>& out) {
    read(name, {elements}, [&](const TensorInfo& tensor) -> Status {
      const std::size_t begin = out.size();
      out.resize(begin + static_cast<std::size_t>(elements));
      return elements_of(tensor, elements, out.data() + begin);
    });
  }

  // Uploads the concatenated vectors to the device.
  void vectors(std::initializer_list<std::pair<std::string, std::int64_t>> parts, Buffer& out) {
    std::vector<float> values;
    for (const auto& [name, elements] : parts) vector(name, elements, values);
    upload(values, out);
  }

  template <class T>
  void upload(const std::vector<T>& values, Buffer& out) {
    if (failure_) return;
    const std::size_t bytes = values.size() * sizeof(T);
    out = executor_.device().upload(values.data(), bytes);
    if (out.data() == nullptr)
      failure_ = Failure{ErrorCode::out_of_memory,
                         format_text("{}: no memory for {} bytes of weights; close other programs "
                                     "or use a smaller model",
                                     file_.path, bytes)};
  }

  bool has(const std::string& name) const { return file_.find_tensor(name) != nullptr; }

  bool has_failed() const { return failure_.has_value(); }
  void fail(Failure failure) { failure_ = std::move(failure); }

  // Fails if a tensor of the file was not read: the results would not be the model's.
  Status finish() {
    if (failure_) return std::move(failure_);
    for (const TensorInfo& tensor : file_.tensors) {
      if (taken_.contains(tensor.name)) continue;
      return file_.failure(
          ErrorCode::unsupported,
          format_text(
              "tensor '{}' is not part of this architecture, so the results would be wrong; "
              "use another model",
              tensor.name));
    }
    return std::nullopt;
  }

 private:
  // Failures of reading name the file.
  Failure named(const std::string& tensor, Failure failure) const {
    if (!failure.message.starts_with(file_.path))
      failure.message = format_text("{}: '{}': {}", file_.path, tensor, failure.message);
    return failure;
  }

  Status elements_of(const TensorInfo& tensor, std::int64_t elements, float* out) {
    Result<const std::byte*> data = source_.read(tensor);
    if (!data.ok()) return std::move(data.failure());
    dequantise(tensor.type, data.value(), elements, out);
    return std::nullopt;
  }

  template <class Use>
  void read(const std::string& name, const Shape& shape, Use use) {
    if (failure_) return;
    const TensorInfo* tensor = file_.find_tensor(name);
    if (tensor == nullptr) {
      failure_ = file_.wrong(format_text("tensor '{}' is missing", name));
    } else if (tensor->shape != shape) {
      failure_ = file_.wrong(format_text("tensor '{}' has shape {}, expected {}", name,
                                         shape_text(tensor->shape), shape_text(shape)));
    } else {
      taken_.insert(name);
      failure_ = use(*tensor);
      done_bytes_ += tensor->bytes;
      if (!failure_ && options_.progress) failure_ = options_.progress(done_bytes_, total_bytes_);
    }
  }

  const ModelFile& file_;
  Executor& executor_;
  const LoadOptions& options_;
  WeightSource source_;
  Status failure_;
  std::set<std::string, std::less<>> taken_;
  std::uint64_t done_bytes_ = 0, total_bytes_ = 0;
};

// factors: appends those of the layer if keys have biases.
void load_layer(Loader& loader, const Config& config, std::int64_t layer, LayerWeights& out,
                std::vector<float>& factors) {
  const std::string prefix = format_text("blk.{}.", layer);
  const std::int64_t hidden = config.hidden_size, ffn = config.ffn_size;
  const std::int64_t q = config.num_heads * config.head_dim;
  const std::int64_t k = config.num_kv_heads * config.head_dim;
  const std::int64_t v = config.num_kv_heads * config.head_dim_v;
  std::vector<float> norm, keys, bias;
  loader.vector(prefix + "attn_norm.weight", hidden, norm);
  loader.upload(norm, out.attn_norm);
  loader.matrix(prefix + "attn_q.weight", q, hidden, out.qkv[0]);
  loader.matrix(prefix + "attn_k.weight", k, hidden, out.qkv[1],
                config.has_qkv_bias ? &keys : nullptr);
  loader.matrix(prefix + "attn_v.weight", v, hidden, out.qkv[2]);
  if (config.has_qkv_bias) {
    loader.vector(prefix + "attn_q.bias", q, bias);
    loader.vector(prefix + "attn_k.bias", k, bias);
    loader.vector(prefix + "attn_v.bias", v, bias);
    loader.upload(bias, out.qkv_bias);
    if (!loader.has_failed()) {
      const std::vector<float> of_layer = channel_factors(
          config, std::span(bias).subspan(static_cast<std::size_t>(q), static_cast<std::size_t>(k)),
          row_variances(keys, norm));
      factors.insert(factors.end(), of_layer.begin(), of_layer.end());
    }
  }
  loader.matrix(prefix + "attn_output.weight", hidden, config.num_heads * config.head_dim_v,
                out.attn_output);
  loader.vectors({{prefix + "ffn_norm.weight", hidden}}, out.ffn_norm);
  loader.matrix(prefix + "ffn_gate.weight", ffn, hidden, out.gate_up[0]);
  loader.matrix(prefix + "ffn_up.weight", ffn, hidden, out.gate_up[1]);
  loader.matrix(prefix + "ffn_down.weight", hidden, ffn, out.down);
}

// Invalid factors are errors of the file.
void load_rope(Loader& loader, const ModelFile& file, const Config& config, Buffer& out) {
  std::vector<float> factors;
  if (loader.has("rope_freqs.weight"))
    loader.vector("rope_freqs.weight", config.rope_dim / 2, factors);
  if (loader.has_failed()) return;
  Result<std::vector<double>> frequencies =
      rope_frequencies({.rot_dim = config.rope_dim,
                        .base = config.rope_base,
                        .linear_factor = config.rope_linear_factor,
                        .llama3 = {},
                        .freq_factors = factors});
  if (!frequencies.ok()) return loader.fail(file.wrong(frequencies.failure().message));
  loader.upload(frequencies.value(), out);
}

}  // namespace

Result<Decoder> load_decoder(const ModelFile& file, Executor& executor,
                             const LoadOptions& options) {
  Result<Config> config = read_config(file);
  if (!config.ok()) return std::move(config.failure());
  Result<WeightSource> source = WeightSource::open(file, options.use_mmap);
  if (!source.ok()) return std::move(source.failure());
  Decoder decoder;
  decoder.config = std::move(config.value());
  const Config& c = decoder.config;
  Loader loader(file, executor, options, std::move(source.value()));
  loader.matrix("token_embd.weight", c.vocab_size, c.hidden_size, decoder.embedding);
  loader.vectors({{"output_norm.weight", c.hidden_size}}, decoder.output_norm);
  if (loader.has("output.weight"))
    loader.matrix("output.weight", c.vocab_size, c.hidden_size, decoder.output.emplace());
  load_rope(loader, file, c, decoder.rope_frequencies);
  // num_layers is not trusted: a layer's tensors are read before memory for the next is reserved.
  std::vector<float> factors;
  for (std::int64_t layer = 0; layer < c.num_layers; ++layer)
    load_layer(loader, c, layer, decoder.layers.emplace_back(), factors);
  if (!factors.empty()) loader.upload(factors, decoder.channel_factors);
  if (auto failure = loader.finish()) return std::move(*failure);
  return decoder;
}

KvShape Decoder::kv_shape(DType dtype) const {
  return {.num_layers = config.num_layers,
          .num_kv_heads = config.num_kv_heads,
          .head_dim = config.head_dim,
          .head_dim_v = config.head_dim_v,
          .dtype = dtype,
          .has_key_bias = config.has_qkv_bias};
}

std::size_t Decoder::weight_bytes() const {
  std::size_t bytes = embedding.data.bytes() + (output ? output->data.bytes() : 0);
  for (const LayerWeights& layer : layers) {
    for (const Weight& weight : layer.qkv) bytes += weight.data.bytes();
    for (const Weight& weight : layer.gate_up) bytes += weight.data.bytes();
    bytes += layer.attn_output.data.bytes() + layer.down.data.bytes();
  }
  return bytes;
}

}  // namespace headrace::model
