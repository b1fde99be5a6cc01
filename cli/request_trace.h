// Requests recorded elsewhere: when each came, and how many tokens it had.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace headrace::cli {

struct TracedRequest {
  double arrival = 0;  // seconds after the start
  std::int64_t prompt = 0, answer = 0;
};

// A line of `text` is a request, as in the traces of Mooncake (Qin et al., 2024):
// {"timestamp": milliseconds, "input_length": tokens, "output_length": tokens}. Other keys are
// skipped. In the order of arrival. Throws Error(HEADRACE_INVALID_ARGUMENT) with `path` and line.
std::vector<TracedRequest> request_trace(const std::string& text, const std::string& path);

}  // namespace headrace::cli
