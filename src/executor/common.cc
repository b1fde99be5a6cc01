#include "executor/common.h"

#include <algorithm>
#include <bit>

#include "attention/select.h"
#include "attention/validate.h"
#include "backends/cuda/backend.h"
#include "core/hadamard.h"

namespace headrace {

std::size_t at_least_half_more(const Buffer& buffer, std::size_t bytes) {
  return std::max(bytes, buffer.bytes() + buffer.bytes() / 2);
}

Status grow(Device& device, Stream stream, Buffer& buffer, std::size_t bytes) {
  if (bytes <= buffer.bytes() && buffer.data() != nullptr) return std::nullopt;
  if (buffer.data() != nullptr) HEADRACE_TRY(device.synchronise(stream));
  const std::size_t more = at_least_half_more(buffer, bytes);
  buffer = {};  // free the old memory first
  buffer = device.allocate(more);
  if (buffer.data() == nullptr) buffer = device.allocate(bytes);
  if (buffer.data() != nullptr) return std::nullopt;
  return Failure{ErrorCode::out_of_memory,
                 format_text("no memory for {} bytes of activations; use smaller batches", bytes)};
}

Result<Rows> Activations::alloc(Device& device, Stream stream, std::int64_t num_rows,
                                std::int64_t width, DType dtype) {
  if (num_allocs_ == buffers_.size()) buffers_.emplace_back();
  Buffer& buffer = buffers_[num_allocs_++];
  const std::byte* before = buffer.data();
  if (auto failure = grow(device, stream, buffer, bytes_of(num_rows, width, dtype)))
    return std::move(*failure);
  if (buffer.data() != before) ++version_;
  return Rows{.data = buffer.data(), .dtype = dtype, .num_rows = num_rows, .width = width};
}

namespace {

// Strides of q, k, v and out are multiples of the head dims.
std::int32_t alignment_of(const KvShape& shape) {
  const auto row_bytes = [](DType dtype, std::int64_t dim) {
    return stored_size(dtype, dim) * static_cast<std::int64_t>(dtype_bytes(dtype));
  };
  const std::int64_t bits = kWholeAlignment | row_bytes(shape.dtype, shape.head_dim) |
                            row_bytes(shape.dtype, shape.head_dim_v) |
                            row_bytes(shape.k_dtype, shape.head_dim) |
                            row_bytes(shape.v_dtype, shape.head_dim_v);
  return static_cast<std::int32_t>(bits & -bits);
}

constexpr std::int32_t scaling_of(const KvShape& shape, DType dtype) {
  if (has_zero_points(dtype)) return HEADRACE_SCALING_ZERO_POINTS;
  return dtype == shape.dtype ? HEADRACE_SCALING_NONE : HEADRACE_SCALING_PER_KEY;
}

PageRows page_rows(const Operand& pages, DType dtype) {
  return {.data = pages.data,
          .dtype = dtype,
          .stride_page = pages.stride_batch,
          .stride_slot = pages.stride_seq,
          .stride_head = pages.stride_head};
}

ScaleRows scale_rows(const ScaleOperand& scale) {
  return {.data = const_cast<void*>(scale.data),
          .stride_page = scale.stride_batch,
          .stride_slot = scale.stride_seq,
          .stride_head = scale.stride_head};
}

}  // namespace

StepSize size_of(const Batch& batch) {
  return {.num_tokens = batch.num_tokens(),
          .num_seqs = batch.num_seqs(),
          .max_seqlen_q = batch.max_seqlen_q,
          .max_seqlen_k = batch.max_seqlen_k,
          .max_pages = batch.max_pages(),
          .max_recent = batch.max_recent(),
          .max_shared_prefix = 0};
}

std::int32_t num_splits_of(const DeviceInfo& device, std::int64_t rows) {
  return device.device_type == HEADRACE_CUDA && rows > cuda::kMaxDecodeRows ? 1 : 0;
}

std::int64_t shared_prefix_of(const Batch& batch, std::int64_t first_seq, const KvView& kv) {
  // Shared pages come from the L2 cache. On an H200 three more kernels took less time in each case
  // that saved 192 MiB or more (0.62 to 0.89 of it up to 256), longer in most of 64 to 128.
  constexpr std::int64_t kLeastBytes = std::int64_t{192} << 20;
  const std::int64_t columns = batch.max_pages();
  std::int64_t most = 0, sum = 0;
  for (std::int64_t s = first_seq + 1; s < batch.num_seqs(); ++s) {
    const auto i = static_cast<std::size_t>(s);
    const std::int64_t length = std::min(batch.seqused_k[i - 1], batch.seqused_k[i]);
    const auto* table = batch.block_table.data() + s * columns;
    // Sequences with a page in common have all pages before it in common.
    std::int64_t shared = 0;
    while (shared + kPrefixStep <= length) {
      const std::int64_t last = (shared + kPrefixStep - 1) / kv.page_size;
      if (table[last] != table[last - columns]) break;
      shared += kPrefixStep;
    }
    most = std::max(most, shared);
    sum += shared;
  }
  const auto key_bytes = static_cast<std::int64_t>(
      bytes_of(kv.shape.num_kv_heads, kv.shape.head_dim, kv.shape.k_dtype) +
      bytes_of(kv.shape.num_kv_heads, kv.shape.head_dim_v, kv.shape.v_dtype));
  if (sum * key_bytes < kLeastBytes) return 0;
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(most)));
}

