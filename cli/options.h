// Checks of option values. Errors name the value, the rule and the remedy.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace headrace::cli {

template <class T>
struct Range {
  T low, high;
  bool is_below_high = false;  // high itself is excluded
  std::optional<T> also = {};  // one more accepted value ...
  std::string meaning = {};    // ... and its meaning

  bool has(T value) const {
    return value == also ||
           (value >= low && (is_below_high ? value < high : value <= high));  // false for NaN
  }
  std::string text() const;  // "1 to 1024, or -1 (no limit)"
};

// For Option::transform(): normalizes to plain decimal, because the parser itself reads 010 as
// octal.
CLI::Validator whole_number(const Range<std::int64_t>& range);
CLI::Validator real_number(const Range<double>& range);

// A repeatable option with one value each time, so that it does not swallow positional arguments.
CLI::Option* add_list(CLI::App& app, const std::string& names, std::vector<std::string>& list,
                      const std::string& text);

// "N,...": an option that takes one comma-separated list of numbers.
CLI::Option* add_numbers(CLI::App& app, const std::string& names, std::vector<std::int64_t>& list,
                         const Range<std::int64_t>& range, const std::string& text);

}  // namespace headrace::cli
