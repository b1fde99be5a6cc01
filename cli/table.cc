#include "table.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "text_table.h"

namespace headrace::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string fixed_text(double value, int decimals) {
  char text[64];
  const int size = std::snprintf(text, sizeof text, "%.*f", decimals, value);
  if (size < 0 || size >= static_cast<int>(sizeof text)) return std::to_string(value);
  return text;
}

// Enough digits for any measurement, without meaningless ones.
std::string exact_text(double value) {
  char text[64];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

// decimals < 0: full precision.
std::string cell_text(const Cell& cell, int decimals) {
  if (const auto* flag = std::get_if<bool>(&cell)) return *flag ? "yes" : "no";
  if (const auto* integer = std::get_if<std::int64_t>(&cell)) return std::to_string(*integer);
  if (const auto* text = std::get_if<std::string>(&cell)) return *text;
  if (const auto* number = std::get_if<double>(&cell))
    return decimals < 0 ? exact_text(*number) : fixed_text(*number, decimals);
  return {};
}

Cell in_units(const Cell& cell, double unit) {
  if (unit == 1) return cell;
  if (const auto* integer = std::get_if<std::int64_t>(&cell))
    return static_cast<double>(*integer) / unit;
  if (const auto* number = std::get_if<double>(&cell)) return *number / unit;
  return cell;
}

bool is_number(const Cell& cell) {
  return std::holds_alternative<std::int64_t>(cell) || std::holds_alternative<double>(cell);
}

Json cell_json(const Cell& cell) {
  if (const auto* flag = std::get_if<bool>(&cell)) return *flag;
  if (const auto* integer = std::get_if<std::int64_t>(&cell)) return *integer;
  if (const auto* text = std::get_if<std::string>(&cell)) return *text;
  if (const auto* number = std::get_if<double>(&cell))
    return std::isfinite(*number) ? Json(*number) : Json(nullptr);
  return nullptr;
}

// RFC 4180: fields with a comma, quote or line end are quoted; inner quotes are doubled.
std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string field = "\"";
  for (const char c : text) {
    if (c == '"') field += '"';
    field += c;
  }
  return field + '"';
}

// Escapes bars, which would end the cell.
std::string md_field(const std::string& text) {
  std::string field;
  for (const char c : text) {
    if (c == '|') field += '\\';
    field += c;
  }
  return field;
}

bool is_empty(const Cell& cell) {
  const auto* text = std::get_if<std::string>(&cell);
  return std::holds_alternative<std::monostate>(cell) || (text != nullptr && text->empty());
}

// Skips columns that are empty in every row.
std::vector<std::size_t> columns_to_show(const Table& table) {
  std::vector<std::size_t> shown;
  for (std::size_t i = 0; i < table.columns.size(); ++i) {
    const bool says_something =
        table.rows.empty() || std::any_of(table.rows.begin(), table.rows.end(),
                                          [i](const auto& row) { return !is_empty(row[i]); });
    if (says_something) shown.push_back(i);
  }
  return shown;
}

bool is_number_column(const Table& table, std::size_t column) {
  return std::all_of(table.rows.begin(), table.rows.end(), [column](const auto& row) {
    return is_number(row[column]) || is_empty(row[column]);
  });
}

// Replaces line ends, which would end the row.
std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

// The columns of the text and Markdown formats.
std::vector<TextColumn> text_columns(const Table& table) {
  std::vector<TextColumn> columns;
  for (const std::size_t i : columns_to_show(table)) {
    const Column& about = table.columns[i];
    TextColumn column{.title = about.title,
                      .cells = {},
                      .is_right = is_number_column(table, i),
                      .is_key = about.is_key};
    for (const auto& row : table.rows)
      column.cells.push_back(one_line(cell_text(in_units(row[i], about.unit), about.decimals)));
    columns.push_back(std::move(column));
  }
  const auto is_key = [](const TextColumn& column) { return column.is_key; };
  if (!columns.empty() && std::none_of(columns.begin(), columns.end(), is_key))
    columns[0].is_key = true;
  return columns;
}

void print_md_table(const Table& table, std::ostream& out) {
  const std::vector<TextColumn> columns = text_columns(table);
  for (const TextColumn& column : columns) out << "| " << md_field(column.title) << ' ';
  out << "|\n";
  for (const TextColumn& column : columns) out << (column.is_right ? "|---:" : "|---");
  out << "|\n";
  for (std::size_t row = 0; row < table.rows.size(); ++row) {
    for (const TextColumn& column : columns) out << "| " << md_field(column.cells[row]) << ' ';
    out << "|\n";
  }
}

void print_csv_table(const Table& table, std::ostream& out) {
  const char* separator = "";
  for (const Column& column : table.columns) {
    out << separator << csv_field(column.key);
    separator = ",";
  }
  out << '\n';
  for (const auto& row : table.rows) {
    for (std::size_t i = 0; i < row.size(); ++i)
      out << (i > 0 ? "," : "") << csv_field(cell_text(row[i], -1));
    out << '\n';
  }
}

void print_text_notes(const Report& report, std::ostream& out) {
  std::size_t width = 0;
  for (const auto& [key, value] : report.notes) width = std::max(width, key.size());
  for (const auto& [key, value] : report.notes) {
    const std::string label = key + ": " + std::string(width - key.size(), ' ');
    if (key == "command")
      out << label << cell_text(value, 1) << '\n';
    else
      print_wrapped(label, cell_text(value, 1), out);
  }
}

void print_md_notes(const Report& report, std::ostream& out) {
  for (const auto& [key, value] : report.notes)
    out << "- " << key << ": " << cell_text(value, 1) << '\n';
}

void print_json(const Report& report, std::ostream& out) {
  Json json = Json::object();
  if (!report.notes.empty()) json["meta"] = Json::object();
  for (const auto& [key, value] : report.notes) json["meta"][key] = cell_json(value);
  for (const Table& table : report.tables) {
    Json& rows = json[table.key] = Json::array();
    for (const auto& row : table.rows) {
      Json object = Json::object();
      for (std::size_t i = 0; i < row.size(); ++i) object[table.columns[i].key] = cell_json(row[i]);
      rows.push_back(std::move(object));
    }
  }
  // A command line may contain invalid UTF-8: replace it rather than fail.
  out << json.dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
}

}  // namespace

void print(const Report& report, const PrintOptions& options, std::ostream& out,
           std::ostream& notes_out) {
  if (options.format == Format::json) {
    print_json(report, out);
    return;
  }
  if (options.format == Format::csv) print_text_notes(report, notes_out);
  if (options.format == Format::md) print_md_notes(report, out);
  if (options.format == Format::text) print_text_notes(report, out);
  bool is_first = report.notes.empty() || options.format == Format::csv;
  for (const Table& table : report.tables) {
    if (!is_first) out << '\n';
    is_first = false;
    if (options.format == Format::csv) print_csv_table(table, out);
    if (options.format == Format::md) print_md_table(table, out);
    if (options.format == Format::text)
      print_text_table(text_columns(table), table.rows.size(), options.is_styled, out);
  }
}

bool is_stdout_styled() {
  const char* no_color = std::getenv("NO_COLOR");
  return isatty(STDOUT_FILENO) != 0 && (no_color == nullptr || *no_color == '\0');
}

}  // namespace headrace::cli
