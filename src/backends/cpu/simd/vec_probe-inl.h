#pragma once

#include "backends/cpu/simd/exp-inl.h"
#include "backends/cpu/simd/vec_probe.h"

namespace headrace::cpu {

template <class Vec>
struct ProbeOf {
  static void exp_array(const float* x, float* y, int64_t n) {
    for (int64_t i = 0; i < n; i += Vec::kWidth) Vec::store(y + i, exp<Vec>(Vec::load(x + i)));
  }
  static void exp_softmax_array(const float* x, float* y, int64_t n) {
    for (int64_t i = 0; i < n; i += Vec::kWidth)
      Vec::store(y + i, exp_softmax<Vec>(Vec::load(x + i)));
  }
  static void tanh_array(const float* x, float* y, int64_t n) {
    for (int64_t i = 0; i < n; i += Vec::kWidth) Vec::store(y + i, tanh<Vec>(Vec::load(x + i)));
  }
  template <class From, class To>
  static void convert(const From* x, To* y, int64_t n) {
    for (int64_t i = 0; i < n; i += Vec::kWidth) Vec::store(y + i, Vec::load(x + i));
  }
  static void even_odd(const Bf16* x, float* apart, float* together) {
    typename Vec::F even, odd;
    Vec::load_even_odd(x, even, odd);
    Vec::store(apart, even);
    Vec::store(apart + Vec::kWidth, odd);
    Vec::interleave(even, odd);
    Vec::store(together, even);
    Vec::store(together + Vec::kWidth, odd);
  }
  template <class E>
  static void load_partial(const E* x, float* y, int n) {
    Vec::store(y, Vec::load_partial(x, n));
  }
  template <class E>
  static void store_partial(const float* x, E* y, int n) {
    Vec::store_partial(y, Vec::load(x), n);
  }
  static void transpose(float* matrix) {
    typename Vec::F rows[Vec::kWidth];
    for (int i = 0; i < Vec::kWidth; ++i) rows[i] = Vec::load(matrix + i * Vec::kWidth);
    Vec::transpose(rows);
    for (int i = 0; i < Vec::kWidth; ++i) Vec::store(matrix + i * Vec::kWidth, rows[i]);
  }
  static float sum(const float* x) { return Vec::sum(Vec::load(x)); }
  static void sums(const float* x, float* to) {
    typename Vec::F a[8];
    for (int i = 0; i < 8; ++i) a[i] = Vec::load(x + i * Vec::kWidth);
    Vec::sums(a, to);
  }
  static float max_lane(const float* x) { return Vec::max_lane(Vec::load(x)); }
  static void select_bytes(const uint8_t* keep, const float* x, const float* y, float* out) {
    Vec::store(out, Vec::select_bytes(keep, Vec::load(x), Vec::load(y)));
  }
  static void copysign(const float* magnitude, const float* sign, float* out) {
    Vec::store(out, Vec::copysign(Vec::load(magnitude), Vec::load(sign)));
  }

  static constexpr VecProbe make(const char* name, uint32_t isa) {
    return {name,
            isa,
            Vec::kWidth,
            exp_array,
            exp_softmax_array,
            tanh_array,
            convert<Bf16, float>,
            convert<F16, float>,
            even_odd,
            convert<float, Bf16>,
            convert<float, F16>,
            load_partial<float>,
            load_partial<Bf16>,
            load_partial<F16>,
            store_partial<float>,
            store_partial<Bf16>,
            store_partial<F16>,
            transpose,
            sum,
            sums,
            max_lane,
            select_bytes,
            copysign};
  }
};

}  // namespace headrace::cpu
