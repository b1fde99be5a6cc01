#include "request_trace.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "headrace/headrace.hpp"

namespace headrace::cli {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kMostTokens = 1 << 20;   // of a prompt or an answer
constexpr std::size_t kMostRequests = 1 << 20;  // bounds the memory of a wrong file
constexpr double kMostMilliseconds = 1e9;       // eleven days

[[noreturn]] void fail_line(const std::string& where, const std::string& reason) {
  throw Error(HEADRACE_INVALID_ARGUMENT,
              where + ": " + reason +
                  "; expected {\"timestamp\": MILLISECONDS, \"input_length\": TOKENS, "
                  "\"output_length\": TOKENS}");
}

TracedRequest request_of(const std::string& line, const std::string& where) {
  const Json json = Json::parse(line, nullptr, false);
  if (!json.is_object()) fail_line(where, "no JSON object");
  const auto tokens = [&](const char* key) {
    const auto value = json.find(key);
    if (value == json.end() || !value->is_number_integer() || *value < 1 || *value > kMostTokens)
      fail_line(where, '"' + std::string(key) + "\" is not 1 to " + std::to_string(kMostTokens));
    return value->get<std::int64_t>();
  };
  const auto time = json.find("timestamp");
  if (time == json.end() || !time->is_number() || *time < 0 || *time > kMostMilliseconds)
    fail_line(where, "\"timestamp\" is not 0 to 1e9");
  return {.arrival = time->get<double>() / 1e3,
          .prompt = tokens("input_length"),
          .answer = tokens("output_length")};
}

}  // namespace

std::vector<TracedRequest> request_trace(const std::string& text, const std::string& path) {
  std::vector<TracedRequest> requests;
  std::istringstream lines(text);
  std::string line;
  for (std::int64_t number = 1; std::getline(lines, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string where = path + ':' + std::to_string(number);
    if (requests.size() == kMostRequests)
      throw Error(HEADRACE_INVALID_ARGUMENT,
                  where + ": more than " + std::to_string(kMostRequests) + " requests; split it");
    requests.push_back(request_of(line, where));
  }
  if (requests.empty()) fail_line(path, "no request");
  std::stable_sort(
      requests.begin(), requests.end(),
      [](const TracedRequest& a, const TracedRequest& b) { return a.arrival < b.arrival; });
  return requests;
}

}  // namespace headrace::cli
