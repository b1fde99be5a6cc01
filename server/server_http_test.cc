// headrace serve over real sockets: every header line of every kind of answer, errors in full, and
// that requests which have ended do not count.
#include <map>

#include "tests/support/serve_fixture.h"

namespace headrace::testing {
namespace {

using Headers = std::map<std::string, std::string>;

// The lines behind the first one.
Headers headers_of(const HttpAnswer& answer) {
  Headers headers;
  for (std::size_t at = answer.head.find("\r\n"); at != std::string::npos;) {
    const std::size_t end = answer.head.find("\r\n", at + 2);
    const std::string line = answer.head.substr(at + 2, end - at - 2);
    const std::size_t colon = line.find(": ");
    headers[line.substr(0, colon)] += colon < line.size() ? line.substr(colon + 2) : "";
    at = end;
  }
  return headers;
}

std::string preflight(const std::string& path) {
  return "OPTIONS " + path + " HTTP/1.1\r\nHost: a\r\n";
}

// A kind of answer: what is asked with more header lines, and how it is answered.
struct Kind {
  std::string name;
  std::function<std::string(const std::string&)> ask;
  int status;
  Headers headers;  // beside those that all have, and the length
};

std::vector<Kind> kinds() {
  const std::string json = "application/json";
  const auto post_with = [](const std::string& path, const std::string& body) {
    return [=](const std::string& more) { return post(path, body, more); };
  };
  const auto get_of = [](const std::string& path) {
    return [=](const std::string& more) { return get(path, more); };
  };
  const std::string chat = R"({"messages": [{"role": "user", "content": "a"}], "max_tokens": 2)";
  const Headers stream = {{"Content-Type", "text/event-stream; charset=utf-8"},
                          {"Transfer-Encoding", "chunked"},
                          {"Cache-Control", "no-cache"},
                          {"X-Accel-Buffering", "no"}};
  const std::string policy = "default-src 'self'";
  return {
      {"health", get_of("/health"), 200, {{"Content-Type", json}}},
      {"models", get_of("/v1/models"), 200, {{"Content-Type", json}}},
      {"engine", get_of("/v1/engine"), 200, {{"Content-Type", json}}},
      {"metrics",
       get_of("/metrics"),
       200,
       {{"Content-Type", "text/plain; version=0.0.4; charset=utf-8"}}},
      {"page",
       get_of("/"),
       200,
       {{"Content-Type", "text/html; charset=utf-8"}, {"Content-Security-Policy", policy}}},
      {"tokens", post_with("/tokenize", R"({"prompt": "a"})"), 200, {{"Content-Type", json}}},
      {"completion",
       post_with("/v1/completions", R"({"prompt": "a", "max_tokens": 2})"),
       200,
       {{"Content-Type", json}}},
      {"chat", post_with("/v1/chat/completions", chat + "}"), 200, {{"Content-Type", json}}},
      {"stream", post_with("/v1/chat/completions", chat + R"(, "stream": true})"), 200, stream},
      {"a bad request", post_with("/v1/completions", "{}"), 400, {{"Content-Type", json}}},
      {"no such path", get_of("/x"), 404, {{"Content-Type", json}}},
      {"GET", get_of("/tokenize"), 405, {{"Content-Type", json}, {"Allow", "POST"}}},
      {"POST", post_with("/health", ""), 405, {{"Content-Type", json}, {"Allow", "GET"}}},
      {"preflight",
       [](const std::string& more) { return preflight("/v1/completions") + more + "\r\n"; },
       204,
       {{"Access-Control-Allow-Methods", "GET, POST"},
        {"Access-Control-Allow-Headers", "Authorization, Content-Type"}}},
  };
}

// Asks each kind, with these lines: the answer's headers are the kind's and `added`, no others.
void expect_headers(ServerProcess& server, const std::string& more, const Headers& added) {
  Client client(server.port());  // one connection: no length is wrong
  for (const Kind& kind : kinds()) {
    SCOPED_TRACE(kind.name);
    const HttpAnswer answer = client.ask(kind.ask(more));
    ASSERT_EQ(answer.status, kind.status) << answer.body;
    Headers expected = kind.headers;
    expected.insert(added.begin(), added.end());
    expected["X-Content-Type-Options"] = "nosniff";
    if (kind.status != 204 && !expected.contains("Transfer-Encoding"))
      expected["Content-Length"] = std::to_string(answer.body.size());
    EXPECT_EQ(headers_of(answer), expected);
  }
}

TEST_F(Serve, HeadersOfEveryKindOfAnswer) {
  ServerProcess server(options(""));
  expect_headers(server, "", {});
  expect_headers(server, "Origin: http://a\r\n", {});  // the server's own page
  expect_headers(server, "Origin: https://a\r\n", {});
}

TEST_F(Serve, PagesOfAnAllowedOriginMayReadEveryKindOfAnswer) {
  const std::string first = "http://one.test", second = "https://two.test:8443";
  const auto allowed = [](const std::string& origin) {
    return Headers{{"Access-Control-Allow-Origin", origin}, {"Vary", "Origin"}};
  };
  ServerProcess server(options("--cors-origin " + first + " --cors-origin " + second));
  for (const std::string& origin : {first, second})
    expect_headers(server, "Origin: " + origin + "\r\n", allowed(origin));
  expect_headers(server, "", {});
  ServerProcess any(options("--cors-origin '*'"));
  expect_headers(any, "Origin: http://x.test\r\n", allowed("http://x.test"));
  expect_headers(any, "", {});
  // Neither a beginning nor an end of an allowed one.
  for (const std::string other :
       {"http://one.tes", "http://one.test.x", "http://two.test:8443", "https://two.test", "null"})
    for (const Kind& kind : kinds()) {
      const HttpAnswer answer = Client(server.port()).ask(kind.ask("Origin: " + other + "\r\n"));
      EXPECT_EQ(answer.status, 403) << kind.name;
      EXPECT_EQ(headers_of(answer).count("Access-Control-Allow-Origin"), 0u) << kind.name;
      EXPECT_EQ(Json::parse(answer.body)["error"]["message"],
                "pages of " + other + " may not ask; start with --cors-origin");
    }
}

TEST_F(Serve, ErrorsSayWhatTheClientNeeds) {
  ServerProcess server(options("--api-key secret"));
  const HttpAnswer answer = Client(server.port()).ask(get("/v1/models"));
  EXPECT_EQ(answer.status, 401);
  EXPECT_EQ(headers_of(answer).at("WWW-Authenticate"), "Bearer");
  EXPECT_EQ(Json::parse(answer.body),
            Json({{"error",
                   {{"message", "no valid API key; send Authorization: Bearer KEY"},
                    {"type", "authentication_error"},
                    {"param", nullptr},
                    {"code", "invalid_api_key"}}}}));
}

// At the boundary: the longest prompt leaves room for a token.
TEST_F(Serve, PromptsThatAreTooLongAreRefusedInFull) {
  ServerProcess server(options(""));
  Client client(server.port());
  const std::int64_t max =
      Json::parse(client.ask(get("/v1/models")).body)["data"][0]["max_model_len"];
  const auto refusal = [&](std::int64_t num_tokens, const std::string& param) {
    return Json(
        {{"error",
          {{"message", "the prompt has " + std::to_string(num_tokens) +
                           " tokens, and prompt and answer have at most " + std::to_string(max)},
           {"type", "invalid_request_error"},
           {"param", param},
           {"code", "context_length_exceeded"}}}});
  };
  const auto complete = [&](std::int64_t num_tokens) {
    const Json body = {{"prompt", std::vector<int>(static_cast<std::size_t>(num_tokens), 65)},
                       {"max_tokens", 9},
                       {"ignore_eos", true}};
    return client.ask(post("/v1/completions", body.dump()));
  };
  const Json longest = Json::parse(complete(max - 1).body);
  EXPECT_EQ(longest["usage"]["prompt_tokens"], max - 1);
  EXPECT_EQ(longest["usage"]["completion_tokens"],
            2);  // nothing follows the last: it needs no room
  EXPECT_EQ(longest["choices"][0]["finish_reason"], "length");
  for (const std::int64_t num_tokens : {max, max + 1, 4 * max}) {
    const HttpAnswer answer = complete(num_tokens);
    EXPECT_EQ(answer.status, 400);
    EXPECT_EQ(Json::parse(answer.body), refusal(num_tokens, "prompt"));
  }
  // One of several prompts.
  const HttpAnswer several = client.ask(
      post("/v1/completions",
           Json({{"prompt", {{65}, std::vector<int>(static_cast<std::size_t>(max), 65)}}}).dump()));
  EXPECT_EQ(several.status, 400);
  EXPECT_EQ(Json::parse(several.body), refusal(max, "prompt"));
  // A chat grows by a token for each letter.
  std::int64_t num_tokens = 0;
  for (std::string content;; content += 'q') {
    const Json body = {{"messages", {{{"role", "user"}, {"content", content}}}}, {"max_tokens", 1}};
    const HttpAnswer answer = client.ask(post("/v1/chat/completions", body.dump()));
    if (answer.status == 200) {
      num_tokens = Json::parse(answer.body)["usage"]["prompt_tokens"];
      ASSERT_LT(content.size(), 1000u);
      continue;
    }
    EXPECT_EQ(answer.status, 400);
    EXPECT_EQ(num_tokens, max - 1);
    EXPECT_EQ(Json::parse(answer.body), refusal(max, "messages"));
    break;
  }
}

// As many requests as there may be, after many of each kind have ended: none of them counts.
TEST_F(Serve, RequestsThatHaveEndedLeaveRoomForOthers) {
  ServerProcess server(options("--max-requests 3"));
  const auto ask = [&](const std::string& request) {
    return Client(server.port()).ask(request).status;
  };
  const std::string three = R"({"prompt": ["a", "b", "ab"], "max_tokens": 2)";
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(ask(completion(R"(, "max_tokens": 2)")), 200);
    EXPECT_EQ(ask(completion(R"(, "max_tokens": 2, "stream": true)")), 200);
    EXPECT_EQ(ask(post("/v1/completions", three + "}")), 200);
    EXPECT_EQ(ask(post("/v1/completions", three + R"(, "n": 2, "temperature": 1})")), 200);
    EXPECT_EQ(ask(post("/v1/completions", R"({"prompt": ["a", "b", []]})")), 400);
    EXPECT_EQ(ask(completion(", \"n\": 0")), 400);
    {
      Client gone(server.port());
      gone.send(many(3, ""));
      ASSERT_TRUE(becomes([&] { return metric(server, "num_requests_running") > 0; }));
    }
    EXPECT_TRUE(becomes([&] { return ask(post("/v1/completions", three + "}")) == 200; }));
  }
  // One more than there may be is refused, whatever has ended.
  const HttpAnswer answer =
      Client(server.port()).ask(post("/v1/completions", R"({"prompt": ["a", "b", "c", "d"]})"));
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(Json::parse(answer.body)["error"]["message"], "more prompts than 3");
}

}  // namespace
}  // namespace headrace::testing
