// headrace serve over real sockets, with a tiny file of random weights.
#include <algorithm>
#include <optional>

#include "headrace/engine.hpp"
#include "tests/support/serve_fixture.h"

namespace headrace::testing {
namespace {

TEST_F(Serve, AnswersEveryPath) {
  ServerProcess server(options(""));
  Client client(server.port());  // one connection for all
  EXPECT_EQ(Json::parse(client.ask(get("/health")).body)["status"], "ok");
  EXPECT_EQ(Json::parse(client.ask(get("/v1/models")).body)["data"][0]["id"], "tiny");
  EXPECT_EQ(Json::parse(client.ask(get("/v1/models/ti%6Ey")).body)["id"], "tiny");
  EXPECT_NE(client.ask(get("/")).body.find("<title>Headrace</title>"), std::string::npos);
  EXPECT_EQ(client.ask(get("/app.js")).status, 200);
  EXPECT_EQ(Json::parse(client.ask(get("/v1/engine")).body)["model"], "tiny");
  const Json tokens = Json::parse(client.ask(post("/tokenize", "{\"prompt\": \"ab\"}")).body);
  EXPECT_EQ(tokens["count"], 2);
  const std::string body = Json({{"tokens", tokens["tokens"]}}).dump();
  EXPECT_EQ(Json::parse(client.ask(post("/detokenize", body)).body)["prompt"], "ab");
  const Json chat =
      Json::parse(client
                      .ask(post("/v1/chat/completions",
                                R"({"model": "tiny", "messages": [{"role": "user", "content": "a"}],
                        "max_tokens": 3, "ignore_eos": true, "n": 2, "logprobs": true,
                        "top_logprobs": 2})"))
                      .body);
  ASSERT_EQ(chat["choices"].size(), 2u);
  EXPECT_EQ(chat["choices"][1]["index"], 1);
  EXPECT_EQ(chat["choices"][0]["message"]["role"], "assistant");
  EXPECT_EQ(chat["choices"][0]["logprobs"]["content"][0]["top_logprobs"].size(), 2u);
  EXPECT_EQ(chat["usage"]["completion_tokens"], 6);
  EXPECT_EQ(metric(server, "generation_tokens_total"), 6);
}

TEST_F(Serve, AStreamIsTheWholeAnswer) {
  ServerProcess server(options(""));
  Client client(server.port());
  const std::string fields = R"(, "max_tokens": 20, "ignore_eos": true)";
  const Json whole = Json::parse(client.ask(completion(fields)).body);
  const HttpAnswer stream = client.ask(
      completion(fields + R"(, "stream": true, "stream_options": {"include_usage": true})"));
  EXPECT_NE(stream.head.find("text/event-stream"), std::string::npos);
  const std::vector<std::string> events = events_of(stream);
  ASSERT_GE(events.size(), 3u);  // a slow reader may find all text in one
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_EQ(Json::parse(events[events.size() - 2])["usage"], whole["usage"]);
  std::string text;
  for (std::size_t i = 0; i + 2 < events.size(); ++i)
    text += Json::parse(events[i])["choices"][0]["text"];
  EXPECT_EQ(text, whole["choices"][0]["text"]);
  EXPECT_EQ(Json::parse(events[events.size() - 3])["choices"][0]["finish_reason"], "length");
}

TEST_F(Serve, AnyCharacterOfAModelsNameMayBeEscaped) {
  ServerProcess server(options(""));
  Client client(server.port());
  const std::string name = "tiny";
  const auto escaped = [](char c) {
    constexpr const char* kDigits = "0123456789abcdef";
    return std::string("%") + kDigits[c / 16] + kDigits[c % 16];
  };
  for (int which = 0; which < 16; ++which) {
    std::string path = "/v1/models/";
    for (int i = 0; i < 4; ++i)
      path += which >> i & 1 ? escaped(name[static_cast<std::size_t>(i)])
                             : std::string(1, name[static_cast<std::size_t>(i)]);
    EXPECT_EQ(client.ask(get(path)).status, 200) << path;
  }
  for (const char* path : {"tin%7", "tin%", "tin%zz", "%74in%", "tiny%00", "tiny%"})
    EXPECT_EQ(client.ask(get("/v1/models/" + std::string(path))).status, 404) << path;
}

// Of characters of four bytes: three of four tokens have no text yet.
TEST_F(Serve, AStreamHasTheLogprobsOfTheWholeAnswer) {
  ServerProcess server(options(""));
  Client client(server.port());
  const auto ask = [&](bool is_chat, const std::string& more) {
    const std::string fields =
        R"(, "max_tokens": 90, "temperature": 1, "seed": 7, "n": 4,
            "structured_outputs": {"regex": "\ud83d\ude00{20}"})" +
        more;
    return client.ask(is_chat ? post("/v1/chat/completions",
                                     R"({"messages": [{"role": "user", "content": "a"}],
                                        "logprobs": true, "top_logprobs": 2)" +
                                         fields + '}')
                              : completion(R"(, "logprobs": 2)" + fields));
  };
  for (const bool is_chat : {false, true}) {
    std::vector<Json> whole, streamed;
    const Json answer = Json::parse(ask(is_chat, "").body);
    for (const Json& choice : answer["choices"]) {
      whole.push_back(choice["logprobs"]);
      EXPECT_EQ(whole.back()[is_chat ? "content" : "tokens"].size(), 80u);
      streamed.emplace_back();
      for (const auto& [name, values] : whole.back().items()) streamed.back()[name] = Json::array();
    }
    for (const std::string& event : events_of(ask(is_chat, R"(, "stream": true)"))) {
      if (event == "[DONE]") continue;
      const Json choice = Json::parse(event)["choices"][0];
      for (const auto& [name, values] : choice["logprobs"].items())
        for (const Json& value : values) streamed.at(choice["index"])[name].push_back(value);
    }
    EXPECT_EQ(streamed, whole) << is_chat;
  }
}

