// Errors are values inside the library: a function that can fail returns Status or Result<T>.
// A good text says which argument, what arrived, the rule it broke, what to do.
#pragma once

#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "headrace/headrace.h"

namespace headrace {

// Same values as headrace_status.
enum class ErrorCode {
  invalid_argument = HEADRACE_INVALID_ARGUMENT,
  unsupported = HEADRACE_UNSUPPORTED,
  out_of_memory = HEADRACE_OUT_OF_MEMORY,
  device_error = HEADRACE_DEVICE_ERROR,
  io_error = HEADRACE_IO_ERROR,
  internal = HEADRACE_INTERNAL,
};

struct Failure {
  ErrorCode code;
  std::string message;
};

// Empty: all is well.
using Status = std::optional<Failure>;

template <class T>
class Result {
 public:
  Result(T value) : state_(std::move(value)) {}            // NOLINT: implicit by design
  Result(Failure failure) : state_(std::move(failure)) {}  // NOLINT: implicit by design
  bool ok() const { return state_.index() == 0; }
  T& value() { return std::get<0>(state_); }
  const T& value() const { return std::get<0>(state_); }
  Failure& failure() { return std::get<1>(state_); }
  const Failure& failure() const { return std::get<1>(state_); }

 private:
  std::variant<T, Failure> state_;
};

// format_text("k.shape[{}]={} must be {}", 3, 64, 128): every {} takes the next argument.
template <class... Args>
std::string format_text(std::string_view pattern, const Args&... args) {
  std::ostringstream out;
  [[maybe_unused]] auto put = [&](const auto& arg) {
    const auto hole = pattern.find("{}");
    out << pattern.substr(0, hole) << arg;
    pattern.remove_prefix(hole == std::string_view::npos ? pattern.size() : hole + 2);
  };
  (put(args), ...);
  out << pattern;
  return std::move(out).str();
}

template <class... Args>
Failure invalid_argument(std::string_view pattern, const Args&... args) {
  return {ErrorCode::invalid_argument, format_text(pattern, args...)};
}

template <class... Args>
Failure unsupported(std::string_view pattern, const Args&... args) {
  return {ErrorCode::unsupported, format_text(pattern, args...)};
}

}  // namespace headrace
