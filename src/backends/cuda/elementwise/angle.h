// Cosine and sine of a RoPE angle in float, for host and device. The angle is a product in double;
// it is reduced to an eighth of a turn in double, so that float polynomials suffice for every
// position. GPUs other than data-center ones have few double units: this takes eight operations.
//
// Error against the cosine and sine of the exact angle: 2^-23, plus |angle| * 2^-51 from the
// product. The float of the reduced angle has 2^-26, the polynomials (Moshier's Cephes, sinf.c) and
// their evaluation the rest.
#pragma once

namespace headrace::cuda {

struct CosSin {
  float cos, sin;
};

// position * frequency must be below 2^51 quarter turns.
constexpr CosSin cos_sin(int position, double frequency) {
  constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1, kHalfPi = 0x1.921fb54442d18p+0;
  constexpr double kRounder = 0x1.8p+52;  // adding it rounds to an integer
  const double quarter_turns = position * frequency * kTwoOverPi;
  const double nearest = quarter_turns + kRounder - kRounder;
  const auto x = static_cast<float>((quarter_turns - nearest) * kHalfPi);  // up to pi / 4
  const float z = x * x;
  const float sin = x + x * z * (-1.6666654611e-1f + z * (8.3321608736e-3f - z * 1.9515295891e-4f));
  const float cos =
      1 - 0.5f * z +
      z * z * (4.166664568298827e-2f + z * (-1.388731625493765e-3f + z * 2.443315711809948e-5f));
  switch (static_cast<long long>(nearest) & 3) {
    case 0:
      return {cos, sin};
    case 1:
      return {-sin, cos};
    case 2:
      return {-cos, -sin};
    default:
      return {sin, -cos};
  }
}

}  // namespace headrace::cuda
