#include "server.h"

#include <sys/resource.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <csignal>
#include <unordered_map>

#include "connection.h"

namespace headrace::server {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

// As many files as connections need, where the hard limit has them.
void allow_files(std::size_t count) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= count) return;
  limit.rlim_cur = std::min<rlim_t>(count, limit.rlim_max);
  setrlimit(RLIMIT_NOFILE, &limit);  // if it fails, accept() says so
}

class Listener {
 public:
  Listener(const Model& model, Engine& engine, std::int64_t max_tokens,
           const ServerOptions& options)
      : options_(options),
        service_(model, engine, max_tokens, options.service),
        shared_{options_, service_, [this](Connection* closed) { connections_.erase(closed); }},
        preparer_(model, max_tokens, options.service.model_name, options.service.chat_template),
        prepare_thread_([this](const HttpRequest& request) { return preparer_.prepare(request); },
                        options.max_queued_bytes,
                        [this](std::int64_t id, Prepared prepared) {
                          asio::post(io_, [this, id, prepared = std::move(prepared)]() mutable {
                            service_.take_prepared(id, std::move(prepared));
                          });
                        }),
        engine_thread_(engine, [this] { deliver_later(); }) {
    service_.start(engine_thread_, prepare_thread_);
    listen();
  }

  std::string address() const {
    const tcp::endpoint endpoint = acceptor_.local_endpoint();
    const std::string host = endpoint.address().to_string();
    return "http://" + (endpoint.address().is_v6() ? '[' + host + ']' : host) + ':' +
           std::to_string(endpoint.port()) + '/';
  }

  void run() {
    accept();
    check_each_second();
    wait_for_signal();
    io_.run();
    io_.stop();
  }

 private:
  void deliver_later() {
    asio::post(io_, [this] {
      StepOutputs outputs = engine_thread_.take();
      if (outputs.has_more) deliver_later();
      service_.deliver(std::move(outputs));
    });
  }

  void listen() {
    const std::string where = options_.host + ':' + std::to_string(options_.port);
    error_code error;
    tcp::resolver resolver(io_);
    const auto found =
        resolver.resolve(options_.host, std::to_string(options_.port),
                         tcp::resolver::passive | tcp::resolver::numeric_service, error);
    const auto check = [&] {
      if (error)
        throw Error(HEADRACE_IO_ERROR,
                    "cannot listen on " + where + ": " + error.message() + "; choose another");
    };
    check();
    const tcp::endpoint endpoint = found.begin()->endpoint();
    acceptor_.open(endpoint.protocol(), error);
    check();
    acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    acceptor_.bind(endpoint, error);
    check();
    acceptor_.listen(4096, error);
    check();
    acceptor_.non_blocking(true, error);
    check();
  }

  // Takes all that wait, up to a bound: one at a time each would wait for a step's outputs.
  void accept() {
    constexpr int kMaxAccepted = 64;
    acceptor_.async_wait(tcp::acceptor::wait_read, [this](error_code error) {
      for (int i = 0; i < kMaxAccepted && !error; ++i) {
        if (is_draining_) return;
        tcp::socket socket = acceptor_.accept(error);
        if (!error) start(std::move(socket));
      }
      if (is_draining_) return;
      if (!error || error == asio::error::would_block || error == asio::error::connection_aborted)
        return accept();
      // Too many files are open: those of ended connections become free.
      retry_.expires_after(std::chrono::milliseconds(50));
      retry_.async_wait([this](const error_code& ended) {
        if (!ended && !is_draining_) accept();
      });
    });
  }

  void start(tcp::socket socket) {
    const auto connection = std::make_shared<Connection>(std::move(socket), shared_);
    const bool is_full = connections_.size() >= options_.max_connections;
    connections_.emplace(connection.get(), connection);
    connection->start();
    if (is_full) connection->refuse({503, "too many connections"});
  }

  // The callbacks may close connections, so they run on a copy.
  template <class Function>
  void for_each_connection(Function function) {
    std::vector<std::shared_ptr<Connection>> all;
    all.reserve(connections_.size());
    for (const auto& [key, connection] : connections_) all.push_back(connection);
    for (const auto& connection : all) function(*connection);
  }

  void check_each_second() {
    service_.metrics().num_connections = connections_.size();
    for_each_connection([now = Clock::now()](Connection& c) { c.check(now); });
    timer_.expires_after(is_draining_ ? std::chrono::milliseconds(50) : std::chrono::seconds(1));
    timer_.async_wait([this](const error_code& error) {
      if (error && !is_draining_) return;
      if (is_draining_ && end_drain()) return io_.stop();
      check_each_second();
    });
  }

  void wait_for_signal() {
    signals_.async_wait([this](const error_code& error, int) {
      if (error) return;
      if (is_draining_) drain_deadline_ = Clock::now();  // the second one: at once
      begin_drain();
      wait_for_signal();
    });
  }

  void begin_drain() {
    if (is_draining_) return;
    is_draining_ = shared_.is_draining = true;
    drain_deadline_ = Clock::now() + std::chrono::seconds(options_.drain_seconds);
    service_.drain();
    error_code ignored;
    acceptor_.close(ignored);
    timer_.cancel();
  }

  // True: all is answered, or nothing more will be.
  bool end_drain() {
    bool has_output = false;
    for_each_connection([&](const Connection& c) { has_output |= c.has_output(); });
    if (service_.is_idle() && !has_output) return true;
    const Clock::time_point now = Clock::now();
    if (now < drain_deadline_) return false;
    if (!has_aborted_) service_.abort_all();
    has_aborted_ = true;
    return now >= drain_deadline_ + std::chrono::seconds(1);
  }

  const ServerOptions& options_;
  asio::io_context io_{1};  // before the service, which may own connections at the end
  Service service_;
  Connection::Shared shared_;
  tcp::acceptor acceptor_{io_};
  asio::steady_timer timer_{io_}, retry_{io_};
  asio::signal_set signals_{io_, SIGINT, SIGTERM};
  std::unordered_map<Connection*, std::shared_ptr<Connection>> connections_;
  bool is_draining_ = false, has_aborted_ = false;
  Clock::time_point drain_deadline_;
  Preparer preparer_;
  // The last members: they post to io_.
  PrepareThread prepare_thread_;
  EngineThread engine_thread_;
};

}  // namespace

void serve(const Model& model, Engine& engine, std::int64_t max_tokens,
           const ServerOptions& options, const std::function<void(const std::string&)>& on_ready) {
  allow_files(options.max_connections + 64);
  Listener listener(model, engine, max_tokens, options);
  on_ready(listener.address());
  listener.run();
}

}  // namespace headrace::server
