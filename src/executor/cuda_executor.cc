// The CUDA executor: a stream of its own, and graphs for decode steps (cuda_step.h). Activations
// and weights are bf16; queries and attention outputs have the dtype of the cache.
#include <algorithm>
#include <array>
#include <vector>

#include "attention/forward.h"
#include "backends/cuda/backend.h"
#include "base/math.h"
#include "executor/common.h"
#include "executor/cuda_step.h"
#include "executor/kernel_names.h"
#include "executor/weight_uploader.h"

namespace headrace {
namespace {

constexpr DType kDType = DType::bf16;
constexpr std::int64_t kColumnMultiple = 8;  // of a product's columns
constexpr std::size_t kAlignment = 256;      // of arrays in a buffer

// Of the arrays of a batch, so that they rarely grow: block tables of 256 sequences of 8192 tokens
// in pages of 16 have half of it.
constexpr std::size_t kLeastBatchBytes = 1 << 20;

// Steps that are launched as graphs. Steps of more tokens hide the time of their launches.
constexpr std::int64_t kMaxGraphTokens = 256;

// Copies rows of `width` entries to rows of `padded_width`, the rest zeros.
void pad_rows(std::span<const std::int32_t> rows, std::int64_t width, std::int64_t padded_width,
              std::int32_t* to) {
  for (auto row = rows.begin(); row != rows.end(); row += width) {
    std::fill(std::copy(row, row + width, to), to + padded_width, 0);
    to += padded_width;
  }
}

class CudaExecutor final : public Executor {
 public:
  CudaExecutor(Device& device, MatmulMode mode, cuda::OwnedStream stream, cuda::Event copied)
      : device_(device),
        id_(device.info().device_id),
        mode_(mode),
        stream_(std::move(stream)),
        copied_(std::move(copied)) {}
  // Work may still use its memory, and that of the cache and the logits, which outlives it.
  ~CudaExecutor() override { static_cast<void>(wait()); }

  Device& device() override { return device_; }
  DType activation_dtype() const override { return kDType; }
  MatmulMode mode() const override { return mode_; }
  Stream stream() const override { return stream_.get(); }

  Result<Weight> prepare(WeightType format, std::int64_t rows, std::int64_t columns,
                         const WeightBlocks& blocks) override;
  Result<Rows> alloc(std::int64_t num_rows, std::int64_t width, DType dtype) override {
    return activations_.alloc(device_, stream_.get(), num_rows, width, dtype);
  }
  Status begin_step(const Batch& batch, const KvView& kv, const AttentionSpec& spec) override;
  Status embed(const Weight& embedding, const Rows& out) override;
  Status gather(const Rows& x, const Rows& out) override;
  Status rms_norm(const Rows& x, const Buffer& weight, float eps, const Rows& out) override;
  Status linear(const Linear& call) override;
  Status rope_append(const Rows& qkv, std::int64_t layer, const Rows& q) override;
  Status attention(const Rows& q, std::int64_t layer, const Rows& out) override;
  Status swiglu(const Rows& gate_up, const Rows& out) override;
  Result<bool> repeat_step(const void* decoder, const float* logits) override;
  Status end_step() override;
  Status wait() override { return device_.synchronise(stream_.get()); }

 private:
  Status plan_attention(const KvView& kv, const AttentionSpec& spec);
  bool is_graph() const { return num_prefills_ == 0 && batch_->num_tokens() <= kMaxGraphTokens; }
  Status upload_batch(std::int64_t max_pages);
  // That RoPE rotates.
  std::int64_t num_pairs() const {
    return static_cast<std::int64_t>(spec_->rope_frequencies.bytes() / sizeof(double));
  }
  bool uses_cublaslt(const cuda_step::Multiply& call) const {
    return is_by_cublaslt(mode_, call.x.num_rows, call.bias != nullptr);
  }
  Status record(cuda_step::Operator op) {
    step_.operators.push_back(std::move(op));
    return std::nullopt;
  }
  KvAppendArgs args_of(const cuda_step::Append& call) const;
  Status enqueue(const cuda_step::Angles& call);
  Status enqueue(const cuda_step::Embed& call);
  Status enqueue(const cuda_step::Gather& call);
  Status enqueue(const cuda_step::Norm& call);
  Status enqueue(const cuda_step::Multiply& call);
  Status enqueue(const cuda_step::Append& call) {
    return cuda::kv_append(args_of(call), id_, stream_.get());
  }
  Status enqueue(const cuda_step::Attend& call);
  Status enqueue(const cuda_step::Activate& call);
  Status enqueue_all();

