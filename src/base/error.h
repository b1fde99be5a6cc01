// Errors are values inside the library: a function that can fail returns Status or Result<T>.
// A message names the argument, the value that arrived, the rule and the remedy.
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include "headrace/headrace.h"

// Evaluates a Status; returns a failure to the caller.
#define HEADRACE_TRY(...) \
  if (auto bad = (__VA_ARGS__)) return bad

namespace headrace {

// Same values as headrace_status.
enum class ErrorCode {
  invalid_argument = HEADRACE_INVALID_ARGUMENT,
  unsupported = HEADRACE_UNSUPPORTED,
  out_of_memory = HEADRACE_OUT_OF_MEMORY,
  device_error = HEADRACE_DEVICE_ERROR,
  io_error = HEADRACE_IO_ERROR,
  internal = HEADRACE_INTERNAL,
  busy = HEADRACE_BUSY,
};

struct Failure {
  ErrorCode code;
  std::string message;
};

// Empty: success.
using Status = std::optional<Failure>;

template <class T>
class Result {
 public:
  // Implicit by design. By reference: a plan is large, and each move of it costs.
  Result(T&& value) : state_(std::move(value)) {}
  Result(const T& value) : state_(value) {}
  Result(Failure failure) : state_(std::move(failure)) {}
  explicit Result(std::in_place_t) {}  // a default T, to be filled where it is
  bool ok() const { return state_.index() == 0; }
  T& value() { return std::get<0>(state_); }
  const T& value() const { return std::get<0>(state_); }
  Failure& failure() { return std::get<1>(state_); }
  const Failure& failure() const { return std::get<1>(state_); }

 private:
  std::variant<T, Failure> state_;
};

// Appends one argument of format_text in iostream format: floating-point numbers with six
// significant digits, bool as 0 or 1, addresses as 0x7f00.
template <class T>
void append_text(std::string& text, const T& value) {
  char digits[32];
  char* const end = digits + sizeof digits;
  if constexpr (std::is_convertible_v<const T&, std::string_view>) {
    text += std::string_view(value);
  } else if constexpr (std::is_same_v<T, char>) {
    text += value;
  } else if constexpr (std::is_same_v<T, bool>) {
    text += value ? '1' : '0';
  } else if constexpr (std::is_floating_point_v<T>) {
    text.append(digits, std::to_chars(digits, end, value, std::chars_format::general, 6).ptr);
  } else if constexpr (std::is_pointer_v<T>) {
    const auto address = reinterpret_cast<std::uintptr_t>(value);
    text += "0x";
    text.append(digits, std::to_chars(digits, end, address, 16).ptr);
  } else {
    static_assert(std::is_integral_v<T>, "format_text formats strings, numbers and addresses");
    text.append(digits, std::to_chars(digits, end, value).ptr);
  }
}

// format_text("k.shape[{}]={} must be {}", 3, 64, 128): every {} takes the next argument. Avoids
// std::ostringstream, whose construction alone would cost more than the rest of planning.
template <class... Args>
std::string format_text(std::string_view pattern, const Args&... args) {
  std::string text;
  [[maybe_unused]] auto put = [&](const auto& arg) {
    const auto hole = pattern.find("{}");
    text += pattern.substr(0, hole);
    append_text(text, arg);
    pattern.remove_prefix(hole == std::string_view::npos ? pattern.size() : hole + 2);
  };
  (put(args), ...);
  text += pattern;
  return text;
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
