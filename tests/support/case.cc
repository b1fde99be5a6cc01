#include "support/case.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backends/cpu/kernels.h"
#include "core/dtype.h"

namespace headrace::testing {
namespace {

using Strides = std::vector<std::int64_t>;
using Sizes = std::vector<std::int64_t>;

Strides contiguous_strides(const Sizes& shape) {
  Strides strides(shape.size());
  std::int64_t stride = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= shape[i];
  }
  return strides;
}

// Strides of [.., seq, heads, dim] for memory with permuted axes or padding.
Strides operand_strides(const Sizes& shape, Layout layout, Random& random) {
  const std::size_t dim = shape.size() - 1, head = dim - 1, seq = dim - 2;
  Strides strides = contiguous_strides(shape);
  if (layout == Layout::bhsd) {
    strides[seq] = shape[dim];
    strides[head] = shape[seq] * shape[dim];
  }
  if (layout == Layout::padded) {
    strides[head] = shape[dim] + random.between(1, 17);
    strides[seq] = strides[head] * shape[head] + random.between(0, 9);
    if (seq == 1) strides[0] = strides[seq] * shape[seq] + random.between(0, 33);
  }
  if (layout == Layout::negative) {
    strides[seq] = -strides[seq];
    if (random.chance(50)) strides[head] = -strides[head];
    if (seq == 1 && random.chance(50)) strides[0] = -strides[0];
  }
  return strides;
}

// Offsets of the lowest and highest elements of a view.
struct Extent {
  std::int64_t low = 0, high = -1;
};
Extent extent_of(const Sizes& shape, const Strides& strides) {
  Extent extent{0, 0};
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 0) return {};
    (strides[i] < 0 ? extent.low : extent.high) += (shape[i] - 1) * strides[i];
  }
  return extent;
}

headrace_tensor make_view(void* data, DType dtype, const Sizes& shape, const Strides& strides) {
  headrace_tensor view{};
  view.data = data;
  view.dtype = static_cast<std::int32_t>(dtype);
  view.rank = static_cast<std::int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), view.shape);
  std::copy(strides.begin(), strides.end(), view.strides);
  return view;
}

Sizes operand_shape(const Shape& s, std::int64_t seqlen, std::int64_t total, std::int64_t heads,
                    std::int64_t dim) {
  if (s.is_ragged) return {total, heads, dim};
  return {s.batch, seqlen, heads, dim};
}

}  // namespace

Case::Case(const CaseName& name) : Case(name, shape_of(name)) {}

Case::Case(const CaseName& name, const Shape& shape)
    : name_(name),
      shape_(shape),
      guard_(static_cast<Guard>(name.values[Axis::guard])),
      options_(default_options()) {
  Random random(~case_id(name.values, name.seed));
  tensors_.struct_size = sizeof tensors_;
  make_operands(random);
  make_outputs();
  make_lengths_tensors();
  set_options(random);
  make_extras(random);
  fill_operands(random);
  lock_inputs();
  reset_outputs();
}

headrace_tensor Case::add_view(DType dtype, const Sizes& shape, const Strides& strides,
                               bool is_output) {
  const Extent extent = extent_of(shape, strides);
  const auto bytes = static_cast<std::int64_t>(dtype_bytes(dtype));
  const bool is_shifted = name_.values.get<Layout>(Axis::layout) == Layout::misaligned;
  const std::int64_t count = extent.high - extent.low + 1 + (is_shifted ? 1 : 0);
  GuardedBuffer memory(static_cast<std::size_t>(count * bytes), guard_,
                       is_output ? kSentinelByte : kNanByte);
  // Misalign by one element at the aligned end.
  const std::int64_t first = -extent.low + (is_shifted && guard_ == Guard::before ? 1 : 0);
  headrace_tensor view = make_view(memory.data() + first * bytes, dtype, shape, strides);
  (is_output ? outputs_ : inputs_).push_back(std::move(memory));
  return view;
}

headrace_tensor Case::add_contiguous(DType dtype, const Sizes& shape, bool is_output) {
  return add_view(dtype, shape, contiguous_strides(shape), is_output);
}

void Case::make_operands(Random& random) {
  if (name_.values.get<Layout>(Axis::layout) == Layout::packed) {
    make_packed(random);
  } else {
    make_separate(random);
  }
}