// In a text of one byte per character, whole and in the parts of a stream.
TEST_F(Serve, LogprobsSayWhereEachTokenBegins) {
  ServerProcess server(options(""));
  Client client(server.port());
  const std::string fields = R"(, "max_tokens": 60, "temperature": 1, "seed": 3, "logprobs": 1,
      "structured_outputs": {"regex": "[a-z]{40}"})";
  const Json whole = Json::parse(client.ask(completion(fields)).body)["choices"][0];
  std::string text;
  std::vector<std::string> tokens;
  std::vector<std::size_t> offsets;
  for (const std::string& event : events_of(client.ask(completion(fields + R"(, "stream": true)"))))
    if (event != "[DONE]") {
      const Json part = Json::parse(event)["choices"][0];
      text += part["text"];
      if (part["logprobs"].is_null()) continue;
      for (const Json& token : part["logprobs"]["tokens"]) tokens.push_back(token);
      for (const Json& offset : part["logprobs"]["text_offset"]) offsets.push_back(offset);
    }
  EXPECT_EQ(text.size(), 40u);
  EXPECT_EQ(whole["text"], text);
  EXPECT_EQ(whole["logprobs"]["tokens"], Json(tokens));
  EXPECT_EQ(whole["logprobs"]["text_offset"], Json(offsets));
  ASSERT_EQ(offsets.size(), tokens.size());
  std::size_t at = 0;
  for (std::size_t i = 0; i < tokens.size(); at += tokens[i++].size()) {
    EXPECT_EQ(offsets[i], at);
    EXPECT_EQ(text.substr(at, tokens[i].size()), tokens[i]);
  }
}

