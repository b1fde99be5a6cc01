#include "connection.h"

#include <boost/asio/post.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <charconv>

namespace headrace::server {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

// Of requests that came before the answer to the one before them.
constexpr std::size_t kMaxPipelined = 64 << 10;
constexpr auto kLinger = std::chrono::seconds(2);

ApiError parse_error(const error_code& error) {
  if (error == http::error::body_limit) return {413, "the body exceeds the server's limit"};
  if (error == http::error::header_limit) return {431, "the header exceeds the server's limit"};
  return {400, "not a valid HTTP request: " + error.message()};
}

std::string head_of(int status, const std::string& headers, bool is_keep_alive) {
  std::string head = "HTTP/1.1 " + std::to_string(status) + ' ';
  head += http::obsolete_reason(static_cast<http::status>(status)).to_string();
  head += "\r\n" + headers;
  if (!is_keep_alive) head += "Connection: close\r\n";
  return head + "X-Content-Type-Options: nosniff\r\n\r\n";
}

std::string chunk_of(const std::string& bytes) {
  std::array<char, 16> size;
  const auto end = std::to_chars(size.data(), size.data() + size.size(), bytes.size(), 16).ptr;
  return std::string(size.data(), end) + "\r\n" + bytes + "\r\n";
}

}  // namespace

struct Connection::Parser {
  http::request_parser<http::string_body> http;
  bool has_header = false;
};

Connection::Connection(Socket socket, Shared& shared)
    : socket_(std::move(socket)), shared_(shared) {}
Connection::~Connection() = default;

void Connection::start() {
  error_code ignored;
  socket_.non_blocking(true, ignored);
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
  // A slow reader is noticed by what waits here, not in the kernel.
  socket_.set_option(asio::socket_base::send_buffer_size(64 << 10), ignored);
  input_deadline_ = Clock::now() + std::chrono::seconds(shared_.options.header_seconds);
  wait_for_input();
}

void Connection::refuse(const ApiError& error) {
  is_keep_alive_ = false;
  reply({.status = error.status, .body = error_body(error)});
}

void Connection::close() {
  if (is_closed_) return;
  is_closed_ = true;
  if (job_ != 0) shared_.service.cancel(job_);
  error_code ignored;
  socket_.close(ignored);
  shared_.on_closed(this);
}

void Connection::check(Clock::time_point now) {
  const bool is_idle = !is_answering_ && parser_ == nullptr && !has_output() && !is_lingering_;
  if (shared_.is_draining && is_idle) return close();
  if (now >= output_deadline_ || (!is_answering_ && !has_output() && now >= input_deadline_))
    close();
}

void Connection::wait_for_input() {
  if (is_waiting_ || is_closed_) return;
  if (is_answering_ && input_.size() >= kMaxPipelined) return;
  is_waiting_ = true;
  // No buffer per connection: thousands of them wait.
  socket_.async_wait(Socket::wait_read, [self = shared_from_this()](const error_code& error) {
    self->is_waiting_ = false;
    if (self->is_closed_) return;
    if (error) return self->close();
    self->on_input();
  });
}

void Connection::on_input() {
  error_code error;
  const std::size_t count = socket_.read_some(asio::buffer(shared_.input), error);
  if (error == asio::error::would_block) return wait_for_input();
  if (error) return close();  // the client is gone: what it asked for is cancelled
  if (!is_ending_) {
    input_.append(shared_.input.data(), count);
    parse();
  }
  wait_for_input();
}

void Connection::parse() {
  while (!is_answering_ && !is_ending_ && !is_closed_ && !input_.empty() &&
         output_.size() <= shared_.options.max_output_bytes) {
    if (!parser_) {
      parser_ = std::make_unique<Parser>();
      parser_->http.eager(true);
      parser_->http.header_limit(static_cast<std::uint32_t>(shared_.options.max_header_bytes));
      parser_->http.body_limit(shared_.options.max_body_bytes);
      input_deadline_ = Clock::now() + std::chrono::seconds(shared_.options.header_seconds);
    }
    error_code error;
    const std::size_t used = parser_->http.put(asio::buffer(input_), error);
    input_.erase(0, used);
    if (error && error != http::error::need_more) return refuse(parse_error(error));
    if (!parser_->has_header && parser_->http.is_header_done()) {
      parser_->has_header = true;
      input_deadline_ = Clock::now() + std::chrono::seconds(shared_.options.body_seconds);
      const bool expects = parser_->http.get()[http::field::expect] == "100-continue";
      if (expects && !parser_->http.is_done()) send("HTTP/1.1 100 Continue\r\n\r\n");
    }
    if (parser_->http.is_done())
      dispatch();
    else if (error == http::error::need_more || used == 0)
      return;
  }
}

