#include "request.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "response.h"
#include "tests/support/golden_texts.h"

namespace headrace::server {
namespace {

std::string error_of(const std::function<void()>& parse) {
  try {
    parse();
    return {};
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status, 400);
    return error.message;
  }
}

// `levels` arrays and objects around the text, which is also the key of each object.
Json nested(int levels, const std::string& text) {
  Json json = text;
  for (int i = 0; i < levels; ++i)
    json = i % 2 == 0 ? Json::object({{text, json}}) : Json::array({text, json});
  return json;
}

TEST(ParseObject, ABracketInATextIsNoLevel) {
  const std::string letters = "\"\\[]{}a\n";
  std::vector<std::string> texts = {""};
  for (std::size_t i = 0; texts[i].size() < 3; ++i)
    for (const char letter : letters) texts.push_back(texts[i] + letter);
  for (const std::string& text : texts)
    for (const int levels : {63, 64}) {
      const Json json = {{"before", text}, {"x", nested(levels, text)}};
      const bool is_too_deep = levels + 1 > 64;
      const std::string error =
          error_of([&] { EXPECT_EQ(parse_object(json.dump()), json) << json.dump(); });
      EXPECT_EQ(!error.empty(), is_too_deep) << error << " of " << Json(text);
    }
}

// A field that is a number, and what it sets.
struct Field {
  Form form;
  const char* name;
  Json least, most, beyond_least, beyond_most, absent;
  std::function<Json(const CompletionRequest&)> value;
};

std::vector<Field> fields() {
  constexpr std::int64_t kMost = INT32_MAX;
  const auto sampling = [](auto field) {
    return [field](const CompletionRequest& r) -> Json { return r.request.sampling.*field; };
  };
  const auto request = [](auto field) {
    return [field](const CompletionRequest& r) -> Json { return r.request.*field; };
  };
  using S = SamplingOptions;
  const auto length = request(&Request::max_new_tokens);
  const auto logprobs = [](const CompletionRequest& r) -> Json {
    return r.has_logprobs ? Json(*r.request.num_logprobs) : Json();
  };
  const auto number_of_choices = [](const CompletionRequest& r) -> Json { return r.num_choices; };
  const Form completion = Form::completion, chat = Form::chat;
  std::vector<Field> all = {
      {completion, "logprobs", 0, 20, -1, 21, nullptr, logprobs},
      {completion, "best_of", 1, 128, 0, 129, 1, request(&Request::n)},
      {completion, "max_tokens", 1, kMost, 0, kMost + 1, 16, length},
      {chat, "max_tokens", 1, kMost, 0, kMost + 1, 0, length},
      {chat, "max_completion_tokens", 1, kMost, 0, kMost + 1, 0, length},
  };
  for (const Form form : {completion, chat}) {
    all.push_back({form, "temperature", 0, 100, -0.1, 100.1, 1.0, sampling(&S::temperature)});
    all.push_back({form, "top_p", 1e-6, 1, 0, 1.1, 1.0, sampling(&S::top_p)});
    all.push_back({form, "min_p", 0, 1, -0.1, 1.1, 0.0, sampling(&S::min_p)});
    all.push_back({form, "top_k", 0, kMost, -2, kMost + 1, 0, sampling(&S::top_k)});
    all.push_back(
        {form, "repetition_penalty", 1e-3, 1000, 0, 1000.1, 1.0, sampling(&S::repetition_penalty)});
    all.push_back(
        {form, "presence_penalty", -2, 2, -2.1, 2.1, 0.0, sampling(&S::presence_penalty)});
    all.push_back(
        {form, "frequency_penalty", -2, 2, -2.1, 2.1, 0.0, sampling(&S::frequency_penalty)});
    all.push_back({form, "n", 1, 128, 0, 129, 1, number_of_choices});
    all.push_back(
        {form, "length_penalty", 0, 10, -0.1, 10.1, 1.0, request(&Request::length_penalty)});
    all.push_back(
        {form, "priority", -kMost, kMost, -kMost - 1, kMost + 1, 0, request(&Request::priority)});
  }
  return all;
}

CompletionRequest parsed(const Json& given, Form form) {
  Json body = {{"prompt", "a"}, {"messages", {{{"role", "user"}, {"content", "a"}}}}};
  body.update(given);
  return parse_completion(form, body.dump(), CallFormat::tagged);
}
CompletionRequest parsed(const Field& field, const Json& value) {
  return parsed({{field.name, value}}, field.form);
}

// Names of one limit.
bool is_length(const Field& field) { return std::string_view(field.name).starts_with("max_"); }
// Samples are as many as choices where nothing else is said.
bool is_count(const Field& field) {
  return std::string_view(field.name) == "n" || std::string_view(field.name) == "best_of";
}

// One at a time: every other field keeps its default.
TEST(ParseCompletion, ANumberWithinItsBoundsSetsItsFieldAlone) {
  for (const Field& field : fields()) {
    const std::string name = field.name;
    for (const Json& value : {field.least, field.most, Json()}) {
      const CompletionRequest request = parsed(field, value);
      EXPECT_EQ(field.value(request), value.is_null() ? field.absent : value) << name;
      for (const Field& other : fields()) {
        const bool is_same = other.name == name || (is_length(other) && is_length(field)) ||
                             (is_count(other) && is_count(field));
        if (other.form != field.form || is_same) continue;
        EXPECT_EQ(other.value(request), other.absent) << name << " sets " << other.name;
      }
    }
    for (const Json& value : {field.beyond_least, field.beyond_most, Json("1"), Json(true)}) {
      const std::string error = error_of([&] { parsed(field, value); });
      EXPECT_EQ(error.find('"' + name + "\" must be "), 0u) << value << ": " << error;
    }
  }
}

// In pairs: neither field changes what the other one sets.
TEST(ParseCompletion, TwoFieldsBothCount) {
  const std::vector<Field> all = fields();
  for (const Field& a : all)
    for (const Field& b : all) {
      const bool is_same = std::string_view(a.name) == b.name || (is_length(a) && is_length(b)) ||
                           (is_count(a) && is_count(b));
      if (a.form != b.form || is_same) continue;
      for (const Json& of_a : {a.least, a.most})
        for (const Json& of_b : {b.least, b.most}) {
          const CompletionRequest request = parsed({{a.name, of_a}, {b.name, of_b}}, a.form);
          EXPECT_EQ(a.value(request), of_a) << a.name << " beside " << b.name << " = " << of_b;
        }
    }
}

// Three functions, each with a definition of its own that its parameters refer to.
Json tools_with_references() {
  Json tools = Json::array();
  for (int i = 0; i < 3; ++i) {
    const std::string name = "d" + std::to_string(i);
    const Json parameters = {{"type", "object"},
                             {"properties", {{"a", {{"$ref", "#/$defs/" + name}}}}},
                             {"$defs", {{name, {{"const", i}}}}}};
    tools.push_back(
        {{"type", "function"},
         {"function", {{"name", "f" + std::to_string(i)}, {"parameters", parameters}}}});
  }
  return tools;
}

// Whichever of them may be called, what a reference names is found in the schema of the calls.
TEST(Tools, ReferencesHoldInTheSchemaOfEveryChoice) {
  Json body = {{"messages", {{{"role", "user"}, {"content", "a"}}}},
               {"tools", tools_with_references()}};
  const auto calls_of = [&](const Json& choice, CallFormat format) {
    body["tool_choice"] = choice;
    const auto parsed = parse_completion(Form::chat, body.dump(), format);
    const Json schema = Json::parse(parsed.grammar.value().text);
    std::vector<int> calls;
    for (const Json& call :
         (format == CallFormat::list ? schema.at("items") : schema).at("anyOf")) {
      const Json& parts = call.at("properties");
      const Json ref = parts.at(arguments_key(format)).at("properties").at("a").at("$ref");
      const std::string pointer = ref.get<std::string>().substr(1);
      EXPECT_TRUE(schema.contains(Json::json_pointer(pointer))) << choice << ": " << pointer;
      if (!schema.contains(Json::json_pointer(pointer))) continue;
      calls.push_back(schema.at(Json::json_pointer(pointer)).at("const"));
      EXPECT_EQ(parts.at("name").at("const"), "f" + std::to_string(calls.back()));
    }
    return calls;
  };
  for (const CallFormat format : {CallFormat::tagged, CallFormat::object, CallFormat::list}) {
    EXPECT_EQ(calls_of("required", format), (std::vector<int>{0, 1, 2}));
    for (int i = 0; i < 3; ++i) {
      const Json one = {{"type", "function"}, {"function", {{"name", "f" + std::to_string(i)}}}};
      EXPECT_EQ(calls_of(one, format), std::vector<int>{i});
    }
  }
}

// Wherever a schema may stand in the parameters, its references move with it, also below properties
// and definitions that have the names of keywords. Values that only look like one stay.
TEST(Tools, ReferencesOfEveryPlaceMove) {
  const Json ref = {{"$ref", "#/$defs/d"}}, kept = {{"$ref", "#/kept"}};
  const Json parameters = {
      {"type", "object"},
      {"properties", {{"a", ref}, {"enum", ref}, {"default", {{"type", "array"}, {"items", ref}}}}},
      {"anyOf", {ref, {{"additionalProperties", ref}}}},
      {"$defs", {{"d", {{"type", "integer"}}}, {"const", ref}, {"examples", {{"not", ref}}}}},
      {"definitions", {{"enum", ref}, {"e", ref}}},
      {"enum", {kept}},
      {"const", kept},
      {"default", kept},
      {"examples", {kept}}};
  Json body = {{"messages", {{{"role", "user"}, {"content", "a"}}}},
               {"tools", tools_with_references()},
               {"tool_choice", "required"}};
  body["tools"][1]["function"]["parameters"] = parameters;
  const auto parsed = parse_completion(Form::chat, body.dump(), CallFormat::object);
  const Json schema = Json::parse(parsed.grammar.value().text);
  const std::string place = std::string("/anyOf/1/properties/") + arguments_key(CallFormat::object);
  std::string moved = parameters.dump();
  for (std::size_t at = 0; (at = moved.find("#/$defs", at)) != std::string::npos; at += 2)
    moved.insert(at + 1, place);
  EXPECT_EQ(schema.at(Json::json_pointer(place)), Json::parse(moved));
}

// What a forced call matches: for every format, and every way to give parameters or none.
TEST(Tools, SchemasOfCallsInFull) {
  const std::string none = R"({"type":"object","properties":{},"additionalProperties":false})";
  const std::pair<std::string, std::string> cases[] = {
      {"", none},
      {R"(, "parameters": null)", none},
      {R"(, "parameters": {})", R"({"type":"object"})"},
      {R"(, "parameters": {"properties": {"z": {}, "a": {}}})",
       R"({"properties":{"z":{},"a":{}},"type":"object"})"},
      {R"(, "parameters": {"type": "object", "required": ["z"]})",
       R"({"type":"object","required":["z"]})"}};
  for (const CallFormat format : {CallFormat::tagged, CallFormat::object, CallFormat::list})
    for (const auto& [parameters, arguments] : cases) {
      const std::string body =
          R"({"messages": [{"role": "user", "content": "a"}], "tool_choice": "required",
              "tools": [{"type": "function", "function": {"name": "f")" +
          parameters + "}}]}";
      const std::string key = format == CallFormat::object ? "parameters" : "arguments";
      const std::string calls =
          R"({"anyOf":[{"type":"object","properties":{"name":{"const":"f"},")" + key +
          "\":" + arguments + R"(},"required":["name",")" + key +
          R"("],"additionalProperties":false}]})";
      const std::string schema =
          format == CallFormat::list
              ? R"({"type":"array","items":)" + calls + R"(,"minItems":1,"maxItems":1})"
              : calls;
      EXPECT_EQ(parse_completion(Form::chat, body, format).grammar,
                (GrammarText{GrammarText::Kind::json_schema, schema, "tools"}));
    }
}