void Case::make_separate(Random& random) {
  const Shape& s = shape_;
  const auto layout = name_.values.get<Layout>(Axis::layout);
  const Sizes q = operand_shape(s, s.seqlen_q, s.total_q, s.num_heads, s.head_dim);
  const Sizes k = operand_shape(s, s.seqlen_k, s.total_k, s.num_kv_heads, s.head_dim);
  const Sizes v = operand_shape(s, s.seqlen_k, s.total_k, s.num_kv_heads, s.head_dim_v);
  tensors_.q = add_view(s.dtype, q, operand_strides(q, layout, random), false);
  Strides k_strides = operand_strides(k, layout, random);
  Strides v_strides = operand_strides(v, layout, random);
  if (layout == Layout::expanded) {  // one KV head, or one batch entry, for all
    const std::size_t axis = s.is_ragged || random.chance(50) ? k.size() - 2 : 0;
    k_strides[axis] = v_strides[axis] = 0;
  }
  tensors_.k = add_view(s.dtype, k, k_strides, false);
  tensors_.v = add_view(s.dtype, v, v_strides, false);
}

// Rows of [q heads | k heads | v heads], as a fused QKV projection produces them.
void Case::make_packed(Random&) {
  const Shape& s = shape_;
  const std::int64_t dim = std::max(s.head_dim, s.head_dim_v);
  const std::int64_t heads = s.num_heads + 2 * s.num_kv_heads;
  const Sizes all = operand_shape(s, std::max(s.seqlen_q, s.seqlen_k),
                                  std::max(s.total_q, s.total_k), heads, dim);
  const Strides strides = contiguous_strides(all);
  const headrace_tensor packed = add_contiguous(s.dtype, all);
  const auto part = [&](const Sizes& shape, std::int64_t first_head) {
    auto* data = static_cast<unsigned char*>(packed.data) +
                 first_head * dim * static_cast<std::int64_t>(dtype_bytes(s.dtype));
    return make_view(data, s.dtype, shape, strides);
  };
  tensors_.q = part(operand_shape(s, s.seqlen_q, s.total_q, s.num_heads, s.head_dim), 0);
  tensors_.k =
      part(operand_shape(s, s.seqlen_k, s.total_k, s.num_kv_heads, s.head_dim), s.num_heads);
  tensors_.v = part(operand_shape(s, s.seqlen_k, s.total_k, s.num_kv_heads, s.head_dim_v),
                    s.num_heads + s.num_kv_heads);
}

void Case::make_outputs() {
  const Shape& s = shape_;
  Random random(name_.seed);
  auto layout = name_.values.get<Layout>(Axis::layout);
  const Sizes out = operand_shape(s, s.seqlen_q, s.total_q, s.num_heads, s.head_dim_v);
  tensors_.out = add_view(s.dtype, out, operand_strides(out, layout, random), true);
  if (name_.values[Axis::lse] == 0) return;
  const Sizes lse =
      s.is_ragged ? Sizes{s.num_heads, s.total_q} : Sizes{s.batch, s.num_heads, s.seqlen_q};
  Strides strides = contiguous_strides(lse);
  if (layout == Layout::padded)
    for (std::int64_t& stride : strides) stride *= 3;
  if (layout == Layout::negative) strides.back() = -1;
  tensors_.lse = add_view(s.dtype == DType::f64 ? DType::f64 : DType::f32, lse, strides, true);
}

void Case::make_lengths_tensors() {
  if (!shape_.is_ragged) return;
  const auto make = [&](const std::vector<std::int32_t>& lengths) {
    const headrace_tensor view = add_contiguous(DType::i32, {shape_.batch + 1});
    auto* sums = static_cast<std::int32_t*>(view.data);
    sums[0] = 0;
    for (std::size_t i = 0; i < lengths.size(); ++i) sums[i + 1] = sums[i] + lengths[i];
    return view;
  };
  tensors_.cu_seqlens_q = make(shape_.lengths_q);
  tensors_.cu_seqlens_k = make(shape_.lengths_k);
  options_.max_seqlen_q = shape_.seqlen_q;
  options_.max_seqlen_k = shape_.seqlen_k;
}

