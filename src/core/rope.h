// Angles of rotary position embeddings (Su et al., RoFormer, 2021): pair i of a head rotates by
// position * frequency(i), frequency(i) = base^(-2i / rot_dim), with the model's frequency scaling.
// Cosines and sines are computed in double and rounded once. The names in errors are those of
// headrace_rope_options.
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

// YaRN (Peng et al., "YaRN: Efficient Context Window Extension of Large Language Models", 2023):
// pairs that turn more than beta_fast times in original_context_length positions are unchanged,
// those that turn less than beta_slow times are stretched by `factor`, with a linear ramp over the
// pairs in between.
struct RopeYarnScaling {
  double factor = 1;
  double original_context_length = 0;
  double beta_fast = 32;
  double beta_slow = 1;
  bool truncate = true;  // round the ends of the ramp outwards to whole pairs
};

struct RopeOptions {
  std::int64_t rot_dim = 0;  // even: the rotated elements of a head
  double base = 10000;
  double linear_factor = 1;  // positions are divided by it
  std::optional<RopeLlama3Scaling> llama3;
  // [rot_dim / 2], or empty: divisors of the frequencies (GGUF's rope_freqs.weight). Not
  // together with llama3, which such factors already contain.
  std::span<const float> freq_factors;
  // NTK-aware scaling (bloc97, 2023): base is multiplied by ntk_factor^(rot_dim / (rot_dim - 2)),
  // which stretches the slowest pair by ntk_factor and leaves the fastest one.
  double ntk_factor = 1;
  std::optional<RopeYarnScaling> yarn = std::nullopt;
};

// The ntk_factor of dynamic NTK scaling (emozilla, 2023) for sequences of up to `seqlen` tokens; 1
// up to original_context_length.
double dynamic_ntk_factor(double factor, double original_context_length, double seqlen);

// YaRN's factor of cosines and sines: 0.1 mscale ln(factor) + 1, and 1 for factors up to 1. With
// mscale_all_dim (DeepSeek) the quotient of the two; 0: none.
double yarn_attention_factor(double factor, double mscale, double mscale_all_dim);

// Which elements of a head form a pair.
enum class RopeLayout {
  interleaved,  // (2i, 2i + 1): GGUF files of llama
  halves,       // (i, i + rot_dim / 2): safetensors, most other GGUF files
};

// frequency(i) after all scaling, in radians per position: [rot_dim / 2]. invalid_argument.
Result<std::vector<double>> rope_frequencies(const RopeOptions& options);
// The same into frequencies [rot_dim / 2].
Status fill_rope_frequencies(const RopeOptions& options, double* frequencies);

// Row i: cosines and sines of positions[i] times `factor`. cos, sin: [positions.size(),
// frequencies.size()].
void rope_angles(std::span<const double> frequencies, std::span<const std::int32_t> positions,
                 float* cos, float* sin, double factor = 1);

}  // namespace headrace
