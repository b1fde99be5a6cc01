#include "decode_step.h"

#include <algorithm>
#include <cstring>

#include "random_inputs.h"

namespace headrace::cli {
namespace {

constexpr std::int64_t kLeastGroup = 16;  // of tokens in a cache of codes

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

std::size_t bytes_of(const TensorView& view) {
  return static_cast<std::size_t>(view.num_elements()) * dtype_bytes(view.type());
}

// Row `idx` of a contiguous tensor that consists of equal parts of the shape `shape`.
TensorView part(const TensorView& whole, std::int64_t idx,
                std::initializer_list<std::int64_t> shape) {
  TensorView view(whole.data, whole.type(), shape);
  view.data = static_cast<std::byte*>(whole.data) + bytes_of(view) * static_cast<std::size_t>(idx);
  view.device_type = whole.device_type;
  view.device_id = whole.device_id;
  return view;
}

KvCacheOptions cache_options(const DecodeShape& shape, const KvFormat& format,
                             const DeviceInfo& device) {
  const std::int64_t page_size = format.page_size > 0 ? format.page_size : shape.seqlen_k;
  KvCacheOptions options{.num_layers = 1,
                         .num_kv_heads = shape.num_kv_heads,
                         .head_dim = shape.head_dim,
                         .num_pages = shape.batch * ceil_div(shape.seqlen_k, page_size),
                         .page_size = page_size,
                         .dtype = shape.dtype,
                         .layout = shape.layout,
                         .device_type = device.device_type,
                         .device_id = device.device_id,
                         .k_dtype = format.codes,
                         .v_dtype = format.codes};
  if (format.codes)
    options.num_recent_pages = shape.batch * (ceil_div(shape.seqlen_q, kLeastGroup) + 1) +
                               DecodeStep::kMaxAppended / kLeastGroup;
  return options;
}

// Returns when the work is done.
void run_on(Machine& machine, const TimedCall& work) {
  if (machine.gpu)
    machine.gpu->time(work, false);
  else
    work(nullptr);
}

double bytes_per_page(const TensorView& pages) {
  return pages.is_given()
             ? static_cast<double>(bytes_of(pages)) / static_cast<double>(pages.shape[0])
             : 0;
}

}  // namespace

TensorView MachineMemory::allocate(DType dtype, std::initializer_list<std::int64_t> shape) {
  TensorView view(nullptr, dtype, shape);
  const std::size_t bytes = bytes_of(view);
  if (machine_->gpu) {
    view.data = machine_->gpu->allocate(bytes);
  } else {
    blocks_.push_back(std::make_unique_for_overwrite<std::byte[]>(std::max<std::size_t>(bytes, 1)));
    view.data = blocks_.back().get();
  }
  view.device_type = machine_->device.device_type;
  view.device_id = machine_->device.device_id;
  return view;
}

void MachineMemory::write(const TensorView& to, const void* from, std::size_t bytes) {
  if (machine_->gpu)
    machine_->gpu->write(to.data, from, bytes);
  else
    std::memcpy(to.data, from, bytes);
}

void MachineMemory::read(void* to, const TensorView& from, std::size_t bytes) const {
  if (machine_->gpu)
    machine_->gpu->read(to, from.data, bytes);
  else
    std::memcpy(to, from.data, bytes);
}

DecodeStep::DecodeStep(const DecodeShape& shape, const KvFormat& format, Machine& machine)
    : shape_(shape),
      page_size_(format.page_size > 0 ? format.page_size : shape.seqlen_k),
      max_pages_(ceil_div(shape.seqlen_k, page_size_)),
      has_pages_(format.page_size > 0),
      has_codes_(format.codes.has_value()),
      has_hadamard_(format.codes == DType::i4x2),  // as sessions have it
      machine_(machine),
      memory_(machine),
      cache_(cache_options(shape, format, machine.device)) {
  const std::int64_t batch = shape.batch;
  if (has_codes_) {
    quantised_ = cache_.quantised(0);
    group_ = quantised_.k_recent.shape[1];
    tensors_.quantised = &quantised_;
  }
  tensors_.k = cache_.k_pages(0);
  tensors_.v = cache_.v_pages(0);
  tensors_.q =
      memory_.allocate(shape.dtype, {batch, shape.seqlen_q, shape.num_heads, shape.head_dim});
  tensors_.out =
      memory_.allocate(shape.dtype, {batch, shape.seqlen_q, shape.num_heads, shape.head_dim});
  lay_out_pages();
  const std::int64_t num_slots = batch * std::min(kMaxAppended, shape.seqlen_k);
  slots_ = memory_.allocate(DType::i64, {num_slots});
  if (has_codes_) recent_slots_ = memory_.allocate(DType::i64, {num_slots});
  // A single query sees every key without a mask.
  const AttentionOptions options{.causal =
                                     shape.seqlen_q > 1 ? Causal::bottom_right : Causal::none};
  plan_ = plan_attention(Problem(tensors_, options), machine.device);
  const auto bytes = static_cast<std::int64_t>(plan_->workspace_bytes());
  if (bytes > 0)
    workspace_ = {memory_.allocate(DType::boolean, {bytes}).data, plan_->workspace_bytes()};
}

// The pages of all sequences in random order, as after many requests.
void DecodeStep::lay_out_pages() {
  const std::int64_t batch = shape_.batch;
  const std::int64_t num_pages = batch * max_pages_;
  Random random;
  pages_ = random.permutation(num_pages);
  if (has_pages_) {
    tensors_.block_table = memory_.allocate(DType::i32, {batch, max_pages_});
    memory_.write(tensors_.block_table, pages_.data(), bytes_of(tensors_.block_table));
    const std::vector<std::int32_t> seqused(static_cast<std::size_t>(batch),
                                            static_cast<std::int32_t>(shape_.seqlen_k));
    tensors_.seqused_k = memory_.allocate(DType::i32, {batch});
    memory_.write(tensors_.seqused_k, seqused.data(), bytes_of(tensors_.seqused_k));
  } else {
    std::sort(pages_.begin(), pages_.end());
  }
  if (!has_codes_) return;
  recent_pages_ = random.permutation(batch * num_recent());
  const TensorView table = memory_.allocate(DType::i32, {batch, num_recent()});
  memory_.write(table, recent_pages_.data(), bytes_of(table));
  quantised_.recent_table = table;
}

std::int64_t DecodeStep::slot_of(std::int64_t sequence, std::int64_t token) const {
  const auto page = static_cast<std::size_t>(sequence * max_pages_ + token / page_size_);
  return pages_[page] * page_size_ + token % page_size_;
}

// Groups before those of the queries go to pages behind theirs, which the next append overwrites:
// an append quantises keys with zero points from recent pages.
std::int64_t DecodeStep::recent_slot_of(std::int64_t sequence, std::int64_t token) const {
  const std::int64_t group_idx = token / group_ - first_recent();
  const std::int64_t page =
      group_idx >= 0 ? recent_pages_[static_cast<std::size_t>(sequence * num_recent() + group_idx)]
                     : shape_.batch * num_recent() + token % kMaxAppended / group_;
  return page * group_ + token % group_;
}

KvAppendOptions DecodeStep::append_options() const {
  KvAppendOptions options;
  options.hadamard = has_hadamard_;
  return options;
}

void DecodeStep::set_queries(const TensorView& q) {
  run_on(machine_, [&](void* stream) {
    for (std::int64_t b = 0; b < shape_.batch; ++b)
      kv_append(
          {.q = q,
           .q_out = part(tensors_.q, b, {shape_.seqlen_q, shape_.num_heads, shape_.head_dim})},
          append_options(), stream);
  });
}

void DecodeStep::append(const TensorView& k, const TensorView& v) {
  const std::int64_t num_tokens = k.shape[0];
  std::vector<std::int64_t> slots, recent_slots;
  for (std::int64_t b = 0; b < shape_.batch; ++b)
    for (std::int64_t i = num_appended_; i < num_appended_ + num_tokens; ++i) {
      slots.push_back(slot_of(b, i));
      if (has_codes_) recent_slots.push_back(recent_slot_of(b, i));
    }
  memory_.write(slots_, slots.data(), slots.size() * sizeof slots[0]);
  if (has_codes_)
    memory_.write(recent_slots_, recent_slots.data(), recent_slots.size() * sizeof slots[0]);
  run_on(machine_, [&](void* stream) {
    for (std::int64_t b = 0; b < shape_.batch; ++b) {
      KvAppendTensors t{.k = k, .v = v, .k_pages = tensors_.k, .v_pages = tensors_.v};
      t.slot_mapping = part(slots_, b, {num_tokens});
      if (has_codes_) {
        t.quantised = &quantised_;
        t.recent_slots = part(recent_slots_, b, {num_tokens});
      }
      kv_append(t, append_options(), stream);
    }
  });
  num_appended_ += num_tokens;
}

void DecodeStep::run(void* stream) const { plan_->run(tensors_, workspace_, {}, stream); }

std::vector<float> DecodeStep::out_of_first_sequence() const {
  std::vector<std::uint16_t> bits(
      static_cast<std::size_t>(tensors_.out.num_elements() / shape_.batch));
  memory_.read(bits.data(), tensors_.out, bits.size() * sizeof bits[0]);
  std::vector<float> out;
  for (const std::uint16_t x : bits)
    out.push_back(shape_.dtype == DType::f16 ? float_of_f16(x) : float_of_bf16(x));
  return out;
}

double DecodeStep::bytes() const {
  double page_bytes = bytes_per_page(tensors_.k) + bytes_per_page(tensors_.v);
  const auto batch = static_cast<double>(shape_.batch);
  const double unquantised_bytes = static_cast<double>(2 * shape_.num_kv_heads * shape_.head_dim) *
                                   static_cast<double>(dtype_bytes(shape_.dtype));
  if (!has_codes_) return batch * static_cast<double>(shape_.seqlen_k) * unquantised_bytes;
  for (const headrace_tensor& scale : {quantised_.k_scale, quantised_.v_scale})
    page_bytes += bytes_per_page(TensorView(scale));
  const std::int64_t num_quantised = (shape_.seqlen_k - 1) / group_ * group_;
  const std::int64_t num_unquantised = shape_.seqlen_k - first_recent() * group_;
  return batch *
         (static_cast<double>(num_quantised) * page_bytes / static_cast<double>(page_size_) +
          static_cast<double>(num_unquantised) * unquantised_bytes);
}

}  // namespace headrace::cli
