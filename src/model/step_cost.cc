#include "model/step_cost.h"

#include <algorithm>
#include <limits>
#include <memory>

#include "base/math.h"
#include "executor/common.h"
#include "model/decoder.h"
#include "model/family.h"

namespace headrace::model {
namespace {

constexpr std::int64_t kMaxSeqs = 65536, kMaxTokens = std::int64_t{1} << 28;

// An executor that computes nothing and lists its calls, so that the list is that of
// Decoder::forward().
class Recorder final : public Executor {
 public:
  Recorder(const Decoder& decoder, const DeviceInfo& device, std::unique_ptr<Device> host)
      : decoder_(decoder), info_(device), host_(std::move(host)) {}

  std::vector<OperatorCost> take() { return std::move(costs_); }

  Device& device() override { return *host_; }
  DType activation_dtype() const override { return is_cuda() ? DType::bf16 : DType::f32; }
  Result<Weight> prepare(WeightType, std::int64_t, std::int64_t, const std::byte*) override {
    return Weight{};
  }
  Result<Rows> alloc(std::int64_t num_rows, std::int64_t width, DType dtype) override {
    return Rows{.data = nullptr, .dtype = dtype, .num_rows = num_rows, .width = width};
  }
  Status begin_step(const Batch& batch, const KvView& kv, const AttentionSpec& spec) override {
    batch_ = &batch;
    kv_ = kv;
    spec_ = &spec;
    return plan_step(size_of(batch), 0, kv, spec, info_, plan_);
  }
  Status embed(const Weight& embedding, const Rows& out) override {
    const double row = weight_bytes(embedding) / static_cast<double>(embedding.rows);
    return add("embed", row * static_cast<double>(out.num_rows) + bytes_of_rows(out));
  }
  Status gather(const Rows&, const Rows& out) override {
    return add("gather", 2 * bytes_of_rows(out));
  }
  Status rms_norm(const Rows& x, const Buffer&, float, const Rows& out) override {
    return add("rms_norm", bytes_of_rows(x) + bytes_of_rows(out) +
                               static_cast<double>(x.width) * sizeof(float));
  }
  Status linear(const Linear& call) override {
    double bytes = bytes_of_rows(call.x) + (call.accumulate ? 2 : 1) * bytes_of_rows(call.out);
    for (const Weight& weight : call.weights) bytes += weight_bytes(weight);
    const double flops = 2 * static_cast<double>(call.x.num_rows) *
                         static_cast<double>(call.x.width) * static_cast<double>(call.out.width);
    return add("linear " + name_of(call), bytes, flops);
  }
  Status rope_append(const Rows& qkv, std::int64_t, const Rows& q) override {
    const std::int64_t num_recent = kv_.shape.has_codes() ? qkv.num_rows : 0;
    return add("rope_append", bytes_of_rows(qkv) + bytes_of_rows(q) + stored_bytes(qkv.num_rows) +
                                  whole_bytes(num_recent));
  }
  Status attention(const Rows& q, std::int64_t, const Rows& out) override;
  Status swiglu(const Rows& gate_up, const Rows& out) override {
    return add("swiglu", bytes_of_rows(gate_up) + bytes_of_rows(out));
  }
  Status end_step() override { return std::nullopt; }

