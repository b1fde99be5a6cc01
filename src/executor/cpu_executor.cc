// The CPU executor. Activations are f32; queries and attention outputs have the dtype of the cache.
#include <algorithm>
#include <cstring>
#include <vector>

#include "attention/forward.h"
#include "backends/cpu/elementwise/elementwise.h"
#include "backends/cpu/elementwise/kv_append.h"
#include "backends/cpu/gemm/gemm.h"
#include "backends/cpu/thread_pool.h"
#include "base/math.h"
#include "executor/common.h"
#include "executor/cpu_sparq.h"

namespace headrace {
namespace {

float* floats(const Rows& rows) { return static_cast<float*>(rows.data); }

class CpuExecutor final : public Executor {
 public:
  CpuExecutor(Device& device, MatmulMode mode)
      : device_(device), mode_(mode), ops_(cpu::elementwise_ops(device.info())), sparq_(device) {}

  Device& device() override { return device_; }
  DType activation_dtype() const override { return DType::f32; }
  MatmulMode mode() const override { return mode_; }
  Stream stream() const override { return nullptr; }

  Result<Weight> prepare(WeightType format, std::int64_t rows, std::int64_t columns,
                         const WeightBlocks& blocks) override {
    Result<const std::byte*> data = blocks.all();
    if (!data.ok()) return std::move(data.failure());
    return cpu::pack_matrix(format, rows, columns, data.value(), mode_, device_.info());
  }

  Result<Rows> alloc(std::int64_t num_rows, std::int64_t width, DType dtype) override {
    return activations_.alloc(device_, nullptr, num_rows, width, dtype);
  }
  Status begin_step(const Batch& batch, const KvView& kv, const AttentionSpec& spec) override;
  Status embed(const Weight& embedding, const Rows& out) override;
  Status gather(const Rows& x, const Rows& out) override;
  Status rms_norm(const Rows& x, const Buffer& weight, float eps, const Rows& out) override;
  Status linear(const Linear& call) override;
  Status rope_append(const Rows& qkv, std::int64_t layer, const Rows& q) override;
  Status attention(const Rows& q, std::int64_t layer, const Rows& out) override;
  Status swiglu(const Rows& gate_up, const Rows& out) override;
  Result<bool> repeat_step(const void*, const float*) override { return false; }
  Status end_step() override { return std::nullopt; }
  Status wait() override { return std::nullopt; }

 private:
  template <class Body>
  Status for_rows(std::int64_t num_rows, Body body);
  Status compute_rope_angles();
  Status attend(const Rows& q, std::int64_t layer, std::int64_t out_width);
  std::int64_t rot_dim() const {
    return 2 * static_cast<std::int64_t>(spec_->rope_frequencies.bytes() / sizeof(double));
  }

  Device& device_;
  const MatmulMode mode_;
  const cpu::ElementwiseOps& ops_;
  CpuSparq sparq_;

  Activations activations_;
  Buffer cos_, sin_;                         // float [num_tokens, rot_dim / 2]
  std::vector<std::int32_t> token_indices_;  // 0, 1, ...: positions in cos_ and sin_
  Buffer attn_out_;           // [num_tokens, num_heads * head_dim_v] in the cache's dtype
  Buffer activation_groups_;  // scratch of cpu::multiply
  Buffer workspace_;          // of the attention plan

