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
  const std::lock_guard lock(mutex_);
  return std::exchange(outputs_, {});
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
  bool has_worked = false;
  std::string failure;
  std::vector<Output> outputs;
  headrace_engine_stats stats{};
  try {
    has_worked = engine_.step();
  } catch (const std::exception& error) {
    failure = error.what();
  }
  try {
    while (std::optional<Output> output = engine_.poll()) outputs.push_back(std::move(*output));
    stats = engine_.stats();
  } catch (const std::exception& error) {
    failure = error.what();
  }
  const Clock::time_point end = Clock::now();
  if (!has_worked && outputs.empty() && failure.empty()) return false;
  bool was_empty;
  {
    const std::lock_guard lock(mutex_);
    was_empty = outputs_.outputs.empty() && outputs_.steps.empty() && outputs_.failure.empty();
    outputs_.failure = failure;
    for (Output& output : outputs) outputs_.outputs.push_back(std::move(output));
    if (outputs_.steps.size() == StepOutputs::kMaxSteps)
      outputs_.steps.erase(outputs_.steps.begin());
    outputs_.steps.push_back({end, std::chrono::duration<double>(end - begin).count(), stats});
  }
  if (was_empty) on_outputs_();
  return has_worked && failure.empty();
}

}  // namespace headrace::server
