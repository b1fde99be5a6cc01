// A server of streamed answers that does what a test says: delays, failures, broken bytes.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace headrace::testing {

// A connection with its request. Its end closes it.
class FakeExchange {
 public:
  explicit FakeExchange(int socket) : socket_(socket) {}
  FakeExchange(const FakeExchange&) = delete;
  FakeExchange& operator=(const FakeExchange&) = delete;
  ~FakeExchange() { close(socket_); }

  // Head and body; false if the client left before.
  bool read() {
    std::size_t wanted = std::string::npos;
    char bytes[4096];
    while (wanted == std::string::npos || request.size() < wanted) {
      const ssize_t count = recv(socket_, bytes, sizeof bytes, 0);
      if (count <= 0) return false;
      request.append(bytes, static_cast<std::size_t>(count));
      const std::size_t head = request.find("\r\n\r\n");
      const std::string name = "Content-Length: ";
      if (head != std::string::npos)
        wanted = head + 4 + std::stoul(request.substr(request.find(name) + name.size()));
    }
    return true;
  }
  std::string body() const { return request.substr(request.find("\r\n\r\n") + 4); }

  void send(const std::string& bytes) { ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  void send_head(const std::string& status = "200 OK") {
    send("HTTP/1.1 " + status + "\r\nTransfer-Encoding: chunked\r\n\r\n");
  }
  void send_chunk(const std::string& bytes) {
    char size[32];
    std::snprintf(size, sizeof size, "%zx\r\n", bytes.size());
    send(size + bytes + "\r\n");
  }
  void send_event(const std::string& json) { send_chunk("data: " + json + "\n\n"); }
  void send_end() { send("0\r\n\r\n"); }

  // An event with text, as for completions and for chats.
  void send_token() {
    send_event(R"({"choices":[{"index":0,"text":"a","delta":{"content":"a"}}],"usage":null})");
  }
  // The counts, and the end.
  void send_last(int num_prompt_tokens, int num_answer_tokens) {
    send_event(R"({"choices":[],"usage":{"prompt_tokens":)" + std::to_string(num_prompt_tokens) +
               R"(,"completion_tokens":)" + std::to_string(num_answer_tokens) + "}}");
    send_event("[DONE]");
    send_end();
  }

  std::string request;
  int idx = 0;  // how many connections came before

 private:
  int socket_;
};

inline void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

class FakeServer {
 public:
  // `answer` runs on a thread for each connection.
  explicit FakeServer(std::function<void(FakeExchange&)> answer) : answer_(std::move(answer)) {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* any = reinterpret_cast<sockaddr*>(&address);
    if (bind(listener_, any, size) != 0 || listen(listener_, 1024) != 0 ||
        getsockname(listener_, any, &size) != 0)
      throw std::runtime_error("no port for a test");
    port_ = ntohs(address.sin_port);
    acceptor_ = std::thread([this] { accept_all(); });
  }
  FakeServer(const FakeServer&) = delete;
  FakeServer& operator=(const FakeServer&) = delete;
  ~FakeServer() {
    shutdown(listener_, SHUT_RDWR);  // accept() fails
    acceptor_.join();
    close(listener_);
    for (std::thread& thread : threads_) thread.join();
  }

  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  // Since the server began, in the order in which they came.
  std::vector<std::string> requests() {
    const std::lock_guard lock(mutex_);
    return requests_;
  }

 private:
  void accept_all() {
    for (int idx = 0, socket; (socket = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC)) >= 0;
         ++idx)
      threads_.emplace_back([this, socket, idx] { serve(socket, idx); });
  }
  void serve(int socket, int idx) {
    FakeExchange exchange(socket);
    exchange.idx = idx;
    if (!exchange.read()) return;
    {
      const std::lock_guard lock(mutex_);
      requests_.push_back(exchange.request);
    }
    answer_(exchange);
  }

  std::function<void(FakeExchange&)> answer_;
  int listener_ = -1, port_ = 0;
  std::thread acceptor_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::vector<std::string> requests_;
};

}  // namespace headrace::testing
