// A ragged batch: three concatenated sequences of 4, 0 and 7 tokens without padding, with grouped
// heads and the log-sum-exp of every row. The plan is made once and can run often, with the
// caller's workspace.
#include <cmath>
#include <cstdio>
#include <headrace/headrace.hpp>
#include <vector>

int main() {
  using headrace::DType, headrace::TensorView;
  const std::vector<std::int32_t> cu_seqlens = {0, 4, 4, 11};
  const std::int64_t total = 11, heads = 4, kv_heads = 2, dim = 16;
  const auto filled = [](std::int64_t count, float step) {
    std::vector<float> x(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::cos(step * static_cast<float>(i));
    return x;
  };
  std::vector<float> q = filled(total * heads * dim, 0.3f),
                     k = filled(total * kv_heads * dim, 0.7f);
  std::vector<float> v(k.size(), 1.0f), out(q.size()), lse(static_cast<std::size_t>(heads * total));

  const TensorView lengths(cu_seqlens.data(), DType::i32, {4});
  const headrace::AttentionTensors tensors = {
      .q = TensorView(q.data(), DType::f32, {total, heads, dim}),
      .k = TensorView(k.data(), DType::f32, {total, kv_heads, dim}),
      .v = TensorView(v.data(), DType::f32, {total, kv_heads, dim}),
      .out = TensorView(out.data(), DType::f32, {total, heads, dim}),
      .lse = TensorView(lse.data(), DType::f32, {heads, total}),
      .cu_seqlens_q = lengths,
      .cu_seqlens_k = lengths,
  };
  const headrace::AttentionOptions options = {
      .causal = headrace::Causal::bottom_right, .max_seqlen_q = 7, .max_seqlen_k = 7};
  const headrace::Plan plan =
      headrace::plan_attention(headrace::Problem(tensors, options), headrace::cpu_info());
  std::vector<unsigned char> workspace(plan.workspace_bytes());
  for (int step = 0; step < 3; ++step) plan.run(tensors, {workspace.data(), workspace.size()});

  // All values are 1, so every weighted average is 1.
  double worst = 0;
  for (const float x : out) worst = std::fmax(worst, std::fabs(x - 1));
  std::printf("ragged: %s, off by %g, lse of row 0: %g\n", plan.kernel(), worst,
              static_cast<double>(lse[0]));
  return worst < 1e-6 && std::isfinite(lse[0]) ? 0 : 1;
}
