#include "text/grammar/expression.h"

namespace headrace::text {

void build_utf8(Nfa& nfa, StateId from, StateId to, const CodePoints& set) {
  nfa.characters(from, to, set);
}

void build(Nfa& nfa, StateId from, StateId to, const Expression& expression,
           const CharacterFragment& characters) {
  if (nfa.is_full()) return;
  switch (expression.kind) {
    case Expression::Kind::characters:
      return characters(nfa, from, to, expression.characters);
    case Expression::Kind::rule:
      return nfa.call(from, to, expression.rule);
    case Expression::Kind::choice:
      for (const Expression& child : expression.children) build(nfa, from, to, child, characters);
      return;
    case Expression::Kind::sequence:
      for (const Expression& child : expression.children) {
        const StateId next = &child == &expression.children.back() ? to : nfa.add_state();
        build(nfa, from, next, child, characters);
        from = next;
      }
      if (expression.children.empty()) nfa.link(from, to);
      return;
    case Expression::Kind::repeat:
      return nfa.repeat(from, to, expression.min, expression.max, [&](StateId begin, StateId end) {
        build(nfa, begin, end, expression.children.front(), characters);
      });
  }
}

}  // namespace headrace::text
