// Loading the library, queries and the first call change no state of the process.
#include <dlfcn.h>
#include <fenv.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <clocale>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "headrace/headrace.h"

namespace {

extern "C" char** environ;

// Process state that a library could change.
struct ProcessState {
  std::vector<char> float_environment;  // rounding mode, flush to zero, exception masks
  std::map<int, const void*> signal_handlers;
  std::string locale, folder;
  std::vector<std::string> variables;
  std::size_t num_threads = 0;
};

std::vector<char> float_environment() {
  feclearexcept(FE_ALL_EXCEPT);  // exception flags: any arithmetic may raise them
  fenv_t now;
  std::memset(&now, 0, sizeof now);
  EXPECT_EQ(fegetenv(&now), 0);
  const char* bytes = reinterpret_cast<const char*>(&now);
  return {bytes, bytes + sizeof now};
}

ProcessState process_state() {
  ProcessState state;
  state.float_environment = float_environment();
  for (int number = 1; number < NSIG; ++number) {
    struct sigaction action {};
    if (sigaction(number, nullptr, &action) == 0)
      state.signal_handlers[number] = reinterpret_cast<const void*>(action.sa_handler);
  }
  state.locale = std::setlocale(LC_ALL, nullptr);
  state.folder = std::filesystem::current_path();
  for (char** variable = environ; *variable != nullptr; ++variable)
    state.variables.emplace_back(*variable);
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    (void)thread;
    ++state.num_threads;
  }
  return state;
}

void expect_same(const ProcessState& before, const ProcessState& after) {
  EXPECT_EQ(before.float_environment, after.float_environment);
  EXPECT_EQ(before.signal_handlers, after.signal_handlers);
  EXPECT_EQ(before.locale, after.locale);
  EXPECT_EQ(before.folder, after.folder);
  EXPECT_EQ(before.variables, after.variables);
}

template <class Function>
Function* find(void* library, const char* name, Function*) {
  void* address = dlsym(library, name);
  EXPECT_NE(address, nullptr) << name;
  return reinterpret_cast<Function*>(address);
}
#define HEADRACE_FIND(name) find(library, #name, static_cast<decltype(name)*>(nullptr))

// Long enough to be split among threads. All values are equal, so out is that value.
bool attention_works(void* library) {
  constexpr std::int64_t kRows = 512, kHeads = 8, kDim = 64;
  std::vector<float> data(static_cast<std::size_t>(kRows * kHeads * kDim), 0.5f), out(data.size());
  headrace_attention_tensors tensors;
  headrace_attention_options options;
  HEADRACE_FIND(headrace_attention_tensors_init_sized)(&tensors, sizeof tensors);
  HEADRACE_FIND(headrace_attention_options_init_sized)(&options, sizeof options);
  for (headrace_tensor* t : {&tensors.q, &tensors.k, &tensors.v, &tensors.out}) {
    t->data = t == &tensors.out ? out.data() : data.data();
    t->dtype = HEADRACE_F32;
    t->rank = 4;
    const std::int64_t shape[] = {1, kRows, kHeads, kDim};
    const std::int64_t strides[] = {kRows * kHeads * kDim, kHeads * kDim, kDim, 1};
    std::copy(shape, shape + 4, t->shape);
    std::copy(strides, strides + 4, t->strides);
  }
  return HEADRACE_FIND(headrace_attention_forward)(&tensors, &options, nullptr, 0, nullptr) ==
             HEADRACE_OK &&
         std::all_of(out.begin(), out.end(), [](float x) { return x == 0.5f; });
}

TEST(Loading, ChangesNothingInTheProcess) {
  std::setlocale(LC_ALL, "C");
  const ProcessState before = process_state();
  void* library = dlopen(HEADRACE_LIBRARY_FILE, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  const ProcessState loaded = process_state();
  expect_same(before, loaded);
  EXPECT_EQ(before.num_threads, loaded.num_threads);

  headrace_device_info device{};
  device.struct_size = sizeof device;
  EXPECT_EQ(HEADRACE_FIND(headrace_cpu_info)(&device), HEADRACE_OK);
  EXPECT_NE(std::string(HEADRACE_FIND(headrace_build_info)()), "");
  const ProcessState asked = process_state();
  expect_same(before, asked);
  EXPECT_EQ(before.num_threads, asked.num_threads) << "threads started without work";

  // Only threads may remain.
  EXPECT_TRUE(attention_works(library));
  expect_same(before, process_state());
}

// Threads do not survive a fork, and lost threads may hold locks: the child of a process with a
// running pool must start its own.
TEST(Loading, WorksInAForkedChild) {
  void* library = dlopen(HEADRACE_LIBRARY_FILE, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  ASSERT_TRUE(attention_works(library));
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(60);  // a child that waits for a lost thread never ends
    _exit(attention_works(library) ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "ended by signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_TRUE(attention_works(library)) << "the parent after its child";
}

}  // namespace
