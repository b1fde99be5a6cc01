// Reports: notes about the run, then tables, in one of four formats.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <ostream>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace headrace::cli {

enum class Format { text, csv, json, md };

// Monostate: no value (empty, null in JSON).
using Cell = std::variant<std::monostate, bool, std::int64_t, double, std::string>;

struct Column {
  std::string key;      // in CSV and JSON: "gflops"
  std::string title;    // in text and Markdown: "GFLOP/s"
  int decimals = 1;     // of non-integers, in text and Markdown
  double unit = 1;      // divisor of the numbers in text and Markdown
  bool is_key = false;  // identifies the row; repeated when text splits a wide table
};

struct Table {
  std::string key;  // in JSON: the name of the array of rows
  std::vector<Column> columns;
  std::vector<std::vector<Cell>> rows;  // each as long as columns
};

// Concatenates lists of columns, cells or notes.
template <class T>
std::vector<T> joined(std::initializer_list<std::vector<T>> lists) {
  std::vector<T> all;
  for (const std::vector<T>& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

using Note = std::pair<std::string, Cell>;

struct Report {
  std::vector<Note> notes;  // machine, versions, command, ...
  std::vector<Table> tables;
};

struct PrintOptions {
  Format format = Format::text;
  bool is_styled = false;  // text only: bold titles
};

// Text and Markdown print the notes above the tables and skip empty columns. Text fits 100 columns
// (text_table.h), except the note "command", which stays on one line so that it can be pasted. JSON
// puts the notes under "meta". CSV has no comment syntax that every reader skips, so its notes go
// to `notes_out` as "key: value" lines.
void print(const Report& report, const PrintOptions& options, std::ostream& out,
           std::ostream& notes_out);

// True if stdout is a terminal and NO_COLOR is not set.
bool is_stdout_styled();

}  // namespace headrace::cli
