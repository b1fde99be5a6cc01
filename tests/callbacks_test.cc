// User callbacks: the library calls them as documented, and their faults become errors that name
// them. No exception crosses the C ABI.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "headrace/headrace.hpp"
#include "headrace/model.h"

namespace {

using headrace::DType;
using headrace::TensorView;

const std::string kFile = std::string(HEADRACE_GOLDEN_DIR) + "/tiny/tiny_llama3_f16.gguf";

// ---- operations that run on an executor ----

struct Attention {
  std::vector<float> x = std::vector<float>(4 * 64 * 8 * 32, 0.5f), out = x;
  std::vector<float> lse = std::vector<float>(4 * 8 * 64), dq = x, dk = x, dv = x;
  headrace_attention_tensors tensors{};
  headrace_attention_gradients gradients{};

  Attention() {
    const auto view = [](std::vector<float>& of) {
      return TensorView(of.data(), DType::f32, {4, 64, 8, 32});
    };
    headrace_attention_tensors_init(&tensors);
    headrace_attention_gradients_init(&gradients);
    tensors.q = tensors.k = tensors.v = gradients.dout = view(x);
    tensors.out = view(out);
    tensors.lse = TensorView(lse.data(), DType::f32, {4, 8, 64});
    gradients.dq = view(dq);
    gradients.dk = view(dk);
    gradients.dv = view(dv);
  }
  Attention(const Attention&) = delete;
  Attention& operator=(const Attention&) = delete;

  headrace_status forward() {
    return headrace_attention_forward(&tensors, nullptr, nullptr, 0, nullptr);
  }
  headrace_status backward() {
    return headrace_attention_backward(&tensors, &gradients, nullptr, nullptr, 0, nullptr);
  }
};

headrace_status softmax(std::vector<float>& x, bool is_backward) {
  const TensorView view(x.data(), DType::f32, {1024, 1024});
  headrace_softmax_tensors forward;
  headrace_softmax_tensors_init(&forward);
  forward.x = forward.y = view;
  headrace_softmax_backward_tensors backward;
  headrace_softmax_backward_tensors_init(&backward);
  backward.y = backward.dy = backward.dx = view;
  return is_backward ? headrace_softmax_backward(&backward, nullptr, nullptr)
                     : headrace_softmax_forward(&forward, nullptr, nullptr);
}

class LoadedModel {
 public:
  explicit LoadedModel(headrace_progress_fn progress = nullptr) {
    headrace_model_options options;
    headrace_model_options_init(&options);
    options.num_threads = 4;
    options.progress = progress;
    status_ = headrace_model_load(kFile.c_str(), &options, &model_);
    if (status_ == HEADRACE_OK) headrace_session_create(model_, nullptr, &session_);
  }
  LoadedModel(const LoadedModel&) = delete;
  LoadedModel& operator=(const LoadedModel&) = delete;
  ~LoadedModel() {
    headrace_session_destroy(session_);
    headrace_model_destroy(model_);
  }
  headrace_status status() const { return status_; }
  headrace_session* session() const { return session_; }
  headrace_status append(std::size_t num_tokens, float* logits = nullptr) {
    const std::vector<std::int32_t> tokens(num_tokens, 7);
    return headrace_session_append(session_, tokens.data(), tokens.size(), logits);
  }
  headrace_status generate(headrace_text_fn on_text, void* user = nullptr) {
    headrace_generation_options options;
    headrace_generation_options_init(&options);
    options.max_new_tokens = 3;
    options.ignore_end = 1;
    options.on_text = on_text;
    options.user = user;
    headrace_generation result{};
    result.struct_size = sizeof result;
    return headrace_session_generate(session_, &options, &result);
  }

