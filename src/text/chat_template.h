// Renders chat messages in a model's prompt format. Model files carry a Jinja program for this
// (tokenizer.chat_template), which is never run: supported templates are recognised by their text
// and rendered here, byte for byte as Jinja would; others are rejected.
//
// A prompt separates template text from message text, so that control tokens are parsed in template
// text only. Some markers are not control tokens, "[INST]" of Llama 2 and Mistral v0.1 or
// "<|user|>" of Zephyr: with those templates a message can imitate them.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "text/tokenizer.h"
#include "weights/model_file.h"

namespace headrace::text {

// Conversations with tools: the first message lists the tools, a JSON object per line. Each call is
// a message behind the assistant's, a JSON object with name and arguments; each result is one of
// the role tool. A tool_call_id before one of these has its id, which Mistral's templates render.
// Jinja's tojson writes JSON as Python's json.dumps does: {"a": 1, "b": [2]}.
enum class Role { system, user, assistant, tools, tool_call, tool, tool_call_id };
const char* role_name(Role role);
std::optional<Role> role_by_name(std::string_view name);

struct Message {
  Role role;
  std::string content;
};

class Prompt {
 public:
  // Adjacent parts of the same kind are joined.
  void add_template(std::string_view text) { add(text, true); }
  void add_content(std::string_view text) { add(text, false); }

  struct Part {
    std::string text;
    bool is_template;
  };
  const std::vector<Part>& parts() const { return parts_; }
  std::string text() const;                       // the parts, concatenated
  std::vector<TextPart> tokenizer_parts() const;  // for Tokenizer::encode; views of this object

 private:
  void add(std::string_view text, bool is_template);
  std::vector<Part> parts_;
};

struct RenderOptions {
  // Append the header of the assistant's turn. The templates of Llama 2 and Mistral have none.
  bool add_generation_prompt = true;
  // Today's date in the system message of Llama 3.1 and 3.2, for example "21 Nov 2026", and of
  // Mistral Small 3, "2026-11-21". Empty: 26 Jul 2024, the default of Llama's templates, and
  // 2025-01-30, so that prompts do not change from day to day.
  std::string date;
};

struct TemplateStyle;

class ChatTemplate {
 public:
  // The file's template. io_error: the file has none; unsupported: it is not recognised.
  static Result<ChatTemplate> from_file(const ModelFile& file);
  static Result<ChatTemplate> by_name(std::string_view name);
  static Result<ChatTemplate> recognise(std::string_view jinja);
  static std::string names();  // supported templates, "a, b, c"

  const char* name() const;
  bool has_tools() const { return has_tools_; }
  // invalid_argument: the template rejects this order of messages or would drop one. unsupported:
  // messages of tools, and the template has none. As in the templates of Llama 3 and Mistral v0.3
  // and Nemo, what the assistant says beside a call is not rendered, nor is the system message of
  // these two behind a result.
  Result<Prompt> render(std::span<const Message> messages, const RenderOptions& options = {}) const;

 private:
  ChatTemplate(const TemplateStyle& style, bool has_tools)
      : style_(&style), has_tools_(has_tools) {}
  const TemplateStyle* style_;  // of the static list
  bool has_tools_;
};

}  // namespace headrace::text
