#include "probes/stream_loops.h"

#if defined(__x86_64__)
#include <immintrin.h>
#else
#include <cstring>
#endif

namespace headrace::probes {
namespace {

// The next pass reads and writes memory again: a compiler must not take it for a repetition.
inline void end_pass() { asm volatile("" : : : "memory"); }
// What a pass writes. Not zeros, which some memory systems store without their bytes.
inline int pattern(std::int64_t pass) { return 0x5A17C3E9 + static_cast<int>(pass & 0xFFFF); }

#if defined(__x86_64__)

// Eight registers of `stride` bytes. Written out: a compiler changes the order of loads, which
// halved the reads of L2 on a Zen 5 (137 instead of 257 GB/s).
#define HEADRACE_LOAD_8(load, reg, stride, from)                                               \
  asm volatile(".irp n,0,1,2,3,4,5,6,7\n\t" load " " #stride "*\\n(%0), %%" reg "\\n\n\t.endr" \
               :                                                                               \
               : "r"(from)                                                                     \
               : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7")

// ---- SSE2, which every x86-64 has

void read_sse2(const unsigned char* data, std::size_t bytes, std::int64_t passes) {
  for (std::int64_t pass = 0; pass < passes; ++pass)
    for (std::size_t offset = 0; offset < bytes; offset += 128)
      HEADRACE_LOAD_8("movdqa", "xmm", 16, data + offset);
}

template <bool kBypasses>
inline void store_sse2(__m128i* to, __m128i value) {
  if constexpr (kBypasses)
    _mm_stream_si128(to, value);
  else
    _mm_store_si128(to, value);
}

template <bool kBypasses>
void write_sse2(unsigned char* data, std::size_t bytes, std::int64_t passes) {
  for (std::int64_t pass = 0; pass < passes; ++pass, end_pass()) {
    const __m128i value = _mm_set1_epi32(pattern(pass));
    for (std::size_t offset = 0; offset < bytes; offset += 16)
      store_sse2<kBypasses>(reinterpret_cast<__m128i*>(data + offset), value);
  }
  _mm_sfence();
}

template <bool kBypasses>
void copy_sse2(unsigned char* data, std::size_t bytes, std::int64_t passes) {
  for (std::int64_t pass = 0; pass < passes; ++pass, end_pass())
    for (std::size_t offset = 0; offset < bytes; offset += 16)
      store_sse2<kBypasses>(reinterpret_cast<__m128i*>(data + bytes + offset),
                            _mm_load_si128(reinterpret_cast<const __m128i*>(data + offset)));
  _mm_sfence();
}

// ---- AVX2

#define HEADRACE_AVX2 __attribute__((target("avx2")))

HEADRACE_AVX2 void read_avx2(const unsigned char* data, std::size_t bytes, std::int64_t passes) {
  for (std::int64_t pass = 0; pass < passes; ++pass)
    for (std::size_t offset = 0; offset < bytes; offset += 256)
      HEADRACE_LOAD_8("vmovdqa", "ymm", 32, data + offset);
  _mm256_zeroupper();
}

template <bool kBypasses>
HEADRACE_AVX2 inline void store_avx2(__m256i* to, __m256i value) {
  if constexpr (kBypasses)
    _mm256_stream_si256(to, value);
  else
    _mm256_store_si256(to, value);
}

template <bool kBypasses>
HEADRACE_AVX2 void write_avx2(unsigned char* data, std::size_t bytes, std::int64_t passes) {
  for (std::int64_t pass = 0; pass < passes; ++pass, end_pass()) {
    const __m256i value = _mm256_set1_epi32(pattern(pass));
    for (std::size_t offset = 0; offset < bytes; offset += kStreamChunk) {
      auto* chunk = reinterpret_cast<__m256i*>(data + offset);
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) store_avx2<kBypasses>(chunk + i, value);
    }
  }
  _mm_sfence();
}

template <bool kBypasses>
HEADRACE_AVX2 void copy_avx2(unsigned char* data, std::size_t bytes, std::int64_t passes) {
  for (std::int64_t pass = 0; pass < passes; ++pass, end_pass()) {
    for (std::size_t offset = 0; offset < bytes; offset += kStreamChunk) {
      const auto* from = reinterpret_cast<const __m256i*>(data + offset);
      auto* to = reinterpret_cast<__m256i*>(data + bytes + offset);
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) store_avx2<kBypasses>(to + i, _mm256_load_si256(from + i));
    }
  }
  _mm_sfence();
}

// ---- AVX-512

#define HEADRACE_AVX512 __attribute__((target("avx512f")))

HEADRACE_AVX512 void read_avx512(const unsigned char* data, std::size_t bytes,
                                 std::int64_t passes) {
  for (std::int64_t pass = 0; pass < passes; ++pass)
    for (std::size_t offset = 0; offset < bytes; offset += 512)
      HEADRACE_LOAD_8("vmovdqa64", "zmm", 64, data + offset);
  _mm256_zeroupper();
}

template <bool kBypasses>
HEADRACE_AVX512 inline void store_avx512(unsigned char* to, __m512i value) {
  if constexpr (kBypasses)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), value);
  else
    _mm512_store_si512(to, value);
}

