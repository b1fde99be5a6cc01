#include "interrupt.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>

namespace headrace::cli {
namespace {

std::atomic<bool> g_is_interrupted{false};
// Self-pipe: holds a byte while the flag is set. The signal may arrive between the check of the
// flag and the read, and on any thread; with the flag alone that read would block.
int g_pipe[2] = {-1, -1};

void handle_interrupt(int) {
  const int saved = errno;
  const bool was_set = g_is_interrupted.exchange(true);
  if (!was_set && write(g_pipe[1], "!", 1) != 1) g_is_interrupted = false;
  errno = saved;
}

}  // namespace

void catch_interrupts() {
  if (pipe2(g_pipe, O_CLOEXEC | O_NONBLOCK) != 0) return;
  struct sigaction handler {};
  handler.sa_handler = handle_interrupt;
  handler.sa_flags = SA_RESTART;
  sigemptyset(&handler.sa_mask);
  sigaction(SIGINT, &handler, nullptr);
}

bool is_interrupted() { return g_is_interrupted; }

void clear_interrupt() {
  char byte;
  while (g_is_interrupted && read(g_pipe[0], &byte, 1) != 1) {
  }
  g_is_interrupted = false;
}

void end_by_interrupt() {
  std::signal(SIGINT, SIG_DFL);
  std::raise(SIGINT);
  std::abort();  // not reached: the signal is not blocked
}

bool wait_for_input() {
  pollfd ready[] = {{STDIN_FILENO, POLLIN, 0}, {g_pipe[0], POLLIN, 0}};
  while (poll(ready, 2, -1) < 0 && errno == EINTR) {
  }
  return ready[1].revents == 0;
}

}  // namespace headrace::cli