// What follows the first call is not computed where only one is wanted, and a text ends it.
TEST(Tools, OneCallIsAStopStringWhereCallsEndWithAText) {
  for (const CallFormat format : {CallFormat::tagged, CallFormat::object, CallFormat::list})
    for (const std::string choice : {"auto", "none", "required"})
      for (const std::string parallel : {"true", "false", "null"}) {
        const std::string body = R"({"messages": [{"role": "user", "content": "a"}], "stop": "x",
            "tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": ")" +
                                 choice + R"(", "parallel_tool_calls": )" + parallel + '}';
        const CompletionRequest parsed = parse_completion(Form::chat, body, format);
        std::vector<std::string> stop = {"x"};
        if (format == CallFormat::tagged && choice == "auto" && parallel == "false")
          stop.push_back("</tool_call>");
        EXPECT_EQ(parsed.request.stop, stop) << choice << parallel;
        EXPECT_EQ(parsed.has_one_call, parallel == "false" && choice != "none") << choice;
        EXPECT_EQ(parsed.tool_use, choice == "none"       ? ToolUse::none
                                   : choice == "required" ? ToolUse::forced
                                                          : ToolUse::automatic);
        EXPECT_EQ(parsed.messages.size(), choice == "none" ? 1u : 2u);
      }
}

