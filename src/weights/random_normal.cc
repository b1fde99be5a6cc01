#include "weights/random_normal.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>

#include "core/philox.h"

namespace headrace {
namespace {

// ln(x) for normal x > 0, to about 2^-23 relative to ln 2: x = m * 2^e with m in [sqrt(1/2),
// sqrt(2)), and ln(m) = 2 artanh(t), t = (m - 1) / (m + 1), |t| < 0.172.
float natural_log(float x) {
  constexpr std::uint32_t kSqrtHalf = 0x3f3504f3;  // bits of sqrt(1/2)
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x) - kSqrtHalf;
  const int exponent = static_cast<int>(bits) >> 23;
  const float m = std::bit_cast<float>((bits & 0x7fffffu) + kSqrtHalf);
  const float t = (m - 1) / (m + 1), s = t * t;
  const float series = t * (2 + s * (2 / 3.0f + s * (2 / 5.0f + s * (2 / 7.0f + s * (2 / 9.0f)))));
  return static_cast<float>(exponent) * std::numbers::ln2_v<float> + series;
}

struct Pair {
  float first, second;
};

// (cos, sin) of an angle given in turns by 24 bits: a quadrant, and the Taylor series of an angle
// in
// [-pi/4, pi/4).
Pair cos_sin(std::uint32_t turns) {
  const std::uint32_t shifted = turns + (1u << 21);
  const std::uint32_t quadrant = shifted >> 22 & 3;
  const int offset = static_cast<int>(shifted & 0x3fffffu) - (1 << 21);
  const float x = static_cast<float>(offset) * (std::numbers::pi_v<float> * 0x1p-23f), s = x * x;
  const float sine =
      x * (1 + s * (-1 / 6.0f + s * (1 / 120.0f + s * (-1 / 5040.0f + s * (1 / 362880.0f)))));
  const float cosine =
      1 + s * (-1 / 2.0f + s * (1 / 24.0f + s * (-1 / 720.0f + s * (1 / 40320.0f))));
  const float a = quadrant % 2 == 0 ? cosine : sine, b = quadrant % 2 == 0 ? sine : cosine;
  return {quadrant == 1 || quadrant == 2 ? -a : a, quadrant >= 2 ? -b : b};
}

// Box and Muller, "A note on the generation of random normal deviates", 1958.
Pair normal_pair(std::uint32_t magnitude_bits, std::uint32_t angle_bits) {
  const float uniform = static_cast<float>((magnitude_bits >> 8) + 1) * 0x1p-24f;  // (0, 1]
  const float radius = std::sqrt(std::max(-2 * natural_log(uniform), 0.0f));
  const Pair direction = cos_sin(angle_bits >> 8);
  return {radius * direction.first, radius * direction.second};
}

}  // namespace

void random_normals(std::uint64_t seed, std::uint32_t stream, std::int64_t first,
                    std::span<float> out) {
  for (std::size_t i = 0; i < out.size(); i += 4) {
    const auto group = (static_cast<std::uint64_t>(first) + i) / 4;
    const PhiloxWords words = philox4x32<kPhiloxRounds>(
        {{static_cast<std::uint32_t>(group), static_cast<std::uint32_t>(group >> 32), stream, 0}},
        static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32));
    const Pair a = normal_pair(words.word[0], words.word[1]);
    const Pair b = normal_pair(words.word[2], words.word[3]);
    const float four[4] = {a.first, a.second, b.first, b.second};
    std::copy_n(four, std::min<std::size_t>(4, out.size() - i),
                out.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

}  // namespace headrace