 private:
  bool is_cuda() const { return info_.device_type == HEADRACE_CUDA; }
  double bytes_of_rows(const Rows& rows) const {
    return static_cast<double>(bytes_of(rows.num_rows, rows.width, rows.dtype));
  }
  // In the memory of the device: bf16 on a GPU, the blocks of the file on a CPU.
  double weight_bytes(const Weight& weight) const {
    const double elements = static_cast<double>(weight.rows) * static_cast<double>(weight.columns);
    if (is_cuda()) return elements * static_cast<double>(dtype_bytes(activation_dtype()));
    const WeightTypeInfo& type = info_of(weight.format);
    return elements / static_cast<double>(type.block_elements) *
           static_cast<double>(type.block_bytes);
  }
  // Keys and values of one layer: in the dtype of the cache, and as they are stored.
  double whole_bytes(std::int64_t num_tokens) const {
    return static_cast<double>(bytes_of(num_tokens * kv_.shape.num_kv_heads,
                                        kv_.shape.head_dim + kv_.shape.head_dim_v,
                                        kv_.shape.dtype));
  }
  double stored_bytes(std::int64_t num_tokens) const {
    const auto row = [&](DType dtype, std::int64_t dim) {
      return bytes_of(1, stored_size(dtype, dim), dtype);
    };
    const KvShape& kv = kv_.shape;
    std::int64_t scales = 0;  // and words of scales and zero points, of kZeroPointGroup tokens
    if (kv.k_dtype != kv.dtype)
      scales += scales_of_key(kv.k_dtype, kv.head_dim) *
                (has_zero_points(kv.k_dtype) ? 1 : kZeroPointGroup);
    if (kv.v_dtype != kv.dtype)
      scales += scales_of_value(kv.v_dtype, kv.head_dim_v) * kZeroPointGroup;
    return static_cast<double>(num_tokens * kv.num_kv_heads) *
           (static_cast<double>(row(kv.k_dtype, kv.head_dim) + row(kv.v_dtype, kv.head_dim_v)) +
            static_cast<double>(scales * 4) / kZeroPointGroup);
  }
  // Of the keys [first, seqlen_k) of a sequence, each form that queries of seqlen_q tokens read.
  double read_bytes(std::int64_t first, std::int64_t seqlen_q, std::int64_t seqlen_k) const {
    if (!kv_.shape.has_codes()) return whole_bytes(seqlen_k - first);
    const std::int64_t group = kv_.shape.recent_group();
    const auto group_of = [group](std::int64_t key) { return key / group * group; };
    const std::int64_t last_group = group_of(seqlen_k - 1);
    const std::int64_t first_recent = std::max(first, group_of(seqlen_k - seqlen_q));
    return stored_bytes(std::max<std::int64_t>(last_group - first, 0)) +
           whole_bytes(seqlen_k - first_recent);
  }
  std::string name_of(const Linear& call) const;

  Status add(const std::string& name, double bytes, double flops = 0, std::string kernel = {}) {
    auto at = std::find_if(costs_.begin(), costs_.end(),
                           [&](const OperatorCost& cost) { return cost.name == name; });
    if (at == costs_.end()) at = costs_.insert(at, {.name = name, .kernel = std::move(kernel)});
    ++at->num_calls;
    at->bytes += bytes;
    at->flops += flops;
    return std::nullopt;
  }

  const Decoder& decoder_;
  const DeviceInfo info_;
  const std::unique_ptr<Device> host_;
  std::vector<OperatorCost> costs_;
  const Batch* batch_ = nullptr;
  const AttentionSpec* spec_ = nullptr;
  KvView kv_{};
  Plan plan_;
};

std::string Recorder::name_of(const Linear& call) const {
  if (call.weights.size() == 3) return "qkv";
  if (call.weights.size() == 2) return "gate_up";
  if (call.weights.data() == &decoder_.output_matrix()) return "logits";
  return call.x.width == decoder_.config.ffn_size ? "down" : "attn_output";
}

// A query sees the keys up to its own position, at most `window` of them.
Status Recorder::attention(const Rows& q, std::int64_t, const Rows& out) {
  const std::int64_t window =
      spec_->window > 0 ? spec_->window : std::numeric_limits<std::int64_t>::max();
  const std::int64_t seqlen_q = batch_->max_seqlen_q, seqlen_k = batch_->max_seqlen_k;
  double visible = 0;
  for (std::int64_t i = 1; i <= seqlen_q; ++i)
    visible += static_cast<double>(std::min(window, seqlen_k - seqlen_q + i));
  const std::int64_t first = std::max<std::int64_t>(seqlen_k - seqlen_q + 1 - window, 0);
  const auto num_seqs = static_cast<double>(batch_->num_seqs());
  const double flops = 2 * static_cast<double>(kv_.shape.head_dim + kv_.shape.head_dim_v) *
                       static_cast<double>(spec_->num_heads) * visible * num_seqs;
  return add(
      "attention",
      num_seqs * read_bytes(first, seqlen_q, seqlen_k) + bytes_of_rows(q) + bytes_of_rows(out),
      flops, std::string(plan_.kernel->name));
}

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
  Recorder recorder(decoder, device, make_host_device(host.value()));
  if (auto bad = decoder.forward(recorder, batch, kv, nullptr)) return std::move(*bad);
  return recorder.take();
}

}  // namespace headrace::model
