// Chat messages to the text that a model was trained to see. A file brings a program for this
// (tokenizer.chat_template, in Jinja), which is never run: the known ones are recognised by their
// text and rendered here, byte for byte as the program would; any other is refused.
//
// A prompt keeps apart what comes from the template and what from the messages, so that control
// tokens are found in the former only. "[INST]" and the like (Llama 2, Mistral) are no tokens: with
// those templates a message can imitate them.
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

enum class Role { system, user, assistant };
const char* role_name(Role role);
std::optional<Role> role_by_name(std::string_view name);

struct Message {
  Role role;
  std::string content;
};

class Prompt {
 public:
  // Neighbours of a kind become one part.
  void add_template(std::string_view text) { add(text, true); }
  void add_content(std::string_view text) { add(text, false); }

  struct Part {
    std::string text;
    bool is_template;
  };
  const std::vector<Part>& parts() const { return parts_; }
  std::string text() const;                       // all of it
  std::vector<TextPart> tokenizer_parts() const;  // for Tokenizer::encode; they point into this

 private:
  void add(std::string_view text, bool is_template);
  std::vector<Part> parts_;
};

struct RenderOptions {
  // Ends the prompt where the answer begins. Llama 2 and Mistral have no text for that.
  bool add_generation_prompt = true;
  // The date of today in the system message of Llama 3.1 and 3.2, "21 Nov 2026". Empty: the date
  // that these templates fall back to, 26 Jul 2024, so that prompts do not change overnight.
  std::string date;
};

struct TemplateStyle;

class ChatTemplate {
 public:
  // The template of the file; io_error where it has none, unsupported where it is not known.
  static Result<ChatTemplate> from_file(const ModelFile& file);
  static Result<ChatTemplate> by_name(std::string_view name);
  static Result<ChatTemplate> recognise(std::string_view jinja);
  static std::string names();  // the known ones, "a, b, c"

  const char* name() const;
  // invalid_argument: messages in an order that the template refuses or would lose.
  Result<Prompt> render(std::span<const Message> messages, const RenderOptions& options = {}) const;

 private:
  explicit ChatTemplate(const TemplateStyle& style) : style_(&style) {}
  const TemplateStyle* style_;  // of the static list
};

}  // namespace headrace::text
