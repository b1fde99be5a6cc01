// Peaks from registers: enough independent chains to cover the latency of the units (Zen 3: 4
// cycles x 2 units = 8; recent x86: up to 5 x 2 = 10). Target attributes on functions instead of
// file flags: only code behind a CPU check is compiled for an instruction set.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "probes/probes.h"
#include "probes/rounds.h"
#include "probes/team.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace headrace::probes {
namespace {

using Work = void (*)(std::int64_t steps);

struct Unit {
  const char* isa;
  const char* operation;  // its operands: "f32", "bf16", "int8"
  Work work;
  double ops_step;  // per thread
};

// Keeps a result alive without a store in the loop.
template <class T>
inline void keep(const T& value) {
  asm volatile("" : : "m"(value) : "memory");
}

#if defined(__x86_64__)

constexpr int kSse2Chains = 12;  // 16 registers; no fused multiply-add
void sse2_work(std::int64_t steps) {
  __m128 sums[kSse2Chains];
  for (auto& sum : sums) sum = _mm_setzero_ps();
  __m128 factor = _mm_set1_ps(0.5f), term = _mm_set1_ps(1.f);
  asm volatile("" : "+x"(factor), "+x"(term));
  for (std::int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 12
    for (int i = 0; i < kSse2Chains; ++i) sums[i] = _mm_add_ps(_mm_mul_ps(sums[i], factor), term);
  }
  keep(sums);
}

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
  // Not zeros: the clock may depend on the power that the values draw. The sums stop growing when
  // 0.5 is below half a unit of theirs.
  const __m512bh halves = reinterpret_cast<__m512bh>(_mm512_set1_epi16(0x3F00));
  for (std::int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 24
    for (int i = 0; i < kAvx512Chains; ++i) sums[i] = _mm512_dpbf16_ps(sums[i], halves, halves);
  }
  keep(sums);
}

// Registers by name, one for each chain: from the intrinsic, g++ 12 makes copies of the
// accumulators, which halve the rate. What the accumulators hold at first does not matter.
__attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni"))) void avx512vnni_work(
    std::int64_t steps) {
  static_assert(kAvx512Chains == 24);
  const __m512i numbers = _mm512_set1_epi8(0x55);
  for (std::int64_t step = 0; step < steps; ++step)
    asm volatile(
        ".irp n,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31\n\t"
        "vpdpbusd %0, %0, %%zmm\\n\n\t"
        ".endr"
        :
        : "v"(numbers)
        : "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "xmm16", "xmm17",
          "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm24", "xmm25", "xmm26", "xmm27",
          "xmm28", "xmm29", "xmm30", "xmm31");
}

// Products of AMX tiles: 16 x 16 sums of 16 rows of 64 bytes by 64 bytes of 16 columns. Six of the
// eight tiles hold sums: one takes 16 cycles, and its result comes 52 cycles after it began.
constexpr int kAmxChains = 6;
constexpr double kAmxProducts = 16 * 16 * 64;  // of bytes

// A register file of its own, of eight tiles as large as they can be, while it lives.
class AmxTiles {
 public:
  // Every byte of the operands is `byte`.
  __attribute__((target("amx-tile"))) explicit AmxTiles(int byte) {
    struct alignas(64) Shape {
      std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
      std::uint16_t row_bytes[16] = {};
      std::uint8_t rows[16] = {};
    } shape;
    std::fill_n(shape.row_bytes, 8, std::uint16_t{64});
    std::fill_n(shape.rows, 8, std::uint8_t{16});
    alignas(64) unsigned char operand[16][64];
    std::memset(operand, byte, sizeof operand);
    _tile_loadconfig(&shape);
    asm volatile(".irp n,0,1,2,3,4,5\n\ttilezero %tmm\\n\n\t.endr");
    _tile_loadd(6, operand, 64);
    _tile_loadd(7, operand, 64);
  }
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;
  __attribute__((target("amx-tile"))) ~AmxTiles() { _tile_release(); }
};

// 0x3f3f is 0.75 in bf16.
__attribute__((target("amx-tile,amx-bf16"))) void amx_bf16_work(std::int64_t steps) {
  const AmxTiles tiles(0x3f);
  for (std::int64_t step = 0; step < steps; ++step)
    asm volatile(".irp n,0,1,2,3,4,5\n\ttdpbf16ps %tmm7, %tmm6, %tmm\\n\n\t.endr");
}
__attribute__((target("amx-tile,amx-int8"))) void amx_int8_work(std::int64_t steps) {
  const AmxTiles tiles(0x55);
  for (std::int64_t step = 0; step < steps; ++step)
    asm volatile(".irp n,0,1,2,3,4,5\n\ttdpbusd %tmm7, %tmm6, %tmm\\n\n\t.endr");
}

// Tiles, bf16 and int8 (CPUID leaf 7, EDX bits 24, 22 and 25), to the whole process: Linux grants
// their registers, state 18, on request. Not if the CPU or the kernel lacks them, or if a thread's
// stack for signals is too small for them.
bool may_use_amx() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned kBits = 1u << 24 | 1u << 22 | 1u << 25;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx & kBits) == kBits &&
         syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

