#include "chat.h"

#include <algorithm>

namespace headrace::server {
namespace {

// Keeps the order of names, which prompts and schemas have.
using Ordered = nlohmann::ordered_json;

constexpr std::size_t kMaxMessages = 4096, kMaxTools = 128, kMaxToolName = 64;

// JSON as Python's json.dumps writes it: what models were trained on.
std::string python_json(const Ordered& json) {
  if (!json.is_structured()) return json.dump();
  std::string inner;
  for (const auto& [key, value] : json.items()) {
    if (!inner.empty()) inner += ", ";
    if (json.is_object()) inner += Ordered(key).dump() + ": ";
    inner += python_json(value);
  }
  return json.is_object() ? '{' + inner + '}' : '[' + inner + ']';
}

// A content is a string, or a list of parts of type "text".
std::string content_of(const Json& message, const std::string& name) {
  const Json* content = find(message, "content");
  if (content == nullptr) fail(name, "there");
  if (!content->is_array()) return text(*content, name);
  std::string all;
  for (const Json& part : *content) {
    const Json* type = part.is_object() ? find(part, "type") : nullptr;
    const Json* words = part.is_object() ? find(part, "text") : nullptr;
    if (type == nullptr || *type != "text" || words == nullptr)
      fail(name, "a string or a list of {\"type\": \"text\", \"text\": ...}");
    all += text(*words, name);
  }
  return all;
}

// The function of a tool or of a call.
const Json& function_of(const Json& object, const std::string& place) {
  const Json* type = object.is_object() ? find(object, "type") : nullptr;
  const Json* function = object.is_object() ? find(object, "function") : nullptr;
  if (type == nullptr || *type != "function" || function == nullptr || !function->is_object())
    fail(place, "{\"type\": \"function\", \"function\": {\"name\": ...}}");
  return *function;
}

std::string function_name(const Json& function, const std::string& place) {
  const Json* value = find(function, "name");
  const std::string name = value == nullptr ? "" : text(*value, place + ".function.name");
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  };
  if (name.empty() || name.size() > kMaxToolName || !std::ranges::all_of(name, is_plain))
    fail(place + ".function.name",
         "1 to " + std::to_string(kMaxToolName) + " letters, digits, _ and -");
  return name;
}

// The id of a call, which some templates render; empty: none.
std::optional<Message> id_of(const Json* id, const std::string& place) {
  if (id == nullptr) return std::nullopt;
  return Message{"tool_call_id", text(*id, place)};
}

// A message tool_call of the prompt.
std::string call_text(const Json& call, const std::string& place) {
  const Json& function = function_of(call, place);
  const std::string name = function_name(function, place);
  const Json* arguments = find(function, "arguments");
  const Ordered parsed = arguments != nullptr && arguments->is_string()
                             ? Ordered::parse(arguments->get<std::string>(), nullptr, false)
                             : Ordered();
  if (!parsed.is_object()) fail(place + ".function.arguments", "a string with a JSON object");
  return python_json({{"name", name}, {"arguments", parsed}});
}

// The assistant's calls.
void add_calls(const Json& message, const std::string& place, std::vector<Message>& messages) {
  const Json* calls = find(message, "tool_calls");
  if (calls == nullptr) return;
  if (!calls->is_array() || calls->size() > kMaxTools)
    fail(place + ".tool_calls", "a list of at most " + std::to_string(kMaxTools) + " calls");
  for (std::size_t i = 0; i < calls->size(); ++i) {
    const std::string call_place = place + ".tool_calls[" + std::to_string(i) + ']';
    std::string call = call_text((*calls)[i], call_place);
    if (auto id = id_of(find((*calls)[i], "id"), call_place + ".id"))
      messages.push_back(std::move(*id));
    messages.push_back({"tool_call", std::move(call)});
  }
}

// References into a schema, after it was put at `place` of another one.
void move_references(Ordered& schema, const std::string& place) {
  if (schema.is_array())
    for (Ordered& element : schema) move_references(element, place);
  if (!schema.is_object()) return;
  for (const auto& [key, value] : schema.items()) {
    if (key == "$ref" && value.is_string() && value.get<std::string>().starts_with('#'))
      value = '#' + place + value.get<std::string>().substr(1);
    else if (value.is_object() && (key == "properties" || key == "$defs" || key == "definitions"))
      for (Ordered& named : value) move_references(named, place);
    else if (key != "enum" && key != "const" && key != "default" && key != "examples")
      move_references(value, place);
  }
}

// Of a call of this function, at `place` of the whole schema.
Ordered call_schema(const Ordered& function, const std::string& place, const std::string& key) {
  Ordered arguments = {{"type", "object"}, {"properties", Ordered::object()}};
  const auto parameters = function.find("parameters");
  if (parameters == function.end() || parameters->is_null()) {
    arguments["additionalProperties"] = false;
  } else {
    arguments = *parameters;
    if (!arguments.contains("type")) arguments["type"] = "object";
    move_references(arguments, place + "/properties/" + key);
  }
  return {{"type", "object"},
          {"properties", {{"name", {{"const", function["name"]}}}, {key, arguments}}},
          {"required", {"name", key}},
          {"additionalProperties", false}};
}

struct ToolChoice {
  ToolUse use = ToolUse::automatic;
  std::string name = {};  // forced; empty: any
};

ToolChoice tool_choice(const Json& object) {
  const Json* choice = find(object, "tool_choice");
  if (choice == nullptr || *choice == "auto") return {};
  if (*choice == "none") return {ToolUse::none};
  if (*choice == "required") return {ToolUse::forced};
  if (!choice->is_object()) fail("tool_choice", "none, auto, required or a function");
  return {ToolUse::forced, function_name(function_of(*choice, "tool_choice"), "tool_choice")};
}

// What the rest of a forced call matches.
GrammarText call_grammar(const Ordered& tools, const std::string& name, CallFormat format) {
  const bool is_list = format == CallFormat::list;
  Ordered any = Ordered::array();
  for (const Ordered& tool : tools) {
    const Ordered& function = tool["function"];
    if (!name.empty() && function["name"] != name) continue;
    const std::string place = (is_list ? "/items/anyOf/" : "/anyOf/") + std::to_string(any.size());
    any.push_back(call_schema(function, place, arguments_key(format)));
  }
  if (any.empty()) fail("tool_choice", "one of \"tools\"");
  Ordered schema = {{"anyOf", std::move(any)}};
  if (is_list)
    schema = {{"type", "array"}, {"items", std::move(schema)}, {"minItems", 1}, {"maxItems", 1}};
  return {.text = schema.dump(), .param = "tools"};
}

}  // namespace

