#include "prepare_thread.h"

#include <algorithm>

namespace headrace::server {

PrepareThread::PrepareThread(Prepare prepare, std::size_t max_bytes, OnPrepared on_prepared)
    : prepare_(std::move(prepare)),
      max_bytes_(max_bytes),
      on_prepared_(std::move(on_prepared)),
      thread_([this] { run(); }) {}

PrepareThread::~PrepareThread() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  work_.notify_one();
  thread_.join();
}

bool PrepareThread::add(std::int64_t id, HttpRequest request) {
  const std::size_t size = request.body.size();
  {
    const std::lock_guard lock(mutex_);
    const bool is_only = !is_busy_ && waiting_.empty();
    if (!is_only && num_bytes_ + size > max_bytes_) return false;
    waiting_.push_back({id, std::move(request)});
    num_bytes_ += size;
  }
  work_.notify_one();
  return true;
}

void PrepareThread::cancel(std::int64_t id) {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(waiting_, id, &Waiting::id);
  if (found == waiting_.end()) return;
  num_bytes_ -= found->request.body.size();
  waiting_.erase(found);
}

void PrepareThread::run() {
  for (;;) {
    Waiting next;
    {
      std::unique_lock lock(mutex_);
      is_busy_ = false;
      work_.wait(lock, [this] { return !waiting_.empty() || is_stopping_; });
      if (is_stopping_) return;
      next = std::move(waiting_.front());
      waiting_.pop_front();
      is_busy_ = true;
    }
    Prepared prepared = prepare_(next.request);
    {
      const std::lock_guard lock(mutex_);
      num_bytes_ -= next.request.body.size();
    }
    on_prepared_(next.id, std::move(prepared));
  }
}

}  // namespace headrace::server
