#include "model/family.h"

#include <limits>

namespace headrace::model {
namespace {

constexpr const Family* kFamilies[] = {&kLlama, &kQwen2};

// Reads keys of one architecture in sequence and keeps the first failure.
class MetadataReader {
 public:
  MetadataReader(const ModelFile& file, std::string_view architecture)
      : file_(file), prefix_(std::string(architecture) + ".") {}

  std::int64_t integer(const char* key, std::int64_t high) {
    return take(file_.integer(prefix_ + key, 1, high), std::int64_t{1});
  }
  std::int64_t integer_or(const char* key, std::int64_t low, std::int64_t high,
                          std::int64_t fallback) {
    return take(file_.integer_or(prefix_ + key, low, high, fallback), fallback);
  }
  double number(const char* key, double low, double high) {
    return take(file_.number(prefix_ + key, low, high), high);
  }
  double number_or(const char* key, double low, double high, double fallback) {
    return take(file_.number_or(prefix_ + key, low, high, fallback), fallback);
  }
  std::string text_or(const char* key, const char* fallback) {
    return take(file_.text_or(prefix_ + key, fallback), std::string(fallback));
  }
  void require(bool holds, std::string_view rule) {
    if (!holds && !failure_) failure_ = file_.wrong(rule);
  }
  void refuse(std::string_view what) {
    if (failure_) return;
    failure_ = file_.failure(ErrorCode::unsupported, what);
  }
  Status& failure() { return failure_; }

 private:
  template <class T>
  T take(Result<T> result, T otherwise) {
    if (result.ok()) return std::move(result.value());
    if (!failure_) failure_ = std::move(result.failure());
    return otherwise;
  }
  const ModelFile& file_;
  std::string prefix_;
  Status failure_;
};

void read_sizes(MetadataReader& reader, Config& config) {
  config.num_layers = reader.integer("block_count", kMaxLayers);
  config.hidden_size = reader.integer("embedding_length", kMaxSize);
  config.ffn_size = reader.integer("feed_forward_length", kMaxSize);
  config.context_length = reader.integer("context_length", kMaxContext);
  config.num_heads = reader.integer("attention.head_count", kMaxHeads);
  config.num_kv_heads =
      reader.integer_or("attention.head_count_kv", 1, kMaxHeads, config.num_heads);
  reader.require(config.num_heads % config.num_kv_heads == 0,
                 format_text("'attention.head_count' is {}, expected a multiple of "
                             "'attention.head_count_kv', {}",
                             config.num_heads, config.num_kv_heads));
  const std::int64_t per_head = config.hidden_size / config.num_heads;
  config.head_dim = reader.integer_or("attention.key_length", 1, kMaxHeadDim, per_head);
  config.head_dim_v = reader.integer_or("attention.value_length", 1, kMaxHeadDim, per_head);
  reader.require(config.head_dim >= 1 && config.head_dim <= kMaxHeadDim && config.head_dim_v >= 1 &&
                     config.head_dim_v <= kMaxHeadDim,
                 format_text("head_dim is {}, expected 1 to {}", config.head_dim, kMaxHeadDim));
  config.rms_eps = reader.number("attention.layer_norm_rms_epsilon", 0, 1);
  config.window = reader.integer_or("attention.sliding_window", 0, kMaxContext, 0);
}

void read_rope(MetadataReader& reader, Config& config) {
  config.rope_dim = reader.integer_or("rope.dimension_count", 2, kMaxHeadDim, config.head_dim);
  reader.require(
      config.rope_dim % 2 == 0 && config.rope_dim <= config.head_dim,
      format_text("'rope.dimension_count' is {}, expected an even number up to head_dim {}",
                  config.rope_dim, config.head_dim));
  config.rope_base = reader.number_or("rope.freq_base", 1, 1e12, 10000);
  const std::string scaling = reader.text_or("rope.scaling.type", "none");
  if (scaling == "linear")
    config.rope_linear_factor = reader.number_or("rope.scaling.factor", 1, 1e6, 1);
  else if (scaling != "none")
    reader.refuse(
        format_text("'rope.scaling.type' is '{}', supported: none, linear, and llama3 by a tensor "
                    "'rope_freqs.weight'; use another model",
                    scaling));
}

}  // namespace

std::span<const Family* const> families() { return kFamilies; }

Result<Config> read_common_config(const ModelFile& file, std::string_view architecture) {
  Config config;
  config.architecture = architecture;
  Result<std::string> name = file.text_or("general.name", "");
  if (!name.ok()) return std::move(name.failure());
  config.name = std::move(name.value());
  MetadataReader reader(file, architecture);
  read_sizes(reader, config);
  read_rope(reader, config);
  if (reader.integer_or("expert_count", 0, kMaxSize, 0) != 0)
    reader.refuse("'expert_count' is not 0, supported: dense models; use another model");
  const TensorInfo* embedding = file.find_tensor("token_embd.weight");
  reader.require(embedding != nullptr, "tensor 'token_embd.weight' is missing");
  if (embedding != nullptr) {
    reader.require(embedding->shape.size() == 2 && embedding->shape[0] <= kMaxVocab,
                   "tensor 'token_embd.weight' is not a matrix of at most 2^24 rows");
    config.vocab_size = embedding->shape[0];
  }
  if (reader.failure()) return std::move(*reader.failure());
  return config;
}

Result<Config> read_config(const ModelFile& file) {
  Result<std::string> architecture = file.text("general.architecture");
  if (!architecture.ok()) return std::move(architecture.failure());
  std::string known;
  for (const Family* family : kFamilies) {
    if (architecture.value() == family->architecture) return family->read_config(file);
    known += format_text("{}{}", known.empty() ? "" : ", ", family->architecture);
  }
  return file.failure(
      ErrorCode::unsupported,
      format_text("'general.architecture' is '{}', supported: {}; use a model of one of these",
                  architecture.value(), known));
}

}  // namespace headrace::model
