#include "schedule_text.h"

#include <charconv>

namespace headrace::cli {
namespace {

Cell number_at(std::string_view text, std::size_t begin) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data() + begin, text.data() + text.size(), number);
  return error == std::errc() ? Cell(number) : Cell();
}

Cell number_after(std::string_view text, std::string_view word) {
  const auto begin = text.find(word);
  return begin == std::string_view::npos ? Cell() : number_at(text, begin + word.size());
}

Cell number_before(std::string_view text, std::string_view word) {
  const auto end = text.find(word);
  if (end == std::string_view::npos || end == 0) return {};
  const auto space = text.substr(0, end).find_last_not_of("0123456789");
  return number_at(text, space == std::string_view::npos ? 0 : space + 1);
}

}  // namespace

ScheduleFacts schedule_of(std::string_view explain) {
  constexpr std::string_view kLine = "schedule ";
  std::size_t begin = 0;
  while (!explain.substr(begin).starts_with(kLine)) {
    begin = explain.find('\n', begin);
    if (begin == std::string_view::npos) return {};
    ++begin;
  }
  const std::string_view line = explain.substr(begin, explain.find('\n', begin) - begin);
  return {.tile_m = number_after(line, "tile_m "),
          .tile_n = number_after(line, "tile_n "),
          .max_splits = number_before(line, " split")};
}

}  // namespace headrace::cli
