// For the tests: the operations of a Vec as plain functions, for every instruction set of the
// build.
#pragma once

#include <stdint.h>

#include "backends/cpu/simd/element.h"

namespace headrace::cpu {

struct VecProbe {
  const char* name;
  uint32_t isa;  // headrace_cpu_isa bit, 0: any machine
  int width;
  // Arrays of n elements; n is a multiple of the width.
  void (*exp)(const float* x, float* y, int64_t n);
  void (*exp_softmax)(const float* x, float* y, int64_t n);
  void (*tanh)(const float* x, float* y, int64_t n);
  void (*from_bf16)(const Bf16* x, float* y, int64_t n);
  void (*from_f16)(const F16* x, float* y, int64_t n);
  // [2 width] -> the even elements, then the odd ones; and interleaved again.
  void (*even_odd)(const Bf16* x, float* apart, float* together);
  void (*to_bf16)(const float* x, Bf16* y, int64_t n);
  void (*to_f16)(const float* x, F16* y, int64_t n);
  // Only the first n < width elements: loads pad with zeros, stores write nothing past them.
  void (*load_partial_f32)(const float* x, float* y, int n);
  void (*load_partial_bf16)(const Bf16* x, float* y, int n);
  void (*load_partial_f16)(const F16* x, float* y, int n);
  void (*store_partial_f32)(const float* x, float* y, int n);
  void (*store_partial_bf16)(const float* x, Bf16* y, int n);
  void (*store_partial_f16)(const float* x, F16* y, int n);
  void (*transpose)(float* matrix);         // [width, width], in place
  float (*sum)(const float* x);             // [width]
  void (*sums)(const float* x, float* to);  // [8, width] -> [8]
  float (*max_lane)(const float* x);
  void (*select_bytes)(const uint8_t* keep, const float* x, const float* y, float* out);
  void (*copysign)(const float* magnitude, const float* sign, float* out);
};

}  // namespace headrace::cpu
