// Runs `headrace serve`, and speaks HTTP with it.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>

namespace headrace::testing {

// On a free port. The destructor kills it.
class ServerProcess {
 public:
  explicit ServerProcess(const std::string& options) {
    int ends[2];
    if (pipe(ends) != 0) throw std::runtime_error("pipe");
    process_ = fork();
    if (process_ == 0) {
      dup2(ends[1], STDERR_FILENO);
      close(ends[0]);
      close(ends[1]);
      const std::string command = "exec '" HEADRACE_PROGRAM "' serve --port 0 " + options;
      execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
      _exit(127);
    }
    close(ends[1]);
    notes_ = fdopen(ends[0], "r");
    char line[1024];
    const std::string ready = "ready at http://127.0.0.1:";
    while (port_ == 0 && std::fgets(line, sizeof line, notes_) != nullptr) {
      const std::string text = line;
      const std::size_t at = text.find(ready);
      if (at != std::string::npos) port_ = std::atoi(text.c_str() + at + ready.size());
    }
    if (port_ == 0) throw std::runtime_error("the server did not start");
  }
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;
  ~ServerProcess() {
    if (process_ > 0) {
      kill(process_, SIGKILL);
      wait();
    }
    std::fclose(notes_);
  }

  int port() const { return port_; }
  void terminate() { kill(process_, SIGTERM); }
  // The exit code; -1: a signal.
  int wait() {
    int status = 0;
    waitpid(std::exchange(process_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t process_ = -1;
  std::FILE* notes_ = nullptr;
  int port_ = 0;
};

struct HttpAnswer {
  int status = 0;  // 0: the connection closed
  std::string head, body;
};

// One connection. A read waits at most 20 s.
class Client {
 public:
  // receive_bytes: of the socket's buffer; 0: the system's default.
  explicit Client(int port, int receive_bytes = 0) : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    const timeval limit{.tv_sec = 20, .tv_usec = 0};
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (receive_bytes > 0)
      setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
      throw std::runtime_error("connect");
  }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  ~Client() { close(socket_); }

  void send(const std::string& bytes) {
    for (std::size_t sent = 0; sent < bytes.size();) {
      const ssize_t count = ::send(socket_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (count <= 0) return;  // read() says so
      sent += static_cast<std::size_t>(count);
    }
  }

  // Without the body.
  HttpAnswer read_head() {
    HttpAnswer answer;
    if (!take_until("\r\n\r\n", answer.head)) return {};
    answer.status = std::atoi(answer.head.c_str() + 9);
    return answer;
  }
  // Empty: the body's last one, or the connection closed.
  std::string read_chunk() {
    std::string line, chunk;
    if (!take_until("\r\n", line)) return {};
    const std::size_t size = std::stoul(line, nullptr, 16);
    if (!take(size + 2, chunk)) return {};
    return chunk.substr(0, size);
  }
  HttpAnswer read() {
    HttpAnswer answer = read_head();
    if (answer.head.find("chunked") != std::string::npos) {
      for (std::string chunk; !(chunk = read_chunk()).empty();) answer.body += chunk;
      return answer;
    }
    const std::size_t at = answer.head.find("Content-Length: ");
    if (at != std::string::npos) take(std::stoul(answer.head.substr(at + 16)), answer.body);
    return answer;
  }
  // No byte of an answer has come.
  bool is_silent() {
    pollfd now{.fd = socket_, .events = POLLIN, .revents = 0};
    return input_.empty() && poll(&now, 1, 0) == 0;
  }
  HttpAnswer ask(const std::string& request) {
    send(request);
    return read();
  }

 private:
  bool fill() {
    char bytes[4096];
    const ssize_t count = recv(socket_, bytes, sizeof bytes, 0);
    if (count > 0) input_.append(bytes, static_cast<std::size_t>(count));
    return count > 0;
  }
  bool take(std::size_t count, std::string& taken) {
    while (input_.size() < count)
      if (!fill()) return false;
    taken = input_.substr(0, count);
    input_.erase(0, count);
    return true;
  }
  bool take_until(const std::string& end, std::string& taken) {
    std::size_t at;
    while ((at = input_.find(end)) == std::string::npos)
      if (!fill()) return false;
    taken = input_.substr(0, at);
    input_.erase(0, at + end.size());
    return true;
  }

  int socket_;
  std::string input_;
};

}  // namespace headrace::testing
