// Regular expressions, in the syntax that ECMAScript and Python share: literals, ., classes,
// \d \w \s \D \W \S, \n \r \t \f \v \0 \xHH \uHHHH, groups, | * + ? {m,n}. \d and \w are ASCII. A
// lazy quantifier matches the same texts as a greedy one.
#pragma once

#include <string_view>

#include "base/error.h"
#include "text/grammar/expression.h"

namespace headrace::text {

// whole: the whole text matches. search: some part does, as in JSON Schema; ^ and $ bind it to the
// ends.
enum class RegexMatch { whole, search };

// invalid_argument: line, column and rule. unsupported: lookaround, references to groups, \b, \p,
// ^ and $ elsewhere than at the ends of the expression's alternatives.
Result<Expression> parse_regex(std::string_view regex, RegexMatch match = RegexMatch::whole);

}  // namespace headrace::text
