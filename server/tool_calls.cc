#include "tool_calls.h"

#include <nlohmann/json.hpp>
#include <utility>

namespace headrace::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kOpen = "<tool_call>", kClose = "</tool_call>", kBlanks = " \t\r\n",
                           kList = "[TOOL_CALLS]";

// The text without the blanks at its end.
std::string_view stripped(std::string_view text) {
  return text.substr(0, text.find_last_not_of(kBlanks) + 1);
}

// Where the text's end begins that may be the beginning of kOpen, with the blanks before it.
std::size_t undecided_at(std::string_view text) {
  std::size_t length = std::min(text.size(), kOpen.size() - 1);
  while (!text.ends_with(kOpen.substr(0, length))) --length;
  return stripped(text.substr(0, text.size() - length)).size();
}

enum class Match { yes, no, more };

struct Header {
  std::string name;
  std::size_t size;
};

// Advances `at` behind blanks and the wanted text.
Match match_literal(std::string_view text, std::size_t& at, std::string_view wanted) {
  at = std::min(text.find_first_not_of(kBlanks, at), text.size());
  const std::string_view found = text.substr(at, wanted.size());
  if (found != wanted.substr(0, found.size())) return Match::no;
  at += found.size();
  return found == wanted ? Match::yes : Match::more;
}

// Reads {"name": "f", "arguments": up to the brace that opens the arguments.
Match match_header(CallFormat format, std::string_view text, Header& header) {
  std::size_t at = 0;
  for (const char* wanted : {"{", "\"name\"", ":", "\""})
    if (const Match match = match_literal(text, at, wanted); match != Match::yes) return match;
  const std::size_t begin = at - 1;
  while (at < text.size() && text[at] != '"') at += text[at] == '\\' ? 2 : 1;
  if (at >= text.size()) return Match::more;
  const Json name = Json::parse(text.substr(begin, ++at - begin), nullptr, false);
  if (!name.is_string() || name == "") return Match::no;
  const std::string key = '"' + std::string(arguments_key(format)) + '"';
  for (const std::string& wanted : {std::string(","), key, std::string(":"), std::string("{")})
    if (const Match match = match_literal(text, at, wanted); match != Match::yes) return match;
  header = {name.get<std::string>(), at - 1};
  return Match::yes;
}

// Where the first call of an answer begins, in text that may be it.
Match match_begin(CallFormat format, std::string_view text, std::size_t& at) {
  at = 0;
  if (format == CallFormat::list) {
    std::size_t behind = 0;
    const Match marker = match_literal(text, behind, kList);
    if (marker == Match::more) return marker;
    if (marker == Match::yes) at = behind;
    if (const Match match = match_literal(text, at, "["); match != Match::yes) return match;
  }
  const Match match = match_literal(text, at, "{");
  if (match == Match::yes) --at;
  return match;
}

// False: it is no call.
bool add_call(CallFormat format, const Json& json, std::vector<ToolCallDelta>& calls,
              std::int64_t& num_calls) {
  const auto name = json.is_object() ? json.find("name") : json.end();
  const auto arguments = json.is_object() ? json.find(arguments_key(format)) : json.end();
  if (name == json.end() || !name->is_string() || *name == "" || arguments == json.end())
    return false;
  calls.push_back(
      {.idx = num_calls++,
       .name = name->get<std::string>(),
       .arguments = arguments->is_string() ? arguments->get<std::string>() : arguments->dump()});
  return true;
}

}  // namespace

CallFormat call_format(std::string_view template_name) {
  if (template_name.starts_with("llama3")) return CallFormat::object;
  return template_name.starts_with("mistral") ? CallFormat::list : CallFormat::tagged;
}

const char* call_beginning(CallFormat format) {
  return format == CallFormat::tagged ? "<tool_call>\n"
         : format == CallFormat::list ? "[TOOL_CALLS]"
                                      : "";
}

const char* arguments_key(CallFormat format) {
  return format == CallFormat::object ? "parameters" : "arguments";
}

ToolCallReader::Parts ToolCallReader::read(std::string_view text, bool is_last) {
  Parts parts;
  pending_ += text;
  while (advance(parts, is_last)) {
  }
  return parts;
}

bool ToolCallReader::advance(Parts& parts, bool is_last) {
  switch (state_) {
    case State::begin:
      return read_begin(parts, is_last);
    case State::text:
      return read_text(parts, is_last);
    case State::header:
      return read_header(parts, is_last, 0);
    case State::arguments:
      return read_arguments(parts);
    case State::tail:
      return read_tail();
    case State::separator:
      return read_separator(parts, is_last);
    case State::whole:
      return format_ == CallFormat::tagged ? read_tagged(parts, is_last)
                                           : read_whole(parts, is_last);
    case State::done:
      break;
  }
  pending_.clear();
  return false;
}

bool ToolCallReader::read_begin(Parts& parts, bool is_last) {
  std::size_t at = 0;
  const Match match = match_begin(format_, pending_, at);
  if (match == Match::yes) return read_header(parts, is_last, at);
  if (match == Match::more && !is_last) return false;
  state_ = State::text;
  return true;
}

