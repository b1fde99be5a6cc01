// headrace_plan_run(), its backward, softmax and appends allocate nothing: counts every malloc of
// the process. Also prints the cost of planning and of a run's checks.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "headrace/headrace.hpp"
#include "headrace/kv_cache.hpp"
#include "headrace/sparq.hpp"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__GLIBC__)
#define HEADRACE_COUNTS 0
#else
#define HEADRACE_COUNTS 1
#endif

static std::atomic<long> num_allocations{0};

#if HEADRACE_COUNTS
extern "C" {
void* __libc_malloc(std::size_t bytes);
void* __libc_calloc(std::size_t count, std::size_t bytes);
void* __libc_memalign(std::size_t alignment, std::size_t bytes);
__attribute__((visibility("default"))) void* malloc(std::size_t bytes) {
  ++num_allocations;
  return __libc_malloc(bytes);
}
__attribute__((visibility("default"))) void* calloc(std::size_t count, std::size_t bytes) {
  ++num_allocations;
  return __libc_calloc(count, bytes);
}
__attribute__((visibility("default"))) void* aligned_alloc(std::size_t alignment,
                                                           std::size_t bytes) {
  ++num_allocations;
  return __libc_memalign(alignment, bytes);
}
}
#endif

namespace {

template <class Body>
double microseconds(int repeats, Body body) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < repeats; ++i) body();
  const std::chrono::duration<double, std::micro> taken = std::chrono::steady_clock::now() - start;
  return taken.count() / repeats;
}

int fail(const char* what) {
  std::printf("FAILED: %s\n", what);
  return 1;
}

// Whether a backward allocates; `tensors` hold the forward's results.
bool backward_allocates(const headrace::AttentionTensors& tensors,
                        const headrace::DeviceInfo& device) {
  using namespace headrace;
  std::vector<float> memory(4 * 4 * 8 * 16);
  const auto part = [&](std::size_t i) {
    return TensorView(memory.data() + i * 4 * 8 * 16, DType::f32, {1, 4, 8, 16});
  };
  const AttentionGradients gradients{.dout = part(0), .dq = part(1), .dk = part(2), .dv = part(3)};
  const Plan plan = plan_attention(Problem(tensors, gradients), device);
  std::vector<char> workspace(plan.workspace_bytes());
  const headrace_attention_tensors c = tensors.to_c();
  const headrace_attention_gradients g = gradients.to_c();
  const long before = num_allocations;
  for (int i = 0; i < 1000; ++i)
    check(headrace_plan_run_backward(plan.get(), &c, &g, nullptr, workspace.data(),
                                     workspace.size(), nullptr));
  return num_allocations != before;
}

// Softmax forward and backward, along the contiguous and along the other axis.
bool softmax_allocates() {
  using namespace headrace;
  std::vector<float> x(4 * 128, 1.0f), y(4 * 128), dx(4 * 128);
  const auto view = [](std::vector<float>& values) {
    return TensorView(values.data(), DType::f32, {4, 128});
  };
  softmax_forward(view(x), view(y));  // first use starts the threads
  const long before = num_allocations;
  for (const std::int32_t axis : {0, 1}) {
    softmax_forward(view(x), view(y), {}, {.axis = axis});
    softmax_backward(view(y), view(x), view(dx), {.axis = axis});
  }
  return num_allocations != before;
}

bool append_allocates() {
  using namespace headrace;
  std::vector<float> x(4 * 2 * 16), weight(16, 1.0f), q(x.size()), k(8 * 2 * 16), v(k.size());
  const std::int64_t slots[] = {3, 1, -1, 7};
  const std::int32_t positions[] = {5, 6, 7, 8};
  const TensorView in(x.data(), DType::f32, {4, 2, 16});
  const headrace_kv_append_tensors t = KvAppendTensors{
      .k = in,
      .v = in,
      .k_pages = {k.data(), DType::f32, {2, 4, 2, 16}},
      .v_pages = {v.data(), DType::f32, {2, 4, 2, 16}},
      .slot_mapping = {slots, DType::i64, {4}},
      .q = in,
      .q_out = {q.data(), DType::f32, {4, 2, 16}},
      .positions = {positions, DType::i32, {4}},
      .q_norm_weight = {
          weight.data(), DType::f32, {16}}}.to_c();
  const headrace_rope_options rope =
      RopeOptions{.scaling = RopeScaling::yarn, .factor = 4, .original_context_length = 64}.to_c();
  headrace_kv_append_options options;
  check(headrace_kv_append_options_init(&options));
  options.rope = &rope;
  const long before = num_allocations;
  for (int i = 0; i < 1000; ++i) check(headrace_kv_append(&t, &options, nullptr));
  return num_allocations != before;
}

