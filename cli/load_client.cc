#include "load_client.h"

#include <sys/resource.h>

// clang-format off: Boost 1.74 uses std::exchange without its header.
#include <utility>
// clang-format on
#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <exception>

#include "answer_stream.h"
#include "headrace/headrace.hpp"

namespace headrace::cli {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using Clock = std::chrono::steady_clock;
using boost::system::error_code;
using boost::system::system_error;

constexpr std::uint32_t kMaxHeaderBytes = 1 << 16;
constexpr std::uint64_t kMaxBodyBytes = std::uint64_t{1} << 30;
constexpr std::size_t kMaxTokenEvents = std::size_t{1} << 20;
constexpr std::size_t kMaxDetailBytes = 200;

// A failure with a name of its own.
struct Failure {
  std::string name, detail;
};

// Every connection is a file. The limit is raised as far as the system permits.
void allow_many_files() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

using Parser = http::response_parser<http::buffer_body>;

class LoadRun {
 public:
  explicit LoadRun(const Load& load)
      : load_(load), free_slot_(context_), results_(load.arrivals.size()) {}

  std::vector<LoadResult> run() {
    error_code error;
    asio::ip::tcp::resolver resolver(context_);
    addresses_ = resolver.resolve(load_.url.host, load_.url.port, error);
    if (error)
      throw Error(HEADRACE_IO_ERROR, "--url: " + load_.url.host + " has no address (" +
                                         error.message() + "); name another host");
    begin_ = Clock::now();
    asio::co_spawn(context_, dispatch(), rethrow);
    context_.run();
    return std::move(results_);
  }

 private:
  static void rethrow(const std::exception_ptr& error) {
    if (error) std::rethrow_exception(error);
  }

  double now() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

  // Starts the requests when they are due, as far as slots are free.
  asio::awaitable<void> dispatch() {
    asio::steady_timer timer(context_);
    error_code ignored;
    for (std::size_t idx = 0; idx < results_.size(); ++idx) {
      const std::chrono::duration<double> due(load_.arrivals[idx]);
      timer.expires_at(begin_ + std::chrono::duration_cast<Clock::duration>(due));
      // Each wait lets all streams that have events go first, so that a due request does not wait.
      if (timer.expiry() > Clock::now())
        co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
      while (num_running_ >= load_.concurrency) {
        free_slot_.expires_at(Clock::time_point::max());
        co_await free_slot_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
      }
      ++num_running_;
      asio::co_spawn(context_, request(idx), [this](const std::exception_ptr& error) {
        rethrow(error);
        --num_running_;
        load_.on_end(++num_ended_);
        free_slot_.cancel();
      });
    }
  }

  asio::awaitable<void> request(std::size_t idx) {
    LoadResult& result = results_[idx];
    const std::string body = load_.body(static_cast<std::int64_t>(idx));
    result.due = load_.arrivals[idx];
    result.sent = now();
    const char* failure = "connection";
    try {
      beast::tcp_stream stream(context_);
      stream.expires_after(std::chrono::seconds(load_.timeout));
      co_await stream.async_connect(addresses_, asio::use_awaitable);
      failure = "disconnect";
      stream.socket().set_option(asio::ip::tcp::no_delay(true));
      co_await send(stream, body);
      co_await receive(stream, result);
    } catch (const Failure& named) {
      result.failure = named.name;
      result.detail = named.detail;
    } catch (const BadAnswer& error) {
      result.failure = "malformed";
      result.detail = error.what();
    } catch (const system_error& error) {
      const bool is_timeout = error.code() == beast::error::timeout;
      const bool is_http =
          error.code().category() == http::make_error_code(http::error{}).category();
      const bool is_end = error.code() == http::error::end_of_stream ||
                          error.code() == http::error::partial_message;
      result.failure = is_timeout ? "timeout" : is_http && !is_end ? "malformed" : failure;
      result.detail = error.code().message();
    }
    result.end = now();
  }

  asio::awaitable<void> send(beast::tcp_stream& stream, const std::string& body) {
    http::request<http::string_body> message(http::verb::post, load_.url.path + load_.path, 11);
    message.set(http::field::host, load_.url.host + ':' + load_.url.port);
    message.set(http::field::user_agent, "headrace");
    message.set(http::field::content_type, "application/json");
    message.set(http::field::accept, "text/event-stream");
    message.set(http::field::connection, "close");
    if (!load_.api_key.empty()) message.set(http::field::authorization, "Bearer " + load_.api_key);
    message.body() = body;
    message.prepare_payload();
    co_await http::async_write(stream, message, asio::use_awaitable);
  }

  asio::awaitable<void> receive(beast::tcp_stream& stream, LoadResult& result) {
    beast::flat_buffer buffer(kMaxHeaderBytes);
    Parser parser;
    parser.header_limit(kMaxHeaderBytes);
    parser.body_limit(kMaxBodyBytes);
    co_await http::async_read_header(stream, buffer, parser, asio::use_awaitable);
    if (parser.get().result_int() != 200) co_await fail_with_status(stream, buffer, parser);
    AnswerStream answer;
    while (!answer.is_done()) {
      if (parser.is_done()) throw BadAnswer("the stream ends before the event [DONE]");
      const std::string bytes = co_await read_some(stream, buffer, parser);
      const double arrival = now();
      const std::int64_t num_texts = answer.add(bytes);
      result.tokens.insert(result.tokens.end(), static_cast<std::size_t>(num_texts), arrival);
      if (result.tokens.size() > kMaxTokenEvents) throw BadAnswer("the stream has no end");
    }
    if (result.tokens.empty()) throw Failure{"empty", "an answer without text"};
    const auto num_events = static_cast<std::int64_t>(result.tokens.size());
    result.num_prompt_tokens = std::max<std::int64_t>(answer.num_prompt_tokens(), 0);
    result.num_answer_tokens =
        answer.num_answer_tokens() < 0 ? num_events : answer.num_answer_tokens();
  }

  // The next bytes of the body; may be none.
  asio::awaitable<std::string> read_some(beast::tcp_stream& stream, beast::flat_buffer& buffer,
                                         Parser& parser) {
    std::string bytes(16384, '\0');
    http::buffer_body::value_type& body = parser.get().body();
    body.data = bytes.data();
    body.size = bytes.size();
    stream.expires_after(std::chrono::seconds(load_.timeout));
    error_code error;
    co_await http::async_read_some(stream, buffer, parser,
                                   asio::redirect_error(asio::use_awaitable, error));
    if (error && error != http::error::need_buffer) throw system_error(error);
    bytes.resize(bytes.size() - body.size);
    co_return bytes;
  }

  asio::awaitable<void> fail_with_status(beast::tcp_stream& stream, beast::flat_buffer& buffer,
                                         Parser& parser) {
    std::string text;
    while (!parser.is_done() && text.size() < kMaxDetailBytes)
      text += co_await read_some(stream, buffer, parser);
    text.resize(std::min(text.size(), kMaxDetailBytes));
    throw Failure{std::to_string(parser.get().result_int()), text};
  }

  const Load& load_;
  asio::io_context context_{1};
  asio::steady_timer free_slot_;  // cancelled when a request ends
  asio::ip::tcp::resolver::results_type addresses_;
  Clock::time_point begin_;
  std::int64_t num_running_ = 0, num_ended_ = 0;
  std::vector<LoadResult> results_;
};

}  // namespace

std::vector<LoadResult> run_load(const Load& load) {
  allow_many_files();
  return LoadRun(load).run();
}

}  // namespace headrace::cli
