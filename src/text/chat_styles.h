// The supported chat templates: how each is recognised and rendered.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "text/chat_template.h"

namespace headrace::text {

enum class TemplateFamily { chatml, llama3, llama2, mistral, mistral_v7, zephyr };

struct TemplateStyle {
  const char* name;
  TemplateFamily family;
  // chatml, mistral_v7: system message inserted unless the first message is one; empty: not
  // inserted. mistral_v7: "{}" in it is the date.
  const char* default_system = "";
  // chatml: as Qwen2.5's template renders them; llama3: as that of 3.1; mistral: as that of v0.3;
  // mistral_v7: as that of mistral_common, which has an order of roles too.
  bool has_tools = false;
  // llama3: a system message is always rendered and begins with two dates.
  bool has_dates = false;
  // mistral
  const char *user_begin = "", *user_end = "", *assistant_begin = "", *assistant_end = "";
  bool trims_assistant = false, takes_system = false, system_is_last = false;
  // mistral: behind "[AVAILABLE_TOOLS]" and other markers of tools; mistral_v7: behind every marker
  // that opens a text, and before the assistant's texts.
  const char* marker_space = "";
};

std::span<const TemplateStyle> template_styles();

// Null: not supported.
const TemplateStyle* recognise_template(std::string_view jinja);
// Whether a template of a style with tools has that style's text for them.
bool has_tool_text(const TemplateStyle& style, std::string_view jinja);

// The canonical form of a Jinja template, without differences that do not change its output: layout
// of the tags, kind of quotes, escaped or literal newlines. Equal forms render equally.
std::string template_form(std::string_view jinja);

// Python's str.strip() and str.rstrip().
std::string_view python_strip(std::string_view text);
std::string_view python_rstrip(std::string_view text);

}  // namespace headrace::text
