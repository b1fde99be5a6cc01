// Grammars in GBNF, the syntax of llama.cpp:
//
//   root ::= "yes" | "no" digits    # a rule named root is where a text begins
//   digits ::= [0-9]+               # literals, classes, . ( ) | * + ? {m} {m,} {m,n}
//
// Rules end with their line, except inside parentheses and after |.
#pragma once

#include <string_view>

#include "base/error.h"
#include "text/grammar/nfa.h"

namespace headrace::text {

// invalid_argument: line, column and rule.
Result<Nfa> parse_gbnf(std::string_view gbnf);

}  // namespace headrace::text
