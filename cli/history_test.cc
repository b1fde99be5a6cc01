#include "history.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "headrace/headrace.hpp"
#include "tests/support/program.h"

namespace headrace::cli {
namespace {

using testing::content_of;

TEST(History, IsReadAgain) {
  const testing::TemporaryFolder folder;
  const std::string path = folder.file("state/headrace/chat_history");
  History(path).add("first");
  History(path).add("second");
  EXPECT_EQ(History(path).lines(), (std::vector<std::string>{"first", "second"}));
}

TEST(History, IsBoundedInMemoryAndInTheFile) {
  const testing::TemporaryFolder folder;
  for (const std::size_t max_lines : {std::size_t{1}, std::size_t{2}, std::size_t{5}}) {
    const std::string path = folder.file("history" + std::to_string(max_lines));
    std::string newest;
    for (std::size_t count = 1; count <= 2 * max_lines + 1; ++count) {
      History history(path, max_lines);
      history.add("line " + std::to_string(count));
      ASSERT_EQ(history.lines().size(), std::min(count, max_lines)) << count;
      EXPECT_EQ(history.lines().back(), "line " + std::to_string(count));
      const std::size_t oldest = count - std::min(count, max_lines) + 1;
      EXPECT_EQ(history.lines().front(), "line " + std::to_string(oldest));
    }
    const History history(path, max_lines);  // shortens the file
    std::string expected;
    for (const std::string& line : history.lines()) expected += line + '\n';
    EXPECT_EQ(content_of(path), expected);
    EXPECT_EQ(std::count(expected.begin(), expected.end(), '\n'),
              static_cast<std::ptrdiff_t>(max_lines));
  }
}

TEST(History, LeavesOutEmptyLinesAndRepetitions) {
  const testing::TemporaryFolder folder;
  const std::string path = folder.file("history");
  History history(path);
  for (const char* line : {"a", "a", "", "b", "a"}) history.add(line);
  EXPECT_EQ(content_of(path), "a\nb\na\n");
}

TEST(History, IsForItsOwnerAlone) {
  const testing::TemporaryFolder folder;
  const std::string path = folder.file("history");
  const auto mode = [&] {
    struct stat facts {};
    EXPECT_EQ(stat(path.c_str(), &facts), 0);
    return facts.st_mode & 0777;
  };
  for (const char* line : {"a", "b", "c"}) {
    History(path, 1).add(line);  // written, then shortened
    EXPECT_EQ(mode(), 0600u);
  }
}

TEST(History, WithoutAPathNothingIsWritten) {
  History history("");
  history.add("a");
  EXPECT_EQ(history.lines().size(), 1u);
}

TEST(History, AFileThatCannotBeWrittenIsAnErrorAtOnce) {
  try {
    History history("/proc/nowhere/history");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), HEADRACE_IO_ERROR);
    EXPECT_NE(std::string(error.what()).find("/proc/nowhere/history: cannot be opened"),
              std::string::npos);
  }
}

TEST(History, LiesInTheStateFolder) {
  const char* saved = std::getenv("HOME");
  const std::string home = saved == nullptr ? "" : saved;
  setenv("HOME", "/home/x", 1);
  unsetenv("XDG_STATE_HOME");
  EXPECT_EQ(history_path(), "/home/x/.local/state/headrace/chat_history");
  setenv("XDG_STATE_HOME", "relative", 1);
  EXPECT_EQ(history_path(), "/home/x/.local/state/headrace/chat_history") << "XDG: ignored";
  setenv("XDG_STATE_HOME", "/state", 1);
  EXPECT_EQ(history_path(), "/state/headrace/chat_history");
  unsetenv("XDG_STATE_HOME");
  unsetenv("HOME");
  EXPECT_EQ(history_path(), "");
  setenv("HOME", home.c_str(), 1);
}

}  // namespace
}  // namespace headrace::cli
