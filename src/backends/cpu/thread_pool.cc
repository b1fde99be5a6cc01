#include "backends/cpu/thread_pool.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>

#include "base/callback.h"

namespace headrace::cpu {
namespace {

struct Loop {
  LoopBody body;
  void* context;
  std::int64_t num_tasks;
  int max_workers;
  std::atomic<std::int64_t> next_task{0};
  int num_joined = 1;              // worker numbers handed out; guarded by Pool::mutex_
  std::atomic<int> num_active{0};  // pool threads inside run()
  Loop* next = nullptr;            // list of loops with remaining tasks; guarded by Pool::mutex_

  void run(int worker) {
    for (;;) {
      const std::int64_t task = next_task.fetch_add(1, std::memory_order_relaxed);
      if (task >= num_tasks) return;
      body(context, task, worker);
    }
  }
  bool wants_workers() const {
    return num_joined < max_workers && next_task.load(std::memory_order_relaxed) < num_tasks;
  }
};

// Number of spins of an idle thread before it sleeps, and of a caller that waits for its helpers:
// waking a thread costs 5 to 50 us, as much as a small attention call. About 20 us of pause
// instructions on x86; less on Arm (not measured).
constexpr int kSpins = 500;

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

class Pool {
 public:
  void run(Loop& loop) {
    publish(loop);
    loop.run(0);
    withdraw(loop);
    for (int spin = 0; spin < kSpins; ++spin) {
      if (loop.num_active.load(std::memory_order_acquire) == 0) return;
      pause_cpu();
    }
    std::unique_lock lock(mutex_);
    helper_left_.wait(lock, [&] { return loop.num_active.load(std::memory_order_acquire) == 0; });
  }

 private:
  void publish(Loop& loop) {
    const auto helpers = std::min<std::int64_t>(loop.max_workers, loop.num_tasks) - 1;
    int num_sleeping = 0;
    {
      std::lock_guard lock(mutex_);
      while (num_threads_ < helpers && start_thread()) ++num_threads_;
      loop.next = loops_;
      loops_ = &loop;
      num_published_.fetch_add(1, std::memory_order_release);
      num_sleeping = num_sleeping_;
    }
    if (num_sleeping > 0) work_arrived_.notify_all();
  }

  void withdraw(Loop& loop) {
    std::lock_guard lock(mutex_);
    Loop** link = &loops_;
    while (*link != &loop) link = &(*link)->next;
    *link = loop.next;
  }

  bool start_thread() {
    try {
      std::thread([this] { serve(); }).detach();
      return true;
    } catch (const std::system_error&) {
      return false;  // the caller runs all tasks itself
    }
  }

  [[noreturn]] void serve() {
    for (;;) {
      auto [loop, worker] = next_loop();
      loop->run(worker);
      // Notify under the lock: once num_active is 0, the caller may destroy the loop.
      std::lock_guard lock(mutex_);
      if (loop->num_active.fetch_sub(1, std::memory_order_release) == 1) helper_left_.notify_all();
    }
  }

  struct Seat {
    Loop* loop;
    int worker;
  };

  Seat next_loop() {
    for (;;) {
      const std::uint64_t seen = num_published_.load(std::memory_order_acquire);
      {
        std::lock_guard lock(mutex_);
        for (Loop* loop = loops_; loop != nullptr; loop = loop->next) {
          if (!loop->wants_workers()) continue;
          loop->num_active.fetch_add(1, std::memory_order_relaxed);
          return {loop, loop->num_joined++};
        }
      }
      wait_for_publication(seen);
    }
  }

  void wait_for_publication(std::uint64_t seen) {
    const auto arrived = [&] { return num_published_.load(std::memory_order_acquire) != seen; };
    for (int spin = 0; spin < kSpins; ++spin) {
      if (arrived()) return;
      pause_cpu();
    }
    std::unique_lock lock(mutex_);
    ++num_sleeping_;
    work_arrived_.wait(lock, arrived);
    --num_sleeping_;
  }

