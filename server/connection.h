// One connection: reads requests, one after the other, and writes their answers.
#pragma once

#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "server.h"

namespace headrace::server {

class Connection : public Exchange, public std::enable_shared_from_this<Connection> {
 public:
  using Socket = boost::asio::ip::tcp::socket;
  // What connections share.
  struct Shared {
    const ServerOptions& options;
    Service& service;
    std::function<void(Connection*)> on_closed;
    bool is_draining = false;
    std::array<char, 16 << 10> input = {};  // scratch of a read
  };

  Connection(Socket socket, Shared& shared);
  ~Connection() override;

  void start();
  // Answers with an error and closes.
  void refuse(const ApiError& error);
  void close();
  // Closes what is late, and idle connections of a server that drains.
  void check(Clock::time_point now);
  bool has_output() const { return !output_.empty(); }

  void reply(const HttpReply& reply) override;
  void begin_stream(const std::string& headers) override;
  bool write(const std::string& event) override;
  void end_stream() override;

 private:
  struct Parser;

  void wait_for_input();
  void on_input();
  void parse();
  void dispatch();
  void send(const std::string& bytes);
  // Writes what the socket takes.
  void flush();
  void wait_for_space();
  void end_answer();
  void linger();

  Socket socket_;
  Shared& shared_;
  std::unique_ptr<Parser> parser_;  // null: no byte of a request yet
  std::string input_;               // not parsed
  std::string output_;              // not written
  std::int64_t job_ = 0;
  bool is_waiting_ = false;  // for input
  bool is_waiting_for_space_ = false;
  bool is_answering_ = false;  // no other request is parsed
  bool is_keep_alive_ = true, is_chunked_ = true, is_head_ = false;
  bool is_ending_ = false;     // closes when the output is written
  bool is_lingering_ = false;  // reads until the peer has closed
  bool is_closed_ = false;
  Clock::time_point input_deadline_, output_deadline_ = Clock::time_point::max();
};

}  // namespace headrace::server
