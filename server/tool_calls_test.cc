#include "tool_calls.h"

#include <gtest/gtest.h>

#include <map>

namespace headrace::server {
namespace {

struct Answer {
  std::string content;
  std::vector<std::pair<std::string, std::string>> calls;  // name, arguments
  bool operator==(const Answer&) const = default;
};

struct Reading {
  CallFormat format = CallFormat::tagged;
  bool is_in_call = false, has_one_call = false;
};

// Reads the text in two pieces, the second from `split`. Each call's first delta has its name.
Answer read(const std::string& text, std::size_t split, const Reading& how) {
  ToolCallReader reader(how.format, how.is_in_call, how.has_one_call);
  Answer answer;
  const auto take = [&](const std::string& piece, bool is_last) {
    auto [content, calls] = reader.read(piece, is_last);
    answer.content += content;
    for (const ToolCallDelta& call : calls) {
      if (!call.name.empty()) answer.calls.push_back({call.name, ""});
      ASSERT_EQ(call.idx + 1, std::ssize(answer.calls));
      answer.calls.back().second += call.arguments;
    }
  };
  take(text.substr(0, split), false);
  take(text.substr(split), true);
  EXPECT_EQ(reader.has_calls(), !answer.calls.empty());
  return answer;
}

// However the text is cut into pieces.
void expect(const std::string& text, const Answer& wanted, const Reading& how = {}) {
  for (std::size_t split = 0; split <= text.size(); ++split)
    EXPECT_EQ(read(text, split, how), wanted) << text << ", split at " << split;
}

std::string call(const std::string& json) { return "<tool_call>\n" + json + "\n</tool_call>"; }

TEST(ToolCalls, CallsAndTextAreSeparated) {
  const std::string f = R"({"name": "f", "arguments": {"a": [1, {"b": "}</tool_call>\"]"}]}})";
  const std::string arguments = R"({"a": [1, {"b": "}</tool_call>\"]"}]})";
  expect("", {});
  expect(" a <tool b \n", {" a <tool b \n", {}});
  expect(call(f), {"", {{"f", arguments}}});
  expect("I call.\n\n" + call(f) + "\n" + call(R"({"name":"g_1","arguments":{}})") + "\n",
         {"I call.", {{"f", arguments}, {"g_1", "{}"}}});
  expect(call(f) + " Done. ", {" Done.", {{"f", arguments}}});
  expect(f, {"", {{"f", arguments}}}, {.is_in_call = true});
}

TEST(ToolCalls, OtherFormsOfACallAreRead) {
  expect(call(R"({"arguments": {"a": 1}, "name": "f"})"), {"", {{"f", R"({"a":1})"}}});
  expect(call(R"({"name": "f", "arguments": "{\"a\": 1}"})"), {"", {{"f", R"({"a": 1})"}}});
  expect(call("{ \"name\"\t:\"\\u0066\" ,\n\"arguments\" : { } }"), {"", {{"f", "{ }"}}});
}

TEST(ToolCalls, WhatIsNoCallIsText) {
  for (const char* json : {"{}", "f(1)", R"({"name": 1, "arguments": {}})", R"({"name": "f"})",
                           R"({"name": "", "arguments": {}})", ""})
    expect(call(json), {call(json), {}});
}

TEST(ToolCalls, AnAnswerMayBeCutOff) {
  expect("a <tool_c", {"a <tool_c", {}});
  expect("<tool_call>\n{\"name\": \"f\", \"argu", {"<tool_call>\n{\"name\": \"f\", \"argu", {}});
  expect("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": [", {"", {{"f", "{\"a\": ["}}});
  expect("<tool_call>{\"name\": \"f\", \"arguments\": {}}\n", {"", {{"f", "{}"}}});
}

TEST(ToolCalls, LlamaCallsWithTheWholeAnswer) {
  const Reading how{CallFormat::object};
  const std::string arguments = R"({"a": [1, {"b": "}\""}]})";
  const std::string f = R"({"name": "f", "parameters": )" + arguments + "}";
  expect("", {}, how);
  expect(" \n", {" \n", {}}, how);
  expect(f, {"", {{"f", arguments}}}, how);
  expect(" \n" + f + " \n", {"", {{"f", arguments}}}, how);
  expect(f, {"", {{"f", arguments}}}, {CallFormat::object, true});
  expect(R"({"name": "f", "parameters": {}, "more": ["}", {}]} and text)",
         {" and text", {{"f", "{}"}}}, how);
  expect(R"({"type": "function", "name": "f", "parameters": {"a": 1}})",
         {"", {{"f", R"({"a":1})"}}}, how);
  for (const std::string& text :
       {"a " + f, std::string("{"), std::string(R"({"name": "f", "arguments": {}})"),
        std::string("{} text"), f.substr(0, 20),
        std::string(R"([{"name": "f", "parameters": {}}])"), call(f)})
    expect(text, {text, {}}, how);
  expect(f.substr(0, 40), {"", {{"f", arguments.substr(0, 12)}}}, how);
}

TEST(ToolCalls, MistralCallsWithAList) {
  const Reading how{CallFormat::list};
  const std::string f = R"({"name": "f", "arguments": {"a": "]"}})";
  const std::string g = R"({"name": "g", "arguments": {}, "id": "abcdefgh1"})";
  const Answer both{"", {{"f", R"({"a": "]"})"}, {"g", "{}"}}};
  expect("[" + f + "]", {"", {both.calls[0]}}, how);
  for (const std::string begin : {"[", " [TOOL_CALLS][", "[TOOL_CALLS] [ "})
    expect(begin + f + ", " + g + "] ", both, how);
  expect("[" + f + "," + g + "] Done. ", {" Done.", both.calls}, how);
  expect("[" + f + "," + g + "]", {"", {both.calls[0]}}, {CallFormat::list, true, true});
  // Another order of keys is read when the answer has ended.
  const std::string other = R"({"arguments": {"a": 1}, "name": "h"})";
  const std::pair<std::string, std::string> h = {"h", R"({"a":1})"};
  expect("[" + other + ", " + f + "]", {"", {h, {"f", R"({"a":"]"})"}}}, how);
  expect("[" + other + ", " + f + "]", {"", {h}}, {CallFormat::list, false, true});
  expect("[" + f + ", " + other + "]", {"", {both.calls[0], h}}, how);
  // What is cut off.
  expect("[" + f, {"", {both.calls[0]}}, how);
  expect("[" + f + ", ", {"", {both.calls[0]}}, how);
  for (const std::string& text :
       {std::string("[1]"), std::string("[TOOL"), std::string("[TOOL_CALLS] no"), "see [" + f + "]",
        std::string("[link](x)"), std::string("[{}]"), "[" + f.substr(0, 9), std::string(" [ ")})
    expect(text, {text, {}}, how);
}

}  // namespace
}  // namespace headrace::server
