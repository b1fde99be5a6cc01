// Attention on views without copies: q, k and v are slices of one packed tensor, and the output is
// BHSD. Builds against an installed Headrace; returns 1 if the result is wrong.
#include <cmath>
#include <cstdio>
#include <headrace/headrace.hpp>
#include <vector>

int main() {
  using headrace::DType, headrace::TensorView;
  const std::int64_t batch = 2, seqlen = 5, heads = 3, dim = 8;
  // [batch, seqlen, 3, heads, dim], the output of a fused QKV projection.
  std::vector<float> packed(static_cast<std::size_t>(batch * seqlen * 3 * heads * dim));
  for (std::size_t i = 0; i < packed.size(); ++i)
    packed[i] = std::sin(0.37f * static_cast<float>(i));
  std::vector<float> out(
      static_cast<std::size_t>(batch * heads * seqlen * dim));  // [batch, heads, seqlen, dim]

  const TensorView qkv(packed.data(), DType::f32, {batch, seqlen, 3, heads, dim});
  const TensorView result =
      TensorView(out.data(), DType::f32, {batch, heads, seqlen, dim}).permute({0, 2, 1, 3}).value();
  const auto part = [&](std::int64_t i) {
    return qkv.select(2, i).value();
  };  // empty if the view is impossible
  headrace::attention_forward(part(0), part(1), part(2), result, {},
                              {.causal = headrace::Causal::bottom_right});

  // The first query sees only the first key: its output is the first value.
  double worst = 0;
  for (std::int64_t b = 0; b < batch; ++b)
    for (std::int64_t h = 0; h < heads; ++h)
      for (std::int64_t d = 0; d < dim; ++d) {
        const float got = out[static_cast<std::size_t>(((b * heads + h) * seqlen) * dim + d)];
        const float value =
            packed[static_cast<std::size_t>(((b * seqlen * 3 + 2) * heads + h) * dim + d)];
        worst = std::fmax(worst, std::fabs(got - value));
      }
  std::printf("views: %s, first rows off by %g\n", headrace::version(), worst);
  return worst < 1e-6 ? 0 : 1;
}
