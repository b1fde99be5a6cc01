#include "weights/output_file.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

using testing::content_of;
using testing::TemporaryFolder;

std::size_t files_in(const TemporaryFolder& folder) {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder.file("")))
    ++count;
  return count;
}

OutputFile create(const std::string& path) {
  Result<OutputFile> file = OutputFile::create(path);
  EXPECT_TRUE(file.ok());
  return std::move(file.value());
}

TEST(OutputFile, AppearsWhenItIsComplete) {
  const TemporaryFolder folder;
  const std::string path = folder.file("a", "before");
  OutputFile file = create(path);
  EXPECT_FALSE(file.write("world", 5, 6).has_value());
  EXPECT_FALSE(file.write("hello ", 6, 0).has_value());
  EXPECT_EQ(content_of(path), "before");
  EXPECT_FALSE(file.commit().has_value());
  EXPECT_EQ(content_of(path), "hello world");
  EXPECT_EQ(files_in(folder), 1u);
}

TEST(OutputFile, LeavesNothingIfItIsAbandoned) {
  const TemporaryFolder folder;
  {
    const OutputFile file = create(folder.file("a", "before"));
    EXPECT_FALSE(file.write("x", 1, 0).has_value());
    EXPECT_EQ(files_in(folder), 2u);
  }
  EXPECT_EQ(content_of(folder.file("a")), "before");
  EXPECT_EQ(files_in(folder), 1u);
}

// A rename onto one of these would replace it.
TEST(OutputFile, RefusesWhatIsNoRegularFile) {
  const TemporaryFolder folder;
  for (const auto& [path, reason] :
       {std::pair{folder.file(""), "is a directory"},
        std::pair{std::string("/dev/null"), "is not a regular file"},
        std::pair{folder.file("absent/a"), "cannot be created: No such file or directory"}}) {
    Result<OutputFile> file = OutputFile::create(path);
    ASSERT_FALSE(file.ok()) << path;
    EXPECT_EQ(file.failure().code, ErrorCode::io_error);
    EXPECT_EQ(file.failure().message.find(path), 0u) << file.failure().message;
    EXPECT_NE(file.failure().message.find(reason), std::string::npos) << file.failure().message;
  }
  EXPECT_EQ(files_in(folder), 0u);
}

TEST(OutputFile, InMemoryIsReadByItsPath) {
  Result<OutputFile> file = OutputFile::create_in_memory();
  ASSERT_TRUE(file.ok());
  EXPECT_FALSE(file.value().write("hello", 5, 0).has_value());
  EXPECT_EQ(content_of(file.value().path()), "hello");
}

}  // namespace
}  // namespace headrace
