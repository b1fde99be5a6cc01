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

// Reads the text in two pieces, the second from `split`. Each call's first delta has its name.
Answer read(const std::string& text, std::size_t split, bool is_in_call) {
  ToolCallReader reader(is_in_call);
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
void expect(const std::string& text, const Answer& wanted, bool is_in_call = false) {
  for (std::size_t split = 0; split <= text.size(); ++split)
    EXPECT_EQ(read(text, split, is_in_call), wanted) << text << ", split at " << split;
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
  expect(f, {"", {{"f", arguments}}}, true);
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

}  // namespace
}  // namespace headrace::server
