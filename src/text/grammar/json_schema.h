// JSON Schema to an Nfa. Supported: type, properties, required, additionalProperties, items,
// minItems, maxItems, enum, const, anyOf, allOf of one schema, $ref to a place in the schema,
// minLength, maxLength, pattern, format, minimum, maximum and their exclusive forms. Any other
// keyword is refused by its name; annotations such as title have no effect.
//
// Two things are narrower than the standard, as in OpenAI's structured outputs: properties come in
// the order of the schema, and an object with `properties` has no others unless
// additionalProperties says so.
#pragma once

#include <string_view>

#include "base/error.h"
#include "text/grammar/nfa.h"

namespace headrace::text {

// invalid_argument, unsupported: the place in the schema, the rule, the remedy.
Result<Nfa> parse_json_schema(std::string_view schema);

}  // namespace headrace::text