// Several prompts with several samples each: choice i * n + s is sample s of prompt i.
TEST_F(Serve, ChoicesAreTheSamplesOfEachPromptInTurn) {
  ServerProcess server(options(""));
  Client client(server.port());
  const std::vector<std::string> prompts = {"ab", "b", "aab"};
  constexpr std::size_t kNum = 2;
  const auto ask = [&](const Json& prompt, const std::string& more) {
    return client.ask(
        post("/v1/completions", "{\"prompt\": " + prompt.dump() +
                                    R"(, "n": 2, "seed": 5, "max_tokens": 9, "ignore_eos": true)" +
                                    more + '}'));
  };
  std::vector<std::string> wanted;
  for (const std::string& prompt : prompts) {
    const Json answer = Json::parse(ask(prompt, "").body);
    for (const Json& choice : answer["choices"]) wanted.push_back(choice["text"]);
  }
  ASSERT_EQ(wanted.size(), prompts.size() * kNum);
  const Json whole = Json::parse(ask(prompts, "").body)["choices"];
  std::vector<std::string> streamed(wanted.size());
  for (const std::string& event : events_of(ask(prompts, R"(, "stream": true)")))
    if (event != "[DONE]") {
      const Json choice = Json::parse(event)["choices"][0];
      streamed.at(choice["index"]) += choice["text"];
    }
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_EQ(whole.at(i)["index"], i);
    EXPECT_EQ(whole.at(i)["text"], wanted[i]) << i;
    EXPECT_EQ(streamed[i], wanted[i]) << i;
  }
}

// A prompt is counted once, however many samples it has; its answers are counted each.
TEST_F(Serve, UsageCountsAPromptOnceForAllItsSamples) {
  ServerProcess server(options(""));
  Client client(server.port());
  const std::string prompt(100, 'b');
  const auto usage = [&](int n) {
    return Json::parse(
        client
            .ask(post("/v1/completions", R"({"max_tokens": 2, "ignore_eos": true, "prompt": ")" +
                                             prompt + R"(", "n": )" + std::to_string(n) + '}'))
            .body)["usage"];
  };
  usage(1);  // fills the prefix cache
  const Json one = usage(1);
  EXPECT_GT(one["prompt_tokens_details"]["cached_tokens"], 0);
  for (const int n : {2, 5}) {
    const Json several = usage(n);
    EXPECT_EQ(several["prompt_tokens"], one["prompt_tokens"]);
    EXPECT_EQ(several["prompt_tokens_details"], one["prompt_tokens_details"]);
    EXPECT_EQ(several["completion_tokens"], 2 * n);
    EXPECT_EQ(several["total_tokens"].get<int>(), one["prompt_tokens"].get<int>() + 2 * n);
  }
}

// The model's weights are random: only the format makes its text what is asked for.
TEST_F(Serve, AnswersInTheFormatThatIsAskedFor) {
  ServerProcess server(options(""));
  Client client(server.port());
  const auto text_of = [&](const std::string& fields) {
    const Json answer = Json::parse(
        client.ask(completion(R"(, "max_tokens": 90, "temperature": 1, "seed": 3, )" + fields))
            .body);
    EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop") << answer.dump();
    return answer["choices"][0]["text"].get<std::string>();
  };
  for (int i = 0; i < 2; ++i) {  // the second time from the cache
    const std::string text = text_of(R"("response_format": {"type": "json_schema", "json_schema": {
        "name": "x", "strict": true, "schema": {"type": "object", "required": ["z", "a"],
        "properties": {"z": {"type": "boolean"}, "a": {"enum": ["x", "y"]}},
        "additionalProperties": false}}})");
    const Json json = Json::parse(text);
    EXPECT_TRUE(json["z"].is_boolean()) << text;
    EXPECT_EQ(json.size(), 2u) << text;
    EXPECT_LT(text.find("\"z\""), text.find("\"a\"")) << text;  // the order of the schema
  }
  EXPECT_EQ(text_of(R"("structured_outputs": {"regex": "yes"})"), "yes");
  EXPECT_EQ(text_of(R"("structured_outputs": {"grammar": "root ::= \"no\""})"), "no");
  EXPECT_EQ(text_of(R"("structured_outputs": {"json": {"const": 5}})"), "5");
}

