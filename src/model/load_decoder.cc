// Weights of a decoder from a model file. Names of tensors: GGUF's, which every reader of another
// format translates to.
#include <set>

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

// Takes tensors out of the file one after the other. The first failure stays, and everything after
// it does nothing.
class Loader {
 public:
  Loader(const ModelFile& file, const LoadOptions& options, WeightSource source)
      : file_(file), options_(options), source_(std::move(source)) {
    for (const TensorInfo& weight : file.tensors) total_bytes_ += weight.bytes;
  }

  void matrix(const std::string& name, std::int64_t rows, std::int64_t columns,
              cpu::PackedMatrix& out) {
    read(name, {rows, columns}, [&](const TensorInfo& weight, const std::byte* data) -> Status {
      auto packed =
          cpu::pack_matrix(weight.type, rows, columns, data, options_.mode, options_.device);
      if (!packed.ok()) {
        packed.failure().message =
            format_text("{}: '{}': {}", file_.path, name, packed.failure().message);
        return std::move(packed.failure());
      }
      out = std::move(packed.value());
      return std::nullopt;
    });
  }

  // Appends the elements to `out`.
  void vector(const std::string& name, std::int64_t elements, std::vector<float>& out) {
    read(name, {elements}, [&](const TensorInfo& weight, const std::byte* data) -> Status {
      const std::size_t begin = out.size();
      out.resize(begin + static_cast<std::size_t>(elements));
      dequantise(weight.type, data, elements, out.data() + begin);
      return std::nullopt;
    });
  }

  bool has(const std::string& name) const { return file_.find_tensor(name) != nullptr; }

  // Every tensor of the file must have been asked for: one that is left out changes the results.
  Status finish() {
    if (failure_) return std::move(failure_);
    for (const TensorInfo& weight : file_.tensors) {
      if (taken_.contains(weight.name)) continue;
      Failure failure = file_.wrong(format_text(
          "tensor '{}' has no place in this architecture; the file needs another reader",
          weight.name));
      failure.code = ErrorCode::unsupported;
      return failure;
    }
    return std::nullopt;
  }

 private:
  template <class Use>
  void read(const std::string& name, const Shape& shape, Use use) {
    if (failure_) return;
    const TensorInfo* weight = file_.find_tensor(name);
    if (weight == nullptr) {
      failure_ = file_.wrong(format_text("has no tensor '{}'", name));
    } else if (weight->shape != shape) {
      failure_ = file_.wrong(format_text("tensor '{}' is {}, the model's numbers ask for {}", name,
                                         shape_text(weight->shape), shape_text(shape)));
    } else {
      taken_.insert(name);
      Result<const std::byte*> data = source_.read(*weight);
      failure_ = data.ok() ? use(*weight, data.value()) : Status(std::move(data.failure()));
      done_bytes_ += weight->bytes;
      if (!failure_ && options_.progress) failure_ = options_.progress(done_bytes_, total_bytes_);
    }
  }

  const ModelFile& file_;
  const LoadOptions& options_;
  WeightSource source_;
  Status failure_;
  std::set<std::string, std::less<>> taken_;
  std::uint64_t done_bytes_ = 0, total_bytes_ = 0;
};

void load_layer(Loader& loader, const Config& config, std::int64_t layer, LayerWeights& out) {
  const std::string prefix = format_text("blk.{}.", layer);
  const std::int64_t hidden = config.hidden_size, ffn = config.ffn_size;
  const std::int64_t q = config.num_heads * config.head_dim;
  const std::int64_t k = config.num_kv_heads * config.head_dim;
  const std::int64_t v = config.num_kv_heads * config.head_dim_v;
  loader.vector(prefix + "attn_norm.weight", hidden, out.attn_norm);
  loader.matrix(prefix + "attn_q.weight", q, hidden, out.q);
  loader.matrix(prefix + "attn_k.weight", k, hidden, out.k);
  loader.matrix(prefix + "attn_v.weight", v, hidden, out.v);
  if (config.has_qkv_bias) {
    loader.vector(prefix + "attn_q.bias", q, out.qkv_bias);
    loader.vector(prefix + "attn_k.bias", k, out.qkv_bias);
    loader.vector(prefix + "attn_v.bias", v, out.qkv_bias);
  }
  loader.matrix(prefix + "attn_output.weight", hidden, config.num_heads * config.head_dim_v,
                out.attn_output);
  loader.vector(prefix + "ffn_norm.weight", hidden, out.ffn_norm);
  loader.matrix(prefix + "ffn_gate.weight", ffn, hidden, out.gate);
  loader.matrix(prefix + "ffn_up.weight", ffn, hidden, out.up);
  loader.matrix(prefix + "ffn_down.weight", hidden, ffn, out.down);
}

}  // namespace

Result<Decoder> load_decoder(const ModelFile& file, const LoadOptions& options) {
  Result<Config> config = read_config(file);
  if (!config.ok()) return std::move(config.failure());
  Result<WeightSource> source = WeightSource::open(file, options.use_mmap);
  if (!source.ok()) return std::move(source.failure());
  Decoder decoder;
  decoder.config = std::move(config.value());
  decoder.device = options.device;
  decoder.mode = options.mode;
  const Config& c = decoder.config;
  Loader loader(file, options, std::move(source.value()));
  loader.matrix("token_embd.weight", c.vocab_size, c.hidden_size, decoder.embedding);
  loader.vector("output_norm.weight", c.hidden_size, decoder.output_norm);
  if (loader.has("output.weight"))
    loader.matrix("output.weight", c.vocab_size, c.hidden_size, decoder.output.emplace());
  if (loader.has("rope_freqs.weight"))
    loader.vector("rope_freqs.weight", c.rope_dim / 2, decoder.rope_factors);
  // A layer's tensors are there before memory is reserved for the next: num_layers is not trusted.
  for (std::int64_t layer = 0; layer < c.num_layers; ++layer)
    load_layer(loader, c, layer, decoder.layers.emplace_back());
  if (auto bad = loader.finish()) return std::move(*bad);
  return decoder;
}

KvShape Decoder::kv_shape(DType dtype) const {
  return {.num_layers = config.num_layers,
          .num_kv_heads = config.num_kv_heads,
          .head_dim = config.head_dim,
          .head_dim_v = config.head_dim_v,
          .dtype = dtype};
}

std::int64_t Decoder::weight_bytes() const {
  std::int64_t bytes = embedding.data_bytes + (output ? output->data_bytes : 0);
  for (const LayerWeights& layer : layers)
    for (const cpu::PackedMatrix* matrix :
         {&layer.q, &layer.k, &layer.v, &layer.attn_output, &layer.gate, &layer.up, &layer.down})
      bytes += matrix->data_bytes;
  return bytes;
}

}  // namespace headrace::model
