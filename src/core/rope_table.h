// Cosine and sine table of rotary position embeddings (Su et al., RoFormer, 2021), one row per
// position: pair i of a head rotates by position * frequency(i), frequency(i) =
// base^(-2i / rot_dim), with the model's frequency scaling. Computed in double and rounded once.
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
  std::int64_t rot_dim = 0;        // even: the rotated elements of a head
  std::int64_t num_positions = 0;  // rows of the table: positions 0 to num_positions - 1
  double base = 10000;
  double linear_factor = 1;  // positions are divided by it
  std::optional<RopeLlama3Scaling> llama3;
  // [rot_dim / 2], or empty: divisors of the frequencies (GGUF's rope_freqs.weight). Not
  // together with llama3, which such factors already contain.
  std::span<const float> freq_factors;
};

struct RopeTable {
  std::int64_t rot_dim = 0, num_positions = 0;
  std::vector<float> cos, sin;  // [num_positions, rot_dim / 2]
};

// invalid_argument, out_of_memory.
Result<RopeTable> make_rope_table(const RopeOptions& options);

// frequency(i) after all scaling, in radians per position: [rot_dim / 2]. For checked options.
std::vector<double> rope_frequencies(const RopeOptions& options);

}  // namespace headrace
