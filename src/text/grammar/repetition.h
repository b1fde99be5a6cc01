// The repetitions of regular expressions and GBNF: * + ? {m} {m,} {m,n}.
#pragma once

#include "text/grammar/expression.h"
#include "text/grammar/reader.h"

namespace headrace::text {

// Wraps `item` if a repetition follows it.
Status parse_repetition(Reader& in, std::string_view what, Expression& item);

}  // namespace headrace::text
