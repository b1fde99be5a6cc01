// Requests to `headrace serve` with a tiny file of random weights, over real sockets.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/server_process.h"

namespace headrace::testing {

using Json = nlohmann::json;

inline const std::string kModel = HEADRACE_GOLDEN_DIR "/tiny/tiny_llama3_f16.gguf";

inline std::string post(const std::string& path, const std::string& body,
                        const std::string& more = {}) {
  return "POST " + path + " HTTP/1.1\r\nHost: a\r\n" + more +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}
inline std::string get(const std::string& path, const std::string& more = {}) {
  return "GET " + path + " HTTP/1.1\r\nHost: a\r\n" + more + "\r\n";
}
inline std::string completion(const std::string& fields) {
  return post("/v1/completions", "{\"prompt\": \"ab\", \"temperature\": 0" + fields + '}');
}

// Data of the events of a stream.
inline std::vector<std::string> events_of(const HttpAnswer& answer) {
  std::vector<std::string> events;
  for (std::size_t at = 0; (at = answer.body.find("data: ", at)) != std::string::npos;) {
    const std::size_t end = answer.body.find("\n\n", at);
    events.push_back(answer.body.substr(at + 6, end - at - 6));
    at = end;
  }
  return events;
}

inline double metric(ServerProcess& server, const std::string& name) {
  const std::string text = Client(server.port()).ask(get("/metrics")).body;
  const std::size_t at = text.find("\nheadrace:" + name + ' ');
  return at == std::string::npos ? -1 : std::stod(text.substr(at + name.size() + 11));
}

inline bool becomes(const std::function<bool()>& condition) {
  for (int i = 0; i < 500; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

class Serve : public ::testing::Test {
 protected:
  static std::string options(const std::string& more) {
    return "-m " + kModel + " --served-model-name tiny " + more;
  }
};

// num_prompts times 128 samples of 100 tokens.
inline std::string many(int num_prompts, const std::string& fields) {
  const Json prompts(std::vector<std::string>(static_cast<std::size_t>(num_prompts), "ab"));
  return post("/v1/completions", "{\"prompt\": " + prompts.dump() +
                                     R"(, "max_tokens": 100, "n": 128, "ignore_eos": true)" +
                                     fields + '}');
}

}  // namespace headrace::testing
