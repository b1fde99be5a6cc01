// What headrace serve does while a long text is tokenized.
#include "tests/support/serve_fixture.h"

namespace headrace::testing {
namespace {

std::string words(std::size_t count) {
  std::string text;
  while (count-- > 0) text += "ab ";
  return post("/tokenize", "{\"prompt\": \"" + text + "\"}");
}
// As many as the default limit of a body lets in: most of a second.
std::string long_text() { return words((4 << 20) / 3 - 10); }
bool becomes_preparing(ServerProcess& server, int count) {
  return becomes([&] { return metric(server, "num_requests_preparing") == count; });
}
// A long text, and a completion that waits for it.
bool become_preparing(ServerProcess& server, Client& slow, Client& second) {
  slow.send(long_text());
  if (!becomes_preparing(server, 1)) return false;
  second.send(completion(""));
  return becomes_preparing(server, 2);
}

// By the order of events: what came after the text was taken is there before its tokens are.
TEST_F(Serve, ALongTextDelaysNeitherStreamsNorAnswers) {
  ServerProcess server(options("--streams 1"));
  Client stream(server.port()), slow(server.port());
  stream.send(many(128, R"(, "stream": true, "return_token_ids": true)"));
  ASSERT_EQ(stream.read_head().status, 200);
  slow.send(long_text());
  ASSERT_TRUE(becomes_preparing(server, 1));  // answered while the text is tokenized
  const auto generated = static_cast<std::size_t>(metric(server, "generation_tokens_total"));
  for (std::size_t received = 0; received < generated + 20;) {
    const std::string chunk = stream.read_chunk();
    ASSERT_FALSE(chunk.empty());
    received += Json::parse(chunk.substr(6))["choices"][0].value("token_ids", Json()).size();
  }
  EXPECT_TRUE(slow.is_silent());
  EXPECT_EQ(slow.read().status, 200);
}

TEST_F(Serve, PreparedRequestsKeepTheOrderOfTheirConnection) {
  ServerProcess server(options(""));
  Client client(server.port());
  client.send(words(100000) + get("/v1/models") + completion("") + words(1) +
              post("/v1/completions", "{") + post("/detokenize", "{\"tokens\": [65]}"));
  EXPECT_EQ(Json::parse(client.read().body)["count"], 200001);
  EXPECT_EQ(Json::parse(client.read().body)["object"], "list");
  EXPECT_EQ(Json::parse(client.read().body)["object"], "text_completion");
  EXPECT_EQ(Json::parse(client.read().body)["count"], 3);
  EXPECT_EQ(client.read().status, 400);
  EXPECT_TRUE(Json::parse(client.read().body).contains("prompt"));
}

TEST_F(Serve, BytesThatWaitAreBoundedAndFreeWhenTheirClientLeaves) {
  ServerProcess server(options("--max-queued-bytes 5000000"));
  Client slow(server.port());
  slow.send(long_text());
  ASSERT_TRUE(becomes_preparing(server, 1));
  const std::string large = words(250000);
  {
    Client leaves(server.port());
    leaves.send(large);
    ASSERT_TRUE(becomes_preparing(server, 2));
    for (const std::string path : {"/tokenize", "/v1/completions", "/v1/chat/completions"}) {
      const HttpAnswer answer = Client(server.port()).ask(post(path, std::string(900000, ' ')));
      EXPECT_EQ(answer.status, 429);
      EXPECT_NE(answer.head.find("Retry-After: "), std::string::npos);
    }
  }
  ASSERT_TRUE(becomes_preparing(server, 1));
  Client next(server.port());
  next.send(large);
  EXPECT_TRUE(becomes_preparing(server, 2));
  EXPECT_TRUE(slow.is_silent());
  EXPECT_EQ(slow.read().status, 200);
  EXPECT_EQ(next.read().status, 200);
}

TEST_F(Serve, WhatIsPreparedCountsAsUnderWay) {
  ServerProcess server(options("--max-requests 2"));
  Client slow(server.port()), second(server.port());
  ASSERT_TRUE(become_preparing(server, slow, second));
  EXPECT_EQ(Client(server.port()).ask(completion("")).status, 429);
  EXPECT_EQ(slow.read().status, 200);
  EXPECT_EQ(second.read().status, 200);
  EXPECT_EQ(Client(server.port()).ask(completion("")).status, 200);
}

TEST_F(Serve, SigtermAnswersWhatIsPrepared) {
  ServerProcess server(options(""));
  Client slow(server.port()), second(server.port());
  ASSERT_TRUE(become_preparing(server, slow, second));
  server.terminate();
  EXPECT_EQ(slow.read().status, 200);
  EXPECT_EQ(second.read().status, 200);
  EXPECT_EQ(server.wait(), 0);
}

TEST_F(Serve, ADrainThatTakesTooLongAnswersWhatIsPrepared) {
  ServerProcess server(options("--drain-seconds 0"));
  Client slow(server.port()), second(server.port());
  ASSERT_TRUE(become_preparing(server, slow, second));
  server.terminate();
  EXPECT_EQ(second.read().status, 503);
  EXPECT_EQ(server.wait(), 0);
}

}  // namespace
}  // namespace headrace::testing
