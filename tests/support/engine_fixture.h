// For tests of the engine.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <stdexcept>

#include "engine/engine.h"
#include "support/random.h"

namespace headrace::engine {

using Tokens = std::vector<std::int32_t>;

inline std::unique_ptr<Engine> engine_of(const LanguageModel& model, const EngineOptions& options) {
  Result<std::unique_ptr<Engine>> engine = Engine::make(model, options);
  if (!engine.ok()) throw std::runtime_error(engine.failure().message);
  return std::move(engine.value());
}

// Tokens below 256, which are bytes of text in these models; equal seeds give a common prefix.
inline Tokens prompt_of(std::size_t length, std::uint64_t seed) {
  testing::Random random(seed);
  Tokens tokens(length);
  for (auto& token : tokens) token = static_cast<std::int32_t>(random.between(0, 255));
  return tokens;
}

// All that a sample gave.
struct Answer {
  Tokens tokens;
  std::vector<float> logprobs;  // 0 where none were asked for
  std::vector<std::vector<std::pair<std::int32_t, float>>> top_logprobs;
  std::string text;
  std::optional<FinishReason> finish;
  std::string error;
  std::vector<std::vector<float>> logits;  // that the tokens were drawn from
};
using Answers = std::map<std::pair<std::int64_t, std::int64_t>, Answer>;  // by request and sample

// A second end of a sample, or an output after it, is a failure.
inline void poll_all(Engine& engine, Answers& answers) {
  while (std::optional<Output> output = engine.poll()) {
    Answer& answer = answers[{output->request, output->sample}];
    EXPECT_FALSE(answer.finish) << "output after the end";
    for (const OutputToken& token : output->tokens) {
      answer.tokens.push_back(token.token);
      answer.logprobs.push_back(token.logprob);
      auto& top = answer.top_logprobs.emplace_back();
      for (const TokenLogprob& one : token.top_logprobs) top.emplace_back(one.token, one.logprob);
    }
    answer.text += output->text;
    answer.finish = output->finish;
    answer.error = output->error;
  }
}

}  // namespace headrace::engine
