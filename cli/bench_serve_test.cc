// headrace bench serve against a server whose delays and failures are known.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>

#include "tests/support/fake_server.h"
#include "tests/support/program_json.h"

namespace headrace::cli {
namespace {

using testing::FakeExchange;
using testing::FakeServer;
using testing::json_of;
using testing::run_program;
using testing::sleep_ms;
using Json = nlohmann::json;

std::string arguments(const FakeServer& server, const std::string& more) {
  return "bench serve --model tiny --url " + server.url() + ' ' + more;
}

void answer_at_once(FakeExchange& exchange) {
  exchange.send_head();
  exchange.send_token();
  exchange.send_last(7, 1);
}

Json body_of(const std::string& request) {
  return Json::parse(request.substr(request.find("\r\n\r\n") + 4));
}

Json latency(const Json& report, const std::string& name) {
  for (const Json& row : report["latencies"])
    if (row["latency"] == name) return row;
  ADD_FAILURE() << "no " << name;
  return {};
}

TEST(BenchServe, LatenciesAreThoseOfTheServer) {
  constexpr double kTtft = 80, kGap = 40, kTolerance = 60;  // milliseconds; a busy machine is late
  FakeServer server([](FakeExchange& exchange) {
    exchange.send_head();
    exchange.send_event(R"({"choices":[{"index":0,"delta":{"role":"assistant"}}]})");  // no token
    sleep_ms(static_cast<int>(kTtft));
    exchange.send_token();
    for (int i = 0; i < 3; ++i) {
      sleep_ms(static_cast<int>(kGap));
      exchange.send_token();
    }
    exchange.send_last(5, 7);  // events may have several tokens
  });
  const Json report = json_of(arguments(server, "--requests 6 --endpoint chat"));
  const auto near = [&](const char* name, std::int64_t count, double expected) {
    const Json row = latency(report, name);
    EXPECT_EQ(row["count"], count) << name;
    EXPECT_GE(row["ms_median"].get<double>(), expected - 2) << name;
    EXPECT_LE(row["ms_median"].get<double>(), expected + kTolerance) << name;
    EXPECT_LE(row["ms_median"], row["ms_p90"]) << name;
    EXPECT_LE(row["ms_p99"], row["ms_max"]) << name;
  };
  near("TTFT", 6, kTtft);
  near("ITL", 18, kGap);
  near("TPOT", 6, 3 * kGap / 6);
  near("request", 6, kTtft + 3 * kGap);
  near("client queue", 6, 0);
}

// Answers with 1, 2, 3, ... tokens of prompts with 10, 20, 30, ... tokens; every fourth one fails.
TEST(BenchServe, CountsAreTheSumsOfTheCompleteRequests) {
  FakeServer server([](FakeExchange& exchange) {
    if (exchange.idx % 4 == 3) return;
    exchange.send_head();
    for (int i = 0; i <= exchange.idx; ++i) exchange.send_token();
    exchange.send_last(10 * (exchange.idx + 1), exchange.idx + 1);
  });
  int before = 0;
  for (const int num_requests : {1, 3, 9, 14}) {
    const Json report =
        json_of(arguments(server, "--concurrency 1 --requests " + std::to_string(num_requests)));
    int complete = 0, tokens = 0, num_tpot = 0;
    for (int idx = before; idx < before + num_requests; ++idx) {
      if (idx % 4 == 3) continue;
      ++complete;
      tokens += idx + 1;
      num_tpot += idx > 0;
    }
    before += num_requests;
    const Json row = report["rows"][0];
    const double seconds = row["seconds"];
    EXPECT_GT(seconds, 0);
    EXPECT_EQ(row["requests"], num_requests);
    EXPECT_EQ(row["complete"], complete);
    EXPECT_EQ(row["failed"], num_requests - complete);
    EXPECT_EQ(row["prompt_tokens"], 10 * tokens);
    EXPECT_EQ(row["answer_tokens"], tokens);
    const std::map<std::string, int> rates = {{"requests_per_s", complete},
                                              {"answer_tokens_per_s", tokens},
                                              {"total_tokens_per_s", 11 * tokens}};
    for (const auto& [name, count] : rates)
      EXPECT_NEAR(row[name].get<double>(), count / seconds, 1e-6 * count / seconds) << name;
    std::map<std::string, int> counts, expected = {{"TTFT", complete},
                                                   {"TPOT", num_tpot},
                                                   {"ITL", tokens - complete},
                                                   {"request", complete},
                                                   {"client queue", complete}};
    std::erase_if(expected, [](const auto& one) { return one.second == 0; });
    for (const Json& latencies : report["latencies"]) {
      counts[latencies["latency"]] = latencies["count"];
      EXPECT_LE(latencies["ms_median"], latencies["ms_p90"]);
      EXPECT_LE(latencies["ms_p90"], latencies["ms_p99"]);
      EXPECT_LE(latencies["ms_p99"], latencies["ms_max"]);
      EXPECT_LE(latencies["ms_mean"], latencies["ms_max"]);
      if (latencies["count"] == 1) {
        EXPECT_EQ(latencies["ms_mean"], latencies["ms_max"]);
        EXPECT_EQ(latencies["ms_mean"], latencies["ms_median"]);
      }
    }
    EXPECT_EQ(counts, expected);
  }
}

TEST(BenchServe, GoodputCountsRequestsWithinTheirLimits) {
  FakeServer server([](FakeExchange& exchange) {
    exchange.send_head();
    if (exchange.idx % 4 == 0) sleep_ms(1500);  // TTFT
    exchange.send_token();
    if (exchange.idx % 4 == 1) sleep_ms(1500);  // ITL
    exchange.send_token();
    exchange.send_last(1, 2);
  });
  const auto num_good = [&](const std::string& limits) {
    const Json row = json_of(arguments(server, "--requests 8 " + limits))["rows"][0];
    return row["goodput_per_s"].get<double>() * row["seconds"].get<double>();
  };
  EXPECT_NEAR(num_good("--slo-ttft 1000"), 6, 1e-3);
  EXPECT_NEAR(num_good("--slo-ttft 1000 --slo-itl 1000"), 4, 1e-3);
  EXPECT_TRUE(json_of(arguments(server, "--requests 1"))["rows"][0]["goodput_per_s"].is_null());
}

TEST(BenchServe, FailuresAreCountedByStatus) {
  FakeServer server([](FakeExchange& exchange) {
    switch (exchange.idx) {
      case 0:
      case 1:
        exchange.send_head("429 Too Many Requests");
        exchange.send_chunk("busy");
        exchange.send_end();
        break;
      case 2:  // closed without a word
        break;
      case 3:  // closed within the stream
        exchange.send_head();
        exchange.send_token();
        break;
      case 4:
        exchange.send_head();
        exchange.send_event("{\"choices\": ");
        break;
      case 5:
        exchange.send("no HTTP\r\n\r\n");
        break;
      case 6:  // without [DONE]
        exchange.send_head();
        exchange.send_token();
        exchange.send_end();
        break;
      case 7:
        exchange.send_head();
        exchange.send_last(1, 0);
        break;
      case 8:
        sleep_ms(3000);
        break;
      default:
        answer_at_once(exchange);
    }
  });
  // One at a time, so that they come in order.
  const Json report =
      json_of(arguments(server, "--requests 12 --concurrency 1 --timeout 1 --answer-tokens 4"));
  std::map<std::string, int> failures;
  for (const Json& row : report["failures"]) failures[row["failure"]] = row["count"].get<int>();
  const std::map<std::string, int> expected = {
      {"429", 2}, {"disconnect", 2}, {"empty", 1}, {"malformed", 3}, {"timeout", 1}};
  EXPECT_EQ(failures, expected);
  EXPECT_EQ(report["failures"][0]["detail"], "busy");
  EXPECT_EQ(report["rows"][0]["complete"], 3);
  EXPECT_EQ(report["rows"][0]["failed"], 9);
  EXPECT_EQ(latency(report, "TTFT")["count"], 3);
}

TEST(BenchServe, WithoutACompleteAnswerTheExitCodeIsOne) {
  std::string url;
  {
    FakeServer server(answer_at_once);
    url = server.url();
  }
  const auto result = run_program("bench serve --model a --requests 2 --url " + url);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.out.find("connection"), std::string::npos) << result.out;
}

TEST(BenchServe, ConcurrencyIsAnUpperBoundAndArrivalsDoNotWaitForAnswers) {
  std::atomic<int> num_open = 0, most = 0;
  FakeServer server([&](FakeExchange& exchange) {
    const int num = ++num_open;
    for (int old = most; old < num && !most.compare_exchange_weak(old, num);) {
    }
    sleep_ms(300);
    --num_open;
    answer_at_once(exchange);
  });
  const Json report = json_of(arguments(server, "--requests 6 --concurrency 2"));
  EXPECT_EQ(most, 2);
  EXPECT_GE(latency(report, "client queue")["ms_max"].get<double>(), 550);
  json_of(arguments(server, "--requests 20 --rate 100"));
  EXPECT_GT(most, 5);
}

TEST(BenchServe, ArrivalsHaveTheirRate) {
  FakeServer server(answer_at_once);
  // Intervals of 2 s in all, with a standard deviation of 0.14 and 0.28 s; a busy machine is late.
  for (const char* load : {"--requests 201 --rate 100", "--requests 201 --rate 100 --burst 4"}) {
    const Json report = json_of(arguments(server, std::string(load) + " --prompt-tokens 1"));
    const double seconds = report["rows"][0]["seconds"];
    EXPECT_GT(seconds, 1.3) << load;
    EXPECT_LT(seconds, 5) << load;
  }
}

TEST(BenchServe, RequestsAreWhatTheOptionsSay) {
  FakeServer server(answer_at_once);
  const testing::TemporaryFolder folder;
  const std::string key = folder.file("key", "secret\nno key\n");
  const std::string file = folder.file(
      "share.json",
      R"([{"conversations":[{"from":"human","value":"Why?"},{"from":"gpt","value":"b"}]},
                        {"conversations":[{"from":"gpt","value":"no"}]}, {"conversations":[]}])");
  const auto bodies = [&](const std::string& more) {
    const std::size_t before = server.requests().size();
    json_of(arguments(server, "--requests 2 --concurrency 1 " + more));
    const std::vector<std::string> all = server.requests();
    return std::vector{body_of(all.at(before)), body_of(all.at(before + 1))};
  };
  const std::vector<Json> random = bodies("--prompt-tokens 20 --answer-tokens 3 --vocab 50");
  EXPECT_EQ(random[0]["prompt"].size(), 20u);
  for (const Json& token : random[0]["prompt"]) EXPECT_LT(token.get<int>(), 50);
  EXPECT_NE(random[0]["prompt"], random[1]["prompt"]);
  EXPECT_EQ(random[0]["max_tokens"], 3);
  EXPECT_EQ(random[0]["stream"], true);
  EXPECT_FALSE(random[0].contains("ignore_eos"));
  EXPECT_EQ(random, bodies("--prompt-tokens 20 --answer-tokens 3 --vocab 50"));
  EXPECT_NE(random, bodies("--prompt-tokens 20 --answer-tokens 3 --vocab 50 --seed 1"));