  std::mutex mutex_;
  std::condition_variable work_arrived_, helper_left_;
  Loop* loops_ = nullptr;
  int num_threads_ = 0, num_sleeping_ = 0;
  std::atomic<std::uint64_t> num_published_{0};
};

// Never destroyed: threads may still wait in it while the process exits.
std::atomic<Pool*> g_pool{nullptr};

struct Executor {
  ExecutorFn run = nullptr;
  void* user = nullptr;
};
Executor g_executor;  // guarded by g_mutex: function and argument change together
std::atomic<bool> g_has_executor{
    false};  // read without the lock to skip it if there is no executor

std::mutex g_mutex;  // creation of the pool, the executor

// Threads do not survive fork(): the child drops the parent's pool, whose locks may never be
// released.
void register_fork_handlers() {
  static const int registered = pthread_atfork([] { g_mutex.lock(); },    //
                                               [] { g_mutex.unlock(); },  //
                                               [] {
                                                 g_pool.store(nullptr, std::memory_order_release);
                                                 g_mutex.unlock();
                                               });
  static_cast<void>(registered);
}

Pool& pool() {
  if (Pool* existing = g_pool.load(std::memory_order_acquire)) return *existing;
  register_fork_handlers();
  std::lock_guard lock(g_mutex);
  if (Pool* existing = g_pool.load(std::memory_order_acquire)) return *existing;
  Pool* created = new Pool;
  g_pool.store(created, std::memory_order_release);
  return *created;
}

Executor current_executor() {
  if (!g_has_executor.load(std::memory_order_acquire)) return {};
  std::lock_guard lock(g_mutex);
  return g_executor;
}

constexpr int kMaxHostTasks = 1024;

// A loop on the host program's executor. The executor is not trusted: a task index runs at most
// once, so that no worker number is used twice, and verdict() reports violations of the contract.
class HostLoop {
 public:
  explicit HostLoop(Loop& loop)
      : loop_(loop),
        num_tasks_(static_cast<int>(
            std::min<std::int64_t>(std::min(loop.max_workers, kMaxHostTasks), loop.num_tasks))) {}

  Status run(const Executor& executor) {
    const Status threw = call_back("executor", [&] {
      executor.run(
          executor.user, num_tasks_,
          [](void* arg, int index) { static_cast<HostLoop*>(arg)->run_task(index); }, this);
    });
    // If the executor returns too early, running tasks must finish before this object is destroyed.
    while (num_active_.load(std::memory_order_acquire) != 0) std::this_thread::yield();
    return threw ? threw : verdict();
  }

 private:
  static constexpr std::int64_t kNone = INT64_MIN;

  void run_task(int index) {
    num_active_.fetch_add(1, std::memory_order_relaxed);
    const bool is_known = index >= 0 && index < num_tasks_;
    if (!is_known || has_run_[static_cast<std::size_t>(index)].exchange(true)) {
      wrong_index_.store(index, std::memory_order_relaxed);
    } else {
      loop_.run(index);
      num_finished_.fetch_add(1, std::memory_order_relaxed);
    }
    num_active_.fetch_sub(1, std::memory_order_release);
  }

  Status verdict() const {
    constexpr const char* kRule =
        "it must call task(task_arg, i) once for every i in [0, num_tasks) and return when all are "
        "done; fix the function passed to headrace_set_executor";
    const std::int64_t wrong = wrong_index_.load(std::memory_order_relaxed);
    if (wrong != kNone)
      return invalid_argument("executor: called task(task_arg, {}){} with num_tasks={}: {}", wrong,
                              wrong >= 0 && wrong < num_tasks_ ? " twice" : "", num_tasks_, kRule);
    const int finished = num_finished_.load(std::memory_order_relaxed);
    if (finished != num_tasks_)
      return invalid_argument("executor: returned when {} of num_tasks={} tasks had run: {}",
                              finished, num_tasks_, kRule);
    return std::nullopt;
  }

  Loop& loop_;
  const int num_tasks_;
  std::array<std::atomic<bool>, kMaxHostTasks> has_run_{};
  std::atomic<int> num_active_{0}, num_finished_{0};
  std::atomic<std::int64_t> wrong_index_{kNone};
};

}  // namespace

void set_executor(ExecutorFn run, void* user) {
  register_fork_handlers();
  std::lock_guard lock(g_mutex);
  g_executor = {run, user};
  g_has_executor.store(run != nullptr, std::memory_order_release);
}

Status parallel_for(std::int64_t num_tasks, int max_workers, LoopBody body, void* context) {
  if (num_tasks <= 0) return std::nullopt;
  Loop loop{.body = body, .context = context, .num_tasks = num_tasks, .max_workers = max_workers};
  if (max_workers <= 1 || num_tasks == 1) {
    loop.run(0);
    return std::nullopt;
  }
  const Executor executor = current_executor();
  if (executor.run != nullptr) return HostLoop(loop).run(executor);
  pool().run(loop);
  return std::nullopt;
}

}  // namespace headrace::cpu
