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
    {"cuda_sm90_fwd", {0.966, 0.5, 0.116, 0.826, 0.455}},
    {"cuda_sm90_bwd", {0.878, 0.559, 0.678, 1.63, 1.18, 0.117}},
    {"cuda_sm80_fwd", {1.45, 0.659, 0.727, 4.24, 0.292}},
    {"cuda_sm80_fwd f32", {2.97, 1.97, 0.28, 0.951}},
    {"cuda_sm80_bwd", {2.27, 0.615, 1.34, 0.93}},
    {"cuda_sm90_decode", {1.03, 5, 10.8, 0.0772, 0.77}},
    {"cpu_avx2_fwd", {1.11, 46.5, 1.8, 0.503, 1.07, 33.6}},
    {"cpu_avx512_fwd", {1.09, 37.8, 1.17, 0.709, 1.05, 37.2}},
    {"cpu_avx512bf16_fwd", {1.57, 60, 1.24, 0, 1.06, 17}},
    {"cpu_avx2_bwd", {1.17, 90.9, 51.8}},
    {"cpu_avx512_bwd", {1.22, 37.5, 27.6}},
    {"cpu_avx512bf16_bwd", {1.29, 108, 16}},
};
// clang-format on

}  // namespace headrace::predict
