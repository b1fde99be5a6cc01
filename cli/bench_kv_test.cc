// headrace bench kv: the shares of pages follow from the lengths and the method of decoding.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "tests/support/program_json.h"

namespace headrace::cli {
namespace {

using testing::json_of;
using testing::run_program;

// Of the rows, by lengths, decoding and width: "alpaca beam 2".
std::map<std::string, nlohmann::json> rows_of(const std::string& arguments) {
  std::map<std::string, nlohmann::json> rows;
  const nlohmann::json report = json_of("bench kv " + arguments);
  for (const auto& row : report["rows"])
    rows[row["lengths"].get<std::string>() + ' ' + row["decoding"].get<std::string>() + ' ' +
         std::to_string(row["width"].get<int>())] = row;
  return rows;
}

TEST(BenchKv, WasteAndSavingsOfThePapersWorkloads) {
  auto rows = rows_of("--requests 300");
  ASSERT_EQ(rows.size(), 14u);
  // Of 16 slots, 7.5 of a sequence's last page are unused: less than 4 % of long sequences.
  EXPECT_LT(rows["sharegpt single 1"]["unused_percent"].get<double>(), 4);
  EXPECT_GT(rows["alpaca single 1"]["unused_percent"].get<double>(), 4);
  for (auto& [name, row] : rows) {
    const double saved = row["saved_percent"].get<double>(), width = row["width"].get<double>();
    if (name.find("single") != std::string::npos) {
      EXPECT_EQ(saved, 0) << name;
      EXPECT_EQ(row["copies_per_1000"], 0) << name;
    } else {
      EXPECT_GT(saved, 5) << name;
      EXPECT_LT(saved, 100 * (1 - 1 / width)) << name;  // all pages but one copy of each
      EXPECT_GT(row["copies_per_1000"].get<double>(), 0) << name;
    }
  }
  for (const std::string lengths : {"sharegpt ", "alpaca "})
    for (const std::string width : {"2", "4", "6"})
      EXPECT_GT(rows[lengths + "beam " + width]["saved_percent"].get<double>(),
                rows[lengths + "parallel " + width]["saved_percent"].get<double>() + 20);
  // The prompt's pages, once instead of `width` times, are all that samples share.
  EXPECT_NEAR(rows["alpaca parallel 6"]["saved_percent"].get<double>() /
                  rows["alpaca parallel 2"]["saved_percent"].get<double>(),
              (5.0 / 6) / (1.0 / 2), 1e-9);
}

TEST(BenchKv, RowsHaveTheSameRequestsAndASeedRepeatsThem) {
  const std::string arguments = "--requests 20 --lengths alpaca";
  auto rows = rows_of(arguments), again = rows_of(arguments),
       other = rows_of(arguments + " --seed 2");
  for (auto& [name, row] : rows) {
    for (const char* key : {"mean_prompt", "mean_output"})
      EXPECT_EQ(row[key], rows["alpaca single 1"][key]) << name;
    for (const char* key : {"unused_percent", "saved_percent", "copies_per_1000"})
      EXPECT_EQ(row[key], again[name][key]) << name << ' ' << key;
    EXPECT_NE(row["unused_percent"], other[name]["unused_percent"]) << name;
  }
}

// One token a page: no slot is unused, and nothing is copied before a write.
TEST(BenchKv, PagesOfOneToken) {
  auto rows = rows_of("--requests 5 --lengths alpaca --page-size 1");
  EXPECT_EQ(rows.size(), 7u);
  for (auto& [name, row] : rows) {
    EXPECT_EQ(row["unused_percent"], 0) << name;
    EXPECT_EQ(row["copies_per_1000"], 0) << name;
  }
}

TEST(BenchKv, RefusesOtherOptions) {
  for (const std::string arguments : {"--lengths c4", "--width 1", "--requests 0", "--page-size 0"})
    EXPECT_EQ(run_program("bench kv " + arguments).exit_code, 2) << arguments;
}

}  // namespace
}  // namespace headrace::cli
