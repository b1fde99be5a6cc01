// Streams of answers, whole, in pieces and broken.
#include "answer_stream.h"

#include <gtest/gtest.h>

namespace headrace::cli {
namespace {

const std::string kStream =
    ": comment\r\n\r\nevent: x\ndata: {\"choices\":[{\"delta\":{\"role\":\"assistant\"}}]}\n\n"
    "data:{\"choices\":[{\"text\":\"a\"}],\"usage\":null}\r\n\r\n"
    "data: {\"choices\":[{\"delta\":{\"content\":\"b\"}}]}\n\n"
    "data: {\"choices\":\ndata: [{\"text\":\"\",\"finish_reason\":\"length\"}]}\n\n"
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2}}\n\n"
    "data: [DONE]\n\n: after the end\n";

TEST(AnswerStream, PiecesOfAnySizeGiveTheSame) {
  for (std::size_t piece = 1; piece <= kStream.size(); ++piece) {
    AnswerStream answer;
    std::int64_t num_texts = 0;
    for (std::size_t at = 0; at < kStream.size(); at += piece)
      num_texts += answer.add(std::string_view(kStream).substr(at, piece));
    EXPECT_EQ(num_texts, 2) << piece;
    EXPECT_TRUE(answer.is_done());
    EXPECT_EQ(answer.num_prompt_tokens(), 3);
    EXPECT_EQ(answer.num_answer_tokens(), 2);
  }
}

TEST(AnswerStream, IsNotDoneBeforeTheLastEvent) {
  AnswerStream answer;
  answer.add(std::string_view(kStream).substr(0, kStream.find("[DONE]\n") + 7));
  EXPECT_FALSE(answer.is_done());
  EXPECT_EQ(AnswerStream().num_answer_tokens(), -1);
}

TEST(AnswerStream, BrokenEventsAreRefused) {
  for (const std::string event :
       {"{", "[]", "5", "{}", "\xff", R"({"choices":5})", R"({"choices":[5]})",
        R"({"choices":[{"text":5}]})", R"({"choices":[{"delta":[]}]})",
        R"({"choices":[{"delta":{"content":{}}}]})", R"({"error":{"message":"busy"}})",
        R"({"choices":[],"usage":5})", R"({"choices":[],"usage":{"prompt_tokens":1}})",
        R"({"choices":[],"usage":{"prompt_tokens":-1,"completion_tokens":1}})",
        R"({"choices":[],"usage":{"prompt_tokens":1.5,"completion_tokens":1}})",
        R"({"choices":[],"usage":{"prompt_tokens":18446744073709551615,"completion_tokens":1}})"})
    EXPECT_THROW(AnswerStream().add("data: " + event + "\n\n"), BadAnswer) << event;
  EXPECT_THROW(AnswerStream().add("data: " + std::string(100000, '[') + "\n\n"), BadAnswer);
}

TEST(AnswerStream, AnEventWithoutEndIsRefused) {
  const std::string line(1000, 'x');
  for (const std::string& piece : {line, "data: " + line + '\n'}) {
    AnswerStream answer;
    const auto add_all = [&] {
      for (std::size_t i = 0; i <= AnswerStream::kMaxEventBytes / line.size(); ++i)
        answer.add(piece);
    };
    EXPECT_THROW(add_all(), BadAnswer);
  }
}

}  // namespace
}  // namespace headrace::cli