std::int64_t num_prefills(const Batch& batch, std::int64_t heads_per_group,
                          const DeviceInfo& device) {
  const auto is_prefill = [&](std::int64_t seq) {
    const auto s = static_cast<std::size_t>(seq);
    const std::int64_t num_tokens = batch.cu_seqlens_q[s + 1] - batch.cu_seqlens_q[s];
    return num_splits_of(device, num_tokens * heads_per_group) == 1;
  };
  std::int64_t count = 0;
  while (count < batch.num_seqs() && is_prefill(count)) ++count;
  return count;
}

Problem step_problem(const StepSize& size, std::int32_t num_splits, const KvView& kv,
                     const AttentionSpec& spec) {
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
  problem.k_dtype = static_cast<std::int32_t>(kv.shape.k_dtype);
  problem.v_dtype = static_cast<std::int32_t>(kv.shape.v_dtype);
  problem.k_scaling = scaling_of(kv.shape, kv.shape.k_dtype);
  problem.v_scaling = scaling_of(kv.shape, kv.shape.v_dtype);
  problem.recent_group = kv.recent.page_size;
  problem.num_recent_pages = kv.recent.num_pages;
  problem.max_recent = kv.shape.has_codes() ? size.max_recent : 0;
  problem.causal = HEADRACE_CAUSAL_BOTTOM_RIGHT;
  problem.num_splits = num_splits;
  problem.alignment = alignment_of(kv.shape);
  if (spec.window > 0) problem.window_left = spec.window - 1;
  problem.max_shared_prefix = size.max_shared_prefix;
  return problem;
}

Status plan_step(const StepSize& size, std::int32_t num_splits, const KvView& kv,
                 const AttentionSpec& spec, const DeviceInfo& device, Plan& plan) {
  Result<Plan> planned = plan_attention(step_problem(size, num_splits, kv, spec), device);
  if (!planned.ok()) return std::move(planned.failure());
  plan = std::move(planned.value());
  return std::nullopt;
}

KvAppendArgs append_args(const KvView& kv, const AttentionSpec& spec, std::int64_t layer,
                         const Rows& qkv, const Rows& q) {
  const KvShape& shape = kv.shape;
  const auto heads = [&](std::int64_t first, std::int64_t head_dim) {
    return HeadRows{.data = static_cast<std::byte*>(qkv.data) + bytes_of(first, 1, qkv.dtype),
                    .dtype = qkv.dtype,
                    .stride_token = qkv.width,
                    .stride_head = head_dim};
  };
  const std::int64_t first_k = spec.num_heads * shape.head_dim,
                     first_v = first_k + shape.num_kv_heads * shape.head_dim;
  KvAppendArgs append;
  append.num_tokens = qkv.num_rows;
  append.num_heads = spec.num_heads;
  append.num_kv_heads = shape.num_kv_heads;
  append.head_dim = shape.head_dim;
  append.head_dim_v = shape.head_dim_v;
  append.page_size = kv.page_size;
  append.num_pages = kv.num_pages;
  append.q = heads(0, shape.head_dim);
  append.q_out = {
      .data = q.data, .dtype = q.dtype, .stride_token = q.width, .stride_head = shape.head_dim};
  append.k = heads(first_k, shape.head_dim);
  append.v = heads(first_v, shape.head_dim_v);
  append.k_pages = page_rows(layer_of(kv, kv.k, layer), shape.k_dtype);
  append.v_pages = page_rows(layer_of(kv, kv.v, layer), shape.v_dtype);
  append.layout = spec.rope_layout;
  if (!shape.has_codes()) return append;
  if (shape.has_channel_factors())
    append.channel_factors = {.data = spec.channel_factors.as<const float>() +
                                      layer * shape.num_kv_heads * shape.head_dim,
                              .stride_head = shape.head_dim,
                              .group = spec.num_heads / shape.num_kv_heads};
  if (shape.has_hadamard()) {
    append.hadamard_block = hadamard_block(shape.head_dim);
    append.hadamard_scale = hadamard_scale(append.hadamard_block);
  }
  const KvOperands& recent = kv.recent;
  append.k_scale = scale_rows(layer_of(kv.k_scale, kv.layer_bytes, layer));
  append.v_scale = scale_rows(layer_of(kv.v_scale, kv.layer_bytes, layer));
  append.recent = {.k = page_rows(layer_of(recent.k, recent.layer_bytes, layer), shape.dtype),
                   .v = page_rows(layer_of(recent.v, recent.layer_bytes, layer), shape.dtype),
                   .slots = nullptr,
                   .slot_stride = 1,
                   .group = recent.page_size,
                   .num_pages = recent.num_pages};
  return append;
}

AttentionArgs attention_args(const KvView& kv, std::int64_t layer, const Rows& q, void* out,
                             std::int64_t out_width) {
  const KvShape& shape = kv.shape;
  AttentionArgs args;
  args.q = {
      .data = q.data, .stride_batch = 0, .stride_seq = q.width, .stride_head = shape.head_dim};
  args.k = layer_of(kv, kv.k, layer);
  args.v = layer_of(kv, kv.v, layer);
  args.out = {
      .data = out, .stride_batch = 0, .stride_seq = out_width, .stride_head = shape.head_dim_v};
  if (!shape.has_codes()) return args;
  args.k_scale = layer_of(kv.k_scale, kv.layer_bytes, layer);
  args.v_scale = layer_of(kv.v_scale, kv.layer_bytes, layer);
  args.recent.k = layer_of(kv.recent.k, kv.recent.layer_bytes, layer);
  args.recent.v = layer_of(kv.recent.v, kv.recent.layer_bytes, layer);
  return args;
}

}  // namespace headrace
