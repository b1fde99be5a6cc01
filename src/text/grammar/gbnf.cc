#include "text/grammar/gbnf.h"

#include <map>
#include <string>
#include <utility>

#include "text/grammar/expression.h"
#include "text/grammar/reader.h"
#include "text/grammar/repetition.h"

namespace headrace::text {
namespace {

constexpr std::string_view kWhat = "grammar";

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_';
}

class Parser {
 public:
  explicit Parser(std::string_view gbnf) : in_(gbnf) { rule_of("root"); }

  Result<Nfa> run() {
    for (skip_space(true); !in_.at_end(); skip_space(true))
      if (Status bad = rule()) return std::move(*bad);
    for (const auto& [name, rule] : rules_)
      if (!rule.is_defined)
        return invalid_argument("grammar: no rule '{}'; add {} ::= ...", name, name);
    return std::move(nfa_);
  }

 private:
  struct Rule {
    RuleId id;
    bool is_defined;
  };

  Rule& rule_of(const std::string& name) {
    const auto found = rules_.find(name);
    if (found != rules_.end()) return found->second;
    return rules_.emplace(name, Rule{nfa_.add_rule(name), false}).first->second;
  }

  // Skips blanks and comments; with `and_lines`, ends of lines too.
  void skip_space(bool and_lines) {
    for (;;) {
      const char c = in_.peek();
      if (c == '#')
        while (!in_.at_end() && in_.peek() != '\n') in_.skip(1);
      else if (c == ' ' || c == '\t' || c == '\r' || (and_lines && c == '\n'))
        in_.skip(1);
      else
        return;
    }
  }

  Result<std::string> name() {
    const std::size_t begin = in_.position();
    while (is_name_character(in_.peek())) in_.skip(1);
    if (in_.position() == begin)
      return in_.fail(kWhat, "not the name of a rule",
                      "names have letters, digits, '-' and '_'; literals are in quotes");
    return std::string(in_.since(begin));
  }

  Status rule() {
    Result<std::string> named = name();
    if (!named.ok()) return std::move(named.failure());
    if (rule_of(named.value()).is_defined)
      return in_.fail(kWhat, format_text("a second rule '{}'", named.value()),
                      "write its alternatives as one rule with |");
    skip_space(false);
    if (!in_.take("::=")) return in_.fail(kWhat, "no ::= after the name of a rule", "add it");
    skip_space(true);
    Result<Expression> body = alternatives(0);
    if (!body.ok()) return std::move(body.failure());
    if (!in_.at_end() && in_.peek() != '\n')
      return in_.fail(kWhat, "not a part of a rule",
                      "use literals in quotes, classes, names of rules and groups");
    if (nfa_.is_full()) return std::nullopt;  // Automaton::make() reports it
    Rule& defined = rule_of(named.value());
    defined.is_defined = true;
    build(nfa_, nfa_.start(defined.id), nfa_.end(defined.id), body.value());
    return std::nullopt;
  }

  Result<Expression> alternatives(int depth) {
    if (depth > kMaxGrammarNesting)
      return in_.fail(kWhat, "groups are nested too deeply", "use at most 200 levels");
    Expression all{.kind = Expression::Kind::choice};
    for (;;) {
      Result<Expression> one = sequence(depth);
      if (!one.ok()) return one;
      all.children.push_back(std::move(one.value()));
      const std::size_t end = in_.position();
      skip_space(true);  // | may begin a line
      if (!in_.take("|")) {
        in_.seek(end);
        return all;
      }
      skip_space(true);
    }
  }

  Result<Expression> sequence(int depth) {
    Expression all;
    for (;;) {
      const char c = in_.peek();
      const bool is_item = c == '"' || c == '[' || c == '.' || c == '(' || is_name_character(c);
      if (!is_item) return all;
      Result<Expression> one = item(depth);
      if (!one.ok()) return one;
      skip_space(depth > 0);
      if (Status bad = parse_repetition(in_, kWhat, one.value())) return std::move(*bad);
      skip_space(depth > 0);
      all.children.push_back(std::move(one.value()));
    }
  }

  Result<Expression> item(int depth) {
    if (in_.peek() == '"') return literal();
    if (in_.peek() == '[') return bracket();
    if (in_.take("."))
      return Expression{.kind = Expression::Kind::characters, .characters = complement({})};
    if (in_.take("(")) {
      skip_space(true);
      Result<Expression> inner = alternatives(depth + 1);
      if (inner.ok() && !in_.take(")")) return in_.fail(kWhat, "a group does not end", "add ')'");
      return inner;
    }
    Result<std::string> called = name();
    if (!called.ok()) return std::move(called.failure());
    return Expression{.kind = Expression::Kind::rule, .rule = rule_of(called.value()).id};
  }

  Result<Expression> literal() {
    in_.skip(1);
    Expression all;
    while (!in_.take("\"")) {
      if (in_.at_end() || in_.peek() == '\n')
        return in_.fail(kWhat, "a literal does not end", "add '\"'");
      Result<char32_t> c = character();
      if (!c.ok()) return std::move(c.failure());
      all.children.push_back({.kind = Expression::Kind::characters,
                              .characters = normalise({{c.value(), c.value()}})});
    }
    return all;
  }

  Result<char32_t> character() {
    if (!in_.take("\\")) return in_.character(kWhat);
    const char c = in_.peek();
    in_.skip(in_.at_end() ? 0 : 1);
    switch (c) {
      case 'n':
        return U'\n';
      case 'r':
        return U'\r';
      case 't':
        return U'\t';
      case '\\':
      case '"':
      case '[':
      case ']':
      case '-':
      case '^':
        return static_cast<char32_t>(c);
      case 'x':
        return code_point(in_.hex(2, 2));
      case 'u':
        return code_point(in_.hex(4, 4));
      case 'U':
        return code_point(in_.hex(8, 8));
      default:
        return in_.fail(kWhat, "not an escape",
                        "use \\n \\r \\t \\\\ \\\" \\[ \\] \\- \\^ \\xHH \\uHHHH \\UHHHHHHHH");
    }
  }

  Result<char32_t> code_point(std::optional<char32_t> c) {
    if (!c)
      return in_.fail(kWhat, "not the hexadecimal digits of a character",
                      "write \\xHH, \\uHHHH or \\UHHHHHHHH");
    return *c;
  }

  Result<Expression> bracket() {
    in_.skip(1);
    const bool is_negated = in_.take("^");
    CodePoints set;
    while (!in_.take("]")) {
      if (in_.at_end() || in_.peek() == '\n')
        return in_.fail(kWhat, "a class does not end", "add ']'");
      Result<char32_t> first = character();
      if (!first.ok()) return std::move(first.failure());
      char32_t last = first.value();
      if (in_.peek() == '-' && in_.peek(1) != ']') {
        in_.skip(1);
        Result<char32_t> second = character();
        if (!second.ok()) return std::move(second.failure());
        last = second.value();
      }
      if (last < first.value())
        return in_.fail(kWhat, "not a range of characters", "write the lower one first");
      set.push_back({first.value(), last});
    }
    return Expression{
        .kind = Expression::Kind::characters,
        .characters = is_negated ? complement(std::move(set)) : normalise(std::move(set))};
  }

  Reader in_;
  Nfa nfa_;
  std::map<std::string, Rule> rules_;
};

}  // namespace

Result<Nfa> parse_gbnf(std::string_view gbnf) { return Parser(gbnf).run(); }

}  // namespace headrace::text
