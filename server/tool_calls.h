// The calls of tools in a model's text: <tool_call>\n{"name": "f", "arguments":
// {...}}\n</tool_call>.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::server {

// What a call gained; a call's first one has its name.
struct ToolCallDelta {
  std::int64_t idx;  // of the call in its answer
  std::string id = {};
  std::string name = {};
  std::string arguments = {};  // JSON, a piece
};

// Of one answer. Text that only looks like a call stays text.
class ToolCallReader {
 public:
  struct Parts {
    std::string content;
    std::vector<ToolCallDelta> calls;
  };

  // is_in_call: the prompt ended with the beginning of a call.
  explicit ToolCallReader(bool is_in_call) : state_(is_in_call ? State::header : State::text) {}

  // The parts that are complete. What may begin a call is held back unless is_last.
  Parts read(std::string_view text, bool is_last);
  bool has_calls() const { return num_calls_ > 0; }

 private:
  // header: {"name": "f", "arguments": ; tail: behind the arguments; whole: a call that does not
  // begin as the header does, read when it has ended.
  enum class State { text, header, arguments, tail, whole };

  // False: more text is needed.
  bool advance(Parts& parts, bool is_last);
  bool read_text(Parts& parts, bool is_last);
  bool read_header(Parts& parts, bool is_last);
  bool read_arguments(Parts& parts);
  bool read_tail();
  bool read_whole(Parts& parts, bool is_last);

  State state_;
  std::string pending_;
  std::int64_t num_calls_ = 0;
  int depth_ = 0;  // of brackets in the arguments
  bool is_in_string_ = false, is_escaped_ = false;
};

}  // namespace headrace::server
