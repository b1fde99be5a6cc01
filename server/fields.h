// Fields of a JSON body that is not trusted. All functions throw ApiError.
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::server {

using Json = nlohmann::json;

// An answer in OpenAI's form of an error. Thrown while a request is handled.
struct ApiError {
  int status;
  std::string message;
  std::string param = {};  // the field; empty: none
  std::string code = {};   // empty: none
};

std::string error_body(const ApiError& error);
// Invalid UTF-8 becomes U+FFFD.
std::string dump(const Json& json);

// "name" must be the rule.
[[noreturn]] void fail(const std::string& name, const std::string& rule);
[[noreturn]] void refuse(const char* name, const std::string& reason);

// An object that nests at most 64 levels.
Json parse_object(std::string_view body);

constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();

// Null: absent or null.
const Json* find(const Json& object, const char* name);
std::int64_t whole(const Json& value, const char* name, std::int64_t least, std::int64_t most);
// Without U+0000, which ends texts of the C API.
std::string text(const Json& value, const std::string& name);
std::vector<std::int32_t> tokens(const Json& value, const char* name);

// The target keeps its value if the field is absent or null.
void set_whole(const Json& object, const char* name, std::int64_t least, std::int64_t most,
               std::int64_t& target);
void set_number(const Json& object, const char* name, double least, double most, double& target);

// The field, or empty if it is absent or null.
std::optional<std::string> text_field(const Json& object, const char* name);
std::optional<bool> flag_field(const Json& object, const char* name);
std::optional<std::vector<std::int32_t>> tokens_field(const Json& object, const char* name);

}  // namespace headrace::server
