// A streamed answer as OpenAI-compatible servers send it: server-sent events with JSON in them. The
// bytes are untrusted.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace headrace::cli {

// The stream breaks the format, or reports an error.
class BadAnswer : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

class AnswerStream {
 public:
  // Bytes of one event, at most; add() throws BadAnswer beyond it.
  static constexpr std::size_t kMaxEventBytes = std::size_t{1} << 20;

  // Adds bytes of the stream, in pieces of any size. Returns how many events with text, that is
  // with one or more generated tokens, end in them. Throws BadAnswer.
  std::int64_t add(std::string_view bytes);

  bool is_done() const { return is_done_; }  // the event [DONE] has come
  // As the server counted them; -1 if it has not.
  std::int64_t num_prompt_tokens() const { return num_prompt_tokens_; }
  std::int64_t num_answer_tokens() const { return num_answer_tokens_; }

 private:
  std::int64_t add_line(std::string_view line);
  std::int64_t end_event();

  std::string line_, data_;
  bool is_done_ = false;
  std::int64_t num_prompt_tokens_ = -1, num_answer_tokens_ = -1;
};

}  // namespace headrace::cli
