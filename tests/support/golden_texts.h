// Texts compared in full with a golden file, so that no word of them changes unseen.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "temporary_folder.h"

namespace headrace::testing {

// The texts of one test, in order: a section of tests/golden/texts/<file>. The destructor compares
// them. With HEADRACE_WRITE_GOLDEN in the environment it writes the section and fails.
class GoldenTexts {
 public:
  explicit GoldenTexts(const std::string& file)
      : path_(std::string(HEADRACE_GOLDEN_DIR "/texts/") + file) {
    const ::testing::TestInfo& test = *::testing::UnitTest::GetInstance()->current_test_info();
    section_ = std::string(test.test_suite_name()) + '.' + test.name();
  }
  GoldenTexts(const GoldenTexts&) = delete;
  GoldenTexts& operator=(const GoldenTexts&) = delete;
  ~GoldenTexts() { compare(); }

  // A text is a line of the file. Addresses differ from run to run.
  void add(std::string text) {
    text = std::regex_replace(text, std::regex("\n"), "\\n");
    lines_.push_back("  " + std::regex_replace(text, std::regex("0x[0-9a-f]+"), "0x..."));
  }
  // The code of an error and its text.
  void add(int code, const std::string& text) { add(std::to_string(code) + " | " + text); }

 private:
  using Sections = std::map<std::string, std::vector<std::string>>;

  void compare() const {
    Sections sections = read();
    if (std::getenv("HEADRACE_WRITE_GOLDEN") != nullptr) {
      sections[section_] = lines_;
      std::ofstream out(path_, std::ios::binary);
      for (const auto& [name, lines] : sections) {
        out << '[' << name << "]\n";
        for (const std::string& line : lines) out << line << '\n';
      }
      ADD_FAILURE() << "wrote [" << section_ << "] of " << path_;
      return;
    }
    const std::vector<std::string>& expected = sections[section_];
    EXPECT_EQ(lines_.size(), expected.size()) << section_ << " of " << path_;
    for (std::size_t i = 0; i < std::min(lines_.size(), expected.size()); ++i)
      EXPECT_EQ(lines_[i], expected[i]) << section_ << " of " << path_;
  }

  Sections read() const {
    Sections sections;
    std::istringstream in(content_of(path_));
    std::string name;
    for (std::string line; std::getline(in, line);)
      if (line.starts_with('['))
        name = line.substr(1, line.size() - 2);
      else
        sections[name].push_back(line);
    return sections;
  }

  std::string path_, section_;
  std::vector<std::string> lines_;
};

}  // namespace headrace::testing
