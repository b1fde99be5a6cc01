// Runs an engine on a thread of its own: steps while there is work, and sleeps otherwise.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "headrace/engine.hpp"

namespace headrace::server {

using Clock = std::chrono::steady_clock;

// What steps gave that were not taken yet.
struct StepOutputs {
  struct Step {
    Clock::time_point end;
    double seconds;
    headrace_engine_stats stats;
  };
  std::vector<Output> outputs;  // at most kMaxOutputs
  bool has_more = false;        // outputs
  std::deque<Step> steps;       // the latest kMaxSteps
  std::string failure;          // why the engine has ended; empty: it has not

  static constexpr std::size_t kMaxSteps = 256, kMaxOutputs = 4096;
};

class EngineThread {
 public:
  // on_outputs is called on the engine's thread, once until take() is called.
  EngineThread(Engine& engine, std::function<void()> on_outputs);
  ~EngineThread();  // after the step that runs
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;

  // These throw Error, as Engine does.
  std::int64_t add(const Request& request);
  void abort(std::int64_t id);

  // Polls on the caller's thread: of a thread that is behind the engine, the engine merges the
  // outputs, one per sample, so that what waits is bounded.
  StepOutputs take();

 private:
  void run();
  // False: there was nothing to do, or the engine has ended.
  bool step();
  void wake();

  Engine& engine_;
  std::function<void()> on_outputs_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable work_;
  bool has_work_ = false, is_stopping_ = false, is_announced_ = false;
  StepOutputs outputs_;
  std::thread thread_;  // the last member: it uses the others
};

}  // namespace headrace::server
