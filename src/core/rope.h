// Angles of rotary position embeddings (Su et al., RoFormer, 2021): pair i of a head rotates by
// position * frequency(i), frequency(i) = base^(-2i / rot_dim), with the model's frequency scaling.
// Cosines and sines are computed in double and rounded once.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/error.h"

namespace headrace {

// Llama 3: wavelengths (2 pi / frequency, in positions) above original_context_length /
// low_freq_factor are stretched by `factor`, those below original_context_length /
// high_freq_factor are unchanged; in between, frequencies are interpolated.
struct RopeLlama3Scaling {
  double factor = 8;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  double original_context_length = 8192;
};

struct RopeOptions {
  std::int64_t rot_dim = 0;  // even: the rotated elements of a head
  double base = 10000;
  double linear_factor = 1;  // positions are divided by it
  std::optional<RopeLlama3Scaling> llama3;
  // [rot_dim / 2], or empty: divisors of the frequencies (GGUF's rope_freqs.weight). Not
  // together with llama3, which such factors already contain.
  std::span<const float> freq_factors;
};

// Which elements of a head form a pair.
enum class RopeLayout {
  interleaved,  // (2i, 2i + 1): GGUF files of llama
  halves,       // (i, i + rot_dim / 2): safetensors, most other GGUF files
};

// frequency(i) after all scaling, in radians per position: [rot_dim / 2]. invalid_argument.
Result<std::vector<double>> rope_frequencies(const RopeOptions& options);

// Row i: cosines and sines of positions[i]. cos, sin: [positions.size(), frequencies.size()].
void rope_angles(std::span<const double> frequencies, std::span<const std::int32_t> positions,
                 float* cos, float* sin);

}  // namespace headrace
