// Tables as text that fits a terminal of 100 columns.
#pragma once

#include <cstddef>
#include <ostream>
#include <string>
#include <vector>

namespace headrace::cli {

inline constexpr std::size_t kTextWidth = 100;

// Number of UTF-8 characters.
std::size_t text_width(const std::string& text);

// Lines of at most `width` characters, broken between words; longer words are split.
std::vector<std::string> wrapped(const std::string& text, std::size_t width);

// Prints `text` after `label`; continuation lines are indented by the label's width.
void print_wrapped(const std::string& label, const std::string& text, std::ostream& out);

struct TextColumn {
  std::string title;
  std::vector<std::string> cells;  // one per row
  bool is_right = false;           // numbers
  bool is_key = false;             // identifies the row
};

// If the columns are too wide together, those with one value for all rows become lines above the
// table, long cells are wrapped, and the rest is split into several tables with the key columns.
void print_text_table(const std::vector<TextColumn>& columns, std::size_t num_rows, bool is_styled,
                      std::ostream& out);

}  // namespace headrace::cli