// Logprobs of the greedy answer of an engine with this cache.
std::vector<float> engine_logprobs(std::optional<DType> k_dtype, std::optional<DType> v_dtype,
                                   std::int64_t max_new_tokens) {
  const Model model(kModel);
  Engine engine(model, {.k_dtype = k_dtype, .v_dtype = v_dtype});
  engine.add({.prompt = model.tokenize("ab"),
              .max_new_tokens = max_new_tokens,
              .num_logprobs = 0,
              .ignore_end = true});
  std::vector<float> logprobs;
  while (engine.step())
    while (const std::optional<Output> output = engine.poll())
      logprobs.insert(logprobs.end(), output->logprobs.begin(), output->logprobs.end());
  return logprobs;
}

// 40 tokens: more than the newest group, which is not quantised.
TEST_F(Serve, TheTypesOfKeysAndValuesAreOptions) {
  const struct {
    std::string options;
    std::optional<DType> k, v;
  } cases[] = {{"", {}, {}},
               {"--kv-type int8", DType::i8, DType::i8},
               {"--kv-type fp8", DType::f8e4m3, DType::f8e4m3},
               {"--kv-type int4", DType::i4x2, DType::i4x2},
               {"--k-type int8", DType::i8, {}},
               {"--v-type int8", {}, DType::i8},
               {"--k-type fp8 --v-type int4", DType::f8e4m3, DType::i4x2},
               {"--kv-type kivi4", DType::u4x2, DType::u4x2},
               {"--k-type kivi2 --v-type int8", DType::u2x4, DType::i8}};
  std::vector<Json> seen;
  for (const auto& [more, k, v] : cases) {
    ServerProcess server(options(more));
    const Json answer =
        Json::parse(Client(server.port())
                        .ask(completion(R"(, "max_tokens": 40, "ignore_eos": true, "logprobs": 0)"))
                        .body);
    const Json logprobs = answer["choices"][0]["logprobs"]["token_logprobs"];
    EXPECT_EQ(logprobs, Json(engine_logprobs(k, v, 40))) << more;
    EXPECT_EQ(std::count(seen.begin(), seen.end(), logprobs), 0) << more << " changes nothing";
    seen.push_back(logprobs);
  }
}

TEST_F(Serve, PipelinedRequestsAreAnsweredInOrder) {
  ServerProcess server(options(""));
  Client client(server.port());
  std::string all;
  for (int i = 1; i <= 20; ++i)
    all += completion(R"(, "ignore_eos": true, "max_tokens": )" + std::to_string(i));
  client.send(all);
  for (int i = 1; i <= 20; ++i)
    EXPECT_EQ(Json::parse(client.read().body)["usage"]["completion_tokens"], i);
}