// The widest f32 unit first, then vectors before tiles, which no kernel uses.
std::vector<Unit> units() {
  __builtin_cpu_init();
  std::vector<Unit> all;
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512vl");
  if (has_avx512) all.push_back({"avx512", "f32", avx512_work, 2. * 16 * kAvx512Chains});
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    all.push_back({"avx2", "f32", avx2_work, 2. * 8 * kAvx2Chains});
  all.push_back({"sse2", "f32", sse2_work, 2. * 4 * kSse2Chains});
  if (has_avx512 && __builtin_cpu_supports("avx512bf16"))
    all.push_back({"avx512_bf16", "bf16", avx512bf16_work, 2. * 32 * kAvx512Chains});
  if (has_avx512 && __builtin_cpu_supports("avx512vnni"))
    all.push_back({"avx512_vnni", "int8", avx512vnni_work, 2. * 64 * kAvx512Chains});
  if (may_use_amx()) {
    all.push_back({"amx_bf16", "bf16", amx_bf16_work, kAmxProducts * kAmxChains});
    all.push_back({"amx_int8", "int8", amx_int8_work, 2 * kAmxProducts * kAmxChains});
  }
  return all;
}

void chain_of_additions(std::int64_t steps) {
  std::int64_t sum = 0;
  std::int64_t one = 1;
  // From a register: some CPUs compute additions of constants before they execute.
  for (std::int64_t step = 0; step < steps; ++step)
    asm volatile(
        "add %1, %0\n\tadd %1, %0\n\tadd %1, %0\n\tadd %1, %0\n\t"
        "add %1, %0\n\tadd %1, %0\n\tadd %1, %0\n\tadd %1, %0\n\t"
        "add %1, %0\n\tadd %1, %0\n\tadd %1, %0\n\tadd %1, %0\n\t"
        "add %1, %0\n\tadd %1, %0\n\tadd %1, %0\n\tadd %1, %0"
        : "+r"(sum)
        : "r"(one)
        : "cc");
}

#elif defined(__aarch64__)

constexpr int kNeonChains = 24;  // 32 registers
void neon_work(std::int64_t steps) {
  float32x4_t sums[kNeonChains];
  for (auto& sum : sums) sum = vdupq_n_f32(0);
  const float32x4_t factor = vdupq_n_f32(0.5f), term = vdupq_n_f32(1);
  for (std::int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 24
    for (int i = 0; i < kNeonChains; ++i) sums[i] = vfmaq_f32(sums[i], factor, term);
  }
  keep(sums);
}

std::vector<Unit> units() { return {{"neon", "f32", neon_work, 2. * 4 * kNeonChains}}; }

void chain_of_additions(std::int64_t steps) {
  std::int64_t sum = 0;
  std::int64_t one = 1;
  for (std::int64_t step = 0; step < steps; ++step)
    asm volatile(
        "add %0, %0, %1\n\tadd %0, %0, %1\n\tadd %0, %0, %1\n\tadd %0, %0, %1\n\t"
        "add %0, %0, %1\n\tadd %0, %0, %1\n\tadd %0, %0, %1\n\tadd %0, %0, %1\n\t"
        "add %0, %0, %1\n\tadd %0, %0, %1\n\tadd %0, %0, %1\n\tadd %0, %0, %1\n\t"
        "add %0, %0, %1\n\tadd %0, %0, %1\n\tadd %0, %0, %1\n\tadd %0, %0, %1"
        : "+r"(sum)
        : "r"(one));
}

#endif

constexpr std::int64_t kAdditionsStep = 16;
constexpr std::int64_t kFirstSteps = 1 << 10;

// Operations a second of all threads together.
Rounds measure(const Unit& unit, int num_threads, const MeasureOptions& options) {
  return measure_team(
      CeilingKind::compute, unit.ops_step * num_threads, kFirstSteps, options,
      [&](std::int64_t steps) { return time_team(num_threads, [&](int) { unit.work(steps); }); });
}

Peak peak_of(const char* operation, int num_threads) {
  for (const Unit& unit : units())
    if (std::string_view(unit.operation) == operation)
      return {unit.isa, measure(unit, num_threads, {}).best * 1e-9};
  return {};
}

}  // namespace

Peak measure_f32_fma(int num_threads) { return peak_of("f32", num_threads); }
Peak measure_bf16_dot(int num_threads) { return peak_of("bf16", num_threads); }

double measure_clock(int num_threads) {
  constexpr int kRounds = 9;
  constexpr std::int64_t kSteps = 1 << 15;  // a fraction of a millisecond
  std::vector<double> clocks;
  for (int round = 0; round < kRounds; ++round) {
    const TeamTime time = time_team(num_threads, [](int) { chain_of_additions(kSteps); });
    clocks.push_back(static_cast<double>(kSteps * kAdditionsStep) / time.cpu_seconds);
  }
  return rounds_of(std::move(clocks), CeilingKind::compute).median;
}

void add_compute_ceilings(int num_threads, const MeasureOptions& options,
                          std::vector<Ceiling>& ceilings) {
  for (const Unit& unit : units()) {
    const Rounds rounds = measure(unit, num_threads, options);
    ceilings.push_back({.kind = CeilingKind::compute,
                        .resource = unit.isa,
                        .operation = unit.operation,
                        .num_units = num_threads,
                        .value = rounds.median,
                        .best = rounds.best,
                        .clock_hz = measure_clock(num_threads)});
  }
}

}  // namespace headrace::probes
