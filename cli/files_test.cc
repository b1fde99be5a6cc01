#include "files.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "headrace/headrace.hpp"
#include "tests/support/program.h"

namespace headrace::cli {
namespace {

template <class Body>
std::string error_of(Body body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), HEADRACE_IO_ERROR);
    return error.what();
  }
  return {};
}

TEST(Files, WhatIsNoRegularFileIsNamedAsWhatItIs) {
  const testing::TemporaryFolder folder;
  const std::string fifo = folder.file("fifo"), socket_path = folder.file("socket");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  const int server = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, socket_path.c_str(), sizeof address.sun_path - 1);
  ASSERT_EQ(bind(server, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  const std::pair<std::string, std::string> kinds[] = {{folder.file(""), "a directory"},
                                                       {fifo, "a FIFO"},
                                                       {socket_path, "a socket"},
                                                       {"/dev/null", "a character device"}};
  for (const auto& [path, kind] : kinds) {
    const std::string error = error_of([&] { require_regular_file(path); });
    EXPECT_EQ(error.rfind(path + ": is " + kind, 0), 0u) << error;
  }
  close(server);
  EXPECT_EQ(error_of([&] { require_regular_file(folder.file("real", "x")); }), "");
}

TEST(Files, AMissingFileIsNamedWithTheReason) {
  const auto read = [] { static_cast<void>(read_text("/nowhere/text")); };
  const auto require = [] { require_regular_file("/nowhere/text"); };
  const std::string expected =
      "/nowhere/text: cannot be opened for reading: No such file or directory";
  EXPECT_EQ(error_of(read), expected);
  EXPECT_EQ(error_of(require), expected);
}

TEST(Files, TextComesFromFilesAndPipesButNotFromDirectories) {
  const testing::TemporaryFolder folder;
  const std::string text = std::string("a\0b\n", 4);
  EXPECT_EQ(read_text(folder.file("text", text)), text);
  const std::string fifo = folder.file("fifo");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  std::thread writer([&] { std::ofstream(fifo) << "piped"; });
  EXPECT_EQ(read_text(fifo), "piped");
  writer.join();
  const std::string error = error_of([&] { static_cast<void>(read_text(folder.file(""))); });
  EXPECT_NE(error.find(": is a directory; name a text file"), std::string::npos) << error;
}

}  // namespace
}  // namespace headrace::cli
