// Reads JSON, for schemas: values with their texts, in the order of the text.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"

namespace headrace::text {

struct Json {
  enum class Kind { null, boolean, number, string, array, object };
  Kind kind = Kind::null;
  std::string text = {};  // of a string, decoded; of a number, boolean or null, as written
  std::vector<Json> elements = {};     // of an array; of an object, its values
  std::vector<std::string> keys = {};  // of an object

  bool is(Kind wanted) const { return kind == wanted; }
  const Json* find(std::string_view key) const;  // null: no such key
};

// invalid_argument: line, column and rule; a key that comes twice.
Result<Json> parse_json(std::string_view text);

// As a JSON string, with the quotes. Only what must be escaped is.
std::string quoted(std::string_view text);

}  // namespace headrace::text
