// Sends requests to an OpenAI-compatible server at given times, and takes the times of the tokens
// that it streams. Builds without Boost.Beast use load_client_absent.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace headrace::cli {

// Of a server: http://HOST[:PORT][/PATH].
struct Url {
  std::string host, port, path;  // the path is "" or begins with '/' and ends otherwise
};

struct Load {
  Url url;
  std::string path;              // of the endpoint below that of the URL: "/v1/completions"
  std::string api_key;           // empty: none is sent
  std::vector<double> arrivals;  // seconds after the start, ascending: when each request is due
  std::function<std::string(std::int64_t idx)> body;  // JSON of a request
  std::int64_t concurrency = 0;  // requests at once; a due one waits for another's end
  std::int64_t timeout = 0;      // seconds without a byte from the server
  std::function<void(std::int64_t num_ended)> on_end;
};

// Times are seconds after the start.
struct LoadResult {
  double due = 0, sent = 0, end = 0;  // `sent`: the connection is about to be opened
  std::vector<double> tokens;         // arrivals of events with text
  std::int64_t num_prompt_tokens = 0, num_answer_tokens = 0;
  std::string failure;  // empty: complete. "429", "connection", "disconnect", "malformed", ...
  std::string detail;   // of the failure, in part as the server sent it
};

// One connection a request, all on the calling thread. Failures of requests are results. Throws
// Error(HEADRACE_IO_ERROR) if the host has no address.
std::vector<LoadResult> run_load(const Load& load);

}  // namespace headrace::cli
