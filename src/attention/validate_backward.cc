// Validation of the backward: the checks of the forward, then those of the gradients.
#include <array>

#include "attention/validate_parts.h"

namespace headrace {
namespace {

using Tensors = headrace_attention_tensors;
using Gradients = headrace_attention_gradients;

Status check_dbias(const Tensors& t, const Gradients& g, Problem& p) {
  p.has_dbias = is_given(g.dbias);
  if (!p.has_dbias) return std::nullopt;
  if (!has_bias(p))
    return invalid_argument(
        "dbias: given without bias: it is the gradient of bias; pass the bias of the forward or "
        "leave dbias zeroed");
  HEADRACE_TRY(check_view("dbias", g.dbias, t.bias.rank, "the shape of bias"));
  HEADRACE_TRY(check_dtype("dbias", g.dbias, type_of(t.bias), " (the dtype of bias)"));
  constexpr const char* kNames[] = {"batch", "num_heads", "seqlen_q", "seqlen_k"};
  std::array<Axis, 4> layout;
  const auto rank = static_cast<std::size_t>(t.bias.rank);
  for (std::size_t i = 0; i < rank; ++i)
    layout[i] = {kNames[4 - rank + i], t.bias.shape[i], "bias"};
  return check_shape("dbias", g.dbias, std::span(layout).first(rank));
}

Status check_dsinks(const Gradients& g, Problem& p) {
  p.has_dsinks = is_given(g.dsinks);
  if (!p.has_dsinks) return std::nullopt;
  if (!p.has_sinks)
    return invalid_argument(
        "dsinks: given without sinks: it is the gradient of sinks; pass the sinks of the forward "
        "or leave dsinks zeroed");
  HEADRACE_TRY(check_view("dsinks", g.dsinks, 1, "f32 [num_heads]"));
  HEADRACE_TRY(check_dtype("dsinks", g.dsinks, DType::f32, ""));
  const Axis heads{"num_heads", p.num_heads, "q"};
  return check_shape("dsinks", g.dsinks, {&heads, 1});
}

Status check_gradients(const Tensors& t, const Gradients& g, Problem& p) {
  if (is_given(t.probs))
    return invalid_argument(
        "probs: given to the backward, which does not write probs; leave probs zeroed");
  if (!p.has_lse)
    return invalid_argument(
        "lse: not given: the backward needs the lse that the forward wrote; pass it as {}",
        p.is_ragged ? "[num_heads, total_q]" : "[batch, num_heads, seqlen_q]");
  const Axis heads{"num_heads", p.num_heads, "q"}, kv_heads{"num_kv_heads", p.num_kv_heads, "k"};
  const Axis dim{"head_dim", p.head_dim, "q"}, dim_v{"head_dim_v", p.head_dim_v, "v"};
  HEADRACE_TRY(check_operand({"dout", &g.dout}, p, {true, heads, dim_v}));
  HEADRACE_TRY(check_operand({"dq", &g.dq}, p, {true, heads, dim}));
  HEADRACE_TRY(check_operand({"dk", &g.dk}, p, {false, kv_heads, dim}));
  HEADRACE_TRY(check_operand({"dv", &g.dv}, p, {false, kv_heads, dim_v}));
  p.has_dlse = is_given(g.dlse);
  if (p.has_dlse) HEADRACE_TRY(check_lse({"dlse", &g.dlse}, p));
  HEADRACE_TRY(check_dbias(t, g, p));
  return check_dsinks(g, p);
}

}  // namespace

Result<Problem> validate_backward(const Tensors& t, const Gradients& g,
                                  const headrace_attention_options& options) {
  Result<Problem> result = default_problem();
  Problem& p = result.value();
  p.phase = HEADRACE_BACKWARD;
  if (auto bad = read_problem(t, options, p)) return std::move(*bad);
  if (auto bad = check_gradients(t, g, p)) return std::move(*bad);
  const NamedTensor all[] = {{"q", &t.q},
                             {"k", &t.k},
                             {"v", &t.v},
                             {"out", &t.out},
                             {"dout", &g.dout},
                             {"dq", &g.dq},
                             {"dk", &g.dk},
                             {"dv", &g.dv},
                             {"lse", &t.lse},
                             {"dlse", &g.dlse},
                             {"cu_seqlens_q", &t.cu_seqlens_q},
                             {"cu_seqlens_k", &t.cu_seqlens_k},
                             {"alibi_slopes", &t.alibi_slopes},
                             {"bias", &t.bias},
                             {"mask", &t.mask},
                             {"tree_mask", &t.tree_mask},
                             {"sinks", &t.sinks},
                             {"dbias", &g.dbias},
                             {"dsinks", &g.dsinks}};
  read_layout(std::span(all).first(8), p);
  if (auto bad = check_devices(t.q, all)) return std::move(*bad);
  if (auto bad = complete_problem(p)) return std::move(*bad);
  std::array<NamedTensor, 14> inputs;
  std::copy(all, all + 5, inputs.begin());
  std::copy(all + 8, all + 17, inputs.begin() + 5);
  const NamedTensor outputs[] = {all[5], all[6], all[7], all[17], all[18]};
  if (auto bad = check_overlaps(inputs, outputs)) return std::move(*bad);
  return result;
}

}  // namespace headrace
