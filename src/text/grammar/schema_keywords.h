// What the keywords of one JSON Schema say, checked.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "text/grammar/expression.h"
#include "text/grammar/json.h"
#include "text/grammar/json_text.h"

namespace headrace::text {

// `path` is the place of the schema in messages. All functions return invalid_argument or
// unsupported: place, keyword, rule, remedy.

// unsupported: a keyword that is not known, or that cannot stand beside another one.
Status check_keywords(const Json& schema, const std::string& path);
// A list of at least one element.
Status check_list(const Json& list, const std::string& path);
// Of the keyword type; empty: it is absent, as are keywords that need it.
Result<std::vector<std::string>> types_of(const Json& schema, const std::string& path);
// Whether a value has one of the types; empty: any.
bool has_type(const Json& value, const std::vector<std::string>& types);
// The place in `root` that a $ref names.
Result<const Json*> resolve_reference(const Json& root, const Json& ref, const std::string& path);

struct Counts {
  std::int64_t min = 0, max = kUnbounded;
};
Result<Counts> counts_of(const Json& schema, std::string_view min_key, std::string_view max_key,
                         const std::string& path);

struct StringRule {
  std::int64_t min = 0, max = kUnbounded;  // characters
  std::optional<Expression> pattern = {};  // of the whole string; from pattern or format
};
Result<StringRule> string_rule(const Json& schema, const std::string& path);

Result<Range> range_of(const Json& schema, const std::string& path, bool is_integer);

struct Property {
  std::string name;
  const Json* schema;
  bool is_required;
};
struct ObjectRule {
  std::vector<Property> properties = {};
  bool has_others = false;       // properties beside these
  const Json* others = nullptr;  // their schema; null: any value
};
Result<ObjectRule> object_rule(const Json& schema, const std::string& path);

}  // namespace headrace::text