void Case::set_options(Random& random) {
  const AxisValues& values = name_.values;
  constexpr double kCaps[] = {0, 30, 1.5};
  constexpr std::int32_t kSplits[] = {0, 1, 3, 7};
  const double standard = 1.0 / std::sqrt(static_cast<double>(shape_.head_dim));
  const auto scale = values.get<Scale>(Axis::scale);
  if (scale == Scale::custom) options_.softmax_scale = standard * (0.1 + 1.4 * random.uniform());
  if (scale == Scale::negative) options_.softmax_scale = -standard;
  options_.softcap = kCaps[values[Axis::softcap]];
  options_.causal = values[Axis::causal];
  const auto window = values.get<Window>(Axis::window);
  const auto draw = [&] {
    return random.between(
        0, random.chance(70) ? std::min<std::int64_t>(shape_.seqlen_k, 70) : shape_.seqlen_k + 5);
  };
  if (window == Window::left || window == Window::both) options_.window_left = draw();
  if (window == Window::right || window == Window::both) options_.window_right = draw();
  if (window == Window::zero) options_.window_left = options_.window_right = 0;
  if (values[Axis::dropout] != 0) {
    options_.dropout_p = 0.17;
    options_.dropout_seed = random.next();
    options_.dropout_offset = random.next();
  }
  options_.strict_rows = values[Axis::strict_rows];
  options_.num_splits = kSplits[values[Axis::num_splits]];
}

// Computes out and lse with cpu_reference.
void Case::run_reference() {
  const Sizes lse = shape_.is_ragged ? Sizes{shape_.num_heads, shape_.total_q}
                                     : Sizes{shape_.batch, shape_.num_heads, shape_.seqlen_q};
  if (tensors_.lse.rank == 0) tensors_.lse = add_contiguous(DType::f32, lse, true);
  Plan plan;
  plan.problem = validate(tensors_, options_).value();
  const Kernel& reference = cpu::forward_kernels().back();
  plan.kernel = &reference;
  (void)reference.launch(plan, make_args(plan.problem, tensors_, options_), {}, nullptr);
}

void Case::add_dout(Random& random) {
  const headrace_tensor& out = tensors_.out;
  const Sizes shape(out.shape, out.shape + out.rank);
  Strides strides = operand_strides(shape, name_.values.get<Layout>(Axis::layout), random);
  if (name_.values.get<Layout>(Axis::layout) == Layout::expanded)
    strides[strides.size() - 3] = 0;  // one row for all queries
  gradients_.dout = add_view(shape_.dtype, shape, strides, false);
  for_each_element(gradients_.dout, [&](std::int64_t idx) {
    store_from_double(shape_.dtype, gradients_.dout.data, idx, dout_scale_ * random.normal());
  });
  if (name_.values[Axis::lse] == 0) return;
  const headrace_tensor& lse = tensors_.lse;
  gradients_.dlse = add_contiguous(DType::f32, Sizes(lse.shape, lse.shape + lse.rank));
  for_each_element(gradients_.dlse, [&](std::int64_t idx) {
    static_cast<float*>(gradients_.dlse.data)[idx] = static_cast<float>(random.normal());
  });
}

void Case::make_gradients() {
  Random random(case_id(name_.values, name_.seed) ^ 0xB0u);
  gradients_.struct_size = sizeof gradients_;
  run_reference();
  add_dout(random);
  for (GuardedBuffer& memory : outputs_) inputs_.push_back(std::move(memory));
  outputs_.clear();
  tensors_.probs = headrace_tensor{};
  const auto add = [&](const headrace_tensor& like) {
    const Sizes shape(like.shape, like.shape + like.rank);
    return add_view(shape_.dtype, shape,
                    operand_strides(shape, name_.values.get<Layout>(Axis::layout), random), true);
  };
  gradients_.dq = add(tensors_.q);
  gradients_.dk = add(tensors_.k);
  gradients_.dv = add(tensors_.v);
  if (const headrace_tensor& bias = tensors_.bias; bias.rank != 0)
    gradients_.dbias = add_contiguous(static_cast<DType>(bias.dtype),
                                      Sizes(bias.shape, bias.shape + bias.rank), true);
  if (tensors_.sinks.rank != 0)
    gradients_.dsinks = add_contiguous(DType::f32, {shape_.num_heads}, true);
  lock_inputs();
  reset_outputs();
}

void Case::reset_outputs() {
  for (GuardedBuffer& memory : outputs_) memory.fill(kSentinelByte);
}

std::string Case::check_gaps() const {
  for (const GuardedBuffer& memory : outputs_) {
    const std::ptrdiff_t at = memory.find_other_than(kSentinelByte);
    if (at >= 0) return "wrote outside of the output's elements, byte " + std::to_string(at);
  }
  return {};
}

void Case::unlock_inputs() {
  for (GuardedBuffer& memory : inputs_) memory.make_writable();
}

void Case::lock_inputs() {
  for (GuardedBuffer& memory : inputs_) memory.make_read_only();
}

}  // namespace headrace::testing
