// An answer as it streams to stdout, and how fast it came.
#pragma once

#include <functional>
#include <string>

#include "headrace/model.hpp"

namespace headrace::cli {

struct Answer {
  std::string text;
  std::int64_t num_prompt_tokens = 0;
  double prompt_seconds = 0;
  Generation generation;
  double generation_seconds = 0;
};

// Computes the prompt, then prints the answer. may_go_on() is asked after every token.
Answer stream_answer(Session& session, std::span<const std::int32_t> prompt,
                     const GenerationOptions& options, const std::function<bool()>& may_go_on);

// "prompt 31 tokens, 210.0 tokens/s; answer 128 tokens, 95.2 tokens/s"
std::string speed_text(const Answer& answer);

}  // namespace headrace::cli
