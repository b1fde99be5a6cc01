#include "text_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <sstream>

namespace headrace::cli {
namespace {

std::string printed(const std::vector<TextColumn>& columns, std::size_t num_rows) {
  std::ostringstream out;
  print_text_table(columns, num_rows, false, out);
  return out.str();
}

TEST(TextTable, WrapsBetweenWordsAndCutsLongOnes) {
  EXPECT_EQ(wrapped("one two three", 7), (std::vector<std::string>{"one two", "three"}));
  EXPECT_EQ(wrapped("one two three", 6), (std::vector<std::string>{"one", "two", "three"}));
  EXPECT_EQ(wrapped("abcdefgh", 3), (std::vector<std::string>{"abc", "def", "gh"}));
  EXPECT_EQ(wrapped("äöüß", 2), (std::vector<std::string>{"äö", "üß"}));
  EXPECT_EQ(wrapped("", 5), (std::vector<std::string>{""}));
  EXPECT_EQ(wrapped("five5", 5), (std::vector<std::string>{"five5"}));
}

TEST(TextTable, ANarrowTableIsOneTable) {
  EXPECT_EQ(printed({{"a", {"x", "x"}}, {"number", {"1", "22"}, true}}, 2),
            "a  number\nx       1\nx      22\n");
}

TEST(TextTable, ASingleWideRowIsAList) {
  const std::string wide(60, 'w');
  EXPECT_EQ(printed({{"a", {wide}}, {"longer", {wide}}}, 1),
            "a:      " + wide + "\nlonger: " + wide + '\n');
}

TEST(TextTable, EqualColumnsOfAWideTableGoAboveIt) {
  const std::string wide(90, 'w');
  EXPECT_EQ(printed({{"key", {"1", "2"}}, {"same", {wide, wide}}, {"longer", {"x", "y"}}}, 2),
            "all rows: same\n          " + wide + "\nkey  longer\n1    x\n2    y\n");
}

TEST(TextTable, PiecesOfAWideTableRepeatTheKeys) {
  std::vector<TextColumn> columns = {{"key", {"k1", "k2"}, false, true}};
  for (int i = 0; i < 6; ++i)
    columns.push_back(
        {"column" + std::to_string(i), {std::string(20, '1'), std::string(20, '2')}, true});
  const std::string out = printed(columns, 2);
  std::size_t count = 0;
  for (std::size_t at = out.find("k1"); at != std::string::npos; at = out.find("k1", at + 1))
    ++count;
  EXPECT_EQ(count, 2u) << out;
}

// For random tables no line is too long and no character is lost.
TEST(TextTable, RandomTablesFitAndKeepEveryWord) {
  std::mt19937 random(1);
  const auto up_to = [&](unsigned most) { return random() % (most + 1); };
  for (int round = 0; round < 300; ++round) {
    const std::size_t num_rows = 1 + up_to(4), num_columns = 1 + up_to(24);
    std::vector<TextColumn> columns(num_columns);
    for (std::size_t c = 0; c < num_columns; ++c) {
      columns[c].title = "t" + std::to_string(c);
      columns[c].is_right = up_to(1) == 1;
      columns[c].is_key = c == 0 || up_to(5) == 0;
      for (std::size_t row = 0; row < num_rows; ++row) {
        std::string cell = "c" + std::to_string(c) + "r" + std::to_string(row);
        const unsigned words = columns[c].is_right ? 0 : up_to(40);
        for (unsigned word = 0; word < words; ++word) cell += ' ' + std::string(1 + up_to(9), 'x');
        columns[c].cells.push_back(cell);
      }
    }
    const std::string out = printed(columns, num_rows);
    std::istringstream lines(out);
    for (std::string line; std::getline(lines, line);)
      ASSERT_LE(text_width(line), kTextWidth) << out;
    for (const TextColumn& column : columns)
      for (const std::string& cell : column.cells)
        EXPECT_NE(out.find(cell.substr(0, cell.find(' '))), std::string::npos) << cell << '\n'
                                                                               << out;
    std::size_t in = 0;
    for (const TextColumn& column : columns)
      for (const std::string& cell : column.cells)
        in += static_cast<std::size_t>(std::count(cell.begin(), cell.end(), 'x'));
    EXPECT_GE(static_cast<std::size_t>(std::count(out.begin(), out.end(), 'x')), in) << out;
  }
}

}  // namespace
}  // namespace headrace::cli
