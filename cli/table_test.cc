#include "table.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

namespace headrace::cli {
namespace {

Report sample() {
  Report report;
  report.notes = {{"command", std::string("x --a \"b\"")}, {"threads", std::int64_t{2}}};
  report.tables.push_back(
      {.key = "rows",
       .columns = {{"name", "name"}, {"ms", "ms", 2}, {"ok", "ok"}},
       .rows = {{std::string("a,\"b\"|c"), 1.23456789, true}, {std::string("d"), Cell{}, false}}});
  return report;
}

struct Printed {
  std::string out, notes;
};
Printed printed(const Report& report, Format format, bool is_styled = false) {
  std::ostringstream out, notes;
  print(report, {.format = format, .is_styled = is_styled}, out, notes);
  return {out.str(), notes.str()};
}

TEST(Table, TextAlignsNumbersRight) {
  EXPECT_EQ(printed(sample(), Format::text).out,
            "command: x --a \"b\"\n"
            "threads: 2\n"
            "\n"
            "name       ms  ok\n"
            "a,\"b\"|c  1.23  yes\n"
            "d              no\n");
}

TEST(Table, UnitsAreForReaders) {
  Report report;
  report.tables.push_back({.key = "rows",
                           .columns = {{"bytes", "KiB", 2, 1024}},
                           .rows = {{std::int64_t{1536}}, {512.0}, {Cell{}}}});
  EXPECT_EQ(printed(report, Format::text).out, " KiB\n1.50\n0.50\n\n");
  EXPECT_EQ(printed(report, Format::md).out, "| KiB |\n|---:|\n| 1.50 |\n| 0.50 |\n|  |\n");
  EXPECT_EQ(printed(report, Format::csv).out, "bytes\n1536\n512\n\n");
  EXPECT_EQ(nlohmann::json::parse(printed(report, Format::json).out)["rows"][0]["bytes"], 1536);
}

TEST(Table, StyleIsOnTheTitlesOnly) {
  const std::string text = printed(sample(), Format::text, true).out;
  EXPECT_NE(text.find("\033[1mname"), std::string::npos);
  EXPECT_EQ(text.find('\033', text.find("a,\"b\"")), std::string::npos);
}

TEST(Table, CsvQuotesAndKeepsNotesApart) {
  const Printed csv = printed(sample(), Format::csv, true);
  EXPECT_EQ(csv.out, "name,ms,ok\n\"a,\"\"b\"\"|c\",1.23456789,yes\nd,,no\n");
  EXPECT_NE(csv.notes.find("threads: 2"), std::string::npos);
}

// The records of CSV as RFC 4180 has it.
std::vector<std::vector<std::string>> csv_records(const std::string& csv) {
  std::vector<std::vector<std::string>> records(1, std::vector<std::string>(1));
  bool is_quoted = false;
  for (std::size_t i = 0; i < csv.size(); ++i) {
    std::string& field = records.back().back();
    if (is_quoted && csv[i] == '"' && i + 1 < csv.size() && csv[i + 1] == '"')
      field += csv[++i];
    else if (csv[i] == '"' && (is_quoted || field.empty()))
      is_quoted = !is_quoted;
    else if (is_quoted || (csv[i] != ',' && csv[i] != '\n' && csv[i] != '"'))
      field += csv[i];
    else if (csv[i] == ',')
      records.back().emplace_back();
    else if (csv[i] == '\n')
      records.emplace_back(1);
    else
      ADD_FAILURE() << "a quote inside a field without quotes: " << csv;
  }
  records.pop_back();  // behind the last line end
  return records;
}

TEST(Table, CsvOfAnyTextReadsBack) {
  std::vector<std::string> texts = {""};
  for (std::size_t i = 0; texts[i].size() < 3; ++i)
    for (const char c : std::string("a,\"\n\r|")) texts.push_back(texts[i] + c);
  Report report;
  Table table{.key = "rows", .columns = {}, .rows = {}};
  for (const std::string& text : texts) {
    table.columns = {{text, "t"}, {"b", "b"}};
    table.rows = {{text, std::string("x")}, {std::string("y"), text}};
    report.tables = {table};
    const std::vector<std::vector<std::string>> wanted = {{text, "b"}, {text, "x"}, {"y", text}};
    EXPECT_EQ(csv_records(printed(report, Format::csv).out), wanted) << text;
  }
}

TEST(Table, JsonKeepsTypes) {
  const auto json = nlohmann::json::parse(printed(sample(), Format::json).out);
  EXPECT_EQ(json["meta"]["threads"], 2);
  EXPECT_EQ(json["meta"]["command"], "x --a \"b\"");
  ASSERT_EQ(json["rows"].size(), 2u);
  EXPECT_EQ(json["rows"][0]["ok"], true);
  EXPECT_DOUBLE_EQ(json["rows"][0]["ms"], 1.23456789);
  EXPECT_TRUE(json["rows"][1]["ms"].is_null());
}

TEST(Table, JsonSurvivesTextThatIsNotUtf8) {
  Report report;
  report.notes = {{"command", std::string("\xff")}, {"nan", std::nan("")}};
  const auto json = nlohmann::json::parse(printed(report, Format::json).out);
  EXPECT_TRUE(json["meta"]["nan"].is_null());
}

TEST(Table, MarkdownEscapesBars) {
  EXPECT_EQ(printed(sample(), Format::md).out,
            "- command: x --a \"b\"\n- threads: 2\n\n"
            "| name | ms | ok |\n|---|---:|---|\n"
            "| a,\"b\"\\|c | 1.23 | yes |\n| d |  | no |\n");
}

}  // namespace
}  // namespace headrace::cli
