// Validates the tensors of a merge of attention states and turns them into backend arguments.
#include <cstdio>
#include <span>

#include "attention/tensor_checks.h"
#include "attention/validate.h"
#include "ops/merge_states.h"
#include "ops/operand_checks.h"

namespace headrace {
namespace {

static_assert(kMaxStateDim == kMaxHeadDim);

constexpr const char* kOut = "[batch, seqlen, num_heads, head_dim_v] or [total, heads, head_dim_v]";
constexpr const char* kLse = "[batch, num_heads, seqlen] or [num_heads, total]";

// The name of a state's tensor in errors: "outs[2]".
struct StateName {
  char text[32];
  StateName(const char* list, std::int64_t i) {
    std::snprintf(text, sizeof text, "%s[%lld]", list, static_cast<long long>(i));
  }
};

Status check_given(const headrace_merge_states_tensors& t) {
  if (t.num_states < 1 || t.num_states > kMaxStates)
    return invalid_argument("num_states={}: must be 1 to {}; merge more in several calls",
                            t.num_states, kMaxStates);
  for (const auto& [name, list] : {std::pair{"outs", t.outs}, std::pair{"lses", t.lses}})
    if (list == nullptr)
      return invalid_argument("{}=NULL: must not be null; pass an array of num_states={} tensors",
                              name, t.num_states);
  return std::nullopt;
}

// The first state has the shape, dtype and strides of all.
Status check_first(const headrace_tensor& out) {
  if (out.rank != 3 && out.rank != 4)
    return invalid_argument("outs[0].rank={}: must be 3 or 4; pass {}", out.rank, kOut);
  HEADRACE_TRY(check_view("outs[0]", out, out.rank, kOut));
  HEADRACE_TRY(check_activation_dtype({"outs[0]", &out}));
  HEADRACE_TRY(check_inner_stride("outs[0]", out, "head_dim_v"));
  const std::int64_t head_dim_v = out.shape[out.rank - 1];
  if (head_dim_v < 1 || head_dim_v > kMaxHeadDim)
    return invalid_argument(
        "outs[0].shape[{}]={}: must be 1 to {}, the head dims supported; pass {}", out.rank - 1,
        head_dim_v, kMaxHeadDim, kOut);
  std::int64_t num_rows = 1;
  for (int i = 0; i < out.rank - 1; ++i)
    if (__builtin_mul_overflow(num_rows, out.shape[i], &num_rows) && has_elements(out))
      return invalid_argument(
          "outs[0]: shape {}: the number of its rows must fit 64 bits; split it", shape_text(out));
  return std::nullopt;
}

// The axes of an lse, from those of the first state.
struct LseLayout {
  Axis axes[3];
  int rank;