TEST(ParseCompletion, TakesAsManyStopStringsAsDocumented) {
  for (std::size_t count = 0; count <= 17; ++count) {
    std::vector<std::string> stops;
    for (std::size_t i = 0; i < count; ++i) stops.push_back("s" + std::to_string(i));
    const Json body = {{"prompt", "a"}, {"stop", stops}};
    std::vector<std::string> read;
    const std::string error = error_of([&] {
      read = parse_completion(Form::completion, body.dump(), CallFormat::tagged).request.stop;
    });
    EXPECT_EQ(error.empty(), count <= 16) << error;
    EXPECT_EQ(read, count <= 16 ? stops : std::vector<std::string>());
  }
}

TEST(ErrorReply, HeadersFollowTheStatus) {
  for (int status = 400; status < 600; ++status) {
    const HttpReply reply = error_reply({status, "x"});
    const bool is_later = status == 429 || status == 503;
    EXPECT_EQ(reply.status, status);
    EXPECT_EQ(reply.headers, is_later        ? "Retry-After: 1\r\n"
                             : status == 401 ? "WWW-Authenticate: Bearer\r\n"
                                             : "");
  }
}

// Bodies with every field.
Json full_body(Form form) {
  const Json schema = {{"type", "object"}};
  const Json tool = {{"type", "function"}, {"function", {{"name", "f"}, {"parameters", schema}}}};
  const Json call = {{"type", "function"}, {"function", {{"name", "f"}, {"arguments", "{}"}}}};
  Json body = {{"model", "m"},       {"n", 2},
               {"max_tokens", 5},    {"temperature", 0.5},
               {"top_p", 0.25},      {"min_p", 0.125},
               {"top_k", 3},         {"repetition_penalty", 1.5},
               {"priority", 4},      {"presence_penalty", 0.75},
               {"seed", 6},          {"frequency_penalty", 0.625},
               {"stop", {"x", "y"}}, {"logit_bias", {{"7", 8}}},
               {"stream", true},     {"stream_options", {{"include_usage", true}}},
               {"ignore_eos", true}, {"return_token_ids", true}};
  if (form == Form::completion) {
    body["prompt"] = {"a", {1, 2}};
    body["best_of"] = 2;
    body["logprobs"] = 3;
    body["echo"] = false;
    body["structured_outputs"] = {{"regex", "a"}};
    return body;
  }
  body["messages"] = {{{"role", "user"}, {"content", {{{"type", "text"}, {"text", "a"}}}}},
                      {{"role", "assistant"}, {"tool_calls", {call}}}};
  body["max_completion_tokens"] = 9;
  body["logprobs"] = true;
  body["top_logprobs"] = 3;
  body["tools"] = {tool};
  body["tool_choice"] = {{"type", "function"}, {"function", {{"name", "f"}}}};
  body["parallel_tool_calls"] = false;
  return body;
}

