#include "tool_calls.h"

#include <nlohmann/json.hpp>
#include <utility>

namespace headrace::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kOpen = "<tool_call>", kClose = "</tool_call>", kBlanks = " \t\r\n";

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

// Reads {"name": "f", "arguments": up to the brace that opens the arguments.
Match match_header(std::string_view text, Header& header) {
  std::size_t at = 0;
  const auto literal = [&](std::string_view wanted) {
    at = std::min(text.find_first_not_of(kBlanks, at), text.size());
    const std::string_view found = text.substr(at, wanted.size());
    if (found != wanted.substr(0, found.size())) return Match::no;
    at += found.size();
    return found == wanted ? Match::yes : Match::more;
  };
  for (const char* wanted : {"{", "\"name\"", ":", "\""})
    if (const Match match = literal(wanted); match != Match::yes) return match;
  const std::size_t begin = at - 1;
  while (at < text.size() && text[at] != '"') at += text[at] == '\\' ? 2 : 1;
  if (at >= text.size()) return Match::more;
  const Json name = Json::parse(text.substr(begin, ++at - begin), nullptr, false);
  if (!name.is_string() || name == "") return Match::no;
  for (const char* wanted : {",", "\"arguments\"", ":", "{"})
    if (const Match match = literal(wanted); match != Match::yes) return match;
  header = {name.get<std::string>(), at - 1};
  return Match::yes;
}

}  // namespace

ToolCallReader::Parts ToolCallReader::read(std::string_view text, bool is_last) {
  Parts parts;
  pending_ += text;
  while (advance(parts, is_last)) {
  }
  return parts;
}

bool ToolCallReader::advance(Parts& parts, bool is_last) {
  switch (state_) {
    case State::text:
      return read_text(parts, is_last);
    case State::header:
      return read_header(parts, is_last);
    case State::arguments:
      return read_arguments(parts);
    case State::tail:
      return read_tail();
    case State::whole:
      break;
  }
  return read_whole(parts, is_last);
}

bool ToolCallReader::read_text(Parts& parts, bool is_last) {
  const std::size_t open = pending_.find(kOpen);
  if (open != pending_.npos) {
    parts.content += stripped(std::string_view(pending_).substr(0, open));
    pending_.erase(0, open + kOpen.size());
    state_ = State::header;
    return true;
  }
  // Blanks at the end of an answer with calls are no text.
  const std::size_t known = !is_last      ? undecided_at(pending_)
                            : has_calls() ? stripped(pending_).size()
                                          : pending_.size();
  parts.content += pending_.substr(0, known);
  pending_.erase(0, known);
  return false;
}

bool ToolCallReader::read_header(Parts& parts, bool is_last) {
  Header header;
  const Match match = match_header(pending_, header);
  if (match == Match::more && !is_last) return false;
  if (match != Match::yes) {
    state_ = State::whole;
    return true;
  }
  parts.calls.push_back({.idx = num_calls_++, .name = std::move(header.name)});
  pending_.erase(0, header.size);
  state_ = State::arguments;
  return true;
}

bool ToolCallReader::read_arguments(Parts& parts) {
  std::size_t size = 0;
  bool has_ended = false;
  while (size < pending_.size() && !has_ended) {
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
    } else if (c == '}' || c == ']') {
      has_ended = --depth_ == 0;
    }
  }
  if (size > 0) {
    // A call's first piece comes with its name.
    if (parts.calls.empty() || parts.calls.back().idx != num_calls_ - 1)
      parts.calls.push_back({.idx = num_calls_ - 1});
    parts.calls.back().arguments += pending_.substr(0, size);
    pending_.erase(0, size);
  }
  if (has_ended) state_ = State::tail;
  return has_ended;
}

bool ToolCallReader::read_tail() {
  const std::size_t close = pending_.find(kClose);
  if (close == pending_.npos) return false;
  pending_.erase(0, close + kClose.size());
  state_ = State::text;
  return true;
}

bool ToolCallReader::read_whole(Parts& parts, bool is_last) {
  const std::size_t close = pending_.find(kClose);
  if (close == pending_.npos && !is_last) return false;
  const std::string_view text = std::string_view(pending_).substr(0, close);
  const Json call = Json::parse(text, nullptr, false);
  const auto name = call.is_object() ? call.find("name") : call.end();
  const auto arguments = call.is_object() ? call.find("arguments") : call.end();
  if (name != call.end() && name->is_string() && *name != "" && arguments != call.end()) {
    parts.calls.push_back(
        {.idx = num_calls_++,
         .name = name->get<std::string>(),
         .arguments = arguments->is_string() ? arguments->get<std::string>() : arguments->dump()});
  } else {
    parts.content += kOpen;
    parts.content += text;
    if (close != pending_.npos) parts.content += kClose;
  }
  pending_.erase(0, close == pending_.npos ? pending_.size() : close + kClose.size());
  state_ = State::text;
  return !pending_.empty();
}

}  // namespace headrace::server
