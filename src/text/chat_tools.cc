#include "text/chat_tools.h"

#include <algorithm>

#include "text/grammar/json.h"

namespace headrace::text {
namespace {

constexpr int kOneLine = -1, kIndent = 4;
constexpr std::size_t kMaxBytes = 1 << 24;

// Deep values have far more blanks than text, so that the size of the text bounds nothing.
class Writer {
 public:
  void add(std::string_view text) {
    if (all_.size() <= kMaxBytes) all_ += text;
  }

  // level: of indentation, or kOneLine.
  void add(const Json& value, int level) {
    if (value.is(Json::Kind::string)) return add(quoted(value.text));
    const bool is_object = value.is(Json::Kind::object);
    if (!is_object && !value.is(Json::Kind::array)) return add(value.text);
    const int inner = level == kOneLine ? kOneLine : level + 1;
    add(is_object ? "{" : "[");
    for (std::size_t i = 0; i < value.elements.size(); ++i) {
      if (i > 0) add(level == kOneLine ? ", " : ",");
      begin_line(inner);
      if (is_object) add(quoted(value.keys[i]) + ": ");
      add(value.elements[i], inner);
    }
    if (!value.elements.empty()) begin_line(level);
    add(is_object ? "}" : "]");
  }

  Result<std::string> take() {
    if (all_.size() <= kMaxBytes) return std::move(all_);
    return invalid_argument(
        "messages[0].content: the tools have more than {} bytes as the template writes them; pass "
        "fewer tools",
        kMaxBytes);
  }

 private:
  void begin_line(int level) {
    if (level == kOneLine) return;
    add("\n");
    add(std::string(static_cast<std::size_t>(level * kIndent), ' '));
  }

  std::string all_;
};

// Calls write(tool, is_last) for the object of each line.
template <class Write>
Status for_each_tool(std::string_view lines, Write write) {
  for (std::size_t number = 1;; ++number) {
    const std::size_t end = lines.find('\n');
    const Result<Json> tool = parse_json(lines.substr(0, end));
    if (!tool.ok() || !tool.value().is(Json::Kind::object))
      return invalid_argument(
          "messages[0].content: line {} is no JSON object; pass a tool per line", number);
    HEADRACE_TRY(write(tool.value(), end == lines.npos));
    if (end == lines.npos) return std::nullopt;
    lines.remove_prefix(end + 1);
  }
}

struct Call {
  std::string name;
  Json arguments;
};

Result<Call> read_call(std::size_t i, std::string_view text) {
  Result<Json> call = parse_json(text);
  const bool is_object = call.ok() && call.value().is(Json::Kind::object);
  const Json* name = is_object ? call.value().find("name") : nullptr;
  const Json* arguments = is_object ? call.value().find("arguments") : nullptr;
  if (name == nullptr || arguments == nullptr || !name->is(Json::Kind::string))
    return invalid_argument(
        "messages[{}].content: must be a JSON object with name and arguments; pass the call of a "
        "tool",
        i);
  return Call{name->text, *arguments};
}

}  // namespace

Result<std::string> llama3_tools(std::string_view lines) {
  Writer all;
  if (Status bad = for_each_tool(lines, [&](const Json& tool, bool) -> Status {
        all.add(tool, 0);
        all.add("\n\n");
        return std::nullopt;
      }))
    return std::move(*bad);
  return all.take();
}

// The template writes strings of a function without escaping them.
Result<std::string> mistral_tools(std::string_view lines) {
  Writer all;
  if (Status bad = for_each_tool(lines, [&](const Json& tool, bool is_last) -> Status {
        const Json* function = tool.find("function");
        if (function == nullptr || !function->is(Json::Kind::object))
          return invalid_argument(
              "messages[0].content: a tool has no \"function\"; pass tools in OpenAI's form");
        all.add(R"({"type": "function", "function": {)");
        const char* separator = "";
        for (std::size_t i = 0; i < function->keys.size(); ++i) {
          if (function->keys[i] == "return") continue;
          const Json& value = function->elements[i];
          all.add(separator + ('"' + function->keys[i]) + "\": ");
          if (value.is(Json::Kind::string))
            all.add('"' + value.text + '"');
          else
            all.add(value, kOneLine);
          separator = ", ";
        }
        all.add(is_last ? "}}]" : "}}, ");
        return std::nullopt;
      }))
    return std::move(*bad);
  return all.take();
}

Result<std::string> mistral_v7_tools(std::string_view lines) {
  Writer all;
  all.add("[");
  if (Status bad = for_each_tool(lines, [&](const Json& tool, bool is_last) -> Status {
        all.add(tool, kOneLine);
        all.add(is_last ? "]" : ", ");
        return std::nullopt;
      }))
    return std::move(*bad);
  return all.take();
}

Result<std::string> llama3_call(std::size_t i, std::string_view call) {
  const Result<Call> read = read_call(i, call);
  if (!read.ok()) return read.failure();
  Writer all;
  all.add(R"({"name": ")" + read.value().name + R"(", "parameters": )");
  all.add(read.value().arguments, kOneLine);
  all.add("}");
  return all.take();
}

Result<std::string> mistral_call(std::size_t i, std::string_view call, std::string_view id) {
  const Result<Call> read = read_call(i, call);
  if (!read.ok()) return read.failure();
  Writer all;
  all.add(R"({"name": )" + quoted(read.value().name) + R"(, "arguments": )");
  all.add(read.value().arguments, kOneLine);
  all.add(R"(, "id": ")" + std::string(id) + "\"}");
  return all.take();
}

// The template writes the name, and arguments that are a string, without escaping them.
Result<std::string> mistral_v7_call(std::size_t i, std::string_view call, std::string_view id) {
  const Result<Call> read = read_call(i, call);
  if (!read.ok()) return read.failure();
  const Json& arguments = read.value().arguments;
  Writer all;
  all.add(R"({"name": ")" + read.value().name + R"(", "arguments": )");
  if (!arguments.is(Json::Kind::string))
    all.add(arguments, kOneLine);
  else
    all.add(arguments.text.empty() ? "{}" : std::string_view(arguments.text));
  all.add(R"(, "id": ")" + std::string(id) + "\"}");
  return all.take();
}

}  // namespace headrace::text
