// AVX-512 with BF16 dot products: the floats of vec_avx512.h, and products in which a unit is two
// bf16. Included only below target_avx512bf16.h.
#pragma once

#define HEADRACE_AVX512_NAMESPACE avx512bf16
#include "backends/cpu/simd/vec_avx512.h"

namespace headrace::cpu::avx512bf16 {

// Q and K stay bf16: their products are exact, the sums are float. P and V are floats (FloatIsa):
// to round P to bf16 would cost most of the accuracy that the float softmax brings. VDPBF16PS reads
// denormal bf16 as zero.
struct PairIsa {
  using FloatIsa = avx512bf16::Isa;
  using Vec = avx512bf16::Vec;
  using F = Vec::F;
  using Unit = uint32_t;
  static constexpr int kPair = 2;
  static constexpr int kMr = 12;
  static constexpr int kNv = 2;
  static constexpr int kKeysAtOnce = 4;    // rows of K that the direct path multiplies at once
  static constexpr int kValueVectors = 4;  // and columns of V, in vectors

  static F broadcast(const Unit* p) {
    return Vec::from_bits(_mm512_set1_epi32(static_cast<int32_t>(*p)));
  }
  static F load_units(const void* p) { return _mm512_loadu_ps(p); }
  static F madd(F a, F b, F c) { return _mm512_dpbf16_ps(c, as_bf16(a), as_bf16(b)); }

  static F load_row(const Bf16* row) { return load_units(row); }
  static F load_row_partial(const Bf16* row, int n) {
    return Vec::from_bits(_mm512_maskz_loadu_epi16(first(n), row));
  }

  template <class>
  static constexpr int kBlock = 1;
  static void load_block(const Bf16* row, F (&x)[1]) { x[0] = load_row(row); }

  static void copy_row(const Bf16* row, int64_t elements, Unit* units, int64_t num_units) {
    for (int64_t i = 0; i < num_units; i += Vec::kWidth) {
      const int64_t left = elements - 2 * i;
      const int n = static_cast<int>(left < 0 ? 0 : left < 32 ? left : 32);
      _mm512_storeu_si512(units + i, _mm512_maskz_loadu_epi16(first(n), row + 2 * i));
    }
  }

 private:
  static __mmask32 first(int n) { return static_cast<__mmask32>((uint64_t{1} << n) - 1); }
  static __m512bh as_bf16(F x) { return reinterpret_cast<__m512bh>(x); }
};

}  // namespace headrace::cpu::avx512bf16
