// The canonical form of a Jinja template.
#include "text/chat_styles.h"

namespace headrace::text {
namespace {

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

// The text between two tags. Whitespace alone is trimmed as Jinja does: beside a dash all of it,
// else the newline after a block and the blanks before one (trim_blocks, lstrip_blocks).
std::string between(std::string_view text, std::string_view before, std::string_view after) {
  if (text.find_first_not_of(" \t\r\n") != text.npos) return std::string(text);
  if (before.ends_with("-%}") || before.ends_with("-}}") || after.starts_with("{%-") ||
      after.starts_with("{{-"))
    return {};
  if (before.ends_with("%}") && text.starts_with('\n')) text.remove_prefix(1);
  if (after.starts_with("{%") || after.empty())
    while (text.ends_with(' ') || text.ends_with('\t')) text.remove_suffix(1);
  return std::string(text);
}

// The string literal at `at`, in single quotes; advances `at` past it.
std::string literal(std::string_view jinja, std::size_t& at) {
  const char quote = jinja[at++];
  std::string form = "'";
  for (; at < jinja.size() && jinja[at] != quote; ++at) {
    if (jinja[at] == '\\' && at + 1 < jinja.size()) {
      ++at;
      if (jinja[at] == 'n') {
        form += '\n';
        continue;
      }
      form += '\\';
    }
    form += jinja[at];
  }
  ++at;
  return form + '\'';
}

// The tag at `at`, without dashes and repeated blanks; advances `at` past it.
std::string tag(std::string_view jinja, std::size_t& at) {
  std::string form(jinja.substr(at, 2));
  at += 2;
  if (at < jinja.size() && jinja[at] == '-') ++at;
  while (at < jinja.size()) {
    const std::string_view rest = jinja.substr(at);
    if (rest.starts_with("-%}") || rest.starts_with("-}}")) {
      form += rest.substr(1, 2);
      at += 3;
      return form;
    }
    if (rest.starts_with("%}") || rest.starts_with("}}")) {
      form += rest.substr(0, 2);
      at += 2;
      return form;
    }
    if (rest.front() == '\'' || rest.front() == '"') {
      form += literal(jinja, at);
      continue;
    }
    const bool divides = is_blank(rest.front()) && !form.empty() && form.back() != ' ';
    if (divides) form += ' ';
    if (!is_blank(rest.front())) form += rest.front();
    ++at;
  }
  return form;
}

// Removes the blanks of a tag, except between two names and in string literals.
std::string without_blanks(std::string_view form) {
  const auto is_name = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  };
  std::string kept;
  bool quoted = false;
  for (std::size_t i = 0; i < form.size(); ++i) {
    if (form[i] == '\\' && quoted && i + 1 < form.size()) {
      kept += form[i++];
    } else if (form[i] == '\'') {
      quoted = !quoted;
    }
    const bool needed =
        i > 0 && i + 1 < form.size() && is_name(form[i - 1]) && is_name(form[i + 1]);
    if (form[i] != ' ' || quoted || needed) kept += form[i];
  }
  return kept;
}

}  // namespace

std::string template_form(std::string_view jinja) {
  std::string form;
  std::string_view before;
  for (std::size_t at = 0; at < jinja.size();) {
    std::size_t begin = at;
    while (begin < jinja.size() && !jinja.substr(begin).starts_with("{%") &&
           !jinja.substr(begin).starts_with("{{"))
      ++begin;
    form += between(jinja.substr(at, begin - at), before, jinja.substr(begin));
    at = begin;
    if (begin == jinja.size()) break;
    form += without_blanks(tag(jinja, at));
    before = jinja.substr(begin, at - begin);
  }
  return form;
}

}  // namespace headrace::text
