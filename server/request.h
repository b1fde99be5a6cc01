// The body of a completion request: untrusted JSON, checked field by field.
#pragma once

#include <compare>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "headrace/engine.hpp"

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

enum class Form { chat, completion };

using Prompt = std::variant<std::string, std::vector<std::int32_t>>;

// What the text of an answer matches.
struct GrammarText {
  enum class Kind { json_schema, regex, gbnf };
  Kind kind = Kind::json_schema;
  std::string text = {};
  std::string param = {};  // the field that says so
  auto operator<=>(const GrammarText&) const = default;
};

struct CompletionRequest {
  Form form;
  std::string model;                        // empty: not said
  std::vector<Message> messages;            // of a chat
  std::vector<Prompt> prompts;              // of a completion
  Request request;                          // without prompt and grammar
  std::optional<GrammarText> grammar = {};  // empty: any text
  bool has_seed = false;
  bool is_stream = false;
  bool has_usage = false;  // in a last event of the stream
};

// An object that nests at most 64 levels. Throws ApiError.
Json parse_object(std::string_view body);
// Unknown fields are ignored. Throws ApiError.
CompletionRequest parse_completion(Form form, std::string_view body);

// The field, or empty if it is absent or null. Throw ApiError.
std::optional<std::string> text_field(const Json& object, const char* name);
std::optional<bool> flag_field(const Json& object, const char* name);
std::optional<std::vector<std::int32_t>> tokens_field(const Json& object, const char* name);

}  // namespace headrace::server