bool ToolCallReader::read_text(Parts& parts, bool is_last) {
  const bool is_tagged = format_ == CallFormat::tagged;
  const std::size_t open = is_tagged ? pending_.find(kOpen) : pending_.npos;
  if (open != pending_.npos) {
    parts.content += stripped(std::string_view(pending_).substr(0, open));
    pending_.erase(0, open + kOpen.size());
    state_ = State::header;
    return true;
  }
  // Blanks at the end of an answer with calls are no text.
  const std::size_t known = is_tagged && !is_last ? undecided_at(pending_)
                            : has_calls()         ? stripped(pending_).size()
                                                  : pending_.size();
  parts.content += pending_.substr(0, known);
  pending_.erase(0, known);
  return false;
}

// Of the call at `at`.
bool ToolCallReader::read_header(Parts& parts, bool is_last, std::size_t at) {
  Header header;
  const Match match = match_header(format_, std::string_view(pending_).substr(at), header);
  if (match == Match::more && !is_last) return false;
  if (match != Match::yes) {
    state_ = State::whole;
    return true;
  }
  parts.calls.push_back({.idx = num_calls_++, .name = std::move(header.name)});
  pending_.erase(0, at + header.size);
  state_ = State::arguments;
  return true;
}

bool ToolCallReader::skip_brackets(std::size_t& size) {
  while (size < pending_.size()) {
    const char c = pending_[size++];
    if (is_escaped_) {
      is_escaped_ = false;
    } else if (is_in_string_) {
      is_escaped_ = c == '\\';
      is_in_string_ = c != '"';
    } else if (c == '"') {
      is_in_string_ = true;
    } else if (c == '{' || c == '[') {
      ++depth_;
    } else if ((c == '}' || c == ']') && --depth_ == 0) {
      return true;
    }
  }
  return false;
}

bool ToolCallReader::read_arguments(Parts& parts) {
  std::size_t size = 0;
  const bool has_ended = skip_brackets(size);
  if (size > 0) {
    // A call's first piece comes with its name.
    if (parts.calls.empty() || parts.calls.back().idx != num_calls_ - 1)
      parts.calls.push_back({.idx = num_calls_ - 1});
    parts.calls.back().arguments += pending_.substr(0, size);
    pending_.erase(0, size);
  }
  if (!has_ended) return false;
  state_ = State::tail;
  depth_ = 1;  // of the call, which is open
  return true;
}

// What a call has behind its arguments is of no use.
bool ToolCallReader::read_tail() {
  std::size_t size = 0;
  if (format_ == CallFormat::tagged) {
    const std::size_t close = pending_.find(kClose);
    if (close == pending_.npos) return false;
    size = close + kClose.size();
    depth_ = 0;
  } else if (!skip_brackets(size)) {
    pending_.clear();
    return false;
  }
  pending_.erase(0, size);
  state_ = has_one_call_                 ? State::done
           : format_ == CallFormat::list ? State::separator
                                         : State::text;
  return true;
}

bool ToolCallReader::read_separator(Parts& parts, bool is_last) {
  std::size_t at = 0;
  if (match_literal(pending_, at, "]") == Match::yes) {
    pending_.erase(0, at);
    state_ = State::text;
    return true;
  }
  at = 0;
  Match match = match_literal(pending_, at, ",");
  if (match == Match::yes) match = match_literal(pending_, at, "{");
  if (match == Match::yes) return read_header(parts, is_last, at - 1);
  if (match == Match::more) {
    if (is_last) pending_.clear();  // the list is cut off
    return false;
  }
  state_ = State::text;
  return true;
}

// An answer, or what is left of a list.
bool ToolCallReader::read_whole(Parts& parts, bool is_last) {
  if (!is_last) return false;
  std::size_t at = 0;
  std::string text = pending_;
  if (has_calls() && match_literal(text, at, ",") == Match::yes)
    text = '[' + text.substr(at);
  else if (at = 0; match_literal(text, at, kList) == Match::yes)
    text.erase(0, at);
  Json calls = Json::parse(text, nullptr, false);
  if (format_ == CallFormat::object || (has_one_call_ && calls.is_array() && !calls.empty()))
    calls = Json::array({format_ == CallFormat::object ? calls : calls[0]});
  bool has_all = calls.is_array() && !calls.empty();
  const auto num_before = static_cast<std::ptrdiff_t>(parts.calls.size());
  const std::int64_t num_calls = num_calls_;
  for (const Json& call : calls)
    has_all = has_all && add_call(format_, call, parts.calls, num_calls_);
  if (!has_all) {
    parts.calls.erase(parts.calls.begin() + num_before, parts.calls.end());
    num_calls_ = num_calls;
    parts.content += pending_;
  }
  pending_.clear();
  return false;
}

bool ToolCallReader::read_tagged(Parts& parts, bool is_last) {
  const std::size_t close = pending_.find(kClose);
  if (close == pending_.npos && !is_last) return false;
  const std::string_view text = std::string_view(pending_).substr(0, close);
  if (!add_call(format_, Json::parse(text, nullptr, false), parts.calls, num_calls_)) {
    parts.content += kOpen;
    parts.content += text;
    if (close != pending_.npos) parts.content += kClose;
  }
  pending_.erase(0, close == pending_.npos ? pending_.size() : close + kClose.size());
  state_ = State::text;
  return !pending_.empty();
}

}  // namespace headrace::server
