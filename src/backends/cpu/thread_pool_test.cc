#include "backends/cpu/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <numeric>
#include <thread>
#include <vector>

namespace headrace::cpu {
namespace {

using Body = std::function<void(std::int64_t, int)>;

void loop(std::int64_t num_tasks, int max_workers, Body body) {
  const Status bad = parallel_for(
      num_tasks, max_workers,
      [](void* context, std::int64_t task, int worker) {
        (*static_cast<Body*>(context))(task, worker);
      },
      &body);
  EXPECT_FALSE(bad) << bad->message;
}

TEST(ThreadPool, RunsEveryTaskOnceOnDistinctWorkers) {
  for (const int workers : {1, 2, 3, 7}) {
    for (const std::int64_t tasks : {0, 1, 2, 5, 1000, 200000}) {
      std::vector<std::atomic<int>> calls(static_cast<std::size_t>(tasks));
      std::vector<std::atomic<int>> busy(static_cast<std::size_t>(workers));
      loop(tasks, workers, [&](std::int64_t task, int worker) {
        ASSERT_LT(worker, workers);
        EXPECT_EQ(busy[static_cast<std::size_t>(worker)].fetch_add(1), 0);
        calls[static_cast<std::size_t>(task)]++;
        busy[static_cast<std::size_t>(worker)]--;
      });
      for (const auto& count : calls) EXPECT_EQ(count.load(), 1);
    }
  }
}

// Runs until workers have interleaved often enough, in parallel or (on a busy machine, slower)
// because one was preempted while taking a task.
TEST(ThreadPool, ConcurrentWorkersRunEachTaskOnce) {
  constexpr std::int64_t kTasks = 1000000;
  constexpr int kWorkers = 4, kMeetings = 1000;
  std::array<std::int64_t, kWorkers> num_taken{};
  std::int64_t num_tasks = 0;
  std::atomic<int> last_worker{0}, num_meetings{0};
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  do {
    num_tasks += kTasks;
    loop(kTasks, kWorkers, [&](std::int64_t, int worker) {
      ++num_taken[static_cast<std::size_t>(worker)];
      if (last_worker.exchange(worker) != worker) ++num_meetings;
    });
  } while (num_meetings < kMeetings && std::chrono::steady_clock::now() < end);
  EXPECT_EQ(std::accumulate(num_taken.begin(), num_taken.end(), std::int64_t{0}), num_tasks);
}

TEST(ThreadPool, ServesManyCallersAtOnce) {
  std::vector<std::thread> callers;
  std::atomic<int> total{0};
  for (int i = 0; i < 8; ++i) {
    callers.emplace_back([&] {
      for (int round = 0; round < 200; ++round) loop(7, 4, [&](std::int64_t, int) { total++; });
    });
  }
  for (auto& caller : callers) caller.join();
  EXPECT_EQ(total.load(), 8 * 200 * 7);
}

TEST(ThreadPool, NestedLoopsFinish) {
  std::atomic<int> total{0};
  loop(4, 3, [&](std::int64_t, int) { loop(5, 3, [&](std::int64_t, int) { total++; }); });
  EXPECT_EQ(total.load(), 20);
}

TEST(ThreadPool, WorksInAForkedChild) {
  loop(100, 4, [](std::int64_t, int) {});
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::atomic<int> total{0};
    loop(100, 4, [&](std::int64_t, int) { total++; });
    _exit(total.load() == 100 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(ThreadPool, UsesTheHostsExecutor) {
  struct Host {
    int calls = 0, tasks = 0;
  } host;
  set_executor(
      [](void* user, int num_tasks, void (*task)(void*, int), void* arg) {
        static_cast<Host*>(user)->calls++;
        static_cast<Host*>(user)->tasks += num_tasks;
        for (int i = num_tasks - 1; i >= 0; --i) task(arg, i);
      },
      &host);
  int total = 0;
  loop(10, 4, [&](std::int64_t, int) { total++; });
  set_executor(nullptr, nullptr);
  EXPECT_EQ(total, 10);
  EXPECT_EQ(host.calls, 1);
  EXPECT_EQ(host.tasks, 4);
}

}  // namespace
}  // namespace headrace::cpu
