// Prepares requests on a thread of its own, one after the other: a long prompt delays no stream.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "prepare.h"

namespace headrace::server {

class PrepareThread {
 public:
  using Prepare = std::function<Prepared(const HttpRequest&)>;
  using OnPrepared = std::function<void(std::int64_t id, Prepared)>;

  // Both functions are called on this thread. max_bytes: of the bodies that are here at once.
  PrepareThread(Prepare prepare, std::size_t max_bytes, OnPrepared on_prepared);
  ~PrepareThread();  // after the request that is being prepared; those that wait are dropped
  PrepareThread(const PrepareThread&) = delete;
  PrepareThread& operator=(const PrepareThread&) = delete;

  // False: there is no room. The only request has room, whatever its size.
  bool add(std::int64_t id, HttpRequest request);
  // Drops the request if it waits.
  void cancel(std::int64_t id);

 private:
  struct Waiting {
    std::int64_t id;
    HttpRequest request;
  };

  void run();

  Prepare prepare_;
  std::size_t max_bytes_;
  OnPrepared on_prepared_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable work_;
  std::deque<Waiting> waiting_;
  std::size_t num_bytes_ = 0;  // also of the one that is being prepared
  bool is_busy_ = false, is_stopping_ = false;
  std::thread thread_;  // the last member: it uses the others
};

}  // namespace headrace::server
