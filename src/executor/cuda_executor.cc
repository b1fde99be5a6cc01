// The CUDA executor: eager launches on the default stream. Activations and weights are bf16;
// queries and attention outputs have the dtype of the cache.
#include <algorithm>
#include <cstring>
#include <vector>

#include "attention/forward.h"
#include "backends/cuda/backend.h"
#include "base/math.h"
#include "executor/common.h"
#include "weights/dequantise.h"

namespace headrace {
namespace {

constexpr Stream kStream = nullptr;
constexpr DType kDType = DType::bf16;
constexpr std::int64_t kColumnMultiple = 8;  // of a product's columns

std::byte* element(void* data, std::int64_t idx, DType dtype) {
  return static_cast<std::byte*>(data) + bytes_of(idx, 1, dtype);
}

// A weight type's rows as bf16.
std::vector<std::uint16_t> bf16_rows(WeightType format, std::int64_t rows, std::int64_t columns,
                                     const std::byte* blocks) {
  const WeightTypeInfo& type = info_of(format);
  const std::int64_t row_bytes = columns / type.block_elements * type.block_bytes;
  std::vector<std::uint16_t> elements(static_cast<std::size_t>(rows * columns));
  std::vector<float> row(static_cast<std::size_t>(columns));
  for (std::int64_t r = 0; r < rows; ++r) {
    dequantise(format, blocks + r * row_bytes, columns, row.data());
    std::transform(row.begin(), row.end(), elements.begin() + r * columns, bf16_from_float);
  }
  return elements;
}

class CudaExecutor final : public Executor {
 public:
  explicit CudaExecutor(Device& device) : device_(device), id_(device.info().device_id) {}

  Device& device() override { return device_; }
  DType activation_dtype() const override { return kDType; }

  Result<Weight> prepare(WeightType format, std::int64_t rows, std::int64_t columns,
                         const std::byte* blocks) override;
  Result<Rows> alloc(std::int64_t num_rows, std::int64_t width, DType dtype) override {
    return activations_.alloc(device_, num_rows, width, dtype);
  }
  Status begin_step(const Batch& batch, const KvView& kv, const AttentionSpec& spec) override;
  Status embed(const Weight& embedding, const Rows& out) override;
  Status gather(const Rows& x, const Rows& out) override;
  Status rms_norm(const Rows& x, const Buffer& weight, float eps, const Rows& out) override;
  Status linear(const Linear& call) override;
  Status rope_append(const Rows& qkv, std::int64_t layer, const Rows& q) override;
  Status attention(const Rows& q, std::int64_t layer, const Rows& out) override;
  Status swiglu(const Rows& gate_up, const Rows& out) override;

 private:
  Status upload_batch();
  Status read_frequencies();

  Device& device_;
  const int id_;

  Activations activations_;
  Buffer attn_out_;   // [num_tokens, num_heads * head_dim_v] in the cache's dtype
  Buffer workspace_;  // of the attention plan
  // The arrays of a batch, one after the other.
  Buffer staging_;  // page-locked memory of the host
  Buffer arrays_;
  const std::byte* frequencies_of_ = nullptr;  // the device memory that append_ was filled from

