#include "random_inputs.h"

#include <cmath>
#include <numeric>
#include <utility>

namespace headrace::cli {

float float_of_f16(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const int fraction = bits & 1023;
  float magnitude = std::ldexp(static_cast<float>(exponent == 0 ? fraction : 1024 + fraction),
                               (exponent == 0 ? 1 : exponent) - 25);
  if (exponent == 31) magnitude = fraction == 0 ? HUGE_VALF : NAN;
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

std::vector<std::int32_t> Random::permutation(std::int64_t count) {
  std::vector<std::int32_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t left = order.size(); left > 1; --left)
    std::swap(order[left - 1], order[engine_() % left]);
  return order;
}

std::vector<float> peaked_queries(Random& random, std::int64_t num_heads, std::int64_t num_kv_heads,
                                  std::int64_t head_dim) {
  constexpr double kScoreDeviation = 4;
  std::vector<float> queries, scales(static_cast<std::size_t>(head_dim)), x(scales.size());
  for (std::int64_t head = 0; head < num_heads; ++head) {
    if (head % (num_heads / num_kv_heads) == 0)
      for (float& scale : scales) scale = std::exp(random.normal());
    double squares = 0;
    for (std::size_t c = 0; c < x.size(); ++c) {
      x[c] = random.normal() * scales[c];
      squares += double{x[c]} * double{x[c]};
    }
    const double deviation = std::sqrt(squares / static_cast<double>(head_dim));
    for (const float component : x)
      queries.push_back(static_cast<float>(double{component} * kScoreDeviation / deviation));
  }
  return queries;
}

}  // namespace headrace::cli
