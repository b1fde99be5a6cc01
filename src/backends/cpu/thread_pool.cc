#include "backends/cpu/thread_pool.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>

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
  Loop* next = nullptr;            // list of loops that still have tasks; guarded by Pool::mutex_

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

// How long an idle thread looks for work before it sleeps, and a caller for its helpers to finish:
// waking a thread costs 5 to 50 us, as long as a small attention call. About 20 us of pause
// instructions on x86; less on Arm, where nobody has measured it.
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
      return false;  // the caller does the work alone
    }
  }

  [[noreturn]] void serve() {
    for (;;) {
      auto [loop, worker] = next_loop();
      loop->run(worker);
      // The lock keeps the notification inside the caller's wait: after num_active drops to 0 the
      // loop may be gone.
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

// Never destroyed: its threads may be waiting in it while the process exits.
std::atomic<Pool*> g_pool{nullptr};
std::mutex g_pool_creation;

Pool& pool() {
  if (Pool* existing = g_pool.load(std::memory_order_acquire)) return *existing;
  std::lock_guard lock(g_pool_creation);
  if (Pool* existing = g_pool.load(std::memory_order_acquire)) return *existing;
  // Threads do not survive fork(): the child forgets the parent's pool, whose locks may be held for
  // ever.
  static const int registered = pthread_atfork([] { g_pool_creation.lock(); },    //
                                               [] { g_pool_creation.unlock(); },  //
                                               [] {
                                                 g_pool.store(nullptr, std::memory_order_release);
                                                 g_pool_creation.unlock();
                                               });
  static_cast<void>(registered);
  Pool* created = new Pool;
  g_pool.store(created, std::memory_order_release);
  return *created;
}

std::atomic<ExecutorFn> g_executor{nullptr};
std::atomic<void*> g_executor_user{nullptr};

}  // namespace

void set_executor(ExecutorFn run, void* user) {
  g_executor_user.store(user);
  g_executor.store(run);
}

void parallel_for(std::int64_t num_tasks, int max_workers, LoopBody body, void* context) {
  if (num_tasks <= 0) return;
  Loop loop{.body = body, .context = context, .num_tasks = num_tasks, .max_workers = max_workers};
  if (max_workers <= 1 || num_tasks == 1) return loop.run(0);
  if (const ExecutorFn run = g_executor.load()) {
    const int workers = static_cast<int>(std::min<std::int64_t>(max_workers, num_tasks));
    run(
        g_executor_user.load(), workers,
        [](void* arg, int worker) { static_cast<Loop*>(arg)->run(worker); }, &loop);
    return;
  }
  pool().run(loop);
}

}  // namespace headrace::cpu