TEST_F(Serve, RefusesWhatItCannotAnswer) {
  ServerProcess server(options("--max-body-bytes 4096 --max-header-bytes 2048"));
  const struct {
    const char* name;
    std::string request;
    int status;
  } cases[] = {
      {"bad JSON", post("/v1/completions", "{\"prompt\": "), 400},
      {"no object", post("/v1/completions", "[]"), 400},
      {"no body", post("/v1/completions", ""), 400},
      {"deep", post("/v1/completions", std::string(4000, '[')), 400},
      {"deep, a field", completion(", \"x\": " + std::string(99, '[') + std::string(99, ']')), 400},
      {"huge number", completion(", \"max_tokens\": 1e999"), 400},
      {"beyond int64", completion(", \"max_tokens\": 18446744073709551615"), 400},
      {"negative", completion(", \"max_tokens\": -1"), 400},
      {"invalid UTF-8", completion(", \"stop\": \"\xff\""), 400},
      {"zero in a stop", completion(", \"stop\": \"a\\u0000\""), 400},
      {"wrong type", completion(", \"stream\": 1"), 400},
      {"penalty", completion(", \"presence_penalty\": 3"), 400},
      {"logit_bias", completion(", \"logit_bias\": {\"x\": 1}"), 400},
      {"bias of no token", completion(", \"logit_bias\": {\"999999999\": 1}"), 400},
      {"echo", completion(", \"echo\": true, \"logprobs\": 1"), 400},
      {"best_of", completion(", \"best_of\": 2, \"n\": 3"), 400},
      {"best_of in a stream", completion(", \"best_of\": 2, \"stream\": true"), 400},
      {"more beams than sequences", completion(", \"use_beam_search\": true, \"n\": 128"), 400},
      {"json_schema", completion(", \"response_format\": {\"type\": \"json_schema\"}"), 400},
      {"unknown keyword", completion(R"(, "response_format": {"type": "json_schema",
                     "json_schema": {"schema": {"dependentRequired": {}}}})"),
       400},
      {"other format", completion(R"(, "response_format": {"type": "xml"})"), 400},
      {"bad regex", completion(R"(, "structured_outputs": {"regex": "("})"), 400},
      {"an empty schema", completion(R"(, "structured_outputs": {"json": ""})"), 400},
      {"two formats", completion(R"(, "structured_outputs": {"regex": "a", "grammar": "b"})"), 400},
      {"a format and ignore_eos",
       completion(R"(, "structured_outputs": {"regex": "a"}, "ignore_eos": true)"), 400},
      {"tools", post("/v1/chat/completions", R"({"messages": [], "tools": [{}]})"), 400},
      {"no such token", post("/v1/completions", "{\"prompt\": [999999]}"), 400},
      {"no tokens", post("/v1/completions", "{\"prompt\": []}"), 400},
      {"too long", post("/v1/completions", "{\"prompt\": \"" + std::string(500, 'q') + "\"}"), 400},
      {"other role", post("/v1/chat/completions", R"({"messages": [{"role": "x"}]})"), 400},
      {"other model", completion(", \"model\": \"x\""), 404},
      {"no such path", get("/x"), 404},
      {"GET", get("/v1/completions"), 405},
      {"POST", post("/health", ""), 405},
      {"another site", get("/health", "Origin: http://x.test\r\n"), 403},
      {"body too large", post("/tokenize", std::string(5000, ' ')), 413},
      {"header too large", get("/", "X: " + std::string(4000, 'x') + "\r\n"), 431},
      {"no HTTP", "hello\r\n\r\n", 400},
      {"target", "GET x HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"bad chunk",
       "POST /tokenize HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400},
  };
  for (const auto& refused : cases) {
    const HttpAnswer answer = Client(server.port()).ask(refused.request);
    EXPECT_EQ(answer.status, refused.status) << refused.name << ": " << answer.body;
    const Json json = Json::parse(answer.body, nullptr, false);
    EXPECT_TRUE(json.is_object() && json["error"]["message"].is_string()) << refused.name;
  }
  EXPECT_EQ(Client(server.port()).ask(completion("")).status, 200);  // it lives
}

TEST_F(Serve, TakesChunkedBodiesByteByByte) {
  ServerProcess server(options(""));
  Client client(server.port());
  const std::string request =
      "POST /tokenize HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
      "8\r\n{\"prompt\r\n7\r\n\":\"ab\"}\r\n0\r\n\r\n";
  for (const char byte : request) client.send(std::string(1, byte));
  EXPECT_EQ(Json::parse(client.read().body)["count"], 2);
}

TEST_F(Serve, AsksForAKey) {
  ServerProcess server(options("--api-key secret"));
  Client client(server.port());
  EXPECT_EQ(client.ask(get("/v1/models")).status, 401);
  EXPECT_EQ(client.ask(get("/v1/models", "Authorization: Bearer secre\r\n")).status, 401);
  EXPECT_EQ(client.ask(get("/v1/models", "Authorization: Bearer secret\r\n")).status, 200);
  EXPECT_EQ(client.ask(get("/health")).status, 200);
}

// With one sequence at once a minute or more: what ends it early is the abort.
std::string endless() { return many(128, ""); }
std::string endless_stream() { return many(128, R"(, "stream": true, "logprobs": 20)"); }

// More of them than the list has: one after the other, up to the latest.
TEST_F(Serve, StepsAreTheLatestOnes) {
  ServerProcess server(options("--streams 1"));
  Client client(server.port());
  for (int i = 0; i < 3; ++i)
    ASSERT_EQ(client.ask(completion(R"(, "max_tokens": 90, "ignore_eos": true)")).status, 200);
  const Json state = Json::parse(client.ask(get("/v1/engine")).body);
  const Json& steps = state["steps"];
  EXPECT_EQ(steps.size(), 63u);  // between 64 of them
  for (std::size_t i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(steps[i]["generated"], 1) << i;
    EXPECT_LE(steps[i]["ms_ago"], steps[i == 0 ? 0 : i - 1]["ms_ago"]) << i;
  }
}

TEST_F(Serve, ADisconnectAbortsTheRequest) {
  ServerProcess server(options("--streams 1"));
  {
    Client client(server.port());
    client.send(endless());
    ASSERT_TRUE(becomes([&] { return metric(server, "num_requests_running") > 0; }));
  }
  EXPECT_TRUE(becomes([&] {
    const Json state = Json::parse(Client(server.port()).ask(get("/v1/engine")).body);
    return state["stats"]["requests"] == 0 && state["pages"]["used"] == 0;
  }));
  EXPECT_EQ(Client(server.port()).ask(completion("")).status, 200);
}

// The engine is faster than the thread that writes: a reader that reads is not slow.
TEST_F(Serve, ALargeStreamReachesItsReader) {
  ServerProcess server(options(""));
  const HttpAnswer answer =
      Client(server.port()).ask(many(2, R"(, "stream": true, "logprobs": 1)"));
  ASSERT_FALSE(events_of(answer).empty());
  EXPECT_EQ(events_of(answer).back(), "[DONE]");
}

// A fast machine fills 64 KiB and aborts between two looks at /metrics: whether the request ever
// counts as running is not asked.
TEST_F(Serve, ASlowReaderIsClosedAndOthersGoOn) {
  ServerProcess server(options("--max-output-bytes 65536 --streams 1"));
  Client slow(server.port(), 4096);  // a small receive buffer, never read
  slow.send(endless_stream());
  EXPECT_EQ(Client(server.port()).ask(completion("")).status, 200);
  const auto num_aborted = [&] {
    const std::string text = Client(server.port()).ask(get("/metrics")).body;
    const std::string name = "request_success_total{finished_reason=\"abort\"} ";
    return std::stol(text.substr(text.find(name) + name.size()));
  };
  EXPECT_TRUE(becomes([&] { return num_aborted() > 0; }));
  EXPECT_EQ(Client(server.port()).ask(completion("")).status, 200);
}

TEST_F(Serve, AFullQueueIs429) {
  ServerProcess server(options("--max-requests 128 --streams 1"));
  Client first(server.port());
  first.send(endless());
  ASSERT_TRUE(becomes([&] { return metric(server, "num_requests_running") > 0; }));
  const HttpAnswer answer = Client(server.port()).ask(completion(""));
  EXPECT_EQ(answer.status, 429);
  EXPECT_NE(answer.head.find("Retry-After: "), std::string::npos);
}

TEST_F(Serve, SigtermEndsWhatIsUnderWay) {
  ServerProcess server(options("--streams 1"));
  Client client(server.port());
  client.send(many(4, ""));
  ASSERT_TRUE(becomes([&] { return metric(server, "num_requests_running") > 0; }));
  server.terminate();
  EXPECT_EQ(Json::parse(client.read().body)["usage"]["completion_tokens"], 51200);
  EXPECT_EQ(server.wait(), 0);
}

TEST_F(Serve, ADrainThatTakesTooLongAborts) {
  ServerProcess server(options("--drain-seconds 0 --streams 1"));
  Client client(server.port());
  client.send(endless());
  ASSERT_TRUE(becomes([&] { return metric(server, "num_requests_running") > 0; }));
  server.terminate();
  EXPECT_EQ(server.wait(), 0);
}

}  // namespace
}  // namespace headrace::testing
