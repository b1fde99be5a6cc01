// RoPE's frequencies through the public API: the shared library, kv_cache.h and kv_cache.hpp.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "headrace/kv_cache.hpp"

namespace {

using headrace::Error;

template <class Body>
std::string error_of(Body body, headrace_status code) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

TEST(RopeApi, FrequenciesOfTheOptions) {
  using headrace::RopeOptions;
  using headrace::RopeScaling;
  const auto plain = headrace::rope_frequencies({.rot_dim = 4, .base = 100});
  EXPECT_EQ(plain.frequencies, (std::vector<double>{1, 0.1}));
  EXPECT_EQ(plain.attention_factor, 1);
  const RopeOptions yarn{.scaling = RopeScaling::yarn,
                         .rot_dim = 8,
                         .factor = 4,
                         .original_context_length = 64,
                         .attention_factor = 0.5};
  EXPECT_EQ(headrace::rope_frequencies(yarn).attention_factor, 0.5);
  const double own[] = {3, 2, 1};
  EXPECT_EQ(headrace::rope_frequencies({.frequencies = own}).frequencies,
            (std::vector<double>{3, 2, 1}));
  error_of([&] { static_cast<void>(RopeOptions{.rot_dim = 4, .frequencies = own}.to_c()); },
           HEADRACE_INVALID_ARGUMENT);
  for (const std::int64_t rot_dim : {-2, 0, 3, 578})
    EXPECT_EQ(error_of([&] { headrace::rope_frequencies({.rot_dim = rot_dim}); },
                       HEADRACE_INVALID_ARGUMENT),
              "rot_dim=" + std::to_string(rot_dim) +
                  ": must be even and 2 to 576; pass at most head_dim");
  headrace_rope_options c;
  ASSERT_EQ(headrace_rope_options_init(&c), HEADRACE_OK);
  c.rot_dim = 4;
  double frequencies[2];
  EXPECT_EQ(headrace_rope_frequencies(&c, frequencies, 2, nullptr), HEADRACE_OK);
  EXPECT_EQ(headrace_rope_frequencies(&c, frequencies, 1, nullptr), HEADRACE_INVALID_ARGUMENT);
  EXPECT_NE(std::string(headrace_last_error()).find("num_frequencies=1: must be 2"),
            std::string::npos);
  EXPECT_EQ(headrace_rope_frequencies(&c, nullptr, 2, nullptr), HEADRACE_INVALID_ARGUMENT);
  EXPECT_EQ(headrace_rope_frequencies(nullptr, frequencies, 2, nullptr), HEADRACE_INVALID_ARGUMENT);
}

}  // namespace
