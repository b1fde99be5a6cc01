// FMA peak from registers: enough independent chains to cover the latency of the units (Zen 3: 4
// cycles x 2 units = 8; recent x86: up to 5 x 2 = 10). Target attributes on functions instead of
// file flags: only code behind a CPU check is compiled for an instruction set.
#include <algorithm>
#include <cstdint>

#include "probes/probes.h"
#include "probes/team.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace headrace::probes {
namespace {

using Work = void (*)(std::int64_t steps);

struct Unit {
  const char* isa;
  Work work;
  double flops_step;  // per thread
};

// Keeps a result alive without a store in the loop.
template <class T>
inline void keep(const T& value) {
  asm volatile("" : : "m"(value) : "memory");
}

// Baseline vectors of the architecture.
constexpr int kBaselineChains = 12;
void baseline_work(std::int64_t steps) {
  typedef float Vec __attribute__((vector_size(16)));
  Vec sums[kBaselineChains] = {};
  Vec factor = {0.5f, 0.5f, 0.5f, 0.5f};
  Vec term = {1.f, 1.f, 1.f, 1.f};
  asm volatile("" : "+m"(factor), "+m"(term));
  for (std::int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 12
    for (int i = 0; i < kBaselineChains; ++i) sums[i] = sums[i] * factor + term;
  }
  keep(sums);
}

#if defined(__x86_64__)

constexpr int kAvx2Chains = 12;  // 16 registers, two hold factor and term
__attribute__((target("avx2,fma"))) void avx2_work(std::int64_t steps) {
  __m256 sums[kAvx2Chains];
  for (auto& sum : sums) sum = _mm256_setzero_ps();
  const __m256 factor = _mm256_set1_ps(0.5f);
  const __m256 term = _mm256_set1_ps(1.f);
  for (std::int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 12
    for (int i = 0; i < kAvx2Chains; ++i) sums[i] = _mm256_fmadd_ps(sums[i], factor, term);
  }
  keep(sums);
}

constexpr int kAvx512Chains = 24;  // 32 registers
__attribute__((target("avx512f"))) void avx512_work(std::int64_t steps) {
  __m512 sums[kAvx512Chains];
  for (auto& sum : sums) sum = _mm512_setzero_ps();
  const __m512 factor = _mm512_set1_ps(0.5f);
  const __m512 term = _mm512_set1_ps(1.f);
  for (std::int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 24
    for (int i = 0; i < kAvx512Chains; ++i) sums[i] = _mm512_fmadd_ps(sums[i], factor, term);
  }
  keep(sums);
}

__attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16"))) void avx512bf16_work(
    std::int64_t steps) {
  __m512 sums[kAvx512Chains];
  for (auto& sum : sums) sum = _mm512_setzero_ps();
  // Zeros keep the sums finite; the speed does not depend on the values.
  const __m512bh zeros = reinterpret_cast<__m512bh>(_mm512_setzero_si512());
  for (std::int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 24
    for (int i = 0; i < kAvx512Chains; ++i) sums[i] = _mm512_dpbf16_ps(sums[i], zeros, zeros);
  }
  keep(sums);
}

#endif

Unit f32_unit() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f")) return {"avx512", avx512_work, 2. * 16 * kAvx512Chains};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    return {"avx2", avx2_work, 2. * 8 * kAvx2Chains};
#endif
  return {"baseline", baseline_work, 2. * 4 * kBaselineChains};
}

// Best of several rounds of about 20 ms: long enough for the clocks to rise, and short enough that
// other processes do not disturb all rounds.
Peak measure(const Unit& unit, int num_threads) {
  constexpr int kRounds = 8;
  constexpr double kRoundSeconds = 0.02;
  std::int64_t steps = 1 << 16;
  for (double seconds = 0; seconds < kRoundSeconds / 2; steps *= 2)
    seconds = time_team(num_threads, [&](int) { unit.work(steps); });
  double best_seconds = 1e30;
  for (int round = 0; round < kRounds; ++round)
    best_seconds = std::min(best_seconds, time_team(num_threads, [&](int) { unit.work(steps); }));
  const double flops = unit.flops_step * static_cast<double>(steps) * num_threads;
  return {.isa = unit.isa, .gflops = flops / best_seconds * 1e-9};
}

}  // namespace

Peak measure_f32_fma(int num_threads) { return measure(f32_unit(), num_threads); }

Peak measure_bf16_dot(int num_threads) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512bf16"))
    return measure({"avx512_bf16", avx512bf16_work, 2. * 32 * kAvx512Chains}, num_threads);
#endif
  static_cast<void>(num_threads);
  return {};
}

}  // namespace headrace::probes
