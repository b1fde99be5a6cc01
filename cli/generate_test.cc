// What headrace generate prints of beams and samples: each option reaches the search of the
// library, and numbers, scores and seeds are those of the answers.
#include <gtest/gtest.h>

#include <sstream>
#include <string>

#include "headrace/model.hpp"
#include "tests/support/program.h"

namespace headrace::cli {
namespace {

using testing::run_program;

const std::string kModel = HEADRACE_GOLDEN_DIR "/tiny/tiny_llama3_f16.gguf";

std::string generated(const std::string& arguments) {
  const auto result = run_program("generate -q --raw ab -m " + kModel + ' ' + arguments);
  EXPECT_EQ(result.exit_code, 0) << arguments;
  return result.out;
}

std::string printed(const Model& model, const BeamOptions& options) {
  Session session(model, {.num_pages = 1000});
  session.append(model.tokenize("ab"));
  const std::vector<Completion> beams = session.beam_search(options);
  std::ostringstream text;
  for (std::size_t i = 0; i < beams.size(); ++i)
    text << "--- beam " << i + 1 << " of " << beams.size() << ", score " << beams[i].score
         << " ---\n"
         << beams[i].text << '\n';
  return text.str();
}

TEST(GenerateProgram, BeamsAreThoseOfTheirOptions) {
  const Model model(kModel);
  const BeamOptions plain{.beam_width = 3, .max_new_tokens = 6};
  const struct {
    std::string arguments;
    BeamOptions options;
  } cases[] = {
      {"--beam-width 3 -n 6", plain},
      {"--beam-width 5 -n 6", {.beam_width = 5, .max_new_tokens = 6}},
      {"--beam-width 3 -n 9", {.beam_width = 3, .max_new_tokens = 9}},
      {"--beam-width 3 -n 6 --length-penalty 0",
       {.beam_width = 3, .length_penalty = 0, .max_new_tokens = 6}},
      {"--beam-width 3 -n 6 --length-penalty 2.5",
       {.beam_width = 3, .length_penalty = 2.5, .max_new_tokens = 6}},
      {"--beam-width 1 -n 6", {.beam_width = 1, .max_new_tokens = 6}},
  };
  for (const auto& [arguments, options] : cases) {
    const std::string text = generated(arguments);
    EXPECT_EQ(text, printed(model, options)) << arguments;
    if (arguments != cases[0].arguments) {
      EXPECT_NE(text, printed(model, plain)) << arguments << " changes nothing";
    }
  }
  const BeamOptions endless{.beam_width = 40, .max_new_tokens = 12, .ignore_end = true};
  EXPECT_EQ(generated("--beam-width 40 -n 12 --ignore-end"), printed(model, endless));
}

// Numbers from 1, and the seed of each answer.
TEST(GenerateProgram, SamplesAreNamedByTheirSeeds) {
  const Model model(kModel);
  for (const int seed : {0, 7})
    for (const int n : {2, 3}) {
      GenerationOptions options{.max_new_tokens = 5, .ignore_end = true};
      options.sampling.temperature = 2;
      options.sampling.seed = static_cast<std::uint64_t>(seed);
      Session session(model, {.num_pages = 100});
      session.append(model.tokenize("ab"));
      std::ostringstream text;
      const std::vector<Completion> samples = session.generate_n(options, n);
      for (int i = 0; i < n; ++i)
        text << "--- sample " << i + 1 << " of " << n << ", seed " << seed + i << " ---\n"
             << samples[static_cast<std::size_t>(i)].text << '\n';
      EXPECT_EQ(generated("--temp 2 -n 5 --ignore-end --seed " + std::to_string(seed) +
                          " --samples " + std::to_string(n)),
                text.str());
    }
}

}  // namespace
}  // namespace headrace::cli
