// headrace chat at a pseudo terminal, driven by key presses.
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>

#include "line_reader.h"
#include "tests/support/program.h"

namespace headrace::cli {
namespace {

const std::string kModel = HEADRACE_GOLDEN_DIR "/tiny/tiny_llama3_f16.gguf";

class Terminal {
 public:
  Terminal(const std::string& state_folder, const std::string& options) {
    child_ = forkpty(&terminal_, nullptr, nullptr, nullptr);
    if (child_ != 0) return;
    setenv("XDG_STATE_HOME", state_folder.c_str(), 1);
    setenv("HOME", state_folder.c_str(), 1);
    setenv("TERM", "xterm", 1);
    const std::string command =
        "exec '" HEADRACE_PROGRAM "' chat -n 2 -m '" + kModel + "' " + options;
    execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    _exit(127);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;
  ~Terminal() {
    if (child_ > 0) kill(child_, SIGKILL), waitpid(child_, nullptr, 0);
    close(terminal_);
  }

  void press(const std::string& keys) const {
    ASSERT_EQ(write(terminal_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
  }
  // Reads on until `text` appears; false on timeout.
  bool shows(const std::string& text) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    for (;;) {
      const std::size_t found = seen_.find(text, used_);
      if (found != std::string::npos) {
        used_ = found + text.size();
        return true;
      }
      if (std::chrono::steady_clock::now() > end || !read_more()) return false;
    }
  }
  bool shows_answer() { return shows("tokens/s") && shows("> "); }
  // The exit code; -1 if the program does not exit by itself.
  int wait() {
    while (read_more()) {
    }
    int status = -1;
    for (int tenths = 0; tenths < 100 && waitpid(child_, &status, WNOHANG) == 0; ++tenths)
      usleep(100000);
    if (status == -1) return -1;
    child_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  const std::string& seen() const { return seen_; }

 private:
  bool read_more() {
    pollfd ready{terminal_, POLLIN, 0};
    if (poll(&ready, 1, 20000) <= 0) return false;
    char buffer[4096];
    const ssize_t count = read(terminal_, buffer, sizeof buffer);
    if (count <= 0) return false;
    seen_.append(buffer, static_cast<std::size_t>(count));
    return true;
  }

  int terminal_ = -1;
  pid_t child_ = -1;
  std::string seen_;
  std::size_t used_ = 0;
};

constexpr const char* kUp = "\033[A";
constexpr const char* kHistory = "headrace/chat_history";

bool has_editor() { return std::string(line_editing_text()) == "libedit"; }

TEST(ChatTerminal, CtrlDLeaves) {
  const testing::TemporaryFolder folder;
  Terminal terminal(folder.file(""), "");
  ASSERT_TRUE(terminal.shows("> "));
  terminal.press("\004");
  EXPECT_EQ(terminal.wait(), 0);
}

TEST(ChatTerminal, CtrlCTwiceLeavesAndOnceDropsTheLine) {
  const testing::TemporaryFolder folder;
  Terminal terminal(folder.file(""), "");
  ASSERT_TRUE(terminal.shows("> "));
  terminal.press("dropped\003");
  ASSERT_TRUE(terminal.shows("Ctrl-C again")) << terminal.seen();
  ASSERT_TRUE(terminal.shows("> "));
  terminal.press("/nope\n");
  ASSERT_TRUE(terminal.shows("/nope: no such command")) << terminal.seen();
  ASSERT_TRUE(terminal.shows("> "));
  terminal.press("\003");
  ASSERT_TRUE(terminal.shows("Ctrl-C again"));
  ASSERT_TRUE(terminal.shows("> "));
  terminal.press("\003");
  EXPECT_EQ(terminal.wait(), 0);
  EXPECT_EQ(terminal.seen().find("tokens/s"), std::string::npos)
      << "the dropped line was sent to the model";
}

TEST(ChatTerminal, LinesAreEdited) {
  if (!has_editor()) GTEST_SKIP() << line_editing_text();
  const testing::TemporaryFolder folder;
  Terminal terminal(folder.file(""), "");
  ASSERT_TRUE(terminal.shows("> "));
  // "helo", left, "l"; home, "ä", backspace, "ö ": backspace must delete a whole UTF-8 letter.
  terminal.press("helo\033[Dl\001ä\177ö \n");
  ASSERT_TRUE(terminal.shows_answer()) << terminal.seen();
  terminal.press("\004");
  EXPECT_EQ(terminal.wait(), 0);
  EXPECT_EQ(testing::content_of(folder.file(kHistory)), "ö hello\n");
}

TEST(ChatTerminal, TheArrowKeysGoThroughThisAndEarlierConversations) {
  if (!has_editor()) GTEST_SKIP() << line_editing_text();
  const testing::TemporaryFolder folder;
  {
    Terminal terminal(folder.file(""), "");
    ASSERT_TRUE(terminal.shows("> "));
    for (const char* line : {"first\n", "second\n"}) {
      terminal.press(line);
      ASSERT_TRUE(terminal.shows_answer()) << terminal.seen();
    }
    terminal.press(std::string(kUp) + kUp + "!\n");
    ASSERT_TRUE(terminal.shows_answer()) << terminal.seen();
    terminal.press("/exit\n");
    EXPECT_EQ(terminal.wait(), 0);
  }
  EXPECT_EQ(testing::content_of(folder.file(kHistory)), "first\nsecond\nfirst!\n/exit\n");
  Terminal terminal(folder.file(""), "");
  ASSERT_TRUE(terminal.shows("> "));
  terminal.press(std::string(kUp) + kUp + "?\n");
  ASSERT_TRUE(terminal.shows_answer()) << terminal.seen();
  terminal.press("\004");
  EXPECT_EQ(terminal.wait(), 0);
  EXPECT_EQ(testing::content_of(folder.file(kHistory)), "first\nsecond\nfirst!\n/exit\nfirst!?\n");
}

TEST(ChatTerminal, NoHistoryNeitherReadsNorKeepsLines) {
  const testing::TemporaryFolder folder;
  Terminal terminal(folder.file(""), "--no-history");
  ASSERT_TRUE(terminal.shows("> "));
  terminal.press("hello\n");
  ASSERT_TRUE(terminal.shows_answer()) << terminal.seen();
  terminal.press("\004");
  EXPECT_EQ(terminal.wait(), 0);
  EXPECT_FALSE(std::filesystem::exists(folder.file(kHistory)));
}

TEST(ChatTerminal, WithoutAnEditorThereIsNoHistory) {
  if (has_editor()) GTEST_SKIP() << line_editing_text();
  const testing::TemporaryFolder folder;
  Terminal terminal(folder.file(""), "");
  ASSERT_TRUE(terminal.shows("> "));
  terminal.press("hello\n");
  ASSERT_TRUE(terminal.shows_answer()) << terminal.seen();
  terminal.press("\004");
  EXPECT_EQ(terminal.wait(), 0);
  EXPECT_FALSE(std::filesystem::exists(folder.file("headrace")));
}

// A pipe has no history, no prompt and no editing.
TEST(ChatTerminal, APipedChatHasNoPromptAndNoHistory) {
  const testing::TemporaryFolder folder;
  setenv("XDG_STATE_HOME", folder.file("").c_str(), 1);
  const auto result = testing::run_program("chat -n 2 -m '" + kModel + "' 2>&1 <<END\nHi\nEND\n");
  unsetenv("XDG_STATE_HOME");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out.find("> "), std::string::npos) << result.out;
  EXPECT_FALSE(std::filesystem::exists(folder.file(kHistory)));
}

}  // namespace
}  // namespace headrace::cli
