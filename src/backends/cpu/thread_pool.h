// The library's own small thread pool, or the host program's executor in its place.
//
// Lazy: no thread exists before the first parallel call. Threads inherit the affinity of the caller
// that first needed them. A child process after fork() starts with an empty pool. Several callers
// may be in parallel_for at once; each takes part in its own loop, so nobody waits for somebody
// else's work.
#pragma once

#include <cstdint>

#include "base/error.h"

namespace headrace::cpu {

// run(user, n, task, arg) calls task(arg, i) exactly once for every i in [0, n) and returns when
// all are done.
using ExecutorFn = void (*)(void* user, int num_tasks, void (*task)(void* arg, int index),
                            void* arg);

// Null restores the built-in pool. A parallel_for that is running may still use the one before.
void set_executor(ExecutorFn run, void* user);

// Calls body(context, task, worker) once for every task in [0, num_tasks). `worker` is in [0,
// max_workers) and no two calls with the same worker run at once, so it may index scratch memory.
// Tasks are handed out in order. Fails only where the host's executor throws or does not keep to
// its contract; no task runs twice even then.
using LoopBody = void (*)(void* context, std::int64_t task, int worker);
[[nodiscard]] Status parallel_for(std::int64_t num_tasks, int max_workers, LoopBody body,
                                  void* context);

}  // namespace headrace::cpu
