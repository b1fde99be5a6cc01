#include "model/step_cost.h"

#include <memory>

#include "base/math.h"
#include "model/family.h"
#include "model/operator_recorder.h"

namespace headrace::model {
namespace {

constexpr std::int64_t kMaxSeqs = 65536, kMaxTokens = std::int64_t{1} << 28;

Status read_weight(const ModelFile& file, const std::string& name, Weight& weight) {
  const TensorInfo* tensor = file.find_tensor(name);
  if (tensor == nullptr || tensor->shape.size() != 2)
    return file.wrong(format_text("tensor '{}' is missing or not a matrix", name));
  weight.format = tensor->type;
  weight.rows = tensor->shape[0];
  weight.columns = tensor->shape[1];
  return std::nullopt;
}

// The matrices' types and sizes, without data.
Status read_layer(const ModelFile& file, std::int64_t layer, LayerWeights& out) {
  const std::string prefix = format_text("blk.{}.", layer);
  const std::pair<const char*, Weight*> weights[] = {
      {"attn_q", &out.qkv[0]},       {"attn_k", &out.qkv[1]},
      {"attn_v", &out.qkv[2]},       {"attn_output", &out.attn_output},
      {"ffn_gate", &out.gate_up[0]}, {"ffn_up", &out.gate_up[1]},
      {"ffn_down", &out.down}};
  for (const auto& [name, weight] : weights)
    HEADRACE_TRY(read_weight(file, prefix + name + ".weight", *weight));
  return std::nullopt;
}

Status read_decoder(const ModelFile& file, Decoder& decoder) {
  Result<Config> config = read_config(file);
  if (!config.ok()) return std::move(config.failure());
  decoder.config = std::move(config.value());
  HEADRACE_TRY(read_weight(file, "token_embd.weight", decoder.embedding));
  if (file.find_tensor("output.weight") != nullptr)
    HEADRACE_TRY(read_weight(file, "output.weight", decoder.output.emplace()));
  for (std::int64_t layer = 0; layer < decoder.config.num_layers; ++layer)
    HEADRACE_TRY(read_layer(file, layer, decoder.layers.emplace_back()));
  return std::nullopt;
}

Status check_shape(const StepShape& shape, const Config& config) {
  if (shape.num_seqs < 1 || shape.num_seqs > kMaxSeqs)
    return invalid_argument("shape.num_seqs={}: must be 1 to {}; pass fewer sequences",
                            shape.num_seqs, kMaxSeqs);
  if (shape.seqlen_q < 1 || shape.seqlen_q > shape.seqlen_k)
    return invalid_argument(
        "shape.seqlen_q={}: must be 1 to seqlen_k={}, which counts the tokens of the step; change "
        "one of them",
        shape.seqlen_q, shape.seqlen_k);
  if (shape.seqlen_k > config.context_length)
    return invalid_argument("shape.seqlen_k={}: must be at most the context_length {}; pass less",
                            shape.seqlen_k, config.context_length);
  if (shape.num_seqs * shape.seqlen_k > kMaxTokens)
    return invalid_argument(
        "shape.num_seqs={} of seqlen_k={}: must be at most {} tokens; pass less", shape.num_seqs,
        shape.seqlen_k, kMaxTokens);
  return std::nullopt;
}

// The arrays of a batch of equal sequences. Their values do not matter.
struct Arrays {
  Arrays(const StepShape& shape, std::int64_t recent_group)
      : tokens(static_cast<std::size_t>(shape.num_seqs * shape.seqlen_q)),
        pages(static_cast<std::size_t>(shape.num_seqs * ceil_div(shape.seqlen_k, recent_group))),
        recent(static_cast<std::size_t>(shape.num_seqs *
                                        (ceil_div(shape.seqlen_k, recent_group) -
                                         (shape.seqlen_k - shape.seqlen_q) / recent_group))),
        seqs(static_cast<std::size_t>(shape.num_seqs)) {}
  std::vector<std::int32_t> tokens, pages, recent, seqs;
};

}  // namespace

Result<std::vector<OperatorCost>> step_cost(const ModelFile& file, const StepShape& shape,
                                            const DeviceInfo& device) {
  Decoder decoder;
  if (auto bad = read_decoder(file, decoder)) return std::move(*bad);
  if (auto bad = check_shape(shape, decoder.config)) return std::move(*bad);
  KvView kv{};
  kv.shape = decoder.kv_shape(shape.cache_dtype);
  kv.shape.k_dtype = shape.k_dtype.value_or(shape.cache_dtype);
  kv.shape.v_dtype = shape.v_dtype.value_or(shape.cache_dtype);
  const Arrays arrays(shape, kv.shape.recent_group());
  Batch batch;
  batch.tokens = arrays.tokens;
  batch.seqused_k = arrays.seqs;
  batch.block_table = arrays.pages;
  batch.logits_rows = arrays.seqs;
  batch.max_seqlen_q = shape.seqlen_q;
  batch.max_seqlen_k = shape.seqlen_k;
  if (kv.shape.has_codes()) {
    batch.recent_table = arrays.recent;
    kv.recent.page_size = kv.shape.recent_group();
    kv.recent.num_pages = static_cast<std::int64_t>(arrays.recent.size());
  }
  kv.page_size = kv.shape.recent_group();
  kv.num_pages = static_cast<std::int64_t>(arrays.pages.size());
  Result<DeviceInfo> host = cpu_info();
  if (!host.ok()) return std::move(host.failure());
  const std::unique_ptr<Device> memory = make_host_device(host.value());
  OperatorRecorder recorder(decoder, device, *memory);
  if (auto bad = decoder.forward(recorder, batch, kv, nullptr)) return std::move(*bad);
  return recorder.take();
}

}  // namespace headrace::model