  explicit LseLayout(const headrace_tensor& out) : rank(out.rank - 1) {
    const Axis heads{"num_heads", out.shape[out.rank - 2], "outs[0]"};
    if (rank == 2) {
      axes[0] = heads, axes[1] = {"total", out.shape[0], "outs[0]"};
    } else {
      axes[0] = {"batch", out.shape[0], "outs[0]"}, axes[1] = heads;
      axes[2] = {"seqlen", out.shape[1], "outs[0]"};
    }
  }
  std::span<const Axis> layout() const {
    return std::span(axes).first(static_cast<std::size_t>(rank));
  }
};

Status check_dtype(const NamedTensor& tensor, DType dtype, const char* of) {
  if (static_cast<DType>(tensor.view->dtype) == dtype) return std::nullopt;
  return invalid_argument("{}.dtype={}: must be {}{}; convert {}", tensor.name,
                          dtype_name(static_cast<DType>(tensor.view->dtype)), dtype_name(dtype), of,
                          tensor.name);
}

Status check_like_first(const NamedTensor& out, const headrace_tensor& first) {
  const auto& [name, view] = out;
  HEADRACE_TRY(check_view(name, *view, first.rank, kOut));
  for (int i = 0; i < first.rank; ++i)
    if (view->shape[i] != first.shape[i])
      return invalid_argument(
          "{}.shape[{}]={}: must equal outs[0].shape[{}]={}; pass rows of one shape", name, i,
          view->shape[i], i, first.shape[i]);
  return check_same_device(out, {"outs[0]", &first});
}

Status check_lse(const NamedTensor& lse, const headrace_tensor& first) {
  const LseLayout layout(first);
  HEADRACE_TRY(check_view(lse.name, *lse.view, layout.rank, kLse));
  HEADRACE_TRY(check_dtype(lse, DType::f32, ""));
  HEADRACE_TRY(check_shape(lse.name, *lse.view, layout.layout()));
  return check_same_device(lse, {"outs[0]", &first});
}

// Kernels have one set of strides for all states.
Status check_strides(const NamedTensor& tensor, const NamedTensor& first) {
  if (!has_elements(*first.view)) return std::nullopt;
  for (int i = 0; i < first.view->rank; ++i)
    if (first.view->shape[i] > 1 && tensor.view->strides[i] != first.view->strides[i])
      return invalid_argument(
          "{}.strides[{}]={}: must equal {}.strides[{}]={}; pass states of one memory layout",
          tensor.name, i, tensor.view->strides[i], first.name, i, first.view->strides[i]);
  return std::nullopt;
}

Status check_state(const headrace_merge_states_tensors& t, std::int64_t i) {
  const StateName out_name("outs", i), lse_name("lses", i);
  const NamedTensor first{"outs[0]", &t.outs[0]}, first_lse{"lses[0]", &t.lses[0]};
  const NamedTensor out{out_name.text, &t.outs[i]}, lse{lse_name.text, &t.lses[i]};
  HEADRACE_TRY(check_like_first(out, *first.view));
  HEADRACE_TRY(check_dtype(out, static_cast<DType>(first.view->dtype), ", as outs[0]"));
  HEADRACE_TRY(check_strides(out, first));
  HEADRACE_TRY(check_lse(lse, *first.view));
  return check_strides(lse, first_lse);
}

Status check_result(const headrace_merge_states_tensors& t) {
  HEADRACE_TRY(check_like_first({"out", &t.out}, t.outs[0]));
  HEADRACE_TRY(check_activation_dtype({"out", &t.out}));
  HEADRACE_TRY(check_inner_stride("out", t.out, "head_dim_v"));
  return is_given(t.lse) ? check_lse({"lse", &t.lse}, t.outs[0]) : std::nullopt;
}

// A result may be the same view as a state's: a row is read before it is written.
Status check_overlaps(const headrace_merge_states_tensors& t) {
  const NamedTensor out{"out", &t.out}, lse{"lse", &t.lse};
  const bool has_lse = is_given(t.lse);
  HEADRACE_TRY(check_within(out));
  if (has_lse) {
    HEADRACE_TRY(check_within(lse));
    HEADRACE_TRY(check_overlap(out, lse, false));
  }
  for (std::int64_t i = 0; i < t.num_states; ++i) {
    const StateName out_name("outs", i), lse_name("lses", i);
    const NamedTensor state{out_name.text, &t.outs[i]}, state_lse{lse_name.text, &t.lses[i]};
    HEADRACE_TRY(check_overlap(out, state, t.out.dtype == t.outs[i].dtype));
    HEADRACE_TRY(check_overlap(out, state_lse, false));
    if (!has_lse) continue;
    HEADRACE_TRY(check_overlap(lse, state, false));
    HEADRACE_TRY(check_overlap(lse, state_lse, true));
  }
  return std::nullopt;
}

// ---- arguments ----

// Axes of size 0 and 1 may have arbitrary strides; kernels get 0.
std::int64_t stride_of(const headrace_tensor& tensor, int axis) {
  return tensor.shape[axis] > 1 ? tensor.strides[axis] : 0;
}

Operand operand(const headrace_tensor& x) {
  const int dense = x.rank - 3;  // 1: there is a batch axis
  return {.data = x.data,
          .stride_batch = dense == 1 ? stride_of(x, 0) : 0,
          .stride_seq = stride_of(x, dense),
          .stride_head = stride_of(x, dense + 1)};
}

LseOperand lse_operand(const headrace_tensor& x) {
  if (!is_given(x)) return {};
  const int dense = x.rank - 2;
  return {.data = x.data,
          .stride_batch = dense == 1 ? stride_of(x, 0) : 0,
          .stride_head = stride_of(x, dense),
          .stride_q = stride_of(x, dense + 1)};
}

}  // namespace

Result<MergeStatesArgs> validate_merge_states(const headrace_merge_states_tensors& t) {
  if (auto bad = check_given(t)) return std::move(*bad);
  const headrace_tensor& first = t.outs[0];
  if (auto bad = check_first(first)) return std::move(*bad);
  for (std::int64_t i = 0; i < t.num_states; ++i)
    if (auto bad = check_state(t, i)) return std::move(*bad);
  if (auto bad = check_result(t)) return std::move(*bad);
  if (auto bad = check_overlaps(t)) return std::move(*bad);
  MergeStatesArgs args;
  args.num_states = static_cast<int>(t.num_states);
  args.batch = first.rank == 4 ? first.shape[0] : 1;
  args.seqlen = first.shape[first.rank - 3];
  args.num_heads = first.shape[first.rank - 2];
  args.head_dim_v = first.shape[first.rank - 1];
  args.dtype = static_cast<DType>(first.dtype);
  args.out_dtype = static_cast<DType>(t.out.dtype);
  for (std::int64_t i = 0; i < t.num_states; ++i) {
    args.outs[i] = t.outs[i].data;
    args.lses[i] = static_cast<const float*>(t.lses[i].data);
  }
  args.state = operand(first);
  args.state_lse = lse_operand(t.lses[0]);
  args.out = operand(t.out);
  args.lse = lse_operand(t.lse);
  return args;
}

}  // namespace headrace