  // The current step.
  const Batch* batch_ = nullptr;
  const AttentionSpec* spec_ = nullptr;
  KvView kv_{};
  Plan plan_;            // of the attention of every layer
  KvAppendArgs append_;  // of every layer, without its pointers
  struct Arrays {        // of the batch, in device memory
    const std::int64_t* slot_mapping;
    const std::int32_t *tokens, *positions, *cu_seqlens_q, *seqused_k, *block_table, *logits_rows;
  } on_device_{};
};

Result<Weight> CudaExecutor::prepare(WeightType format, std::int64_t rows, std::int64_t columns,
                                     const std::byte* blocks) {
  if (columns % kColumnMultiple != 0)
    return unsupported(
        "a matrix of {} rows and {} columns: on a CUDA device the columns must be a multiple of "
        "{}; load the model on the CPU",
        rows, columns, kColumnMultiple);
  const std::vector<std::uint16_t> elements = bf16_rows(format, rows, columns, blocks);
  const std::size_t bytes = elements.size() * sizeof elements[0];
  Weight weight{.format = format,
                .rows = rows,
                .columns = columns,
                .data = device_.upload(elements.data(), bytes)};
  if (weight.data.data() != nullptr) return weight;
  return Failure{ErrorCode::out_of_memory,
                 format_text("no memory for {} bytes of weights on cuda:{}; free device memory or "
                             "use a smaller model",
                             bytes, id_)};
}

Status CudaExecutor::begin_step(const Batch& batch, const KvView& kv, const AttentionSpec& spec) {
  activations_.begin_step();
  batch_ = &batch;
  spec_ = &spec;
  kv_ = kv;
  HEADRACE_TRY(plan_step(batch, kv, spec, device_.info(), plan_));
  HEADRACE_TRY(grow(device_, workspace_, plan_.schedule.workspace_bytes));
  if (kv.shape.dtype != kDType)
    HEADRACE_TRY(
        grow(device_, attn_out_,
             bytes_of(batch.num_tokens(), spec.num_heads * kv.shape.head_dim_v, kv.shape.dtype)));
  HEADRACE_TRY(read_frequencies());
  return upload_batch();
}

// The append kernel takes the frequencies as parameters: they are read back once per model.
Status CudaExecutor::read_frequencies() {
  const Buffer& frequencies = spec_->rope_frequencies;
  if (frequencies.data() == frequencies_of_) return std::nullopt;
  if (frequencies.bytes() > sizeof append_.frequencies)
    return unsupported(
        "RoPE of {} elements; on a CUDA device at most {}; load the model on the "
        "CPU",
        2 * frequencies.bytes() / sizeof(double), kMaxAppendDim);
  HEADRACE_TRY(
      device_.download(frequencies.data(), append_.frequencies, frequencies.bytes(), kStream));
  append_.rot_dim = 2 * static_cast<std::int64_t>(frequencies.bytes() / sizeof(double));
  frequencies_of_ = frequencies.data();
  return std::nullopt;
}

// All arrays in one copy.
Status CudaExecutor::upload_batch() {
  constexpr std::size_t kAlignment = 256;
  const std::span<const std::byte> arrays[] = {
      std::as_bytes(batch_->slot_mapping), std::as_bytes(batch_->tokens),
      std::as_bytes(batch_->positions),    std::as_bytes(batch_->cu_seqlens_q),
      std::as_bytes(batch_->seqused_k),    std::as_bytes(batch_->block_table),
      std::as_bytes(batch_->logits_rows)};
  constexpr std::size_t kCount = std::size(arrays);
  std::size_t offsets[kCount], bytes = 0;
  for (std::size_t i = 0; i < kCount; ++i) {
    offsets[i] = bytes;
    bytes += round_up(arrays[i].size(), kAlignment);
  }
  HEADRACE_TRY(device_.synchronise(kStream));  // the copy of the step before reads staging_
  if (bytes > staging_.bytes()) {
    staging_ = {};  // free the old memory first
    staging_ = device_.allocate_host(bytes);
    if (staging_.data() == nullptr)
      return Failure{ErrorCode::out_of_memory,
                     format_text("no page-locked memory for {} bytes of a batch; use smaller "
                                 "batches",
                                 bytes)};
  }
  HEADRACE_TRY(grow(device_, arrays_, bytes));
  for (std::size_t i = 0; i < kCount; ++i)
    std::copy(arrays[i].begin(), arrays[i].end(), staging_.data() + offsets[i]);
  const auto ints = [&](std::size_t i) {
    return reinterpret_cast<const std::int32_t*>(arrays_.data() + offsets[i]);
  };
  on_device_ = {.slot_mapping = arrays_.as<const std::int64_t>(),
                .tokens = ints(1),
                .positions = ints(2),
                .cu_seqlens_q = ints(3),
                .seqused_k = ints(4),
                .block_table = ints(5),
                .logits_rows = ints(6)};
  const ByteCopy copy{.from = staging_.data(), .to = arrays_.data(), .bytes = bytes};
  return device_.copy({&copy, 1}, kStream);
}

Status CudaExecutor::embed(const Weight& embedding, const Rows& out) {
  for (std::size_t i = 0; i < batch_->tokens.size(); ++i)
    if (batch_->tokens[i] < 0 || batch_->tokens[i] >= embedding.rows)
      return invalid_argument(
          "tokens[{}]={}: must be 0 to {}; pass tokens of this model's "
          "vocabulary",
          i, batch_->tokens[i], embedding.rows - 1);
  return cuda::gather_rows({.x = embedding.data.data(),
                            .rows = on_device_.tokens,
                            .out = out.data,
                            .num_rows = out.num_rows,
                            .width = out.width},
                           id_, kStream);
}

Status CudaExecutor::gather(const Rows& x, const Rows& out) {
  return cuda::gather_rows({.x = x.data,
                            .rows = on_device_.logits_rows,
                            .out = out.data,
                            .num_rows = out.num_rows,
                            .width = out.width},
                           id_, kStream);
}

Status CudaExecutor::rms_norm(const Rows& x, const Buffer& weight, float eps, const Rows& out) {
  return cuda::rms_norm({.x = x.data,
                         .weight = weight.as<const float>(),
                         .eps = eps,
                         .out = out.data,
                         .num_rows = x.num_rows,
                         .width = x.width},
                        id_, kStream);
}

Status CudaExecutor::linear(const Linear& call) {
  cuda::Matrix matrices[cuda::kMaxStackedMatrices];
  std::size_t count = 0;
  for (const Weight& weight : call.weights)
    matrices[count++] = {.data = weight.data.data(), .rows = weight.rows};
  return cuda::multiply({.dtype = kDType,
                         .matrices = {matrices, count},
                         .columns = call.x.width,
                         .num_tokens = call.x.num_rows,
                         .x = call.x.data,
                         .x_stride = call.x.width,
                         .bias = call.bias == nullptr ? nullptr : call.bias->as<const float>(),
                         .out = call.out.data,
                         .out_dtype = call.out.dtype,
                         .out_stride = call.out.width,
                         .adds_to_out = call.accumulate},
                        device_.info(), kStream);
}

Status CudaExecutor::rope_append(const Rows& qkv, std::int64_t layer, const Rows& q) {
  const KvShape& shape = kv_.shape;
  const auto heads = [&](std::int64_t first, std::int64_t head_dim) {
    return HeadRows{.data = element(qkv.data, first, qkv.dtype),
                    .dtype = qkv.dtype,
                    .stride_token = qkv.width,
                    .stride_head = head_dim};
  };
  const auto pages = [&](const Operand& k_or_v) {
    const Operand operand = layer_of(kv_, k_or_v, layer);
    return PageRows{.data = operand.data,
                    .dtype = shape.dtype,
                    .stride_page = operand.stride_batch,
                    .stride_slot = operand.stride_seq,
                    .stride_head = operand.stride_head};
  };
  const std::int64_t first_k = spec_->num_heads * shape.head_dim,
                     first_v = first_k + shape.num_kv_heads * shape.head_dim;
  append_.num_tokens = qkv.num_rows;
  append_.num_heads = spec_->num_heads;
  append_.num_kv_heads = shape.num_kv_heads;
  append_.head_dim = shape.head_dim;
  append_.head_dim_v = shape.head_dim_v;
  append_.page_size = kv_.page_size;
  append_.num_pages = kv_.num_pages;
  append_.q = heads(0, shape.head_dim);
  append_.q_out = {
      .data = q.data, .dtype = q.dtype, .stride_token = q.width, .stride_head = shape.head_dim};
  append_.k = heads(first_k, shape.head_dim);
  append_.v = heads(first_v, shape.head_dim_v);
  append_.k_pages = pages(kv_.k);
  append_.v_pages = pages(kv_.v);
  append_.slot_mapping = on_device_.slot_mapping;
  append_.slot_stride = 1;
  append_.positions = on_device_.positions;
  append_.position_stride = 1;
  append_.layout = spec_->rope_layout;
  return cuda::kv_append(append_, id_, kStream);
}

Status CudaExecutor::attention(const Rows& q, std::int64_t layer, const Rows& out) {
  const KvShape& shape = kv_.shape;
  void* attn_out = shape.dtype == kDType ? out.data : attn_out_.data();
  AttentionArgs args;
  args.q = {
      .data = q.data, .stride_batch = 0, .stride_seq = q.width, .stride_head = shape.head_dim};
  args.k = layer_of(kv_, kv_.k, layer);
  args.v = layer_of(kv_, kv_.v, layer);
  args.out = {.data = attn_out,
              .stride_batch = 0,
              .stride_seq = out.width,
              .stride_head = shape.head_dim_v};
  args.ragged.cu_seqlens_q = on_device_.cu_seqlens_q;
  args.paged = {.block_table = on_device_.block_table,
                .stride_batch = batch_->max_pages(),
                .seqused_k = on_device_.seqused_k,
                .seqused_stride = 1};
  HEADRACE_TRY(run(plan_, args, {workspace_.data(), workspace_.bytes()}, kStream));
  if (shape.dtype == kDType) return std::nullopt;
  return cuda::to_bf16({.x = attn_out,
                        .dtype = shape.dtype,
                        .out = out.data,
                        .num_elements = out.num_rows * out.width},
                       id_, kStream);
}

Status CudaExecutor::swiglu(const Rows& gate_up, const Rows& out) {
  return cuda::swiglu(
      {.gate_up = gate_up.data, .out = out.data, .num_rows = out.num_rows, .width = out.width}, id_,
      kStream);
}

}  // namespace

std::unique_ptr<Executor> make_cuda_executor(Device& device) {
  return std::make_unique<CudaExecutor>(device);
}

}  // namespace headrace
