#include "text/grammar/json.h"

#include <algorithm>
#include <set>

#include "text/grammar/reader.h"

namespace headrace::text {
namespace {

constexpr std::string_view kWhat = "json_schema";
constexpr std::string_view kRemedy = "pass valid JSON";

void append_utf8(std::string& text, char32_t c) {
  const auto add = [&](char32_t byte) { text += static_cast<char>(byte); };
  if (c < 0x80) return add(c);
  if (c < 0x800) {
    add(0xC0 | c >> 6);
  } else {
    if (c < 0x10000) {
      add(0xE0 | c >> 12);
    } else {
      add(0xF0 | c >> 18);
      add(0x80 | (c >> 12 & 0x3F));
    }
    add(0x80 | (c >> 6 & 0x3F));
  }
  add(0x80 | (c & 0x3F));
}

class Parser {
 public:
  explicit Parser(std::string_view text) : in_(text) {}

  Result<Json> run() {
    Json value;
    if (Status bad = read(value, 0)) return std::move(*bad);
    skip_space();
    if (!in_.at_end()) return wrong("text after the value");
    return value;
  }

 private:
  Failure wrong(std::string_view problem) const { return in_.fail(kWhat, problem, kRemedy); }

  void skip_space() {
    while (in_.peek() == ' ' || in_.peek() == '\n' || in_.peek() == '\r' || in_.peek() == '\t')
      in_.skip(1);
  }

  Status read(Json& value, int depth) {
    if (depth > kMaxGrammarNesting)
      return in_.fail(kWhat, "nested too deeply", "use at most 200 levels");
    skip_space();
    const std::size_t begin = in_.position();
    switch (in_.peek()) {
      case '{':
        return read_object(value, depth);
      case '[':
        return read_array(value, depth);
      case '"':
        value.kind = Json::Kind::string;
        return read_string(value.text);
      case 't':
      case 'f':
        if (!in_.take("true") && !in_.take("false")) return wrong("not a value");
        value.kind = Json::Kind::boolean;
        break;
      case 'n':
        if (!in_.take("null")) return wrong("not a value");
        break;
      default:
        value.kind = Json::Kind::number;
        HEADRACE_TRY(read_number());
    }
    value.text = in_.since(begin);
    return std::nullopt;
  }

  bool skip_digits() {
    const std::size_t begin = in_.position();
    while (in_.peek() >= '0' && in_.peek() <= '9') in_.skip(1);
    return in_.position() > begin;
  }

  Status read_number() {
    static_cast<void>(in_.take("-"));
    if (!in_.take("0") && !skip_digits()) return wrong("not a value");
    if (in_.take(".") && !skip_digits()) return wrong("no digits after the point of a number");
    if (in_.take("e") || in_.take("E")) {
      static_cast<void>(in_.take("+") || in_.take("-"));
      if (!skip_digits()) return wrong("no digits in the exponent of a number");
    }
    return std::nullopt;
  }

  Status read_string(std::string& text) {
    in_.skip(1);
    while (!in_.take("\"")) {
      if (in_.take("\\")) {
        HEADRACE_TRY(read_escape(text));
        continue;
      }
      Result<char32_t> c = in_.character(kWhat);
      if (!c.ok()) return std::move(c.failure());
      if (c.value() < 0x20) return wrong("a control character in a string");
      append_utf8(text, c.value());
    }
    return std::nullopt;
  }

  Status read_escape(std::string& text) {
    const std::string_view names = "\"\\/bfnrt", values = "\"\\/\b\f\n\r\t";
    const char c = in_.peek();
    if (const auto i = names.find(c); c != '\0' && i != names.npos) {
      text += values[i];
      in_.skip(1);
      return std::nullopt;
    }
    if (!in_.take("u")) return wrong("not an escape");
    const std::size_t begin = in_.position();
    if (const auto single = in_.hex(4, 4)) {
      append_utf8(text, *single);
      return std::nullopt;
    }
    in_.seek(begin);
    const auto high = surrogate(), low = in_.take("\\u") ? surrogate() : std::nullopt;
    if (!high || !low || *high >= 0xDC00 || *low < 0xDC00) return wrong("not a \\u escape");
    append_utf8(text, 0x10000 + ((*high - 0xD800) << 10) + (*low - 0xDC00));
    return std::nullopt;
  }

  // Four digits of a surrogate: d, then three.
  std::optional<char32_t> surrogate() {
    if (!in_.take("d") && !in_.take("D")) return std::nullopt;
    const auto rest = in_.hex(3, 3);
    if (!rest || *rest < 0x800) return std::nullopt;
    return 0xD000 + *rest;
  }

  // Calls read_item() for each item up to `close`.
  template <class ReadItem>
  Status read_items(char close, ReadItem read_item) {
    in_.skip(1);
    skip_space();
    if (in_.take({&close, 1})) return std::nullopt;
    for (;;) {
      HEADRACE_TRY(read_item());
      skip_space();
      if (in_.take({&close, 1})) return std::nullopt;
      if (!in_.take(",")) return wrong("no comma between items");
    }
  }

  Status read_array(Json& value, int depth) {
    value.kind = Json::Kind::array;
    return read_items(']', [&] { return read(value.elements.emplace_back(), depth + 1); });
  }

  Status read_object(Json& value, int depth) {
    value.kind = Json::Kind::object;
    std::set<std::string> seen;
    return read_items('}', [&]() -> Status {
      skip_space();
      if (in_.peek() != '"') return wrong("no key in quotes");
      HEADRACE_TRY(read_string(value.keys.emplace_back()));
      if (!seen.insert(value.keys.back()).second)
        return wrong(format_text("a second key '{}'", value.keys.back()));
      skip_space();
      if (!in_.take(":")) return wrong("no colon after a key");
      return read(value.elements.emplace_back(), depth + 1);
    });
  }

  Reader in_;
};

}  // namespace

const Json* Json::find(std::string_view key) const {
  const auto found = std::ranges::find(keys, key);
  return found == keys.end() ? nullptr : &elements[static_cast<std::size_t>(found - keys.begin())];
}

Result<Json> parse_json(std::string_view text) { return Parser(text).run(); }

std::string quoted(std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  constexpr std::string_view values = "\"\\\b\f\n\r\t", names = "\"\\bfnrt";
  std::string all = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (const auto i = values.find(c); i != values.npos) {
      all += '\\';
      all += names[i];
    } else if (byte < 0x20) {
      all += "\\u00";
      all += kHex[byte >> 4];
      all += kHex[byte & 15];
    } else {
      all += c;
    }
  }
  return all + '"';
}

}  // namespace headrace::text