// Every member of the error; empty: none.
std::string full_error(Form form, const std::string& body) {
  try {
    parse_completion(form, body, CallFormat::tagged);
    return {};
  } catch (const ApiError& e) {
    return std::to_string(e.status) + " | " + e.message + " | " + e.param + " | " + e.code;
  }
}

// Each value within a full body becomes one of another type or size, or is left out.
TEST(ParseCompletion, ErrorsInFull) {
  testing::GoldenTexts texts("server.txt");
  std::vector<Json> values = {nullptr, true, -5, 1.5, 1e300, "", "z", Json::array(), {1.5}, {""}};
  values.push_back(Json::object());
  values.push_back(Json(std::vector<int>(5000, 1)));
  values.push_back(Json(std::string("a\0b", 3)));
  for (const Form form : {Form::completion, Form::chat}) {
    const Json body = full_body(form);
    EXPECT_EQ(full_error(form, body.dump()), "");
    const Json flat = body.flatten();
    std::set<std::string> errors;
    for (const auto& [place, old] : flat.items())
      for (Json::json_pointer at(place); !at.empty(); at = at.parent_pointer())
        for (const Json& value : values) {
          Json changed = body;
          changed[at] = value;
          const std::string error = full_error(form, changed.dump());
          if (!error.empty()) errors.insert(at.to_string() + " | " + error);
        }
    for (const std::string& error : errors) texts.add(error);
  }
  for (const char* other :
       {R"({"functions": [1]})", R"({"function_call": "f"})", "[]", "{",
        R"({"prompt": "a", "suffix": "b"})", R"({"tool_choice": "required"})",
        R"({"prompt": "a", "echo": true, "logprobs": 1})",
        R"({"prompt": "a", "stream": true, "best_of": 2})",
        R"({"prompt": "a", "n": 3, "best_of": 2})", R"({"prompt": "a", "stream_options": {}})",
        R"({"response_format": {"type": "json_schema"}})"})
    for (const Form form : {Form::completion, Form::chat}) texts.add(full_error(form, other));
  const Json messages = {{{"role", "user"}, {"content", "a"}}};
  for (const Json& more :
       {Json({{"stream", true}}), Json({{"stop", "a"}}), Json({{"best_of", 2}}),
        Json({{"response_format", {{"type", "json_object"}}}}), Json({{"logprobs", 1}}),
        Json({{"logprobs", true}, {"top_logprobs", 1}}), Json({{"length_penalty", 11}})})
    for (const Form form : {Form::completion, Form::chat}) {
      Json body = {{"use_beam_search", true}, {"prompt", "a"}, {"messages", messages}};
      body.update(more);
      texts.add(full_error(form, body.dump()));
    }
}

