#include "attention_data.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>

namespace headrace::cli {
namespace {

// Huge-page size: a decoding program keeps its KV cache in huge pages (with 4 KiB pages each row of
// a head lies in a page of its own), and the read-bandwidth probe uses them too.
constexpr std::align_val_t kAlignment{2 * 1024 * 1024};

std::uint64_t next_random(std::uint64_t& state) {  // xorshift64
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state;
}

// Random values of either sign with a magnitude in [1/8, 1). They are built from bits (a sign, one
// of three exponents, random fraction bits), so no format needs a conversion.
template <class Bits>
void fill(std::byte* data, std::size_t count, int fraction_bits, int bias, std::uint64_t& state) {
  constexpr int kBits = 8 * sizeof(Bits);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t random = next_random(state);
    const auto exponent = static_cast<std::uint64_t>(bias - 1 - static_cast<int>(random % 3));
    const std::uint64_t fraction = (random >> 8) & ((std::uint64_t{1} << fraction_bits) - 1);
    const auto bits =
        static_cast<Bits>((random >> 63) << (kBits - 1) | exponent << fraction_bits | fraction);
    std::memcpy(data + i * sizeof bits, &bits, sizeof bits);
  }
}

void fill_random(std::byte* data, std::size_t count, DType dtype, std::uint64_t& state) {
  if (dtype == DType::f32) fill<std::uint32_t>(data, count, 23, 127, state);
  if (dtype == DType::f16) fill<std::uint16_t>(data, count, 10, 15, state);
  if (dtype == DType::bf16) fill<std::uint16_t>(data, count, 7, 127, state);
  if (dtype == DType::f64) fill<std::uint64_t>(data, count, 52, 1023, state);
}

std::size_t bytes_of(const TensorView& view) {
  return static_cast<std::size_t>(view.num_elements()) * dtype_bytes(view.type());
}

}  // namespace

void AttentionData::Free::operator()(std::byte* data) const { ::operator delete(data, kAlignment); }

std::byte* AttentionData::allocate(std::size_t bytes) {
  const std::size_t size = std::max<std::size_t>(bytes, 1);
  auto* data = static_cast<std::byte*>(::operator new(size, kAlignment));
  buffers_.emplace_back(data);
#if defined(MADV_HUGEPAGE)
  madvise(data, size, MADV_HUGEPAGE);  // only a hint: may fail
#endif
  return data;
}

TensorView AttentionData::floats(DType dtype, std::initializer_list<std::int64_t> shape) {
  const std::size_t bytes = bytes_of(TensorView(nullptr, dtype, shape));
  TensorView view(allocate(bytes), dtype, shape);
  fill_random(static_cast<std::byte*>(view.data), bytes / dtype_bytes(dtype), dtype, random_state_);
  return view;
}

TensorView AttentionData::heads(const AttentionShape& shape, Layout layout, bool is_query,
                                std::int64_t dim) {
  const headrace_problem& p = shape.problem;
  const auto dtype = static_cast<DType>(p.dtype);
  const std::int64_t num_heads = is_query ? p.num_heads : p.num_kv_heads;
  if (p.is_ragged) return floats(dtype, {is_query ? p.total_q : p.total_k, num_heads, dim});
  const std::int64_t seqlen = is_query ? p.seqlen_q : p.seqlen_k;
  if (layout == Layout::bshd) return floats(dtype, {p.batch, seqlen, num_heads, dim});
  return *floats(dtype, {p.batch, num_heads, seqlen, dim}).permute({0, 2, 1, 3});
}

// Bias and mask are one matrix, broadcast over heads (and over the sequences of a dense batch).
void AttentionData::add_scores(const AttentionShape& shape) {
  const headrace_problem& p = shape.problem;
  const auto matrix = [&](DType dtype) {
    return p.is_ragged ? floats(dtype, {1, p.total_q, p.seqlen_k})
                       : floats(dtype, {1, 1, p.seqlen_q, p.seqlen_k});
  };
  const auto bias_dtype = static_cast<DType>(p.bias_dtype);
  if (p.bias_dtype >= 0) tensors_.bias = matrix(bias_dtype);
  if (p.has_dbias) gradients_.dbias = matrix(bias_dtype);
  if (p.has_mask) {
    tensors_.mask = matrix(DType::boolean);
    auto* keep = static_cast<std::byte*>(tensors_.mask.data);
    const std::size_t count = bytes_of(tensors_.mask);
    for (std::size_t i = 0; i < count; ++i)  // keeps seven of eight
      keep[i] = std::byte{next_random(random_state_) % 8 != 0};
  }
  if (p.has_alibi) tensors_.alibi_slopes = floats(DType::f32, {p.num_heads});
  if (p.has_sinks) tensors_.sinks = floats(DType::f32, {p.num_heads});
  if (p.has_dsinks) gradients_.dsinks = floats(DType::f32, {p.num_heads});
}