 private:
  headrace_model* model_ = nullptr;
  headrace_session* session_ = nullptr;
  headrace_status status_ = HEADRACE_OK;
};

struct Operation {
  const char* name;
  std::function<headrace_status()> run;
};

class Executors : public ::testing::Test {
 protected:
  void SetUp() override { setenv("HEADRACE_NUM_THREADS", "4", 1); }
  void TearDown() override {
    headrace_set_executor(nullptr, nullptr);
    unsetenv("HEADRACE_NUM_THREADS");
  }
};

// ---- executors that break the contract ----

using Tasks = std::function<void(int num_tasks, const std::function<void(int)>& task)>;

void run_tasks(void* user, int num_tasks, headrace_task_fn task, void* arg) {
  (*static_cast<const Tasks*>(user))(num_tasks, [&](int index) { task(arg, index); });
}

struct BadExecutor {
  const char* text;  // in the error
  Tasks tasks;
};

std::vector<BadExecutor> bad_executors() {
  const auto in_order = [](int num_tasks, const std::function<void(int)>& task) {
    for (int i = 0; i < num_tasks; ++i) task(i);
  };
  return {
      {"returned when 0 of num_tasks=", [](int, auto&) {}},
      {"returned when 1 of num_tasks=", [](int, auto& task) { task(0); }},
      {"returned when 1 of num_tasks=", [](int n, auto& task) { task(n - 1); }},
      {"returned when ",
       [](int n, auto& task) {
         for (int i = 1; i < n; ++i) task(i);
       }},
      {"called task(task_arg, 0) twice",
       [](int n, auto& task) {
         for (int i = 0; i < n; ++i) task(0);
       }},
      {"called task(task_arg, 1) twice",
       [in_order](int n, auto& task) {
         in_order(n, task);
         task(1);
       }},
      {"called task(task_arg, -1) with num_tasks=",
       [in_order](int n, auto& task) {
         task(-1);
         in_order(n, task);
       }},
      {"called task(task_arg, 2147483647) with num_tasks=",
       [in_order](int n, auto& task) {
         in_order(n, task);
         task(2147483647);
       }},
      {"threw \"no threads\"", [](int, auto&) { throw std::runtime_error("no threads"); }},
      {"threw \"late\"",
       [in_order](int n, auto& task) {
         in_order(n, task);
         throw std::runtime_error("late");
       }},
      {"threw an exception not derived from std::exception", [](int, auto&) { throw 42; }},
  };
}

TEST_F(Executors, ContractViolationsAreReportedByEveryCall) {
  Attention attention;
  ASSERT_EQ(attention.forward(), HEADRACE_OK) << headrace_last_error();
  std::vector<float> x(1024 * 1024, 1.0f), logits(40 * 288);
  LoadedModel model;
  ASSERT_EQ(model.append(40), HEADRACE_OK) << headrace_last_error();
  const Operation operations[] = {
      {"forward", [&] { return attention.forward(); }},
      {"backward", [&] { return attention.backward(); }},
      {"softmax", [&] { return softmax(x, false); }},
      {"softmax backward", [&] { return softmax(x, true); }},
      {"model_load", [] { return LoadedModel().status(); }},
      {"append", [&] { return model.append(40); }},
      {"append with logits", [&] { return model.append(40, logits.data()); }},
      {"append of one token", [&] { return model.append(1); }},
  };
  for (const BadExecutor& bad : bad_executors()) {
    SCOPED_TRACE(bad.text);
    for (const Operation& operation : operations) {
      SCOPED_TRACE(operation.name);
      const std::int64_t length = headrace_session_length(model.session());
      Tasks tasks = bad.tasks;
      headrace_set_executor(run_tasks, &tasks);
      EXPECT_EQ(operation.run(), HEADRACE_INVALID_ARGUMENT);
      const std::string text = headrace_last_error();
      EXPECT_NE(text.find(std::string("executor: ") + bad.text), std::string::npos) << text;
      headrace_set_executor(nullptr, nullptr);
      EXPECT_EQ(headrace_session_length(model.session()), length);
      EXPECT_EQ(operation.run(), HEADRACE_OK) << headrace_last_error();  // no state is left
      headrace_session_truncate(model.session(), length);
    }
  }
}

// Every parallel loop of every operation detects an executor that skips it.
TEST_F(Executors, SkippingAnyLoopIsReported) {
  Attention attention;
  ASSERT_EQ(attention.forward(), HEADRACE_OK) << headrace_last_error();
  std::vector<float> x(1024 * 1024, 1.0f), logits(40 * 288);
  LoadedModel model;
  const Operation operations[] = {
      {"forward", [&] { return attention.forward(); }},
      {"backward", [&] { return attention.backward(); }},
      {"softmax", [&] { return softmax(x, false); }},
      {"softmax backward", [&] { return softmax(x, true); }},
      {"model_load", [] { return LoadedModel().status(); }},
      {"append", [&] { return model.append(40); }},
      {"append with logits", [&] { return model.append(40, logits.data()); }},
  };
  for (const Operation& operation : operations) {
    SCOPED_TRACE(operation.name);
    int num_calls = 0, left_out = 0;
    Tasks tasks = [&](int n, const std::function<void(int)>& task) {
      if (num_calls++ == left_out) return;
      for (int i = 0; i < n; ++i) task(i);
    };
    headrace_set_executor(run_tasks, &tasks);
    while (operation.run() != HEADRACE_OK) {
      EXPECT_EQ(num_calls, left_out + 1) << "the operation continued after the failure";
      ASSERT_NE(std::string(headrace_last_error()).find("executor: returned when 0 of"),
                std::string::npos)
          << headrace_last_error();
      num_calls = 0;
      ++left_out;
    }
    EXPECT_EQ(num_calls, left_out);
    EXPECT_GT(num_calls, 0);
    headrace_set_executor(nullptr, nullptr);
    headrace_session_truncate(model.session(), 0);
  }
}

TEST_F(Executors, AnyOrderAndThreadsGiveTheSameBits) {
  Attention own;
  ASSERT_EQ(own.forward(), HEADRACE_OK);
  const Tasks executors[] = {
      [](int n, auto& task) {
        for (int i = n; i-- > 0;) task(i);
      },
      [](int n, auto& task) {
        std::vector<std::thread> threads;
        for (int i = 0; i < n; ++i) threads.emplace_back([&task, i] { task(i); });
        for (std::thread& thread : threads) thread.join();
      },
  };
  for (Tasks tasks : executors) {
    Attention call;
    headrace_set_executor(run_tasks, &tasks);
    ASSERT_EQ(call.forward(), HEADRACE_OK) << headrace_last_error();
    EXPECT_EQ(call.out, own.out);
  }
}

// ---- executors that change while calls run ----

template <int kId>
struct Tagged {
  static inline std::atomic<int> num_calls{0}, num_wrong{0};
  int id = kId;
  static void run(void* user, int num_tasks, headrace_task_fn task, void* arg) {
    ++num_calls;
    num_wrong += user == nullptr || static_cast<Tagged*>(user)->id != kId;
    for (int i = 0; i < num_tasks; ++i) task(arg, i);
  }
};

TEST_F(Executors, FunctionAndArgumentChangeTogether) {
  Tagged<1> first;
  Tagged<2> second;
  constexpr int kEnough = 2000;
  std::atomic<bool> is_over{false};
  std::atomic<int> num_failed{0};
  headrace_set_executor(first.run, &first);
  std::vector<std::thread> callers;
  for (int i = 0; i < 3; ++i)
    callers.emplace_back([&] {
      Attention call;
      // A small problem, so that the executor is called often.
      for (headrace_tensor* t :
           {&call.tensors.q, &call.tensors.k, &call.tensors.v, &call.tensors.out})
        t->shape[1] = 1;
      call.tensors.lse = {};
      while (!is_over) num_failed += call.forward() != HEADRACE_OK;
    });
  for (bool is_first = false; first.num_calls < kEnough || second.num_calls < kEnough;
       is_first = !is_first) {
    if (is_first)
      headrace_set_executor(first.run, &first);
    else
      headrace_set_executor(second.run, &second);
  }
  is_over = true;
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(num_failed, 0);
  EXPECT_EQ(first.num_wrong, 0);
  EXPECT_EQ(second.num_wrong, 0);
}

// ---- callbacks that throw ----

struct ThrowingCallback {
  const char* name;
  std::function<headrace_status(bool is_exception)> call;
};

[[noreturn]] void throw_something(bool is_exception) {
  if (is_exception) throw std::runtime_error("boom");
  throw 42;
}

template <bool kIsException>
void log(void*, headrace_log_level, const char*) {
  throw_something(kIsException);
}
template <bool kIsException>
void progress(void*, std::uint64_t, std::uint64_t) {
  throw_something(kIsException);
}
template <bool kIsException>
int on_text(void*, const char*, std::size_t) {
  throw_something(kIsException);
}
template <bool kIsException>
int on_sample_text(void*, std::int64_t, const char*, std::size_t) {
  throw_something(kIsException);
}
template <bool kIsException>
void executor(void*, int, headrace_task_fn, void*) {
  throw_something(kIsException);
}

headrace_status plan_with_a_fallback() {
  headrace_problem p;
  headrace_problem_init(&p);
  p.dtype = HEADRACE_F64;  // only the slow fallback supports f64, which is logged
  headrace_device_info d{};
  d.struct_size = sizeof d;
  headrace_cpu_info(&d);
  return headrace_attention_supports(&p, &d);
}

// One entry for each function type of the public headers.
std::vector<ThrowingCallback> throwing_callbacks() {
  return {
      {"log",
       [](bool is_exception) {
         headrace_set_log(is_exception ? log<true> : log<false>, nullptr);
         const headrace_status status = plan_with_a_fallback();
         headrace_set_log(nullptr, nullptr);
         return status;
       }},
      {"executor",
       [](bool is_exception) {
         Attention attention;
         headrace_set_executor(is_exception ? executor<true> : executor<false>, nullptr);
         const headrace_status status = attention.forward();
         headrace_set_executor(nullptr, nullptr);
         return status;
       }},
      {"progress",
       [](bool is_exception) {
         return LoadedModel(is_exception ? progress<true> : progress<false>).status();
       }},
      {"on_text",
       [](bool is_exception) {
         LoadedModel model;
         EXPECT_EQ(model.append(3), HEADRACE_OK) << headrace_last_error();
         return model.generate(is_exception ? on_text<true> : on_text<false>);
       }},
      {"on_text",
       [](bool is_exception) {
         LoadedModel model;
         EXPECT_EQ(model.append(3), HEADRACE_OK) << headrace_last_error();
         headrace_generation_options options;
         headrace_generation_options_init(&options);
         options.max_new_tokens = 3;
         headrace_completions* completions = nullptr;
         const headrace_status status = headrace_session_generate_n(
             model.session(), &options, 1,
             is_exception ? on_sample_text<true> : on_sample_text<false>, nullptr, &completions);
         EXPECT_EQ(completions, nullptr);
         return status;
       }},
  };
}

TEST_F(Executors, ThrowingCallbacksAreNamed) {
  for (const ThrowingCallback& callback : throwing_callbacks()) {
    SCOPED_TRACE(callback.name);
    EXPECT_EQ(callback.call(true), HEADRACE_INVALID_ARGUMENT);
    const std::string rule =
        ": a callback must not throw; catch the exception inside the callback and handle it in "
        "your own code";
    EXPECT_EQ(headrace_last_error(), callback.name + (": threw \"boom\"" + rule));
    EXPECT_EQ(callback.call(false), HEADRACE_INVALID_ARGUMENT);
    EXPECT_EQ(headrace_last_error(),
              callback.name + (": threw an exception not derived from std::exception" + rule));
  }
}

// The text callback is called for each token and for pending text at the end.
TEST_F(Executors, ATextCallbackMayThrowAtAnyCall) {
  int num_calls = 0;
  for (int last = 1; num_calls >= last - 1; ++last) {
    LoadedModel model;
    ASSERT_EQ(model.append(3), HEADRACE_OK) << headrace_last_error();
    num_calls = 0;
    struct Caller {
      int *num_calls, last;
    } caller{&num_calls, last};
    const headrace_status status = model.generate(
        [](void* user, const char*, std::size_t) {
          auto* self = static_cast<Caller*>(user);
          if (++*self->num_calls == self->last) throw std::runtime_error("boom");
          return 0;
        },
        &caller);
    EXPECT_EQ(status, num_calls < last ? HEADRACE_OK : HEADRACE_INVALID_ARGUMENT);
    if (num_calls < last) {
      EXPECT_GT(num_calls, 3);  // three tokens and the end
      break;
    }
  }
}

}  // namespace
