// Structs of programs compiled with an older header: cut to every size, and what a call then does.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "headrace/headrace.h"

namespace headrace::testing {

// The first `size` bytes of `full`, followed by the bytes of `rest`.
template <class T>
T cut(const T& full, std::size_t size, const T& rest) {
  T made = rest;
  std::memcpy(&made, &full, size);
  made.struct_size = size;
  return made;
}

template <class T>
T garbage() {
  T made;
  std::memset(static_cast<void*>(&made), 0xEE, sizeof made);
  return made;
}

inline std::string failed(headrace_status status) {
  return std::string(headrace_status_name(status)) + ": " + headrace_last_error();
}

// outcome(struct) is the library's result as text. For every size from `oldest` on it equals that
// of a complete struct whose last fields have their defaults; smaller sizes are refused. `full` has
// a non-default value in every field: `num_steps` of the sizes add a field that changes the
// outcome.
template <class T>
void expect_older_structs(const char* what, const T& full, const T& defaults, std::size_t oldest,
                          int num_steps, const std::function<std::string(const T&)>& outcome) {
  SCOPED_TRACE(what);
  int num_changes = 0;
  std::string before;
  for (std::size_t size = sizeof(std::size_t); size <= sizeof(T); size += sizeof(std::int64_t)) {
    SCOPED_TRACE(size);
    const std::string got = outcome(cut(full, size, garbage<T>()));
    if (size < oldest) {
      EXPECT_EQ(got.find("invalid_argument: "), 0u) << got;
      EXPECT_NE(got.find(".struct_size=" + std::to_string(size)), std::string::npos) << got;
      continue;
    }
    T whole = cut(full, size, defaults);
    whole.struct_size = sizeof whole;
    EXPECT_EQ(got, outcome(whole));
    num_changes += size > oldest && got != before;
    before = got;
  }
  EXPECT_EQ(num_changes, num_steps) << "some fields of `full` have no effect";
  EXPECT_EQ(before, outcome(full));
}

// A struct that has had one size so far: any other is refused.
template <class T>
void expect_one_size(const char* what, const T& full,
                     const std::function<headrace_status(const T&)>& run) {
  SCOPED_TRACE(what);
  EXPECT_EQ(run(full), HEADRACE_OK) << headrace_last_error();
  for (std::size_t size = 0; size < sizeof(T); size += 4) {
    EXPECT_EQ(run(cut(full, std::max(size, sizeof size), full)), HEADRACE_INVALID_ARGUMENT);
    EXPECT_NE(std::string(headrace_last_error()).find(".struct_size="), std::string::npos);
  }
}

struct Numbers {
  std::vector<float> values = std::vector<float>(4096);
  Numbers() {
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(i * 37 % 101) / 50 - 1;
  }
};

}  // namespace headrace::testing