void Connection::dispatch() {
  auto message = parser_->http.release();
  parser_.reset();
  is_answering_ = true;
  is_keep_alive_ = message.keep_alive() && !shared_.is_draining;
  is_chunked_ = message.version() >= 11;
  is_head_ = message.method() == http::verb::head;
  const auto field = [&](http::field name) { return message[name].to_string(); };
  HttpRequest request{.method = is_head_ ? "GET" : message.method_string().to_string(),
                      .path = message.target().to_string(),
                      .host = field(http::field::host),
                      .origin = field(http::field::origin),
                      .authorization = field(http::field::authorization),
                      .body = std::move(message.body())};
  request.path = request.path.substr(0, request.path.find('?'));
  if (request.path.empty() || request.path.front() != '/')
    return refuse({400, "the target of a request begins with /"});
  const std::int64_t job = shared_.service.handle(std::move(request), shared_from_this());
  if (is_answering_) job_ = job;
}

void Connection::reply(const HttpReply& reply) {
  std::string headers = reply.headers;
  if (!reply.type.empty()) headers += "Content-Type: " + reply.type + "\r\n";
  if (reply.status != 204)
    headers += "Content-Length: " + std::to_string(reply.body.size()) + "\r\n";
  send(head_of(reply.status, headers, is_keep_alive_) + (is_head_ ? "" : reply.body));
  end_answer();
}

void Connection::begin_stream(const std::string& headers) {
  if (!is_chunked_) is_keep_alive_ = false;
  const char* framing = is_chunked_ ? "Transfer-Encoding: chunked\r\n" : "";
  send(head_of(200,
               headers + framing +
                   "Content-Type: text/event-stream; charset=utf-8\r\n"
                   "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n",
               is_keep_alive_));
}

bool Connection::write(const std::string& event) {
  if (is_closed_) return false;
  if (output_.size() + event.size() > shared_.options.max_output_bytes) flush();
  if (output_.size() + event.size() > shared_.options.max_output_bytes) {
    // Not at once: the caller is in the middle of its request.
    asio::post(socket_.get_executor(), [self = shared_from_this()] { self->close(); });
    return false;
  }
  send(is_chunked_ ? chunk_of(event) : event);
  return true;
}

void Connection::end_stream() {
  if (is_chunked_) send("0\r\n\r\n");
  end_answer();
}

void Connection::end_answer() {
  is_answering_ = false;
  job_ = 0;
  parser_.reset();
  is_ending_ = !is_keep_alive_ || shared_.is_draining;
  input_deadline_ = Clock::now() + std::chrono::seconds(shared_.options.idle_seconds);
  // Not at once: a client that sends many requests must not nest as many calls.
  if (!is_ending_ && !input_.empty())
    asio::post(socket_.get_executor(), [self = shared_from_this()] {
      self->parse();
      self->wait_for_input();
    });
  if (is_ending_ && !has_output()) linger();
}

void Connection::send(const std::string& bytes) {
  if (is_closed_) return;
  output_ += bytes;
  if (!is_waiting_for_space_) flush();
}

void Connection::flush() {
  error_code error;
  std::size_t written = 0;
  while (!error && written < output_.size())
    written += socket_.write_some(asio::buffer(output_) + written, error);
  output_.erase(0, written);
  if (written > 0)
    output_deadline_ = Clock::now() + std::chrono::seconds(shared_.options.write_seconds);
  if (!output_.empty()) return wait_for_space();  // that fails too if the client is gone
  output_deadline_ = Clock::time_point::max();
  // A burst leaves no memory behind in thousands of connections.
  if (output_.capacity() > 4096) output_ = {};
}

void Connection::wait_for_space() {
  if (is_waiting_for_space_) return;
  is_waiting_for_space_ = true;
  if (output_deadline_ == Clock::time_point::max())
    output_deadline_ = Clock::now() + std::chrono::seconds(shared_.options.write_seconds);
  socket_.async_wait(Socket::wait_write, [self = shared_from_this()](const error_code& error) {
    self->is_waiting_for_space_ = false;
    if (self->is_closed_) return;
    if (error) return self->close();
    self->flush();
    if (self->has_output()) return;
    if (self->is_ending_) return self->linger();
    self->parse();
    self->wait_for_input();
  });
}

// A close with unread input would discard the answer on its way.
void Connection::linger() {
  if (is_lingering_ || is_closed_) return;
  is_lingering_ = true;
  input_.clear();
  input_deadline_ = Clock::now() + kLinger;
  error_code ignored;
  socket_.shutdown(Socket::shutdown_send, ignored);
  wait_for_input();
}

}  // namespace headrace::server
