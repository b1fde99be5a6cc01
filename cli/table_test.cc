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
