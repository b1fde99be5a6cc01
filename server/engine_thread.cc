#include "engine_thread.h"

namespace headrace::server {

EngineThread::EngineThread(Engine& engine, std::function<void()> on_outputs)
    : engine_(engine), on_outputs_(std::move(on_outputs)), thread_([this] { run(); }) {}

EngineThread::~EngineThread() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  work_.notify_one();
  thread_.join();
}

std::int64_t EngineThread::add(const Request& request) {
  const std::int64_t id = engine_.add(request);
  wake();
  return id;
}
void EngineThread::abort(std::int64_t id) {
  engine_.abort(id);
  wake();
}

void EngineThread::wake() {
  {
    const std::lock_guard lock(mutex_);
    has_work_ = true;
  }
  work_.notify_one();
}

StepOutputs EngineThread::take() {
  StepOutputs taken;
  {
    const std::lock_guard lock(mutex_);
    is_announced_ = false;
    taken = std::exchange(outputs_, {});
  }
  while (taken.outputs.size() < StepOutputs::kMaxOutputs) {
    std::optional<Output> output = engine_.poll();
    if (!output) return taken;
    taken.outputs.push_back(std::move(*output));
  }
  taken.has_more = true;
  return taken;
}

void EngineThread::run() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      work_.wait(lock, [this] { return has_work_ || is_stopping_; });
      if (is_stopping_) return;
      has_work_ = false;  // what comes from now on is seen by the next step() or the next wait
    }
    while (step()) {
      const std::lock_guard lock(mutex_);
      if (is_stopping_) return;
    }
  }
}

bool EngineThread::step() {
  const Clock::time_point begin = Clock::now();
  bool has_worked = false, is_new;
  std::string failure;
  headrace_engine_stats stats{};
  try {
    has_worked = engine_.step();
    stats = engine_.stats();
  } catch (const std::exception& error) {
    failure = error.what();
  }
  if (!has_worked && failure.empty()) return false;
  const Clock::time_point end = Clock::now();
  {
    const std::lock_guard lock(mutex_);
    outputs_.failure = failure;
    if (failure.empty()) {
      if (outputs_.steps.size() == StepOutputs::kMaxSteps) outputs_.steps.pop_front();
      outputs_.steps.push_back({end, std::chrono::duration<double>(end - begin).count(), stats});
    }
    is_new = !std::exchange(is_announced_, true);
  }
  if (is_new) on_outputs_();
  return failure.empty();
}

}  // namespace headrace::server
