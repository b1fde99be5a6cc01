#include "text_table.h"

#include <algorithm>
#include <numeric>

namespace headrace::cli {
namespace {

constexpr std::size_t kGap = 2;          // between columns
constexpr std::size_t kMinWrapped = 28;  // minimum width of a wrapped text column
constexpr std::size_t kMaxKeys = 60;     // maximum width of the repeated key columns

using Columns = std::vector<const TextColumn*>;

bool is_continuation(char byte) { return (byte & 0xC0) == 0x80; }

// Length in bytes of the first `width` characters.
std::size_t bytes_of(const std::string& text, std::size_t width) {
  std::size_t bytes = 0;
  for (; bytes < text.size(); ++bytes)
    if (!is_continuation(text[bytes]) && width-- == 0) break;
  return bytes;
}

std::string padded(const std::string& text, std::size_t width, bool is_right) {
  const std::string padding(width - std::min(width, text_width(text)), ' ');
  return is_right ? padding + text : text + padding;
}

std::size_t natural_width(const TextColumn& column) {
  std::size_t width = text_width(column.title);
  for (const std::string& cell : column.cells) width = std::max(width, text_width(cell));
  return width;
}

// The width that wrapping can shrink a column to.
std::size_t min_width(const TextColumn& column) {
  const std::size_t natural = natural_width(column);
  if (column.is_right) return natural;
  return std::min(natural, std::max(kMinWrapped, text_width(column.title)));
}

template <class Width>
std::size_t total_width(const Columns& columns, Width width) {
  std::size_t total = 0;
  for (const TextColumn* column : columns) total += width(*column) + (total > 0 ? kGap : 0);
  return total;
}

// Natural widths; if they do not fit, shrinks the widest text columns.
std::vector<std::size_t> widths_of(const Columns& columns) {
  std::vector<std::size_t> widths, least;
  for (const TextColumn* column : columns) {
    widths.push_back(natural_width(*column));
    least.push_back(min_width(*column));
  }
  const std::size_t gaps = kGap * (columns.size() - 1);
  for (;;) {
    const std::size_t total = std::accumulate(widths.begin(), widths.end(), gaps);
    if (total <= kTextWidth) return widths;
    std::size_t* widest = nullptr;
    for (std::size_t i = 0; i < widths.size(); ++i)
      if (widths[i] > least[i] && (widest == nullptr || widths[i] > *widest)) widest = &widths[i];
    if (widest == nullptr) return widths;
    --*widest;
  }
}

// Prints one row, wrapped over as many lines as its longest cell needs.
void print_row(const std::vector<std::string>& cells, const Columns& columns,
               const std::vector<std::size_t>& widths, bool is_styled, std::ostream& out) {
  std::vector<std::vector<std::string>> lines;
  std::size_t height = 1;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    lines.push_back(wrapped(cells[i], widths[i]));
    height = std::max(height, lines.back().size());
  }
  for (std::size_t y = 0; y < height; ++y) {
    std::string line;
    for (std::size_t i = 0; i < cells.size(); ++i) {
      if (i > 0) line += std::string(kGap, ' ');
      line += padded(y < lines[i].size() ? lines[i][y] : "", widths[i], columns[i]->is_right);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out << (is_styled ? "\033[1m" + line + "\033[0m" : line) << '\n';
  }
}

void print_block(const Columns& columns, std::size_t num_rows, bool is_styled, std::ostream& out) {
  const std::vector<std::size_t> widths = widths_of(columns);
  std::vector<std::string> cells;
  for (const TextColumn* column : columns) cells.push_back(column->title);
  print_row(cells, columns, widths, is_styled, out);
  for (std::size_t row = 0; row < num_rows; ++row) {
    cells.clear();
    for (const TextColumn* column : columns) cells.push_back(column->cells[row]);
    print_row(cells, columns, widths, false, out);
  }
}

// Moves columns that have the same value in all rows from `columns` to lines above the table.
void print_constants(Columns& columns, std::size_t num_rows, std::ostream& out) {
  const auto is_varying = [](const TextColumn* column) {
    return std::adjacent_find(column->cells.begin(), column->cells.end(), std::not_equal_to<>()) !=
           column->cells.end();
  };
  const auto constants = std::stable_partition(columns.begin(), columns.end(), is_varying);
  if (constants == columns.end()) return;
  if (num_rows == 1) {
    std::size_t width = 0;
    for (const TextColumn* column : columns) width = std::max(width, text_width(column->title));
    for (const TextColumn* column : columns)
      print_wrapped(padded(column->title + ": ", width + 2, false), column->cells[0], out);
  } else {
    std::string text;
    for (auto i = constants; i != columns.end(); ++i)
      text += (text.empty() ? "" : ", ") + (*i)->title + ' ' + (*i)->cells[0];
    print_wrapped("all rows: ", text, out);
  }
  columns.erase(constants, columns.end());
}

// Moves the columns that every block repeats out of `columns`: none if one block holds everything;
// a row number if the key columns are too wide.
Columns keys_of(Columns& columns, std::size_t num_rows, TextColumn& numbers) {
  if (total_width(columns, min_width) <= kTextWidth) return {};
  const auto is_key = [](const TextColumn* column) { return column->is_key; };
  Columns keys;
  std::copy_if(columns.begin(), columns.end(), std::back_inserter(keys), is_key);
  if (total_width(keys, min_width) <= kMaxKeys) {
    std::erase_if(columns, is_key);
    return keys;
  }
  for (std::size_t row = 1; row <= num_rows; ++row) numbers.cells.push_back(std::to_string(row));
  return {&numbers};
}

}  // namespace

std::size_t text_width(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return !is_continuation(c); }));
}

std::vector<std::string> wrapped(const std::string& text, std::size_t width) {
  std::vector<std::string> lines;
  std::string rest = text;
  while (text_width(rest) > width) {
    const std::size_t most = bytes_of(rest, width);
    std::size_t end = rest.rfind(' ', most);
    const bool has_space = end != std::string::npos && end > 0;
    if (!has_space) end = most;
    lines.push_back(rest.substr(0, end));
    rest.erase(0, end + (has_space ? 1 : 0));
  }
  lines.push_back(rest);
  return lines;
}

void print_wrapped(const std::string& label, const std::string& text, std::ostream& out) {
  std::string start = label;
  for (const std::string& line : wrapped(text, kTextWidth - text_width(label))) {
    out << start << line << '\n';
    start.assign(text_width(label), ' ');
  }
}

void print_text_table(const std::vector<TextColumn>& columns, std::size_t num_rows, bool is_styled,
                      std::ostream& out) {
  Columns left;
  for (const TextColumn& column : columns) left.push_back(&column);
  if (left.empty()) return;
  if (num_rows > 0 && total_width(left, natural_width) > kTextWidth)
    print_constants(left, num_rows, out);
  if (left.empty()) return;
  TextColumn numbers{.title = "row", .cells = {}, .is_right = true, .is_key = true};
  Columns keys = keys_of(left, num_rows, numbers);
  do {
    Columns block = keys;
    while (!left.empty()) {
      block.push_back(left.front());
      if (block.size() > keys.size() + 1 && total_width(block, min_width) > kTextWidth) {
        block.pop_back();
        break;
      }
      left.erase(left.begin());
    }
    print_block(block, num_rows, is_styled, out);
    if (!left.empty()) out << '\n';
  } while (!left.empty());
}

}  // namespace headrace::cli