  const std::vector<Json> prefix =
      bodies("--prompt prefix --prompt-tokens 20 --ignore-eos --temperature 0.5");
  const std::vector<int> first = prefix[0]["prompt"], second = prefix[1]["prompt"];
  EXPECT_TRUE(std::equal(first.begin(), first.begin() + 10, second.begin()));
  EXPECT_FALSE(std::equal(first.begin() + 10, first.end(), second.begin() + 10));
  EXPECT_EQ(prefix[0]["ignore_eos"], true);
  EXPECT_EQ(prefix[0]["temperature"], 0.5);

  const std::vector<Json> chat = bodies("--endpoint chat --prompt-tokens 3");
  const std::string text = chat[0]["messages"][0]["content"];
  EXPECT_EQ(std::count(text.begin(), text.end(), ' '), 2);
  EXPECT_EQ(bodies("--prompt sharegpt -f " + file + " --api-key-file " + key)[1]["prompt"], "Why?");
  const std::string last = server.requests().back();
  EXPECT_TRUE(last.starts_with("POST /v1/completions HTTP/1.1\r\n")) << last;
  EXPECT_NE(last.find("Authorization: Bearer secret\r\n"), std::string::npos) << last;
}

TEST(BenchServe, BadArgumentsAreNamed) {
  const testing::TemporaryFolder folder;
  const auto error_of = [](const std::string& more) {
    const auto result = run_program("bench serve --model a --requests 1 " + more + " 2>&1");
    EXPECT_EQ(result.exit_code, 2) << more;
    return result.out;
  };
  for (const char* url : {"localhost:8000", "https://a", "http://", "http://:1", "http://a:x",
                          "http://a:99999", "'http://a b'"})
    EXPECT_NE(error_of("--url " + std::string(url)).find("--url: "), std::string::npos) << url;
  EXPECT_NE(error_of("--rate nan").find("pass "), std::string::npos);
  EXPECT_NE(error_of("--prompt sharegpt").find("--file"), std::string::npos);
  const struct {
    const char *content, *reason;
  } files[] = {
      {"[\n{\n\"conversations\": ]", ":3: invalid JSON"},
      {"", ":1: invalid JSON"},
      {"{}", ": not a JSON array"},
      {"[]", ": no conversation begins"},
      {"[{\"conversations\": []}, 5]", ": conversation 2: no array"},
      {R"([{"conversations": [{"from": 1}]}])", ": conversation 1: the first turn has no"}};
  for (const auto& file : files) {
    const std::string path = folder.file("f.json", file.content);
    const std::string error = error_of("--prompt sharegpt -f " + path);
    EXPECT_NE(error.find(path + file.reason), std::string::npos) << error;
  }
}

}  // namespace
}  // namespace headrace::cli
