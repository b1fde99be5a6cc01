// The structs of the paged KV cache, compiled with an older header.
#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <vector>

#include "headrace/kv_cache.hpp"
#include "support/older_structs.h"

namespace {

using namespace headrace;
using namespace headrace::testing;

TEST(OlderStructs, OfRopeOptions) {
  headrace_rope_options full, defaults;
  headrace_rope_options_init(&defaults);
  const auto outcome = [](const headrace_rope_options& options) {
    double values[9] = {};  // frequencies, attention factor
    const headrace_status status = headrace_rope_frequencies(&options, values, 8, values + 8);
    return status == HEADRACE_OK ? std::string(reinterpret_cast<const char*>(values), sizeof values)
                                 : failed(status);
  };
  const double own[] = {1, 2, 3, 4, 5, 6, 7, 8};
  const struct {
    const char* name;
    headrace_rope_scaling scaling;
    const double* frequencies;
    int num_steps;
  } cases[] = {
      // rot_dim, base, factor, then those of the scaling and attention_factor. Scalings that need
      // original_context_length fail before base and factor have an effect; mscale needs
      // mscale_all_dim.
      {"none", HEADRACE_ROPE_SCALING_NONE, own, 4},
      {"ntk", HEADRACE_ROPE_SCALING_NTK, nullptr, 4},
      {"dynamic ntk", HEADRACE_ROPE_SCALING_DYNAMIC_NTK, nullptr, 4},
      {"yarn", HEADRACE_ROPE_SCALING_YARN, nullptr, 7},
      {"llama3", HEADRACE_ROPE_SCALING_LLAMA3, nullptr, 5},
  };
  for (const auto& c : cases) {
    full = defaults;
    full.layout = HEADRACE_ROPE_HALVES;
    full.scaling = c.scaling;
    full.rot_dim = 16;
    full.base = 5000;
    full.factor = 3;
    full.original_context_length = 100;
    full.seqlen = 150;
    full.beta_fast = 5;
    full.beta_slow = 0.5;
    full.mscale = 0.7;
    full.mscale_all_dim = 0.3;
    full.low_freq_factor = 0.5;
    full.high_freq_factor = 7;
    full.attention_factor = 1.5;
    full.frequencies = c.frequencies;
    full.truncate = 0;
    expect_older_structs<headrace_rope_options>(c.name, full, defaults, sizeof(std::size_t),
                                                c.num_steps, outcome);
  }
}

}  // namespace