  // The current step.
  const Batch* batch_ = nullptr;
  const AttentionSpec* spec_ = nullptr;
  KvView kv_{};
  bool has_sparq_ = false;  // instead of a plan
  Plan plan_;               // of the attention of every layer
};

// Calls body(rows) for chunks of rows on all threads. Chunks are small enough that two threads
// share a short prompt; a single token stays on the calling thread.
template <class Body>
Status CpuExecutor::for_rows(std::int64_t num_rows, Body body) {
  constexpr std::int64_t kChunk = 16;
  struct Context {
    Body* body;
    std::int64_t num_rows;
  } context{&body, num_rows};
  return cpu::parallel_for(
      ceil_div(num_rows, kChunk), device_.info().num_units,
      [](void* opaque, std::int64_t task, int) {
        const auto* c = static_cast<const Context*>(opaque);
        (*c->body)(cpu::RowRange{task * kChunk, std::min(c->num_rows, (task + 1) * kChunk)});
      },
      &context);
}

Status CpuExecutor::begin_step(const Batch& batch, const KvView& kv, const AttentionSpec& spec) {
  activations_.begin_step();
  batch_ = &batch;
  spec_ = &spec;
  kv_ = kv;
  has_sparq_ = batch.sparq.num_keys > 0;
  if (has_sparq_) {
    HEADRACE_TRY(sparq_.begin_step(batch, kv, spec));
  } else {
    HEADRACE_TRY(plan_step(size_of(batch), 0, kv, spec, device_.info(), plan_));
    HEADRACE_TRY(grow(device_, nullptr, workspace_, plan_.schedule.workspace_bytes));
  }
  HEADRACE_TRY(
      grow(device_, nullptr, attn_out_,
           bytes_of(batch.num_tokens(), spec.num_heads * kv.shape.head_dim_v, kv.shape.dtype)));
  return compute_rope_angles();
}

Status CpuExecutor::compute_rope_angles() {
  const std::int64_t half = rot_dim() / 2, num_tokens = batch_->num_tokens();
  for (auto i = token_indices_.size(); i < batch_->tokens.size(); ++i)
    token_indices_.push_back(static_cast<std::int32_t>(i));
  HEADRACE_TRY(grow(device_, nullptr, cos_, bytes_of(num_tokens, half, DType::f32)));
  HEADRACE_TRY(grow(device_, nullptr, sin_, bytes_of(num_tokens, half, DType::f32)));
  const std::span<const double> frequencies(spec_->rope_frequencies.as<const double>(),
                                            static_cast<std::size_t>(half));
  return for_rows(num_tokens, [&](cpu::RowRange rows) {
    rope_angles(frequencies,
                batch_->positions.subspan(static_cast<std::size_t>(rows.first),
                                          static_cast<std::size_t>(rows.last - rows.first)),
                cos_.as<float>() + rows.first * half, sin_.as<float>() + rows.first * half);
  });
}

Status CpuExecutor::embed(const Weight& embedding, const Rows& out) {
  return for_rows(out.num_rows, [&](cpu::RowRange rows) {
    for (std::int64_t t = rows.first; t < rows.last; ++t)
      cpu::unpack_row(embedding, batch_->tokens[static_cast<std::size_t>(t)],
                      floats(out) + t * out.width);
  });
}

Status CpuExecutor::gather(const Rows& x, const Rows& out) {
  return for_rows(out.num_rows, [&](cpu::RowRange range) {
    for (std::int64_t i = range.first; i < range.last; ++i)
      std::memcpy(floats(out) + i * out.width,
                  floats(x) + batch_->logits_rows[static_cast<std::size_t>(i)] * x.width,
                  bytes_of(1, x.width, DType::f32));
  });
}

Status CpuExecutor::rms_norm(const Rows& x, const Buffer& weight, float eps, const Rows& out) {
  const cpu::RmsNorm norm{.x = floats(x),
                          .x_stride = x.width,
                          .weight = weight.as<const float>(),
                          .width = x.width,
                          .eps = eps,
                          .out = floats(out),
                          .out_stride = out.width};
  return for_rows(x.num_rows, [&](cpu::RowRange rows) { ops_.rms_norm(norm, rows); });
}

Status CpuExecutor::linear(const Linear& call) {
  HEADRACE_TRY(grow(device_, nullptr, activation_groups_,
                    cpu::multiply_scratch_bytes(call.x.width, call.x.num_rows)));
  return cpu::multiply({.matrices = call.weights,
                        .bias = call.bias == nullptr ? nullptr : call.bias->as<const float>(),
                        .num_tokens = call.x.num_rows,
                        .x = floats(call.x),
                        .x_stride = call.x.width,
                        .out = floats(call.out),
                        .out_stride = call.out.width,
                        .add_to_out = call.accumulate},
                       device_.info().num_units, activation_groups_.data());
}

Status CpuExecutor::rope_append(const Rows& qkv, std::int64_t layer, const Rows& q) {
  KvAppendArgs append = append_args(kv_, *spec_, layer, qkv, q);
  append.slot_mapping = batch_->slot_mapping.data();
  append.slot_stride = 1;
  if (kv_.shape.has_codes()) append.recent.slots = batch_->recent_slots.data();
  append.positions = token_indices_.data();  // rows of cos_ and sin_
  append.position_stride = 1;
  append.rot_dim = rot_dim();
  append.tables = {.cos = cos_.data(),
                   .sin = sin_.data(),
                   .cos_stride = rot_dim() / 2,
                   .sin_stride = rot_dim() / 2,
                   .max_positions = qkv.num_rows};
  HEADRACE_TRY(cpu::kv_append(append, device_.info()));
  if (!kv_.shape.has_components) return std::nullopt;
  return sparq_.append(*batch_, kv_, layer);
}

Status CpuExecutor::attend(const Rows& q, std::int64_t layer, std::int64_t out_width) {
  if (has_sparq_) return sparq_.attention(*batch_, kv_, layer, q, attn_out_.data());
  AttentionArgs args = attention_args(kv_, layer, q, attn_out_.data(), out_width);
  args.ragged.cu_seqlens_q = batch_->cu_seqlens_q.data();
  args.paged = {.block_table = batch_->block_table.data(),
                .stride_batch = batch_->max_pages(),
                .seqused_k = batch_->seqused_k.data(),
                .seqused_stride = 1};
  args.recent.table = batch_->recent_table.data();
  args.recent.stride_table = batch_->max_recent();
  return run(plan_, args, {workspace_.data(), workspace_.bytes()}, nullptr);
}

Status CpuExecutor::attention(const Rows& q, std::int64_t layer, const Rows& out) {
  HEADRACE_TRY(attend(q, layer, out.width));
  return for_rows(out.num_rows, [&](cpu::RowRange rows) {
    ops_.widen({.x = attn_out_.data(),
                .x_dtype = kv_.shape.dtype,
                .x_stride = out.width,
                .width = out.width,
                .out = floats(out),
                .out_stride = out.width},
               rows);
  });
}

Status CpuExecutor::swiglu(const Rows& gate_up, const Rows& out) {
  return for_rows(out.num_rows, [&](cpu::RowRange rows) {
    ops_.swiglu({.gate = floats(gate_up),
                 .gate_stride = gate_up.width,
                 .up = floats(gate_up) + out.width,
                 .up_stride = gate_up.width,
                 .width = out.width,
                 .out = floats(out),
                 .out_stride = out.width},
                rows);
  });
}

}  // namespace

std::unique_ptr<Executor> make_cpu_executor(Device& device, MatmulMode mode) {
  return std::make_unique<CpuExecutor>(device, mode);
}

}  // namespace headrace