// What a full body sets.
TEST(ParseCompletion, SetsEveryField) {
  for (const Form form : {Form::completion, Form::chat}) {
    const bool is_chat = form == Form::chat;
    const CompletionRequest parsed =
        parse_completion(form, full_body(form).dump(), CallFormat::tagged);
    const Request& request = parsed.request;
    const SamplingOptions& sampling = request.sampling;
    EXPECT_EQ(parsed.form, form);
    EXPECT_EQ(parsed.model, "m");
    EXPECT_EQ(parsed.num_choices, 2);
    EXPECT_EQ(request.n, 2);
    EXPECT_EQ(request.max_new_tokens, is_chat ? 9 : 5);
    EXPECT_EQ(sampling.temperature, 0.5);
    EXPECT_EQ(sampling.top_p, 0.25);
    EXPECT_EQ(sampling.min_p, 0.125);
    EXPECT_EQ(sampling.top_k, 3);
    EXPECT_EQ(sampling.repetition_penalty, 1.5);
    EXPECT_EQ(sampling.presence_penalty, 0.75);
    EXPECT_EQ(sampling.frequency_penalty, 0.625);
    EXPECT_EQ(sampling.seed, 6u);
    ASSERT_EQ(sampling.logit_bias.size(), 1u);
    EXPECT_EQ(sampling.logit_bias[0].token, 7);
    EXPECT_EQ(sampling.logit_bias[0].bias, 8.0f);
    EXPECT_EQ(request.stop, (std::vector<std::string>{"x", "y"}));
    EXPECT_EQ(request.priority, 4);
    EXPECT_EQ(request.num_logprobs, 3);
    EXPECT_TRUE(request.ignore_end && parsed.has_logprobs && parsed.has_seed);
    EXPECT_TRUE(parsed.has_token_ids && parsed.is_stream && parsed.has_usage);
    EXPECT_FALSE(parsed.has_echo);
    ASSERT_TRUE(parsed.grammar);
    EXPECT_EQ(parsed.grammar->param, is_chat ? "tools" : "structured_outputs");
    EXPECT_EQ(parsed.tool_use, is_chat ? ToolUse::forced : ToolUse::none);
    EXPECT_EQ(parsed.prompts.size(), is_chat ? 0u : 2u);
    EXPECT_EQ(parsed.messages.size(), is_chat ? 4u : 0u);
  }
}

