// Streams an answer to stdout and measures its speed.
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

// Processes the prompt, then prints the answer until may_continue(), called after every token,
// returns false. Throws Error(HEADRACE_IO_ERROR) if the weights are damaged.
Answer stream_answer(const Model& model, Session& session, std::span<const std::int32_t> prompt,
                     const GenerationOptions& options, const std::function<bool()>& may_continue);
// Processes the prompt and computes completions of it, without printing them.
struct Answers {
  std::vector<Completion> completions;
  Answer speed;  // of all completions; without text
};
Answers compute_answers(const Model& model, Session& session, std::span<const std::int32_t> prompt,
                        const std::function<std::vector<Completion>()>& complete);
// "the logits contain NaN ..."
[[noreturn]] void fail_of_damaged_weights();

// "prompt 31 tokens, 210.0 tokens/s; answer 128 tokens, 95.2 tokens/s"
std::string speed_text(const Answer& answer);

}  // namespace headrace::cli
