#include "options.h"

#include <charconv>
#include <cstdio>

namespace headrace::cli {
namespace {

std::string number_text(std::int64_t value) { return std::to_string(value); }

std::string number_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

enum class Parsed { number, overflow, nothing };

template <class T>
Parsed parse(const std::string& text, T& value) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (stop != end || error == std::errc::invalid_argument) return Parsed::nothing;
  return error == std::errc() ? Parsed::number : Parsed::overflow;
}

template <class T>
CLI::Validator validator(const Range<T>& range, const char* kind) {
  const auto check = [range, kind](std::string& text) -> std::string {
    T value{};
    const Parsed parsed = parse(text, value);
    const std::string remedy = "; pass " + range.text();
    if (parsed == Parsed::nothing) return '"' + text + "\" is not a " + kind + remedy;
    if (parsed == Parsed::overflow || !range.has(value)) return text + " is out of range" + remedy;
    if constexpr (std::is_integral_v<T>) text = number_text(value);
    return {};
  };
  return CLI::Validator(check, range.text());
}

}  // namespace

template <class T>
std::string Range<T>::text() const {
  std::string all = number_text(low) + (is_below_high ? " to below " : " to ") + number_text(high);
  if (also) all += ", or " + number_text(*also) + (meaning.empty() ? "" : " (" + meaning + ')');
  return all;
}

template struct Range<std::int64_t>;
template struct Range<double>;

CLI::Validator whole_number(const Range<std::int64_t>& range) {
  return validator(range, "whole number");
}

CLI::Validator real_number(const Range<double>& range) { return validator(range, "number"); }

CLI::Option* add_list(CLI::App& app, const std::string& names, std::vector<std::string>& list,
                      const std::string& text) {
  return app.add_option(names, list, text)->allow_extra_args(false);
}

CLI::Option* add_numbers(CLI::App& app, const std::string& names, std::vector<std::int64_t>& list,
                         const Range<std::int64_t>& range, const std::string& text) {
  return app.add_option(names, list, text)
      ->delimiter(',')
      ->allow_extra_args(false)
      ->transform(whole_number(range));
}

}  // namespace headrace::cli
