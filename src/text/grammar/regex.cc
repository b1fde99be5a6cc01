#include "text/grammar/regex.h"

#include <utility>

#include "text/grammar/reader.h"
#include "text/grammar/repetition.h"

namespace headrace::text {
namespace {

constexpr std::string_view kWhat = "regex";

const CodePoints& digits() {
  static const CodePoints kDigits = {{'0', '9'}};
  return kDigits;
}
const CodePoints& word_characters() {
  static const CodePoints kWord = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
  return kWord;
}
// ECMAScript's WhiteSpace and LineTerminator.
const CodePoints& spaces() {
  static const CodePoints kSpaces = {
      {'\t', '\r'},     {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
      {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
  return kSpaces;
}
CodePoints any_character() { return complement({}); }
CodePoints any_but_line_ends() {
  return complement({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}});
}

Expression characters(CodePoints set) {
  return {.kind = Expression::Kind::characters, .characters = normalise(std::move(set))};
}

Expression any_text() {
  return {.kind = Expression::Kind::repeat,
          .children = {characters(any_character())},
          .min = 0,
          .max = kUnbounded};
}

class Parser {
 public:
  Parser(std::string_view regex, RegexMatch match) : in_(regex), match_(match) {}

  Result<Expression> run() {
    Result<Expression> all = alternatives(0);
    if (all.ok() && !in_.at_end())
      return in_.fail(kWhat, "')' without '('", "write \\) for the character");
    return all;
  }

 private:
  Result<Expression> alternatives(int depth) {
    if (depth > kMaxGrammarNesting)
      return in_.fail(kWhat, "groups are nested too deeply", "use at most 200 levels");
    Expression all{.kind = Expression::Kind::choice};
    do {
      Result<Expression> one = sequence(depth);
      if (!one.ok()) return one;
      all.children.push_back(std::move(one.value()));
    } while (in_.take("|"));
    return all;
  }

  Result<Expression> sequence(int depth) {
    Expression all;
    const bool is_search = depth == 0 && match_ == RegexMatch::search;
    const bool begins = depth == 0 && in_.take("^");
    if (is_search && !begins) all.children.push_back(any_text());
    bool ends = false;
    while (!in_.at_end() && in_.peek() != '|' && in_.peek() != ')') {
      if (depth == 0 && in_.peek() == '$' && (in_.peek(1) == '|' || in_.peek(1) == '\0')) {
        in_.skip(1);
        ends = true;
        break;
      }
      Result<Expression> item = atom(depth);
      if (!item.ok()) return item;
      if (auto bad = parse_repetition(in_, kWhat, item.value())) return std::move(*bad);
      if (item.value().kind == Expression::Kind::repeat) static_cast<void>(in_.take("?"));  // lazy
      all.children.push_back(std::move(item.value()));
    }
    if (is_search && !ends) all.children.push_back(any_text());
    return all;
  }

  Result<Expression> atom(int depth) {
    switch (in_.peek()) {
      case '(':
        return group(depth);
      case '[':
        return bracket();
      case '.':
        in_.skip(1);
        return characters(any_but_line_ends());
      case '\\': {
        Result<CodePoints> set = escape(false);
        if (!set.ok()) return std::move(set.failure());
        return characters(std::move(set.value()));
      }
      case '^':
      case '$':
        return unsupported_here("^ and $ inside the expression",
                                "use them at its beginning and end, or write \\^ and \\$");
      case '*':
      case '+':
      case '?':
        return in_.fail(kWhat, "nothing to repeat", "write \\* \\+ \\? for the characters");
      default: {
        Result<char32_t> c = in_.character(kWhat);
        if (!c.ok()) return std::move(c.failure());
        return characters({{c.value(), c.value()}});
      }
    }
  }

  Result<Expression> group(int depth) {
    in_.skip(1);
    if (in_.take("?")) {
      const bool is_named =
          (in_.take("P<") || in_.take("<")) && in_.peek() != '=' && in_.peek() != '!';
      if (is_named) {
        while (!in_.at_end() && in_.peek() != '>') in_.skip(1);
        if (!in_.take(">")) return in_.fail(kWhat, "a group's name does not end", "write (?<name>");
      } else if (!in_.take(":")) {
        return unsupported_here("lookaround and flags of groups", "use (?:...)");
      }
    }
    Result<Expression> inner = alternatives(depth + 1);
    if (inner.ok() && !in_.take(")"))
      return in_.fail(kWhat, "a group does not end", "add ')', or write \\( for the character");
    return inner;
  }

  // Behind the backslash, which it skips.
  Result<CodePoints> escape(bool is_in_class) {
    in_.skip(1);
    const char c = in_.peek();
    if (c == 'b' && is_in_class) return single('\b');
    switch (c) {
      case 'd':
        return taken(digits());
      case 'D':
        return taken(complement(digits()));
      case 'w':
        return taken(word_characters());
      case 'W':
        return taken(complement(word_characters()));
      case 's':
        return taken(spaces());
      case 'S':
        return taken(complement(spaces()));
      case 'n':
        return single('\n');
      case 'r':
        return single('\r');
      case 't':
        return single('\t');
      case 'f':
        return single('\f');
      case 'v':
        return single('\v');
      case '0':
        return single(0);
      case 'x':
        in_.skip(1);
        return code_point(in_.hex(2, 2));
      case 'u':
        in_.skip(1);
        return unicode_escape();
      default:
        break;
    }
    if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
      return unsupported_here(format_text("\\{}", c), "write the characters it stands for");
    Result<char32_t> literal = in_.character(kWhat);
    if (!literal.ok()) return std::move(literal.failure());
    return CodePoints{{literal.value(), literal.value()}};
  }

  Result<CodePoints> taken(CodePoints set) {
    in_.skip(1);
    return set;
  }
  Result<CodePoints> single(char32_t c) { return taken({{c, c}}); }
  Result<CodePoints> code_point(std::optional<char32_t> c) {
    if (!c)
      return in_.fail(kWhat, "not the hexadecimal digits of a character",
                      "write \\xHH, \\uHHHH or \\u{H...}");
    return CodePoints{{*c, *c}};
  }
  Result<CodePoints> unicode_escape() {
    if (!in_.take("{")) return code_point(in_.hex(4, 4));
    Result<CodePoints> set = code_point(in_.hex(1, 6));
    if (set.ok() && !in_.take("}")) return in_.fail(kWhat, "\\u{ does not end", "add '}'");
    return set;
  }

  Result<CodePoints> class_item() {
    if (in_.peek() == '\\') return escape(true);
    Result<char32_t> c = in_.character(kWhat);
    if (!c.ok()) return std::move(c.failure());
    return CodePoints{{c.value(), c.value()}};
  }

  Result<Expression> bracket() {
    in_.skip(1);
    const bool is_negated = in_.take("^");
    CodePoints set;
    while (in_.peek() != ']') {
      if (in_.at_end())
        return in_.fail(kWhat, "a class does not end", "add ']', or write \\[ for the character");
      Result<CodePoints> first = class_item();
      if (!first.ok()) return std::move(first.failure());
      if (in_.peek() == '-' && in_.peek(1) != ']' && in_.peek(1) != '\0') {
        in_.skip(1);
        Result<CodePoints> last = class_item();
        if (!last.ok()) return std::move(last.failure());
        const CodePoints &a = first.value(), &b = last.value();
        if (a.size() != 1 || b.size() != 1 || a[0].first != a[0].last || b[0].first != b[0].last ||
            a[0].first > b[0].last)
          return in_.fail(kWhat, "not a range of characters",
                          "write the lower one first, and \\- for the character -");
        set.push_back({a[0].first, b[0].last});
      } else {
        set.insert(set.end(), first.value().begin(), first.value().end());
      }
    }
    in_.skip(1);
    return characters(is_negated ? complement(std::move(set)) : std::move(set));
  }

  Failure unsupported_here(std::string_view what, std::string_view remedy) const {
    Failure failure = in_.fail(kWhat, format_text("{}: not supported", what), remedy);
    failure.code = ErrorCode::unsupported;
    return failure;
  }

  Reader in_;
  RegexMatch match_;
};

}  // namespace

Result<Expression> parse_regex(std::string_view regex, RegexMatch match) {
  return Parser(regex, match).run();
}

}  // namespace headrace::text