template <bool kBypasses>
HEADRACE_AVX512 void write_avx512(unsigned char* data, std::size_t bytes, std::int64_t passes) {
  for (std::int64_t pass = 0; pass < passes; ++pass, end_pass()) {
    const __m512i value = _mm512_set1_epi32(pattern(pass));
    for (std::size_t offset = 0; offset < bytes; offset += kStreamChunk) {
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) store_avx512<kBypasses>(data + offset + 64 * i, value);
    }
  }
  _mm_sfence();
}

template <bool kBypasses>
HEADRACE_AVX512 void copy_avx512(unsigned char* data, std::size_t bytes, std::int64_t passes) {
  for (std::int64_t pass = 0; pass < passes; ++pass, end_pass()) {
    for (std::size_t offset = 0; offset < bytes; offset += kStreamChunk) {
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i)
        store_avx512<kBypasses>(data + bytes + offset + 64 * i,
                                _mm512_load_si512(data + offset + 64 * i));
    }
  }
  _mm_sfence();
}

template <bool kBypasses>
StreamLoops widest() {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f"))
    return {read_avx512, write_avx512<kBypasses>, copy_avx512<kBypasses>};
  if (__builtin_cpu_supports("avx2"))
    return {read_avx2, write_avx2<kBypasses>, copy_avx2<kBypasses>};
  return {read_sse2, write_sse2<kBypasses>, copy_sse2<kBypasses>};
}

#else

inline void keep(std::uint64_t value) { asm volatile("" : : "r"(value)); }

// The compiler's vectors; it has no portable non-temporal store.
typedef std::uint64_t Vec __attribute__((vector_size(16)));
constexpr std::size_t kVecs = kStreamChunk / sizeof(Vec);

void read_vectors(const unsigned char* data, std::size_t bytes, std::int64_t passes) {
  Vec sums[4] = {};
  for (std::int64_t pass = 0; pass < passes; ++pass, end_pass()) {
    for (std::size_t offset = 0; offset < bytes; offset += kStreamChunk) {
      for (std::size_t i = 0; i < kVecs; ++i) {
        Vec value;
        std::memcpy(&value, data + offset + sizeof value * i, sizeof value);
        sums[i % 4] += value;
      }
    }
  }
  const Vec sum = sums[0] + sums[1] + sums[2] + sums[3];
  keep(sum[0] + sum[1]);
}

void write_vectors(unsigned char* data, std::size_t bytes, std::int64_t passes) {
  for (std::int64_t pass = 0; pass < passes; ++pass, end_pass()) {
    const auto half = static_cast<std::uint64_t>(pattern(pass));
    const Vec value = {half, half};
    for (std::size_t offset = 0; offset < bytes; offset += sizeof value)
      std::memcpy(data + offset, &value, sizeof value);
  }
}

void copy_vectors(unsigned char* data, std::size_t bytes, std::int64_t passes) {
  for (std::int64_t pass = 0; pass < passes; ++pass, end_pass()) {
    for (std::size_t offset = 0; offset < bytes; offset += sizeof(Vec)) {
      Vec value;
      std::memcpy(&value, data + offset, sizeof value);
      std::memcpy(data + bytes + offset, &value, sizeof value);
    }
  }
}

template <bool>
StreamLoops widest() {
  return {read_vectors, write_vectors, copy_vectors};
}

#endif

}  // namespace

StreamLoops widest_stream_loops(bool bypasses_caches) {
  return bypasses_caches ? widest<true>() : widest<false>();
}

}  // namespace headrace::probes
