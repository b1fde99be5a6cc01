#include "fields.h"

#include <cmath>

namespace headrace::server {

void fail(const std::string& name, const std::string& rule) {
  throw ApiError{400, '"' + name + "\" must be " + rule, name, "invalid_value"};
}
void refuse(const char* name, const std::string& reason) {
  throw ApiError{400, '"' + std::string(name) + "\" is unsupported: " + reason, name,
                 "unsupported"};
}

const Json* find(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::int64_t whole(const Json& value, const char* name, std::int64_t least, std::int64_t most) {
  const std::string rule =
      "a whole number from " + std::to_string(least) + " to " + std::to_string(most);
  if (value.is_number_float()) {  // 2.0 is a whole number
    const auto number = value.get<double>();
    constexpr double kExact = 1LL << 53;
    if (number != std::trunc(number) || !(std::abs(number) <= kExact)) fail(name, rule);
    return whole(static_cast<std::int64_t>(number), name, least, most);
  }
  if (!value.is_number_integer()) fail(name, rule);
  // get() would wrap what exceeds int64.
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > static_cast<std::uint64_t>(most))
    fail(name, rule);
  const auto number = value.get<std::int64_t>();
  if (number < least || number > most) fail(name, rule);
  return number;
}

void set_whole(const Json& object, const char* name, std::int64_t least, std::int64_t most,
               std::int64_t& target) {
  if (const Json* value = find(object, name)) target = whole(*value, name, least, most);
}

void set_number(const Json& object, const char* name, double least, double most, double& target) {
  const Json* value = find(object, name);
  if (value == nullptr) return;
  if (!value->is_number() || !(value->get<double>() >= least && value->get<double>() <= most)) {
    const Json least_json = least, most_json = most;
    fail(name, "a number from " + least_json.dump() + " to " + most_json.dump());
  }
  target = value->get<double>();
}

std::string text(const Json& value, const std::string& name) {
  if (!value.is_string()) fail(name, "a string");
  const auto& string = value.get_ref<const std::string&>();
  if (string.find('\0') != std::string::npos) fail(name, "a string without the character U+0000");
  return string;
}

std::vector<std::int32_t> tokens(const Json& value, const char* name) {
  if (!value.is_array()) fail(name, "a list of tokens");
  std::vector<std::int32_t> list;
  list.reserve(value.size());
  for (const Json& token : value)
    list.push_back(static_cast<std::int32_t>(whole(token, name, 0, kMost)));
  return list;
}

std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string error_body(const ApiError& error) {
  const char* type = error.status >= 500   ? "server_error"
                     : error.status == 401 ? "authentication_error"
                     : error.status == 429 ? "rate_limit_error"
                                           : "invalid_request_error";
  const auto text_or_null = [](const std::string& value) {
    return value.empty() ? Json() : Json(value);
  };
  return dump({{"error",
                {{"message", error.message},
                 {"type", type},
                 {"param", text_or_null(error.param)},
                 {"code", text_or_null(error.code)}}}});
}

Json parse_object(std::string_view body) {
  constexpr int kMaxDepth = 64;
  int depth = 0;
  bool is_string = false, is_escaped = false;
  for (const char c : body) {
    if (is_escaped) {
      is_escaped = false;
    } else if (is_string) {
      is_escaped = c == '\\';
      is_string = c != '"';
    } else if (c == '"') {
      is_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxDepth)
        throw ApiError{400, "the JSON nests more than " + std::to_string(kMaxDepth) + " levels"};
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  Json json = Json::parse(body, nullptr, false);
  if (json.is_discarded()) throw ApiError{400, "the body is not valid JSON in UTF-8"};
  if (!json.is_object()) throw ApiError{400, "the body must be a JSON object"};
  return json;
}

std::optional<std::string> text_field(const Json& object, const char* name) {
  const Json* value = find(object, name);
  return value == nullptr ? std::nullopt : std::optional(text(*value, name));
}
std::optional<bool> flag_field(const Json& object, const char* name) {
  const Json* value = find(object, name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) fail(name, "true or false");
  return value->get<bool>();
}
std::optional<std::vector<std::int32_t>> tokens_field(const Json& object, const char* name) {
  const Json* value = find(object, name);
  return value == nullptr ? std::nullopt : std::optional(tokens(*value, name));
}

}  // namespace headrace::server
