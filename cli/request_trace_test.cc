// Traces of requests: what a line may hold, and errors that name it.
#include "request_trace.h"

#include <gtest/gtest.h>

#include "headrace/headrace.hpp"

namespace headrace::cli {
namespace {

std::string error_of(const std::string& text) {
  try {
    request_trace(text, "t.jsonl");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), HEADRACE_INVALID_ARGUMENT);
    return error.what();
  }
  return "no error";
}

TEST(RequestTrace, LinesAreRequestsInOrderOfArrival) {
  const auto requests = request_trace(
      "{\"timestamp\": 2500, \"input_length\": 7, \"output_length\": 3, \"hash_ids\": [1, 2]}\r\n"
      "\n"
      "{\"output_length\": 1, \"input_length\": 1048576, \"timestamp\": 0.5}\n"
      "  \n"
      "{\"timestamp\": 2500, \"input_length\": 8, \"output_length\": 4}",
      "t.jsonl");
  ASSERT_EQ(requests.size(), 3u);
  const double arrivals[] = {0.0005, 2.5, 2.5};
  const std::int64_t prompts[] = {1048576, 7, 8}, answers[] = {1, 3, 4};
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_DOUBLE_EQ(requests[i].arrival, arrivals[i]) << i;
    EXPECT_EQ(requests[i].prompt, prompts[i]) << i;
    EXPECT_EQ(requests[i].answer, answers[i]) << i;
  }
}

TEST(RequestTrace, ErrorsNameTheLine) {
  const std::string good = "{\"timestamp\": 0, \"input_length\": 1, \"output_length\": 1}\n";
  for (const std::string& bad :
       {std::string("{"), std::string("[]"), std::string("7"), std::string("{} {}"),
        std::string("\xff"), std::string(100000, '[')}) {
    const std::string error = error_of(good + good + bad + "\n" + good);
    EXPECT_EQ(error.substr(0, 26), "t.jsonl:3: no JSON object;") << error;
  }
  const auto line = [](const std::string& time, const std::string& in, const std::string& out) {
    return "{\"timestamp\": " + time + ", \"input_length\": " + in + ", \"output_length\": " + out +
           "}";
  };
  for (const std::string time : {"-1", "1e10", "\"0\"", "null", "[]"})
    EXPECT_EQ(error_of(line(time, "1", "1")).find("t.jsonl:1: \"timestamp\""), 0u) << time;
  for (const std::string length : {"0", "-1", "1.5", "1048577", "\"1\"", "18446744073709551615"}) {
    EXPECT_EQ(error_of(line("0", length, "1")).find("t.jsonl:1: \"input_length\""), 0u) << length;
    EXPECT_EQ(error_of(line("0", "1", length)).find("t.jsonl:1: \"output_length\""), 0u) << length;
  }
  EXPECT_EQ(error_of("{\"timestamp\": 0, \"input_length\": 1}").find("t.jsonl:1: \"output_"), 0u);
  for (const std::string none : {"", "\n \n"})
    EXPECT_EQ(error_of(none).find("t.jsonl: no request"), 0u);
}

}  // namespace
}  // namespace headrace::cli
