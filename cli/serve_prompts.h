// Requests of headrace bench serve: their prompts, and the JSON that asks for an answer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace headrace::cli {

enum class PromptKind { random, prefix, sharegpt };

struct PromptOptions {
  std::string model;  // name in the requests
  bool is_chat = false;
  PromptKind kind = PromptKind::random;
  std::string file;  // of sharegpt
  std::int64_t prompt_tokens = 512;
  std::int64_t prefix_tokens = 0;  // of them, those that all prompts share
  std::int64_t answer_tokens = 128;
  std::int64_t vocab = 1000;  // token ids are below it
  std::int64_t seed = 0;
  double temperature = 0;
  bool ignore_eos = false;
};

// Random numbers that depend on the arguments alone, on every machine.
class RandomNumbers {
 public:
  RandomNumbers(std::int64_t seed, std::int64_t stream);
  std::uint64_t next();
  std::int64_t below(std::int64_t limit);
  double unit();  // in (0, 1]

 private:
  std::uint64_t state_;
};

class ServePrompts {
 public:
  // Reads the file of sharegpt. Throws Error(HEADRACE_IO_ERROR) or, with path and line or
  // conversation, Error(HEADRACE_INVALID_ARGUMENT).
  explicit ServePrompts(const PromptOptions& options);

  // JSON of the request with number `idx`. The same for the same options.
  std::string body(std::int64_t idx) const;

 private:
  std::vector<std::int64_t> tokens(std::int64_t idx) const;

  PromptOptions options_;
  std::vector<std::string> texts_;  // of sharegpt, shuffled
};

// The first human turn of each conversation: [{"conversations": [{"from": "human", "value": "..."},
// ...]}, ...]. Conversations that begin otherwise or with more than kMaxPromptBytes are skipped.
inline constexpr std::size_t kMaxPromptBytes = 4096;
std::vector<std::string> sharegpt_prompts(const std::string& text, const std::string& path);

}  // namespace headrace::cli