  Device& device_;
  const int id_;
  const MatmulMode mode_;
  cuda::OwnedStream stream_;
  cuda::Event copied_;            // behind the copy of staging_
  cuda::OwnedCublasLt cublaslt_;  // in the fast mode, made by the first step

  Activations activations_;
  Buffer attn_out_;   // [num_tokens, num_heads * head_dim_v] in the cache's dtype
  Buffer workspace_;  // of the attention plans
  // The arrays of a batch, one after the other.
  Buffer staging_;  // page-locked memory of the host
  Buffer arrays_;
  std::vector<std::int32_t> decode_starts_;  // cu_seqlens_q of the decodes, from 0
  Buffer angles_;                            // float [2, num_tokens, num_pairs()]: cosines, sines

  // The current step.
  const Batch* batch_ = nullptr;
  const AttentionSpec* spec_ = nullptr;
  KvView kv_{};
  cuda_step::Step step_;
  // The attention of some sequences in every layer.
  struct Attention {
    std::int64_t first_seq, first_token;
    StepSize size;
    Plan plan;
    std::size_t workspace;  // bytes from the beginning of workspace_
  };
  std::int64_t num_prefills_ = 0;       // sequences
  std::array<Attention, 2> attends_{};  // of prefills, of decodes
  std::int64_t max_pages_ = 0;          // of the block table on the device
  struct Arrays {                       // of the batch, in device memory
    const std::int64_t* slot_mapping;
    const std::int32_t *tokens, *positions, *cu_seqlens_q, *seqused_k, *block_table, *logits_rows,
        *recent_table, *decode_starts;
    const std::int64_t* recent_slots;
  } on_device_{};

