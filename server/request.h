// The body of a completion request: untrusted JSON, checked field by field.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "fields.h"
#include "headrace/engine.hpp"
#include "tool_calls.h"

namespace headrace::server {

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

// What becomes of calls of tools in an answer.
enum class ToolUse {
  none,       // they are text
  automatic,  // the model chooses between text and calls
  forced      // the prompt ends with the beginning of a call, and the grammar is that of its rest
};

struct CompletionRequest {
  Form form;
  std::string model;              // empty: not said
  std::vector<Message> messages;  // of a chat; its tools are the first
  std::vector<Prompt> prompts;    // of a completion
  Request request;  // without prompt and grammar; its n is the number of samples that are computed,
                    // or its beam_width of beams
  std::int64_t num_choices = 1;             // of each prompt: the likeliest samples
  bool has_logprobs = false;                // in the answer
  std::optional<GrammarText> grammar = {};  // empty: any text
  ToolUse tool_use = ToolUse::none;
  CallFormat call_format = CallFormat::tagged;
  bool has_one_call = false;  // at most
  bool has_seed = false;
  bool has_echo = false;       // the text of a completion begins with its prompt
  bool has_token_ids = false;  // of prompt and answer, beside the text
  bool is_stream = false;
  bool has_usage = false;  // in a last event of the stream
};

inline std::int64_t num_samples(const Request& request) {
  return request.beam_width > 0 ? request.beam_width : request.n;
}

// Unknown fields are ignored. Throws ApiError.
CompletionRequest parse_completion(Form form, std::string_view body, CallFormat call_format);

}  // namespace headrace::server
