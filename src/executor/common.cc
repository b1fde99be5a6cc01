#include "executor/common.h"

#include "attention/select.h"
#include "attention/validate.h"

namespace headrace {

Status grow(Device& device, Buffer& buffer, std::size_t bytes) {
  if (bytes <= buffer.bytes() && buffer.data() != nullptr) return std::nullopt;
  buffer = {};  // free the old memory first
  buffer = device.allocate(bytes);
  if (buffer.data() != nullptr) return std::nullopt;
  return Failure{ErrorCode::out_of_memory,
                 format_text("no memory for {} bytes of activations; use smaller batches", bytes)};
}

Result<Rows> Activations::alloc(Device& device, std::int64_t num_rows, std::int64_t width,
                                DType dtype) {
  if (num_allocs_ == buffers_.size()) buffers_.emplace_back();
  Buffer& buffer = buffers_[num_allocs_++];
  if (auto failure = grow(device, buffer, bytes_of(num_rows, width, dtype)))
    return std::move(*failure);
  return Rows{.data = buffer.data(), .dtype = dtype, .num_rows = num_rows, .width = width};
}

namespace {

// Strides of q, k, v and out are multiples of the head dims.
std::int32_t alignment_of(const KvShape& shape) {
  const auto bytes = static_cast<std::int64_t>(dtype_bytes(shape.dtype));
  const std::int64_t bits = kWholeAlignment | shape.head_dim * bytes | shape.head_dim_v * bytes;
  return static_cast<std::int32_t>(bits & -bits);
}

}  // namespace

StepSize size_of(const Batch& batch) {
  return {.num_tokens = batch.num_tokens(),
          .num_seqs = batch.num_seqs(),
          .max_seqlen_q = batch.max_seqlen_q,
          .max_seqlen_k = batch.max_seqlen_k,
          .max_pages = batch.max_pages()};
}

Status plan_step(const StepSize& size, std::int32_t num_splits, const KvView& kv,
                 const AttentionSpec& spec, const DeviceInfo& device, Plan& plan) {
  Problem problem = default_problem();
  problem.is_ragged = 1;
  problem.batch = size.num_seqs;
  problem.seqlen_q = size.max_seqlen_q;
  problem.total_q = size.num_tokens;
  problem.has_seqused_k = 1;
  problem.seqlen_k = size.max_seqlen_k;
  problem.page_size = kv.page_size;
  problem.num_pages = kv.num_pages;
  problem.max_pages = size.max_pages;
  problem.num_heads = spec.num_heads;
  problem.num_kv_heads = kv.shape.num_kv_heads;
  problem.head_dim = kv.shape.head_dim;
  problem.head_dim_v = kv.shape.head_dim_v;
  problem.dtype = static_cast<std::int32_t>(kv.shape.dtype);
  problem.causal = HEADRACE_CAUSAL_BOTTOM_RIGHT;
  problem.num_splits = num_splits;
  problem.alignment = alignment_of(kv.shape);
  if (spec.window > 0) problem.window_left = spec.window - 1;
  Result<Plan> planned = plan_attention(problem, device);
  if (!planned.ok()) return std::move(planned.failure());
  plan = std::move(planned.value());
  return std::nullopt;
}

}  // namespace headrace
