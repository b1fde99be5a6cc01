// The library's thread pool, or the host program's executor.
//
// Lazy: no thread exists before the first parallel call. Threads inherit the affinity of the first
// caller that needs them. A child process after fork() starts with an empty pool. Several callers
// may be in parallel_for at once; each takes part in its own loop and never waits for another's
// tasks.
#pragma once

#include <cstdint>

#include "base/error.h"

namespace headrace::cpu {

// run(user, n, task, arg) calls task(arg, i) exactly once for every i in [0, n) and returns when
// all are done.
using ExecutorFn = void (*)(void* user, int num_tasks, void (*task)(void* arg, int index),
                            void* arg);

// Null restores the built-in pool. A running parallel_for may still use the previous executor.
void set_executor(ExecutorFn run, void* user);

// Calls body(context, task, worker) once for every task in [0, num_tasks). `worker` is in [0,
// max_workers); calls with the same worker never run concurrently, so it may index scratch memory.
// Tasks start in order. Fails only if the host's executor throws or violates its contract; even
// then no task runs twice.
using LoopBody = void (*)(void* context, std::int64_t task, int worker);
[[nodiscard]] Status parallel_for(std::int64_t num_tasks, int max_workers, LoopBody body,
                                  void* context);

}  // namespace headrace::cpu
