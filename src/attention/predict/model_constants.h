// Constants of the models: printed by bench/fit_predictions.py, which explains them.
#pragma once

#include <string_view>

namespace headrace::predict {

// In the order of the model's parts (models.cc).
struct ModelConstants {
  std::string_view name;  // of the kernel
  double values[6];
};

// clang-format off
inline constexpr ModelConstants kModelConstants[] = {
    {"cuda_sm90_fwd", {0.955, 0.499, 0.113, 0.825, 0.437}},
    {"cuda_sm90_bwd", {0.868, 0.564, 0.675, 1.63, 1.14, 0.118}},
    {"cuda_sm80_fwd", {1.44, 0.656, 0.727, 4.24, 0.28}},
    {"cuda_sm80_fwd f32", {2.98, 1.97, 0.28, 0.911}},
    {"cuda_sm80_bwd", {2.24, 0.62, 1.28, 0.937}},
    {"cuda_sm90_decode", {0.984, 5, 10.8, 0.0772, 0.77}},
    {"cpu_avx2_fwd", {1.24, 56.5, 1.52, 0, 0.944, 44.3}},
    {"cpu_avx512_fwd", {1.11, 145, 3.36, 3.29, 0.361, 90.8}},
    {"cpu_avx512bf16_fwd", {1.73, 72.3, 1.65, 0, 0.885, 70.4}},
    {"cpu_avx2_bwd", {1.5, 279, 48.4}},
    {"cpu_avx512_bwd", {1.39, 0, 82.7}},
    {"cpu_avx512bf16_bwd", {1.62, 0, 130}},
};
// clang-format on

}  // namespace headrace::predict
