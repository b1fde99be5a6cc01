#include "model/operator_recorder.h"

#include <algorithm>
#include <limits>

#include "base/math.h"
#include "executor/common.h"
#include "executor/kernel_names.h"

namespace headrace::model {
namespace {

constexpr std::string_view kGateUpSwiglu = "linear gate_up, swiglu";
constexpr std::string_view kQkvAppend = "linear qkv, rope_append";

double bytes_of_rows(const Rows& rows) {
  return static_cast<double>(bytes_of(rows.num_rows, rows.width, rows.dtype));
}

}  // namespace

// ---- what is passed on

MatmulMode OperatorRecorder::mode() const {
  return executor_ == nullptr ? MatmulMode::normal : executor_->mode();
}

DType OperatorRecorder::activation_dtype() const { return is_cuda() ? DType::bf16 : DType::f32; }

Result<Weight> OperatorRecorder::prepare(WeightType, std::int64_t, std::int64_t,
                                         const WeightBlocks&) {
  return Weight{};
}

Result<Rows> OperatorRecorder::alloc(std::int64_t num_rows, std::int64_t width, DType dtype) {
  if (executor_ != nullptr) return executor_->alloc(num_rows, width, dtype);
  return Rows{.data = nullptr, .dtype = dtype, .num_rows = num_rows, .width = width};
}

Status OperatorRecorder::begin_step(const Batch& batch, const KvView& kv,
                                    const AttentionSpec& spec) {
  batch_ = &batch;
  kv_ = kv;
  spec_ = &spec;
  const std::int64_t rows = batch.max_seqlen_q * (spec.num_heads / kv.shape.num_kv_heads);
  if (is_listed_)
    HEADRACE_TRY(plan_step(size_of(batch), num_splits_of(info_, rows), kv, spec, info_, plan_));
  return executor_ == nullptr ? std::nullopt : executor_->begin_step(batch, kv, spec);
}

Status OperatorRecorder::end_step() {
  return executor_ == nullptr ? std::nullopt : executor_->end_step();
}

Status OperatorRecorder::wait() { return executor_ == nullptr ? std::nullopt : executor_->wait(); }

// ---- the operators

template <class Cost, class Run>
Status OperatorRecorder::pass(std::string_view name, Cost cost, Run run) {
  if (is_listed_) add(name, cost());
  return executor_ != nullptr && name != skipped_ ? run(*executor_) : std::nullopt;
}

template <class Run>
Status OperatorRecorder::pass_with(std::string_view product, Run run) {
  return executor_ != nullptr && skipped_ != product ? run(*executor_) : std::nullopt;
}

void OperatorRecorder::add(std::string_view name, OperatorCost call) {
  const auto at = std::ranges::find(costs_, name, &OperatorCost::name);
  call.name = name;
  call.num_calls = 1;
  if (at == costs_.end()) {
    costs_.push_back(std::move(call));
    return;
  }
  ++at->num_calls;
  at->bytes += call.bytes;
  at->flops += call.flops;
}

Status OperatorRecorder::embed(const Weight& embedding, const Rows& out) {
  const double row = weight_bytes(embedding) / static_cast<double>(embedding.rows);
  return pass(
      "embed",
      [&] {
        return OperatorCost{.kernel = elementwise_kernel(info_, "gather_rows"),
                            .bytes = row * static_cast<double>(out.num_rows) + bytes_of_rows(out)};
      },
      [&](Executor& executor) { return executor.embed(embedding, out); });
}

Status OperatorRecorder::gather(const Rows& x, const Rows& out) {
  return pass(
      "gather",
      [&] {
        return OperatorCost{.kernel = elementwise_kernel(info_, "gather_rows"),
                            .bytes = 2 * bytes_of_rows(out)};
      },
      [&](Executor& executor) { return executor.gather(x, out); });
}

// Where it is part of the product behind it, that reads x in place of what the norm would write.
Status OperatorRecorder::rms_norm(const Rows& x, const Buffer& weight, float eps, const Rows& out) {
  return pass(
      "rms_norm",
      [&] {
        const double weight_bytes = static_cast<double>(x.width) * sizeof(float);
        if (has_norm(info_, x.num_rows, x.width))
          return OperatorCost{
              .kernel = product_kernel(info_, mode(), WeightType::bf16, x.num_rows, false),
              .bytes = weight_bytes};
        return OperatorCost{.kernel = elementwise_kernel(info_, "rms_norm"),
                            .bytes = bytes_of_rows(x) + bytes_of_rows(out) + weight_bytes};
      },
      [&](Executor& executor) { return executor.rms_norm(x, weight, eps, out); });
}

// A product of gate and up that computes SwiGLU too writes that result alone; one that appends
// writes as many bytes as without.
Status OperatorRecorder::linear(const Linear& call) {
  const bool has_bias = call.bias != nullptr;
  has_swiglu_ = call.weights.size() == 2 && has_swiglu(info_, mode(), call.x.num_rows, has_bias);
  has_append_ = call.weights.size() == 3 && !is_by_cublaslt(mode(), call.x.num_rows, has_bias) &&
                has_append(info_, call.x.num_rows, kv_.shape, decoder_.config.rope_dim);
  const auto cost = [&] {
    OperatorCost c{
        .kernel = product_kernel(info_, mode(), call.weights[0].format, call.x.num_rows, has_bias),
        .bytes = bytes_of_rows(call.x) +
                 (call.accumulate ? 2 : 1) * bytes_of_rows(call.out) / (has_swiglu_ ? 2 : 1),
        .flops = 2 * static_cast<double>(call.x.num_rows) * static_cast<double>(call.x.width) *
                 static_cast<double>(call.out.width)};
    for (const Weight& weight : call.weights) c.bytes += weight_bytes(weight);
    return c;
  };
  return pass(name_of(call), cost, [&](Executor& executor) { return executor.linear(call); });
}

std::string_view OperatorRecorder::name_of(const Linear& call) const {
  if (call.weights.size() == 3) return has_append_ ? kQkvAppend : "linear qkv";
  if (call.weights.size() == 2) return has_swiglu_ ? kGateUpSwiglu : "linear gate_up";
  if (call.weights.data() == &decoder_.output_matrix()) return "linear logits";
  return call.x.width == decoder_.config.ffn_size ? "linear down" : "linear attn_output";
}

Status OperatorRecorder::swiglu(const Rows& gate_up, const Rows& out) {
  const auto run = [&](Executor& executor) { return executor.swiglu(gate_up, out); };
  if (!has_swiglu_)
    return pass(
        "swiglu",
        [&] {
          return OperatorCost{.kernel = elementwise_kernel(info_, "swiglu"),
                              .bytes = bytes_of_rows(gate_up) + bytes_of_rows(out)};
        },
        run);
  return pass_with(kGateUpSwiglu, run);
}

Status OperatorRecorder::rope_append(const Rows& qkv, std::int64_t layer, const Rows& q) {
  const auto run = [&](Executor& executor) { return executor.rope_append(qkv, layer, q); };
  if (has_append_) return pass_with(kQkvAppend, run);
  const std::int64_t num_recent = kv_.shape.has_codes() ? qkv.num_rows : 0;
  return pass(
      "rope_append",
      [&] {
        return OperatorCost{.kernel = elementwise_kernel(info_, "kv_append"),
                            .bytes = bytes_of_rows(qkv) + bytes_of_rows(q) +
                                     stored_bytes(qkv.num_rows) + whole_bytes(num_recent)};
      },
      run);
}

// A query sees the keys up to its own position, at most `window` of them.
Status OperatorRecorder::attention(const Rows& q, std::int64_t layer, const Rows& out) {
  const auto cost = [&] {
    const std::int64_t window =
        spec_->window > 0 ? spec_->window : std::numeric_limits<std::int64_t>::max();
    const std::int64_t seqlen_q = batch_->max_seqlen_q, seqlen_k = batch_->max_seqlen_k;
    double visible = 0;
    for (std::int64_t i = 1; i <= seqlen_q; ++i)
      visible += static_cast<double>(std::min(window, seqlen_k - seqlen_q + i));
    const std::int64_t first = std::max<std::int64_t>(seqlen_k - seqlen_q + 1 - window, 0);
    const auto num_seqs = static_cast<double>(batch_->num_seqs());
    return OperatorCost{.kernel = std::string(plan_.kernel->name),
                        .bytes = num_seqs * read_bytes(first, seqlen_q, seqlen_k) +
                                 bytes_of_rows(q) + bytes_of_rows(out),
                        .flops = 2 *
                                 static_cast<double>(kv_.shape.head_dim + kv_.shape.head_dim_v) *
                                 static_cast<double>(spec_->num_heads) * visible * num_seqs};
  };
  return pass("attention", cost,
              [&](Executor& executor) { return executor.attention(q, layer, out); });
}

// ---- bytes

// In the memory of the device: bf16 on a GPU, the blocks of the file on a CPU.
double OperatorRecorder::weight_bytes(const Weight& weight) const {
  const double elements = static_cast<double>(weight.rows) * static_cast<double>(weight.columns);
  if (is_cuda()) return elements * static_cast<double>(dtype_bytes(activation_dtype()));
  const WeightTypeInfo& type = info_of(weight.format);
  return elements / static_cast<double>(type.block_elements) *
         static_cast<double>(type.block_bytes);
}

// Keys and values of one layer: in the dtype of the cache, and as they are stored.
double OperatorRecorder::whole_bytes(std::int64_t num_tokens) const {
  return static_cast<double>(bytes_of(num_tokens * kv_.shape.num_kv_heads,
                                      kv_.shape.head_dim + kv_.shape.head_dim_v, kv_.shape.dtype));
}
double OperatorRecorder::stored_bytes(std::int64_t num_tokens) const {
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
double OperatorRecorder::read_bytes(std::int64_t first, std::int64_t seqlen_q,
                                    std::int64_t seqlen_k) const {
  if (!kv_.shape.has_codes()) return whole_bytes(seqlen_k - first);
  const std::int64_t group = kv_.shape.recent_group();
  const auto group_of = [group](std::int64_t key) { return key / group * group; };
  const std::int64_t last_group = group_of(seqlen_k - 1);
  const std::int64_t first_recent = std::max(first, group_of(seqlen_k - seqlen_q));
  return stored_bytes(std::max<std::int64_t>(last_group - first, 0)) +
         whole_bytes(seqlen_k - first_recent);
}

}  // namespace headrace::model