  cuda_step::Graphs graphs_;
  WeightUploader uploader_{device_};
};

Result<Weight> CudaExecutor::prepare(WeightType format, std::int64_t rows, std::int64_t columns,
                                     const WeightBlocks& blocks) {
  if (columns % kColumnMultiple != 0)
    return unsupported(
        "a matrix of {} rows and {} columns: on a CUDA device the columns must be a multiple of "
        "{}; load the model on the CPU",
        rows, columns, kColumnMultiple);
  return uploader_.upload(format, rows, columns, blocks, stream_.get());
}

Status CudaExecutor::begin_step(const Batch& batch, const KvView& kv, const AttentionSpec& spec) {
  if (mode_ == MatmulMode::fast && cublaslt_ == nullptr) {
    Result<cuda::OwnedCublasLt> cublaslt = cuda::make_cublaslt(id_);
    if (!cublaslt.ok()) return std::move(cublaslt.failure());
    cublaslt_ = std::move(cublaslt.value());
  }
  activations_.begin_step();
  batch_ = &batch;
  spec_ = &spec;
  kv_ = kv;
  HEADRACE_TRY(plan_attention(kv, spec));
  if (kv.shape.dtype != kDType)
    HEADRACE_TRY(
        grow(device_, stream_.get(), attn_out_,
             bytes_of(batch.num_tokens(), spec.num_heads * kv.shape.head_dim_v, kv.shape.dtype)));
  HEADRACE_TRY(grow(device_, stream_.get(), angles_,
                    bytes_of(2 * batch.num_tokens(), num_pairs(), DType::f32)));
  HEADRACE_TRY(upload_batch(max_pages_));
  step_.operators.assign(1, cuda_step::Angles{});
  step_.key = {};
  step_.shape = {.prefill = attends_[0].size,
                 .decode = attends_[1].size,
                 .num_logits = static_cast<std::int64_t>(batch.logits_rows.size()),
                 .num_heads = spec.num_heads,
                 .window = spec.window,
                 .page_size = kv.page_size,
                 .num_pages = kv.num_pages,
                 .layer_bytes = kv.layer_bytes,
                 .cache_dtype = kv.shape.dtype,
                 .k_dtype = kv.shape.k_dtype,
                 .v_dtype = kv.shape.v_dtype,
                 .k = kv.k.data,
                 .v = kv.v.data,
                 .recent = kv.recent.k.data,
                 .arrays = arrays_.data(),
                 .attn_out = attn_out_.data(),
                 .workspace = workspace_.data(),
                 .angles = angles_.data(),
                 .frequencies = spec.rope_frequencies.data(),
                 .drawn_tokens = batch.drawn_tokens};
  return std::nullopt;
}

Status CudaExecutor::plan_attention(const KvView& kv, const AttentionSpec& spec) {
  const Batch& batch = *batch_;
  const std::int64_t heads_per_group = spec.num_heads / kv.shape.num_kv_heads;
  num_prefills_ = num_prefills(batch, heads_per_group, device_.info());
  StepSize size = size_of(batch);
  if (is_graph()) {
    size.max_seqlen_k =
        std::min(cuda_step::bucket_of_length(batch.max_seqlen_k), kv.num_pages * kv.page_size);
    size.max_pages = ceil_div(size.max_seqlen_k, kv.page_size);
  }
  max_pages_ = size.max_pages;
  std::size_t bytes = 0;
  for (const bool is_decode : {false, true}) {
    Attention& attend = attends_[is_decode];
    attend = {.first_seq = is_decode ? num_prefills_ : 0,
              .first_token = 0,
              .size = size,
              .plan = {},
              .workspace = 0};
    attend.size.num_seqs = is_decode ? batch.num_seqs() - num_prefills_ : num_prefills_;
    if (attend.size.num_seqs == 0) continue;
    const auto first = static_cast<std::size_t>(attend.first_seq);
    const auto end = first + static_cast<std::size_t>(attend.size.num_seqs);
    attend.first_token = batch.cu_seqlens_q[first];
    attend.size.num_tokens = batch.cu_seqlens_q[end] - batch.cu_seqlens_q[first];
    attend.size.max_seqlen_q = batch.cu_seqlens_q[first + 1] - batch.cu_seqlens_q[first];
    if (is_decode) attend.size.max_shared_prefix = shared_prefix_of(batch, num_prefills_, kv);
    const auto num_splits =
        num_splits_of(device_.info(), attend.size.max_seqlen_q * heads_per_group);
    HEADRACE_TRY(plan_step(attend.size, num_splits, kv, spec, device_.info(), attend.plan));
    attend.workspace = bytes;
    bytes += round_up<std::size_t>(attend.plan.schedule.workspace_bytes, kAlignment);
  }
  return grow(device_, stream_.get(), workspace_, bytes);
}

// All arrays in one copy; rows of the block table with max_pages entries each.
Status CudaExecutor::upload_batch(std::int64_t max_pages) {
  const auto starts = batch_->cu_seqlens_q.subspan(static_cast<std::size_t>(num_prefills_));
  decode_starts_.clear();
  for (const std::int32_t start : starts) decode_starts_.push_back(start - starts[0]);
  const std::span<const std::byte> arrays[] = {
      std::as_bytes(batch_->slot_mapping),     std::as_bytes(batch_->tokens),
      std::as_bytes(batch_->positions),        std::as_bytes(batch_->cu_seqlens_q),
      std::as_bytes(batch_->seqused_k),        std::as_bytes(batch_->logits_rows),
      std::as_bytes(batch_->recent_slots),     std::as_bytes(batch_->recent_table),
      std::as_bytes(std::span(decode_starts_))};
  constexpr std::size_t kCount = std::size(arrays);  // and the block table behind them
  std::size_t offsets[kCount + 1] = {};
  for (std::size_t i = 0; i < kCount; ++i)
    offsets[i + 1] = offsets[i] + round_up(arrays[i].size(), kAlignment);
  const std::size_t bytes =
      offsets[kCount] +
      static_cast<std::size_t>(batch_->num_seqs() * max_pages) * sizeof(std::int32_t);
  HEADRACE_TRY(cuda::wait(copied_));  // the copy of the step before reads staging_
  if (bytes > staging_.bytes()) {
    const std::size_t more = std::max(at_least_half_more(staging_, bytes), kLeastBatchBytes);
    staging_ = {};  // free the old memory first
    staging_ = device_.allocate_host(more);
    if (staging_.data() == nullptr) staging_ = device_.allocate_host(bytes);
    if (staging_.data() == nullptr)
      return Failure{ErrorCode::out_of_memory,
                     format_text("no page-locked memory for {} bytes of a batch; use smaller "
                                 "batches",
                                 bytes)};
  }
  HEADRACE_TRY(grow(device_, stream_.get(), arrays_, std::max(bytes, kLeastBatchBytes)));
  for (std::size_t i = 0; i < kCount; ++i)
    std::copy(arrays[i].begin(), arrays[i].end(), staging_.data() + offsets[i]);
  pad_rows(batch_->block_table, batch_->max_pages(), max_pages,
           reinterpret_cast<std::int32_t*>(staging_.data() + offsets[kCount]));
  const auto ints = [&](std::size_t i) {
    return reinterpret_cast<const std::int32_t*>(arrays_.data() + offsets[i]);
  };
  on_device_ = {.slot_mapping = arrays_.as<const std::int64_t>(),
                .tokens = ints(1),
                .positions = ints(2),
                .cu_seqlens_q = ints(3),
                .seqused_k = ints(4),
                .block_table = ints(kCount),
                .logits_rows = ints(5),
                .recent_table = ints(7),
                .decode_starts = ints(8),
                .recent_slots = reinterpret_cast<const std::int64_t*>(arrays_.data() + offsets[6])};
  const ByteCopy copy{.from = staging_.data(), .to = arrays_.data(), .bytes = bytes};
  HEADRACE_TRY(device_.copy({&copy, 1}, stream_.get()));
  return cuda::record(copied_, stream_.get());
}

// ---- the operators of a step are recorded

Status CudaExecutor::embed(const Weight& embedding, const Rows& out) {
  return record(cuda_step::Embed{
      .embedding = embedding.data.data(), .drawn_tokens = batch_->drawn_tokens, .out = out});
}

Status CudaExecutor::gather(const Rows& x, const Rows& out) {
  return record(cuda_step::Gather{.x = x, .out = out});
}

Status CudaExecutor::rms_norm(const Rows& x, const Buffer& weight, float eps, const Rows& out) {
  return record(cuda_step::Norm{x, weight.as<const float>(), eps, out});
}

Status CudaExecutor::linear(const Linear& call) {
  cuda_step::Multiply product{.matrices = {},
                              .num_matrices = call.weights.size(),
                              .bias = call.bias == nullptr ? nullptr : call.bias->as<const float>(),
                              .x = call.x,
                              .out = call.out,
                              .adds_to_out = call.accumulate};
  std::transform(call.weights.begin(), call.weights.end(), product.matrices.begin(),
                 [](const Weight& weight) {
                   return cuda::Matrix{.data = weight.data.data(), .rows = weight.rows};
                 });
  // A norm before it is part of it, and its result not written, where that is faster.
  if (const auto* norm = std::get_if<cuda_step::Norm>(&step_.operators.back());
      norm != nullptr && norm->out == call.x &&
      has_norm(device_.info(), call.x.num_rows, call.x.width)) {
    product.norm = {norm->weight, norm->eps};
    product.x = norm->x;
    step_.operators.pop_back();
  }
  return record(product);
}

// Part of the product that it follows, whose result is then not written, where that can append.
Status CudaExecutor::rope_append(const Rows& qkv, std::int64_t layer, const Rows& q) {
  const cuda_step::Append append{.qkv = qkv, .layer = layer, .q = q};
  auto* product = std::get_if<cuda_step::Multiply>(&step_.operators.back());
  if (product == nullptr || product->out != qkv || product->num_matrices != 3 ||
      product->adds_to_out || uses_cublaslt(*product) ||
      !has_append(device_.info(), qkv.num_rows, kv_.shape, 2 * num_pairs()))
    return record(append);
  product->append = append;
  return std::nullopt;
}

Status CudaExecutor::attention(const Rows& q, std::int64_t layer, const Rows& out) {
  return record(cuda_step::Attend{q, layer, out, cuda_step::ends_with_append(step_)});
}

// Part of the product that it follows, whose result is then not written, if that is our own.
Status CudaExecutor::swiglu(const Rows& gate_up, const Rows& out) {
  auto* product = std::get_if<cuda_step::Multiply>(&step_.operators.back());
  if (product != nullptr && !uses_cublaslt(*product) && product->out == gate_up &&
      product->num_matrices == 2 && product->matrices[0].rows == product->matrices[1].rows &&
      !product->adds_to_out) {
    product->has_swiglu = true;
    product->out = out;
    return std::nullopt;
  }
  return record(cuda_step::Activate{.gate_up = gate_up, .out = out});
}

Result<bool> CudaExecutor::repeat_step(const void* decoder, const float* logits) {
  step_.key = {decoder, logits, activations_.version()};
  if (!is_graph()) return false;
  return graphs_.repeat(step_, stream_.get());
}

Status CudaExecutor::end_step() {
  step_.key.activations = activations_.version();
  if (!is_graph()) return enqueue_all();
  return graphs_.run(step_, id_, stream_.get(), [&] { return enqueue_all(); });
}

// ---- and enqueued at its end

Status CudaExecutor::enqueue_all() {
  for (const cuda_step::Operator& op : step_.operators)
    HEADRACE_TRY(std::visit([&](const auto& call) { return enqueue(call); }, op));
  return std::nullopt;
}

Status CudaExecutor::enqueue(const cuda_step::Angles&) {
  return cuda::rope_angles({.positions = on_device_.positions,
                            .frequencies = spec_->rope_frequencies.as<const double>(),
                            .cos = angles_.as<float>(),
                            .sin = angles_.as<float>() + batch_->num_tokens() * num_pairs(),
                            .num_tokens = batch_->num_tokens(),
                            .num_pairs = num_pairs()},
                           id_, stream_.get());
}

Status CudaExecutor::enqueue(const cuda_step::Embed& call) {
  return cuda::gather_rows({.x = call.embedding,
                            .rows = on_device_.tokens,
                            .out = call.out.data,
                            .num_rows = call.out.num_rows,
                            .width = call.out.width,
                            .drawn = call.drawn_tokens},
                           id_, stream_.get());
}

Status CudaExecutor::enqueue(const cuda_step::Gather& call) {
  return cuda::gather_rows({.x = call.x.data,
                            .rows = on_device_.logits_rows,
                            .out = call.out.data,
                            .num_rows = call.out.num_rows,
                            .width = call.out.width},
                           id_, stream_.get());
}

Status CudaExecutor::enqueue(const cuda_step::Norm& call) {
  return cuda::rms_norm({.x = call.x.data,
                         .weight = call.weight,
                         .eps = call.eps,
                         .out = call.out.data,
                         .num_rows = call.x.num_rows,
                         .width = call.x.width},
                        id_, stream_.get());
}

Status CudaExecutor::enqueue(const cuda_step::Multiply& call) {
  const KvAppendArgs append = call.append ? args_of(*call.append) : KvAppendArgs{};
  const cuda::Product product{.dtype = kDType,
                              .matrices = {call.matrices.data(), call.num_matrices},
                              .columns = call.x.width,
                              .num_tokens = call.x.num_rows,
                              .x = call.x.data,
                              .x_stride = call.x.width,
                              .bias = call.bias,
                              .out = call.out.data,
                              .out_dtype = call.out.dtype,
                              .out_stride = call.out.width,
                              .adds_to_out = call.adds_to_out,
                              .has_swiglu = call.has_swiglu,
                              .norm = call.norm,
                              .append = call.append ? &append : nullptr};
  if (uses_cublaslt(call)) return cuda::multiply_by_cublaslt(*cublaslt_, product, stream_.get());
  return cuda::multiply(product, device_.info(), stream_.get());
}

KvAppendArgs CudaExecutor::args_of(const cuda_step::Append& call) const {
  const auto& [qkv, layer, q] = call;
  KvAppendArgs append = append_args(kv_, *spec_, layer, qkv, q);
  append.slot_mapping = on_device_.slot_mapping;
  append.slot_stride = 1;
  if (kv_.shape.has_codes()) append.recent.slots = on_device_.recent_slots;
  append.rot_dim = 2 * num_pairs();
  append.tables = {.cos = angles_.data(),
                   .sin = angles_.as<float>() + qkv.num_rows * num_pairs(),
                   .cos_stride = num_pairs(),
                   .sin_stride = num_pairs(),
                   .max_positions = qkv.num_rows};
  return append;
}

Status CudaExecutor::enqueue(const cuda_step::Attend& call) {
  const KvShape& shape = kv_.shape;
  const auto& [q, layer, out, follows_append] = call;
  void* attn_out = shape.dtype == kDType ? out.data : attn_out_.data();
  for (const Attention& attend : attends_) {
    if (attend.size.num_seqs == 0) continue;
    const bool is_decode = &attend == &attends_[1];
    Rows own = q;
    own.data = static_cast<std::byte*>(q.data) + bytes_of(attend.first_token, q.width, q.dtype);
    AttentionArgs args = attention_args(
        kv_, layer, own,
        static_cast<std::byte*>(attn_out) + bytes_of(attend.first_token, out.width, shape.dtype),
        out.width);
    args.ragged.cu_seqlens_q = is_decode ? on_device_.decode_starts : on_device_.cu_seqlens_q;
    args.paged = {.block_table = on_device_.block_table + attend.first_seq * max_pages_,
                  .stride_batch = max_pages_,
                  .seqused_k = on_device_.seqused_k + attend.first_seq,
                  .seqused_stride = 1};
    args.recent.table = on_device_.recent_table + attend.first_seq * batch_->max_recent();
    args.recent.stride_table = batch_->max_recent();
    args.follows_append = follows_append && num_prefills_ == 0;
    HEADRACE_TRY(run(attend.plan, args,
                     {workspace_.data() + attend.workspace, attend.plan.schedule.workspace_bytes},
                     stream_.get()));
  }
  if (shape.dtype == kDType) return std::nullopt;
  return cuda::to_bf16({.x = attn_out,
                        .dtype = shape.dtype,
                        .out = out.data,
                        .num_elements = out.num_rows * out.width},
                       id_, stream_.get());
}

Status CudaExecutor::enqueue(const cuda_step::Activate& call) {
  return cuda::swiglu({.gate_up = call.gate_up.data,
                       .out = call.out.data,
                       .num_rows = call.out.num_rows,
                       .width = call.out.width},
                      id_, stream_.get());
}

}  // namespace

Result<std::unique_ptr<Executor>> make_cuda_executor(Device& device, MatmulMode mode) {
  const int device_id = device.info().device_id;
  Result<cuda::OwnedStream> stream = cuda::make_stream(device_id);
  if (!stream.ok()) return std::move(stream.failure());
  Result<cuda::Event> copied = cuda::make_event(device_id);
  if (!copied.ok()) return std::move(copied.failure());
  return std::unique_ptr<Executor>(std::make_unique<CudaExecutor>(
      device, mode, std::move(stream.value()), std::move(copied.value())));
}

}  // namespace headrace
