// Several choices of a prompt: the best of samples, and beams.
#include <algorithm>

#include "headrace/engine.hpp"
#include "request.h"
#include "tests/support/serve_fixture.h"

namespace headrace::testing {
namespace {

TEST(ParseCompletion, ABeamSearchHasAsManyBeamsAsChoices) {
  using server::Form;
  Json body = {{"prompt", "a"},
               {"messages", {{{"role", "user"}, {"content", "a"}}}},
               {"n", 5},
               {"length_penalty", 2}};
  for (const Form form : {Form::completion, Form::chat})
    for (const bool is_search : {false, true}) {
      body["use_beam_search"] = is_search;
      const auto parsed = server::parse_completion(form, body.dump(), server::CallFormat::tagged);
      EXPECT_EQ(parsed.request.beam_width, is_search ? 5 : 0);
      EXPECT_EQ(parsed.request.n, is_search ? 1 : 5);
      EXPECT_EQ(parsed.request.length_penalty, 2);
      EXPECT_EQ(parsed.num_choices, 5);
      EXPECT_EQ(server::num_samples(parsed.request), 5);
    }
}

// Beside an engine of the test's own.
TEST_F(Serve, BeamsAreThoseOfAnEngine) {
  ServerProcess server(options(""));
  Client client(server.port());
  const char* body = R"({"prompt": [[97, 98], [98]], "n": 3, "use_beam_search": true,
      "length_penalty": 0.5, "max_tokens": 6, "ignore_eos": true, "return_token_ids": true})";
  const Json got = Json::parse(client.ask(post("/v1/completions", body)).body);
  ASSERT_EQ(got["choices"].size(), 6u);
  EXPECT_EQ(got["usage"]["completion_tokens"], 36);
  const Model model(kModel);
  Engine engine(model);
  for (const std::vector<std::int32_t>& prompt : {std::vector<std::int32_t>{97, 98}, {98}})
    engine.add({.prompt = prompt,
                .max_new_tokens = 6,
                .ignore_end = true,
                .beam_width = 3,
                .length_penalty = 0.5});
  engine.run();
  std::size_t num_outputs = 0;
  while (const auto output = engine.poll()) {
    ++num_outputs;
    const Json& choice =
        got["choices"][static_cast<std::size_t>((output->id - 1) * 3 + output->sample)];
    EXPECT_EQ(choice["token_ids"], Json(output->tokens));
    EXPECT_EQ(choice["finish_reason"], "length");
  }
  EXPECT_EQ(num_outputs, 6u);
}

// Beside the request that gives all samples with their logprobs.
TEST_F(Serve, BestOfGivesTheSamplesWithTheHighestMeanLogprob) {
  ServerProcess server(options(""));
  Client client(server.port());
  const auto ask = [&](const std::string& more) {
    return Json::parse(client
                           .ask(post("/v1/completions", R"({"prompt": ["ab", "b", "aab"], "seed": 5,
                               "max_tokens": 12, "stop": "a", )" +
                                                            more + '}'))
                           .body);
  };
  constexpr std::size_t kSamples = 7;
  const Json all = ask(R"("n": 7, "logprobs": 0)");
  for (const std::size_t n : {1u, 2u, 7u})
    for (const std::string logprobs : {"", R"(, "logprobs": 0)"}) {
      const Json best = ask("\"best_of\": 7, \"n\": " + std::to_string(n) + logprobs);
      EXPECT_EQ(best["usage"], all["usage"]);  // what is left out was computed too
      ASSERT_EQ(best["choices"].size(), 3 * n);
      for (std::size_t prompt = 0; prompt < 3; ++prompt) {
        std::vector<std::pair<double, Json>> ranked;
        for (std::size_t i = 0; i < kSamples; ++i) {
          const Json choice = all["choices"][prompt * kSamples + i];
          double sum = 0;
          for (const Json& logprob : choice["logprobs"]["token_logprobs"])
            sum += logprob.get<double>();
          ranked.emplace_back(
              sum / static_cast<double>(choice["logprobs"]["token_logprobs"].size()), choice);
        }
        if (n < kSamples)
          std::stable_sort(ranked.begin(), ranked.end(),
                           [](const auto& a, const auto& b) { return a.first > b.first; });
        for (std::size_t i = 0; i < n; ++i) {
          Json wanted = ranked[i].second;
          wanted["index"] = prompt * n + i;
          if (logprobs.empty()) wanted["logprobs"] = nullptr;
          EXPECT_EQ(best["choices"][prompt * n + i], wanted);
        }
      }
    }
}

}  // namespace
}  // namespace headrace::testing