void AttentionData::add_ragged(const AttentionShape& shape) {
  const auto prefix_sums = [&](const std::vector<std::int64_t>& seqlens) {
    TensorView view(allocate((seqlens.size() + 1) * sizeof(std::int32_t)), DType::i32,
                    {static_cast<std::int64_t>(seqlens.size()) + 1});
    auto* sums = static_cast<std::int32_t*>(view.data);
    sums[0] = 0;
    for (std::size_t i = 0; i < seqlens.size(); ++i)
      sums[i + 1] = sums[i] + static_cast<std::int32_t>(seqlens[i]);
    return view;
  };
  tensors_.cu_seqlens_q = prefix_sums(shape.seqlens_q);
  tensors_.cu_seqlens_k = prefix_sums(shape.seqlens_k);
}

AttentionData::AttentionData(const AttentionShape& shape, Layout layout) {
  const headrace_problem& p = shape.problem;
  tensors_.q = heads(shape, layout, true, p.head_dim);
  tensors_.k = heads(shape, layout, false, p.head_dim);
  tensors_.v = heads(shape, layout, false, p.head_dim_v);
  tensors_.out = heads(shape, layout, true, p.head_dim_v);
  if (p.has_lse) {
    const DType dtype = static_cast<DType>(p.dtype) == DType::f64 ? DType::f64 : DType::f32;
    tensors_.lse = p.is_ragged ? floats(dtype, {p.num_heads, p.total_q})
                               : floats(dtype, {p.batch, p.num_heads, p.seqlen_q});
  }
  if (p.phase == HEADRACE_BACKWARD) {
    gradients_.dout = heads(shape, layout, true, p.head_dim_v);
    gradients_.dq = heads(shape, layout, true, p.head_dim);
    gradients_.dk = heads(shape, layout, false, p.head_dim);
    gradients_.dv = heads(shape, layout, false, p.head_dim_v);
  }
  add_scores(shape);
  if (p.is_ragged) add_ragged(shape);
  options_ = {.softcap = p.softcap,
              .causal = static_cast<Causal>(p.causal),
              .window_left = p.window_left,
              .window_right = p.window_right,
              .dropout_p = p.dropout_p,
              .max_seqlen_q = p.is_ragged ? p.seqlen_q : 0,
              .max_seqlen_k = p.is_ragged ? p.seqlen_k : 0,
              .deterministic = p.deterministic != 0};
}

void AttentionData::move_to(Gpu& gpu, int device_id) {
  gpu_ = &gpu;
  AttentionTensors& t = tensors_;
  AttentionGradients& g = gradients_;
  for (TensorView* x :
       {&t.q, &t.k, &t.v, &t.out, &t.lse, &t.cu_seqlens_q, &t.cu_seqlens_k, &t.bias, &t.mask,
        &t.alibi_slopes, &t.sinks, &g.dout, &g.dq, &g.dk, &g.dv, &g.dbias, &g.dsinks}) {
    if (!x->is_given()) continue;
    x->data = gpu.copy_of(x->data, bytes_of(*x));  // each has an allocation of its own
    x->device_type = HEADRACE_CUDA;
    x->device_id = device_id;
  }
  buffers_.clear();
}

Workspace AttentionData::workspace(std::size_t bytes) {
  if (gpu_ != nullptr) return {.data = bytes > 0 ? gpu_->allocate(bytes) : nullptr, .bytes = bytes};
  return {.data = bytes > 0 ? allocate(bytes) : nullptr, .bytes = bytes};
}

}  // namespace headrace::cli
