// The calls of tools in a model's text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::server {

// What a call is, by the chat template. Only the calls of Qwen2.5 may begin behind other text.
enum class CallFormat {
  tagged,  // Qwen2.5: <tool_call>\n{"name": "f", "arguments": {...}}\n</tool_call>
  object,  // Llama 3: {"name": "f", "parameters": {...}}
  list     // Mistral: [TOOL_CALLS] [{"name": "f", "arguments": {...}}, ...]
};
CallFormat call_format(std::string_view template_name);
// What a prompt ends with so that the answer is a call.
const char* call_beginning(CallFormat format);
// Of the arguments, in a call.
const char* arguments_key(CallFormat format);

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

  // is_in_call: the prompt ended with call_beginning(). has_one_call: what follows the first call
  // is dropped.
  explicit ToolCallReader(CallFormat format, bool is_in_call, bool has_one_call = false)
      : format_(format),
        has_one_call_(has_one_call),
        state_(format != CallFormat::tagged ? State::begin
               : is_in_call                 ? State::header
                                            : State::text) {}

  // The parts that are complete. What may begin a call is held back unless is_last.
  Parts read(std::string_view text, bool is_last);
  bool has_calls() const { return num_calls_ > 0; }
  CallFormat format() const { return format_; }

 private:
  // begin: of an answer, which may be a call. header: {"name": "f", "arguments": ; tail: behind the
  // arguments; separator: between calls of a list; whole: a call that does not begin as the header
  // does, read when it has ended; done: the rest is dropped.
  enum class State { begin, text, header, arguments, tail, separator, whole, done };

  // False: more text is needed.
  bool advance(Parts& parts, bool is_last);
  bool read_begin(Parts& parts, bool is_last);
  bool read_text(Parts& parts, bool is_last);
  bool read_header(Parts& parts, bool is_last, std::size_t at);
  bool read_arguments(Parts& parts);
  bool read_tail();
  bool read_separator(Parts& parts, bool is_last);
  bool read_whole(Parts& parts, bool is_last);
  bool read_tagged(Parts& parts, bool is_last);
  // Advances `size` to the end of what is open, or of the text; true: it has ended.
  bool skip_brackets(std::size_t& size);

  CallFormat format_;
  bool has_one_call_;
  State state_;
  std::string pending_;
  std::int64_t num_calls_ = 0;
  int depth_ = 0;  // of brackets in the arguments
  bool is_in_string_ = false, is_escaped_ = false;
};

}  // namespace headrace::server
