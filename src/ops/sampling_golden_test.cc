// The tokens that transformers keeps, and their probabilities (tests/golden/make_sampling.py).
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "ops/sampling.h"

namespace headrace {
namespace {

TEST(SamplingGolden, KeepsWhatTransformersKeeps) {
  std::ifstream file(HEADRACE_GOLDEN_DIR "/sampling.json");
  const auto golden = nlohmann::json::parse(file);
  Sampler sampler = std::move(Sampler::make(cpu_info().value()).value());
  ASSERT_GE(golden["cases"].size(), 150u);
  for (const auto& test_case : golden["cases"]) {
    auto logits = test_case["logits"].get<std::vector<float>>();
    for (float& logit : logits) logit /= 64;
    const auto history = test_case["history"].get<std::vector<std::int32_t>>();
    const auto& given = test_case["options"];
    SamplingOptions o;
    o.order = SamplingOrder::transformers;
    o.temperature = given["temperature"].get<double>();
    o.repetition_penalty = given.value("repetition_penalty", 1.0);
    o.top_k = given.value("top_k", std::int64_t{0});
    o.top_p = given.value("top_p", 1.0);
    o.min_p = given.value("min_p", 0.0);
    const Distribution left =
        sampler.distribution({.logits = logits, .prompt = history, .output = {}}, o).value();
    const std::vector<std::int32_t> kept(left.tokens.begin(), left.tokens.end());
    ASSERT_EQ(kept, test_case["kept"].get<std::vector<std::int32_t>>()) << test_case.dump();
    const auto expected = test_case["probabilities"].get<std::vector<double>>();
    for (std::size_t i = 0; i < kept.size(); ++i) {
      // Theirs are of float logits divided by the temperature, up to 60: 60 * 2^-24 each.
      ASSERT_NEAR(static_cast<double>(left.weights[i]) / left.sum, expected[i],
                  1e-5 * expected[i] + 1.2e-38)
          << test_case.dump();
    }
  }
}

}  // namespace
}  // namespace headrace
