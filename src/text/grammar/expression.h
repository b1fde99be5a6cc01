// Expressions over characters: what regular expressions and GBNF rules are parsed into.
#pragma once

#include <memory>
#include <vector>

#include "text/grammar/nfa.h"

namespace headrace::text {

struct Expression {
  enum class Kind { characters, sequence, choice, repeat, rule };
  Kind kind = Kind::sequence;
  CodePoints characters = {};
  std::vector<Expression> children = {};  // repeat: one
  std::int64_t min = 0, max = 0;          // of repeat
  RuleId rule = 0;
};

// Builds one character of a class between two states.
using CharacterFragment = std::function<void(Nfa&, StateId from, StateId to, const CodePoints&)>;

void build_utf8(Nfa& nfa, StateId from, StateId to, const CodePoints& set);
void build(Nfa& nfa, StateId from, StateId to, const Expression& expression,
           const CharacterFragment& characters = build_utf8);

}  // namespace headrace::text
