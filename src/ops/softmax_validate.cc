// Validates softmax tensors and options and turns them into backend arguments.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <span>

#include "attention/tensor_checks.h"
#include "ops/operand_checks.h"
#include "ops/softmax.h"

namespace headrace {
namespace {

constexpr const char* kShapeHint = "a tensor of rank 1 to 6";

Status check_first(const NamedTensor& first) {
  const auto& [name, view] = first;
  if (!is_given(*view))
    return invalid_argument("{}: not given; it is required; pass {}", name, kShapeHint);
  if (view->rank < 1 || view->rank > HEADRACE_MAX_RANK)
    return invalid_argument("{}.rank={}: must be 1 to {}; reshape {}", name, view->rank,
                            HEADRACE_MAX_RANK, name);
  HEADRACE_TRY(check_view(name, *view, view->rank, kShapeHint));
  return check_activation_dtype(first);
}

Status check_like(const NamedTensor& other, const NamedTensor& first) {
  const auto& [name, view] = other;
  if (!is_given(*view))
    return invalid_argument("{}: not given; it is required; pass the shape and dtype of {}", name,
                            first.name);
  HEADRACE_TRY(check_view(name, *view, first.view->rank, first.name));
  if (view->dtype != first.view->dtype)
    return invalid_argument("{}.dtype={}: must equal {}.dtype={}; convert {}", name,
                            dtype_name(static_cast<DType>(view->dtype)), first.name,
                            dtype_name(static_cast<DType>(first.view->dtype)), name);
  for (int i = 0; i < view->rank; ++i)
    if (view->shape[i] != first.view->shape[i])
      return invalid_argument("{}.shape[{}]={}: must equal {}.shape[{}]={}; pass the shape of {}",
                              name, i, view->shape[i], first.name, i, first.view->shape[i],
                              first.name);
  return check_same_device(other, first);
}

Result<int> axis_of(const headrace_softmax_options& options, int rank) {
  const int axis = options.axis < 0 ? options.axis + rank : options.axis;
  if (axis >= 0 && axis < rank) return axis;
  return invalid_argument(
      "axis={}: must be {} to {} for a tensor of rank {}; pass one of its axes (negative ones "
      "count from the end)",
      options.axis, -rank, rank - 1, rank);
}

Status check_options(const headrace_softmax_options& options) {
  if (!std::isfinite(static_cast<float>(options.scale)))
    return invalid_argument("scale={}: must be finite as f32; pass 1 for plain softmax",
                            options.scale);
  if (options.algorithm < HEADRACE_SOFTMAX_AUTO || options.algorithm > HEADRACE_SOFTMAX_ONLINE)
    return invalid_argument(
        "algorithm={}: must be 0 (auto), 1 (safe) or 2 (online); pass a "
        "headrace_softmax_algorithm",
        options.algorithm);
  return std::nullopt;
}

Status check_lse(const headrace_tensor& lse, const NamedTensor& x, int axis) {
  if (!is_given(lse)) return std::nullopt;
  HEADRACE_TRY(check_view("lse", lse, x.view->rank - 1, "f32, the shape of x without the axis"));
  if (static_cast<DType>(lse.dtype) != DType::f32)
    return invalid_argument("lse.dtype={}: must be f32; pass f32 memory",
                            dtype_name(static_cast<DType>(lse.dtype)));
  for (int i = 0; i < lse.rank; ++i) {
    const int from = i < axis ? i : i + 1;
    if (lse.shape[i] != x.view->shape[from])
      return invalid_argument(
          "lse.shape[{}]={}: must equal x.shape[{}]={}; pass the shape of x without axis {}", i,
          lse.shape[i], from, x.view->shape[from], axis);
  }
  return check_same_device({"lse", &lse}, x);
}

// Turns tensor axes into row axes, ordered by descending output stride, so that consecutive rows
// are close in memory.
class RowBuilder {
 public:
  RowBuilder(const headrace_tensor& like, int axis) : like_(like), axis_(axis) {
    for (int i = 0; i < like.rank; ++i)
      if (i != axis && like.shape[i] != 1) order_[num_axes_++] = i;
    // Strides of an empty tensor are arbitrary: they are neither compared nor used.
    is_empty_ = !has_elements(like);
    if (is_empty_) return;
    std::sort(order_, order_ + num_axes_, [&](int a, int b) {
      const std::int64_t stride_a = std::abs(like.strides[a]), stride_b = std::abs(like.strides[b]);
      return stride_a != stride_b ? stride_a > stride_b : a < b;
    });
  }

  RowSpace space() const {
    RowSpace rows;
    rows.length = like_.shape[axis_];
    for (int i = 0; i < num_axes_; ++i)
      if (like_.shape[order_[i]] == 0) return rows;  // no rows
    rows.num_rows = 1;
    rows.num_axes = num_axes_;
    for (int i = 0; i < num_axes_; ++i) {
      rows.sizes[i] = like_.shape[order_[i]];
      rows.num_rows *= rows.sizes[i];
    }
    return rows;
  }

  RowOperand operand(const headrace_tensor& view) const {
    RowOperand operand{.data = view.data, .stride = 1, .strides = {}};
    if (is_empty_) return operand;
    if (view.shape[axis_] > 1) operand.stride = view.strides[axis_];
    for (int i = 0; i < num_axes_; ++i) operand.strides[i] = view.strides[order_[i]];
    return operand;
  }