// Each format, for texts and chats, and the grammar that it gives.
TEST(ParseCompletion, FormatsGiveTheirGrammars) {
  using Kind = GrammarText::Kind;
  const std::string schema = R"({"z":{"const":1},"a":[true]})";  // not in the order of names
  const GrammarText any_object = {Kind::json_schema, R"({"type": "object"})", "response_format"};
  const struct {
    std::string field;
    std::optional<GrammarText> grammar;
  } cases[] = {
      {R"("response_format": null)", {}},
      {R"("response_format": {"type": "text"})", {}},
      {R"("response_format": {"type": "text", "json_schema": 5})", {}},
      {R"("response_format": {"type": "json_object"})", any_object},
      {R"("response_format": {"type": "json_object", "json_schema": 5})", any_object},
      {R"("response_format": {"type": "json_schema", "json_schema": {"schema": )" + schema + "}}",
       GrammarText{Kind::json_schema, schema, "response_format"}},
      {R"("structured_outputs": null)", {}},
      {R"("structured_outputs": {"json": )" + schema + '}',
       GrammarText{Kind::json_schema, schema, "structured_outputs"}},
      {R"("structured_outputs": {"json": "{ }"})",
       GrammarText{Kind::json_schema, "{ }", "structured_outputs"}},
      {R"("structured_outputs": {"regex": "a+"})",
       GrammarText{Kind::regex, "a+", "structured_outputs"}},
      {R"("structured_outputs": {"grammar": "root ::= \"a\""})",
       GrammarText{Kind::gbnf, "root ::= \"a\"", "structured_outputs"}},
  };
  for (const auto& [field, grammar] : cases)
    for (const Form form : {Form::completion, Form::chat}) {
      const std::string body =
          R"({"prompt": "a", "messages": [{"role": "user", "content": "a"}], )" + field + '}';
      EXPECT_EQ(parse_completion(form, body, CallFormat::tagged).grammar, grammar) << field;
    }
  const std::string rule =
      "\"response_format\" must be an object whose type is text, json_object or json_schema";
  for (const char* wrong : {"{}", "[]", "5", "\"text\"", R"({"type": null})", R"({"type": "json"})",
                            R"({"type": "grammar"})", R"({"type": ["text"]})"})
    EXPECT_EQ(error_of([&] {
                parse_completion(
                    Form::completion,
                    R"({"prompt": "a", "response_format": )" + std::string(wrong) + '}',
                    CallFormat::tagged);
              }),
              rule)
        << wrong;
}

TEST(Tools, IdsOfCallsAndResultsStandBeforeThem) {
  const Json call = {{"type", "function"},
                     {"id", "abcdefgh1"},
                     {"function", {{"name", "f"}, {"arguments", "{}"}}}};
  Json body = {{"messages",
                {{{"role", "user"}, {"content", "a"}},
                 {{"role", "assistant"}, {"tool_calls", {call}}},
                 {{"role", "tool"}, {"content", "r"}, {"tool_call_id", "abcdefgh1"}}}}};
  const auto parse = [&] { return parse_completion(Form::chat, body.dump(), CallFormat::list); };
  std::string roles;
  for (const Message& message : parse().messages) {
    roles += message.role + ' ';
    if (message.role == "tool_call_id") {
      EXPECT_EQ(message.content, "abcdefgh1");
    }
  }
  EXPECT_EQ(roles, "user assistant tool_call_id tool_call tool_call_id tool ");
  body["messages"][2]["tool_call_id"] = 5;
  EXPECT_NE(error_of(parse).find("messages[2].tool_call_id"), std::string::npos);
  body["messages"][1]["tool_calls"][0]["id"] = 5;
  EXPECT_NE(error_of(parse).find("messages[1].tool_calls[0].id"), std::string::npos);
}

}  // namespace
}  // namespace headrace::server