void set_tools(const Json& object, std::string_view body, CompletionRequest& parsed) {
  // Before tools there were these.
  const Json* functions = find(object, "functions");
  if (functions != nullptr && !(functions->is_array() && functions->empty()))
    refuse("functions", "send \"tools\"");
  if (find(object, "function_call") != nullptr) refuse("function_call", "send \"tool_choice\"");
  const ToolChoice choice = tool_choice(object);
  const bool is_parallel = flag_field(object, "parallel_tool_calls").value_or(true);
  const Json* tools = find(object, "tools");
  if (tools != nullptr && (!tools->is_array() || tools->size() > kMaxTools))
    fail("tools", "a list of at most " + std::to_string(kMaxTools) + " tools");
  if (tools == nullptr || tools->empty()) {
    if (choice.use == ToolUse::forced) fail("tool_choice", "none or auto without \"tools\"");
    return;
  }
  const Ordered ordered = Ordered::parse(body)["tools"];
  std::string lines;
  for (std::size_t i = 0; i < tools->size(); ++i) {
    const std::string place = "tools[" + std::to_string(i) + ']';
    const Json& function = function_of((*tools)[i], place);
    function_name(function, place);
    const Json* parameters = find(function, "parameters");
    if (parameters != nullptr && !parameters->is_object())
      fail(place + ".function.parameters", "a JSON Schema");
    lines += (i == 0 ? "" : "\n") + python_json(ordered[i]);
  }
  if (choice.use == ToolUse::none) return;
  if (parsed.grammar) fail(parsed.grammar->param, "absent beside \"tools\"");
  parsed.has_one_call = !is_parallel;
  if (choice.use == ToolUse::forced)
    parsed.grammar = call_grammar(ordered, choice.name, parsed.call_format);
  // What follows the first call is not asked for.
  else if (!is_parallel && parsed.call_format == CallFormat::tagged)
    parsed.request.stop.push_back("</tool_call>");
  parsed.tool_use = choice.use;
  parsed.messages.push_back({"tools", std::move(lines)});
}

void set_messages(const Json& object, CompletionRequest& parsed) {
  const Json* messages = find(object, "messages");
  if (messages == nullptr || !messages->is_array() || messages->empty() ||
      messages->size() > kMaxMessages)
    fail("messages", "a list of 1 to " + std::to_string(kMaxMessages) + " messages");
  for (std::size_t i = 0; i < messages->size(); ++i) {
    const Json& message = (*messages)[i];
    const std::string place = "messages[" + std::to_string(i) + ']';
    if (!message.is_object()) fail(place, "an object");
    const Json* said = find(message, "role");
    std::string role = said != nullptr && said->is_string() ? said->get<std::string>() : "";
    if (role == "developer") role = "system";  // its name for later models of OpenAI
    if (role != "system" && role != "user" && role != "assistant" && role != "tool")
      fail(place + ".role", "system, developer, user, assistant or tool");
    const bool has_calls = role == "assistant" && find(message, "tool_calls") != nullptr;
    const bool is_empty = has_calls && find(message, "content") == nullptr;
    std::string content = is_empty ? "" : content_of(message, place + ".content");
    if (auto id = id_of(find(message, "tool_call_id"), place + ".tool_call_id");
        id && role == "tool")
      parsed.messages.push_back(std::move(*id));
    parsed.messages.push_back({role, std::move(content)});
    if (has_calls) add_calls(message, place, parsed.messages);
  }
}

}  // namespace headrace::server
