// The chat templates that are known: how each is recognised and what its text consists of.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "text/chat_template.h"

namespace headrace::text {

enum class TemplateFamily { chatml, llama3, llama2, mistral };

struct TemplateStyle {
  const char* name;
  TemplateFamily family;
  // chatml: the system message where the first message is none; empty: no such message.
  const char* default_system = "";
  // llama3: the system message is always there and begins with two dates.
  bool has_dates = false;
  // mistral
  const char *user_begin = "", *user_end = "", *assistant_begin = "", *assistant_end = "";
  bool trims_assistant = false, takes_system = false, system_is_last = false;
};

std::span<const TemplateStyle> template_styles();

// Null: not known.
const TemplateStyle* recognise_template(std::string_view jinja);

// A template without what does not change its result: layout of the tags, kind of quotes, "\n" as
// an escape or as it is. Two templates of the same form render the same.
std::string template_form(std::string_view jinja);

// Without white space at both ends, as Python's str.strip() has it.
std::string_view python_strip(std::string_view text);
std::string_view python_rstrip(std::string_view text);

}  // namespace headrace::text
