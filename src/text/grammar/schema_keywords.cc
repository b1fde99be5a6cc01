#include "text/grammar/schema_keywords.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <span>

#include "text/grammar/reader.h"
#include "text/grammar/regex.h"

namespace headrace::text {
namespace {

using Names = std::vector<std::string_view>;

const Names kAnnotations = {"title",    "description", "default",  "examples",
                            "$schema",  "$id",         "$comment", "deprecated",
                            "readOnly", "writeOnly",   "$defs",    "definitions"};
const Names kTypes = {"object", "array", "string", "number", "integer", "boolean", "null"};
// Keywords that constrain values of one type.
const Names kOfTypes = {"properties",
                        "required",
                        "additionalProperties",
                        "items",
                        "minItems",
                        "maxItems",
                        "minLength",
                        "maxLength",
                        "pattern",
                        "format",
                        "minimum",
                        "maximum",
                        "exclusiveMinimum",
                        "exclusiveMaximum"};

bool contains(std::span<const std::string_view> names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

std::string joined(std::span<const std::string_view> names) {
  std::string all;
  for (const std::string_view name : names) {
    if (!all.empty()) all += ", ";
    all += name;
  }
  return all;
}

// Months with their days. February has 28, so that every year fits. The year 0000, which RFC 3339
// has, is none in Python and others.
constexpr std::string_view kDate =
    "(\\d{3}[1-9]|\\d\\d[1-9]\\d|\\d[1-9]\\d\\d|[1-9]\\d{3})-"
    "((0[13578]|1[02])-(0[1-9]|[12]\\d|3[01])|(0[469]|11)-(0[1-9]|[12]\\d|30)|"
    "02-(0[1-9]|1\\d|2[0-8]))";
constexpr std::string_view kTime =
    "([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d{1,9})?(Z|[+-]([01]\\d|2[0-3]):[0-5]\\d)";
constexpr std::string_view kOctet = "(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)";
constexpr std::string_view kLabel = "[A-Za-z0-9]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?";

const std::map<std::string_view, std::string>& formats() {
  static const auto kFormats = [] {
    const std::string date(kDate), time(kTime), octet(kOctet), label(kLabel);
    const std::string hostname = label + "(\\." + label + "){0,6}";
    return std::map<std::string_view, std::string>{
        {"date", date},
        {"time", time},
        {"date-time", date + "T" + time},
        {"duration",
         "P((\\d+W)|(\\d+Y(\\d+M(\\d+D)?)?|\\d+M(\\d+D)?|\\d+D)"
         "(T(\\d+H(\\d+M(\\d+S)?)?|\\d+M(\\d+S)?|\\d+S))?|"
         "T(\\d+H(\\d+M(\\d+S)?)?|\\d+M(\\d+S)?|\\d+S))"},
        {"email", "[A-Za-z0-9_+-]{1,32}(\\.[A-Za-z0-9_+-]{1,32}){0,3}@" + hostname},
        {"hostname", hostname},
        {"ipv4", octet + "(\\." + octet + "){3}"},
        {"uuid", "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"},
    };
  }();
  return kFormats;
}

std::optional<double> number_of(const Json& value) {
  double number = 0;
  const char* const end = value.text.data() + value.text.size();
  if (!value.is(Json::Kind::number) || std::from_chars(value.text.data(), end, number).ptr != end ||
      !std::isfinite(number))
    return std::nullopt;
  return number;
}

}  // namespace

// ---- any schema ----

Status check_keywords(const Json& schema, const std::string& path) {
  const Names combined = {"$ref", "enum", "const", "anyOf", "allOf"};
  Names used;  // beside annotations
  for (const std::string& key : schema.keys) {
    if (contains(kAnnotations, key)) continue;
    if (key != "type" && !contains(kOfTypes, key) && !contains(combined, key))
      return unsupported(
          "json_schema: {}: keyword '{}' is not supported; remove it, or say it with type, {}, {}",
          path, key, joined(combined), joined(kOfTypes));
    used.push_back(key);
  }
  for (const std::string_view key : used) {
    if (!contains(combined, key)) continue;
    const bool has_values = key == "enum" || key == "const";
    for (const std::string_view other : used) {
      const bool is_allowed = other == key || (has_values && other == "type");
      if (!is_allowed)
        return unsupported(
            "json_schema: {}: '{}' beside '{}' is not supported; move it into a schema of its own",
            path, other, key);
    }
  }
  const Json* all = schema.find("allOf");
  if (all != nullptr && all->elements.size() > 1)
    return unsupported("json_schema: {}: allOf of {} schemas is not supported; merge them into one",
                       path, all->elements.size());
  return std::nullopt;
}

Status check_list(const Json& list, const std::string& path) {
  if (list.is(Json::Kind::array) && !list.elements.empty()) return std::nullopt;
  return invalid_argument("json_schema: {}: must be a list with at least one element; add some",
                          path);
}

Result<std::vector<std::string>> types_of(const Json& schema, const std::string& path) {
  const Json* type = schema.find("type");
  std::vector<std::string> types;
  if (type == nullptr) {
    for (const std::string& key : schema.keys)
      if (contains(kOfTypes, key))
        return invalid_argument("json_schema: {}: '{}' without 'type'; add \"type\"", path, key);
    return types;
  }
  const std::span<const Json> all =
      type->is(Json::Kind::array) ? std::span(type->elements) : std::span(type, 1);
  for (const Json& one : all) {
    if (!one.is(Json::Kind::string) || !contains(kTypes, one.text))
      return invalid_argument("json_schema: {}/type: not a type; choose from {}", path,
                              joined(kTypes));
    types.push_back(one.text);
  }
  if (types.empty())
    return invalid_argument("json_schema: {}/type: an empty list; choose from {}", path,
                            joined(kTypes));
  return types;
}

bool has_type(const Json& value, const std::vector<std::string>& types) {
  const auto has = [&](std::string_view type) {
    switch (value.kind) {
      case Json::Kind::null:
        return type == "null";
      case Json::Kind::boolean:
        return type == "boolean";
      case Json::Kind::string:
        return type == "string";
      case Json::Kind::array:
        return type == "array";
      case Json::Kind::object:
        return type == "object";
      case Json::Kind::number: {
        const std::optional<double> number = number_of(value);
        return type == "number" || (type == "integer" && number && *number == std::floor(*number));
      }
    }
    return false;
  };
  return types.empty() || std::ranges::any_of(types, has);
}

Result<const Json*> resolve_reference(const Json& root, const Json& ref, const std::string& path) {
  if (!ref.is(Json::Kind::string) || !ref.text.starts_with('#'))
    return unsupported(
        "json_schema: {}/$ref: must name a place in this schema; use \"#/$defs/...\"", path);
  const Json* at = &root;
  std::string_view left = std::string_view(ref.text).substr(1);
  const auto missing = [&] {
    return invalid_argument("json_schema: {}/$ref: no '{}' in the schema; add it", path, ref.text);
  };
  while (!left.empty()) {
    if (left.front() != '/') return missing();
    left.remove_prefix(1);
    const std::size_t end = std::min(left.find('/'), left.size());
    std::string key;
    for (std::size_t i = 0; i < end; ++i) {
      const bool is_escape = left[i] == '~' && i + 1 < end;
      if (is_escape) ++i;
      key += !is_escape ? left[i] : left[i] == '1' ? '/' : '~';
    }
    left.remove_prefix(end);
    std::size_t idx = 0;
    if (at->is(Json::Kind::array) &&
        std::from_chars(key.data(), key.data() + key.size(), idx).ptr == key.data() + key.size() &&
        idx < at->elements.size())
      at = &at->elements[idx];
    else
      at = at->find(key);
    if (at == nullptr) return missing();
  }
  return at;
}

// ---- one type ----

Result<Counts> counts_of(const Json& schema, std::string_view min_key, std::string_view max_key,
                         const std::string& path) {
  Counts counts;
  for (const auto& [key, to] : {std::pair{min_key, &counts.min}, std::pair{max_key, &counts.max}}) {
    const Json* value = schema.find(key);
    if (value == nullptr) continue;
    const std::optional<double> number = number_of(*value);
    if (!number || *number < 0 || *number > static_cast<double>(kMaxRepetitions) ||
        *number != std::floor(*number))
      return invalid_argument("json_schema: {}/{}: must be a whole number, 0 to {}; change it",
                              path, key, kMaxRepetitions);
    *to = static_cast<std::int64_t>(*number);
  }
  if (counts.max != kUnbounded && counts.max < counts.min)
    return invalid_argument("json_schema: {}: {} exceeds {}; exchange them", path, min_key,
                            max_key);
  return counts;
}

Result<StringRule> string_rule(const Json& schema, const std::string& path) {
  Result<Counts> counts = counts_of(schema, "minLength", "maxLength", path);
  if (!counts.ok()) return std::move(counts.failure());
  StringRule rule{.min = counts.value().min, .max = counts.value().max};
  const Json* pattern = schema.find("pattern");
  const Json* format = schema.find("format");
  const bool has_length = rule.min > 0 || rule.max != kUnbounded;
  if ((pattern != nullptr) + (format != nullptr) + has_length > 1)
    return unsupported(
        "json_schema: {}: only one of 'pattern', 'format' and a length is supported; write the "
        "length in the pattern",
        path);
  if (pattern == nullptr && format == nullptr) return rule;
  std::string_view regex;
  if (format != nullptr) {
    const auto known = formats().find(format->text);
    Names names;
    for (const auto& [name, text] : formats()) names.push_back(name);
    if (!format->is(Json::Kind::string) || known == formats().end())
      return unsupported("json_schema: {}/format: '{}' is not supported; choose from {}", path,
                         format->text, joined(names));
    regex = known->second;
  } else {
    if (!pattern->is(Json::Kind::string))
      return invalid_argument("json_schema: {}/pattern: must be a string; pass an expression",
                              path);
    regex = pattern->text;
  }
  Result<Expression> parsed =
      parse_regex(regex, pattern != nullptr ? RegexMatch::search : RegexMatch::whole);
  if (!parsed.ok()) {
    Failure& failure = parsed.failure();
    return Failure{failure.code, format_text("json_schema: {}/pattern: {}", path, failure.message)};
  }
  rule.pattern = std::move(parsed.value());
  return rule;
}

Result<Range> range_of(const Json& schema, const std::string& path, bool is_integer) {
  constexpr double kMax = 9007199254740992.0;  // 2^53: up to it, doubles hold every whole number
  Range range;
  const struct {
    std::string_view key;
    std::optional<Bound>& to;
    bool is_min, is_exclusive;
  } keys[] = {{"minimum", range.min, true, false},
              {"exclusiveMinimum", range.min, true, true},
              {"maximum", range.max, false, false},
              {"exclusiveMaximum", range.max, false, true}};
  for (const auto& [key, to, is_min, is_exclusive] : keys) {
    const Json* value = schema.find(key);
    if (value == nullptr) continue;
    const std::optional<double> number = number_of(*value);
    if (!number || std::fabs(*number) > kMax)
      return invalid_argument("json_schema: {}/{}: must be a number of at most 2^53; change it",
                              path, key);
    const bool is_whole = *number == std::floor(*number);
    if (!is_whole && !is_integer)
      return unsupported("json_schema: {}/{}={}: only whole bounds are supported; round it", path,
                         key, *number);
    // The integers of a range lie between whole bounds.
    Bound bound{static_cast<std::int64_t>(is_min ? std::ceil(*number) : std::floor(*number)),
                is_exclusive && is_whole};
    const bool is_tighter = !to || (is_min ? bound.value > to->value : bound.value < to->value) ||
                            (bound.value == to->value && bound.is_exclusive);
    if (is_tighter) to = bound;
  }
  return range;
}

Result<ObjectRule> object_rule(const Json& schema, const std::string& path) {
  ObjectRule rule;
  const Json* properties = schema.find("properties");
  const Json* required = schema.find("required");
  const Json* others = schema.find("additionalProperties");
  if (properties != nullptr && !properties->is(Json::Kind::object))
    return invalid_argument("json_schema: {}/properties: must be an object; pass one", path);
  if (properties != nullptr)
    for (std::size_t i = 0; i < properties->keys.size(); ++i)
      rule.properties.push_back({properties->keys[i], &properties->elements[i], false});
  if (required != nullptr && !required->is(Json::Kind::array))
    return invalid_argument("json_schema: {}/required: must be a list of names; pass one", path);
  std::map<std::string_view, Property*> by_name;
  for (Property& property : rule.properties) by_name[property.name] = &property;
  if (required != nullptr)
    for (const Json& name : required->elements) {
      const auto found = by_name.find(name.text);
      if (!name.is(Json::Kind::string) || found == by_name.end())
        return invalid_argument("json_schema: {}/required: '{}' is not in properties; add it there",
                                path, name.text);
      found->second->is_required = true;
    }
  const bool is_false =
      others != nullptr && others->is(Json::Kind::boolean) && others->text == "false";
  rule.has_others = others != nullptr ? !is_false : properties == nullptr;
  if (rule.has_others && others != nullptr) rule.others = others;
  return rule;
}

}  // namespace headrace::text