bool merge_allocates() {
  using namespace headrace;
  std::vector<float> x(3 * 4 * 2 * 16), lse(3 * 2 * 4);
  headrace_tensor outs[3], lses[3];
  for (int i = 0; i < 3; ++i) {
    outs[i] = TensorView(x.data() + i * 4 * 2 * 16, DType::f32, {4, 2, 16});
    lses[i] = TensorView(lse.data() + i * 2 * 4, DType::f32, {2, 4});
  }
  const long before = num_allocations;
  for (int i = 0; i < 1000; ++i) merge_states(outs, lses, TensorView(outs[0]), TensorView(lses[0]));
  return num_allocations != before;
}

// With a workspace.
bool sparq_allocates() {
  using namespace headrace;
  constexpr std::int64_t kSeqlen = 3000, kDim = 16;
  std::vector<float> q(4 * kDim), keys(kSeqlen * 2 * kDim), out(4 * kDim);
  const SparqTensors tensors{.q = {q.data(), DType::f32, {1, 4, kDim}},
                             .k = {keys.data(), DType::f32, {1, kSeqlen, 2, kDim}},
                             .k_components = {keys.data(), DType::f32, {1, 2, kDim, kSeqlen}},
                             .v = {keys.data(), DType::f32, {1, kSeqlen, 2, kDim}},
                             .out = {out.data(), DType::f32, {1, 4, kDim}}};
  const SparqOptions options{.num_components = 4, .num_keys = 32};
  std::vector<char> memory(sparq_workspace_bytes(tensors, options));
  sparq_attention(tensors, options, {memory.data(), memory.size()});  // starts the threads
  const long before = num_allocations;
  for (int i = 0; i < 100; ++i) sparq_attention(tensors, options, {memory.data(), memory.size()});
  return num_allocations != before;
}

}  // namespace

int main() {
  using namespace headrace;
  std::vector<float> q(4 * 8 * 16), k(4 * 8 * 16), v(4 * 8 * 16), out(4 * 8 * 16), lse(4 * 8);
  const auto view = [](std::vector<float>& x) {
    return TensorView(x.data(), DType::f32, {1, 4, 8, 16});
  };
  const AttentionTensors tensors{.q = view(q),
                                 .k = view(k),
                                 .v = view(v),
                                 .out = view(out),
                                 .lse = TensorView(lse.data(), DType::f32, {1, 8, 4})};
  const Problem problem(tensors);
  DeviceInfo device = cpu_info();
  device.num_units = 1;
  const Plan plan = plan_attention(problem, device);
  std::vector<char> memory(plan.workspace_bytes());
  const Workspace workspace{memory.data(), memory.size()};
  plan.run(tensors, workspace);  // first use
  const long before = num_allocations;
#if HEADRACE_COUNTS
  if (before == 0) return fail("the allocation counter does not work");
#endif
  const headrace_attention_tensors c = tensors.to_c();
  for (int i = 0; i < 1000; ++i)
    if (headrace_plan_run(plan.get(), &c, nullptr, memory.data(), memory.size(), nullptr) !=
        HEADRACE_OK)
      return fail(headrace_last_error());
  if (num_allocations != before) return fail("headrace_plan_run allocated");

  if (backward_allocates(tensors, device)) return fail("headrace_plan_run_backward allocated");
  if (softmax_allocates()) return fail("softmax allocated");
  if (append_allocates()) return fail("headrace_kv_append allocated");
  if (merge_allocates()) return fail("headrace_merge_states allocated");
  if (sparq_allocates()) return fail("headrace_sparq_attention allocated");

  // A valid call with nothing to compute: measures the overhead.
  AttentionTensors empty = tensors;
  for (TensorView* t : {&empty.q, &empty.k, &empty.v, &empty.out, &empty.lse}) t->shape[0] = 0;
  const Problem empty_problem(empty);
  const Plan empty_plan = plan_attention(empty_problem, device);
  const headrace_attention_tensors e = empty.to_c();
  std::vector<char> more(empty_plan.workspace_bytes());
  std::printf("plan %.2f us, run %.3f us, checks of a run %.3f us (empty) \n",
              microseconds(2000, [&] { (void)plan_attention(problem, device); }),
              microseconds(20000,
                           [&] {
                             (void)headrace_plan_run(plan.get(), &c, nullptr, memory.data(),
                                                     memory.size(), nullptr);
                           }),
              microseconds(20000, [&] {
                (void)headrace_plan_run(empty_plan.get(), &e, nullptr, more.data(), more.size(),
                                        nullptr);
              }));
  headrace_problem made;
  headrace_problem_init(&made);
  std::printf("validate alone %.3f us\n",
              microseconds(20000, [&] { (void)headrace_attention_problem(&c, nullptr, &made); }));
  return 0;
}
