#include "answer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <iostream>

#include "progress.h"

namespace headrace::cli {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Splits long prompts so that the progress bar moves.
void append_prompt(Session& session, std::span<const std::int32_t> prompt) {
  constexpr std::size_t kPart = 512;
  Progress progress("processing the prompt");
  for (std::size_t begin = 0; begin < prompt.size(); begin += kPart) {
    if (begin > 0)
      progress.show(begin, prompt.size(),
                    std::to_string(begin) + '/' + std::to_string(prompt.size()) + " tokens");
    session.append(prompt.subspan(begin, std::min(kPart, prompt.size() - begin)));
  }
  progress.clear();
}

bool has_bad_logits(const Model& model, const Session& session) {
  const float* logits = session.logits();
  return logits != nullptr && std::any_of(logits, logits + model.info().vocab_size,
                                          [](float x) { return std::isnan(x) || x == INFINITY; });
}

// Processes the prompt, runs generate(answer) and measures both.
template <class Generate>
Answer timed_answer(const Model& model, Session& session, std::span<const std::int32_t> prompt,
                    Generate generate) {
  Answer answer;
  answer.num_prompt_tokens = static_cast<std::int64_t>(prompt.size());
  const Clock::time_point begin = Clock::now();
  append_prompt(session, prompt);
  answer.prompt_seconds = seconds_since(begin);
  const Clock::time_point generation_begin = Clock::now();
  try {
    generate(answer);
  } catch (const Error&) {
    // Non-finite logits: report the damaged file in the words of the other commands.
    if (has_bad_logits(model, session)) fail_of_damaged_weights();
    throw;
  }
  answer.generation_seconds = seconds_since(generation_begin);
  return answer;
}

}  // namespace

void fail_of_damaged_weights() {
  throw Error(HEADRACE_IO_ERROR,
              "the logits contain NaN or infinity: the model's weights are damaged; download the "
              "file again");
}

Answer stream_answer(const Model& model, Session& session, std::span<const std::int32_t> prompt,
                     const GenerationOptions& options, const std::function<bool()>& may_continue) {
  return timed_answer(model, session, prompt, [&](Answer& answer) {
    answer.generation = session.generate(options, [&](std::string_view text) {
      answer.text += text;
      std::cout << text << std::flush;
      return may_continue();
    });
  });
}

Answers compute_answers(const Model& model, Session& session, std::span<const std::int32_t> prompt,
                        const std::function<std::vector<Completion>()>& complete) {
  Answers answers;
  answers.speed = timed_answer(model, session, prompt, [&](Answer& answer) {
    answers.completions = complete();
    for (const Completion& completion : answers.completions)
      answer.generation.num_tokens += static_cast<std::int64_t>(completion.tokens.size());
  });
  return answers;
}

std::string speed_text(const Answer& answer) {
  const auto rate = [](std::int64_t tokens, double seconds) {
    return seconds > 0 ? static_cast<double>(tokens) / seconds : 0.0;
  };
  char text[160];
  std::snprintf(text, sizeof text,
                "prompt %lld tokens, %.1f tokens/s; answer %lld tokens, %.1f tokens/s",
                static_cast<long long>(answer.num_prompt_tokens),
                rate(answer.num_prompt_tokens, answer.prompt_seconds),
                static_cast<long long>(answer.generation.num_tokens),
                rate(answer.generation.num_tokens, answer.generation_seconds));
  return text;
}

}  // namespace headrace::cli
