#include "answer.h"

#include <chrono>
#include <cstdio>
#include <iostream>

#include "progress.h"

namespace headrace::cli {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Long prompts are computed in parts, so that something is seen to move.
void append_prompt(Session& session, std::span<const std::int32_t> prompt) {
  constexpr std::size_t kPart = 512;
  Progress progress("reading the prompt");
  for (std::size_t begin = 0; begin < prompt.size(); begin += kPart) {
    if (begin > 0)
      progress.show(begin, prompt.size(),
                    std::to_string(begin) + '/' + std::to_string(prompt.size()) + " tokens");
    session.append(prompt.subspan(begin, std::min(kPart, prompt.size() - begin)));
  }
  progress.clear();
}

}  // namespace

Answer stream_answer(Session& session, std::span<const std::int32_t> prompt,
                     const GenerationOptions& options, const std::function<bool()>& may_go_on) {
  Answer answer;
  answer.num_prompt_tokens = static_cast<std::int64_t>(prompt.size());
  const Clock::time_point begin = Clock::now();
  append_prompt(session, prompt);
  answer.prompt_seconds = seconds_since(begin);
  const Clock::time_point generation_begin = Clock::now();
  answer.generation = session.generate(options, [&](std::string_view text) {
    answer.text += text;
    std::cout << text << std::flush;
    return may_go_on();
  });
  answer.generation_seconds = seconds_since(generation_begin);
  return answer;
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
