// Inputs of the benchmarks that are identical on every machine.
#pragma once

#include <bit>
#include <cstdint>
#include <random>
#include <vector>

namespace headrace::cli {

inline std::uint16_t bf16_of(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
inline float float_of_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}
float float_of_f16(std::uint16_t bits);

class Random {
 public:
  // Nearly normal: the sum of four uniform numbers.
  float normal() {
    const std::uint64_t word = engine_();
    std::uint32_t sum = 0;
    for (int i = 0; i < 4; ++i) sum += static_cast<std::uint32_t>(word >> (16 * i) & 0xffffu);
    return (static_cast<float>(sum) / 65536.0f - 2.0f) * 1.7320508f;
  }
  // 0 to count - 1 in random order. std::shuffle differs between standard libraries.
  std::vector<std::int32_t> permutation(std::int64_t count);

 private:
  std::mt19937_64 engine_{1};
};

// What the benchmarks of decode attend to.
inline constexpr const char* kPeakedDataText =
    "k: normal; q: normal times a log-normal scale per component (sigma 1) that the queries of a "
    "KV head share, scaled so that the scores of a query have a standard deviation of 4; v: normal "
    "with mean 0.5";

// Queries of a token, [num_heads, head_dim], for normal keys: the softmax is in few keys, as in
// models.
std::vector<float> peaked_queries(Random& random, std::int64_t num_heads, std::int64_t num_kv_heads,
                                  std::int64_t head_dim);

}  // namespace headrace::cli