  // For a tensor without the softmax axis (lse).
  RowOperand operand_without_axis(const headrace_tensor& view) const {
    RowOperand operand{.data = view.data, .stride = 0, .strides = {}};
    for (int i = 0; i < num_axes_; ++i)
      operand.strides[i] = view.strides[order_[i] - (order_[i] > axis_ ? 1 : 0)];
    return operand;
  }

 private:
  const headrace_tensor& like_;
  int axis_;
  int num_axes_ = 0;
  bool is_empty_ = false;
  int order_[kMaxRowAxes] = {};
};

// Merges adjacent row axes that are contiguous in every operand.
void merge_axes(RowSpace& rows, std::span<RowOperand* const> operands) {
  int last = 0;
  for (int i = 1; i < rows.num_axes; ++i) {
    const bool is_mergeable = std::all_of(operands.begin(), operands.end(), [&](RowOperand* x) {
      return x->strides[last] == x->strides[i] * rows.sizes[i];
    });
    if (is_mergeable) {
      rows.sizes[last] *= rows.sizes[i];
    } else {
      rows.sizes[++last] = rows.sizes[i];
    }
    for (RowOperand* x : operands) x->strides[last] = x->strides[i];
  }
  rows.num_axes = std::min(rows.num_axes, last + 1);
}

Status check_num_rows(const char* name, const headrace_tensor& view, int axis) {
  std::int64_t num_rows = 1;
  for (int i = 0; i < view.rank; ++i)
    if (view.shape[i] == 0 && i != axis) return std::nullopt;
  for (int i = 0; i < view.rank; ++i)
    if (i != axis && __builtin_mul_overflow(num_rows, view.shape[i], &num_rows))
      return invalid_argument("{}: shape {}: the number of its rows must fit 64 bits; split it",
                              name, shape_text(view));
  return std::nullopt;
}

}  // namespace

headrace_softmax_options default_softmax_options() {
  return {.struct_size = sizeof(headrace_softmax_options),
          .scale = 1,
          .axis = -1,
          .algorithm = HEADRACE_SOFTMAX_AUTO};
}

Result<SoftmaxForwardArgs> validate_softmax(const headrace_softmax_tensors& tensors,
                                            const headrace_softmax_options& options) {
  const NamedTensor x{"x", &tensors.x}, y{"y", &tensors.y}, lse{"lse", &tensors.lse};
  if (auto bad = check_first(x)) return std::move(*bad);
  if (auto bad = check_like(y, x)) return std::move(*bad);
  Result<int> found = axis_of(options, tensors.x.rank);
  if (!found.ok()) return std::move(found.failure());
  const int axis = found.value();
  if (auto bad = check_options(options)) return std::move(*bad);
  if (auto bad = check_num_rows("x", tensors.x, axis)) return std::move(*bad);
  if (auto bad = check_lse(tensors.lse, x, axis)) return std::move(*bad);
  if (auto bad = check_within(y)) return std::move(*bad);
  if (auto bad = check_overlap(y, x, true)) return std::move(*bad);
  if (is_given(tensors.lse)) {
    if (auto bad = check_within(lse)) return std::move(*bad);
    if (auto bad = check_overlap(lse, x, false)) return std::move(*bad);
    if (auto bad = check_overlap(lse, y, false)) return std::move(*bad);
  }
  const RowBuilder builder(tensors.y, axis);
  SoftmaxForwardArgs args{.dtype = static_cast<DType>(tensors.x.dtype),
                          .algorithm = static_cast<SoftmaxAlgorithm>(options.algorithm),
                          .scale = static_cast<float>(options.scale),
                          .rows = builder.space(),
                          .x = builder.operand(tensors.x),
                          .y = builder.operand(tensors.y),
                          .lse = {}};
  if (is_given(tensors.lse)) args.lse = builder.operand_without_axis(tensors.lse);
  RowOperand* const operands[] = {&args.x, &args.y, &args.lse};
  merge_axes(args.rows, std::span(operands).first(is_given(tensors.lse) ? 3 : 2));
  return args;
}

Result<SoftmaxBackwardArgs> validate_softmax_backward(
    const headrace_softmax_backward_tensors& tensors, const headrace_softmax_options& options) {
  const NamedTensor y{"y", &tensors.y}, dy{"dy", &tensors.dy}, dx{"dx", &tensors.dx};
  if (auto bad = check_first(y)) return std::move(*bad);
  if (auto bad = check_like(dy, y)) return std::move(*bad);
  if (auto bad = check_like(dx, y)) return std::move(*bad);
  Result<int> axis = axis_of(options, tensors.y.rank);
  if (!axis.ok()) return std::move(axis.failure());
  if (auto bad = check_options(options)) return std::move(*bad);
  if (auto bad = check_num_rows("y", tensors.y, axis.value())) return std::move(*bad);
  if (auto bad = check_within(dx)) return std::move(*bad);
  if (auto bad = check_overlap(dx, y, true)) return std::move(*bad);
  if (auto bad = check_overlap(dx, dy, true)) return std::move(*bad);
  const RowBuilder builder(tensors.dx, axis.value());
  SoftmaxBackwardArgs args{.dtype = static_cast<DType>(tensors.y.dtype),
                           .scale = static_cast<float>(options.scale),
                           .rows = builder.space(),
                           .y = builder.operand(tensors.y),
                           .dy = builder.operand(tensors.dy),
                           .dx = builder.operand(tensors.dx)};
  RowOperand* const operands[] = {&args.y, &args.dy, &args.dx};
  merge_axes(args.rows, operands);
  return args;
}

}  // namespace headrace
