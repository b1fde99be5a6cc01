// Selection, plans and explain(), with test kernels.
#include "attention/select.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "attention/forward.h"
#include "attention/validate.h"
#include "backends/cuda/backend.h"
#include "base/log.h"
#include "core/device.h"

namespace headrace {
namespace {

std::string accepts(const Problem&, const DeviceInfo&) { return {}; }
std::string refuses_large(const Problem& p, const DeviceInfo&) {
  return p.head_dim > 64 ? format_text("takes head_dim up to 64, not {}", p.head_dim) : "";
}
Schedule small_schedule(const Problem&, const DeviceInfo& device, const TuningConfig&) {
  Schedule schedule;
  schedule.tile_m = 48;
  schedule.tile_n = 96;
  schedule.split_keys = 512;
  schedule.max_splits = 7;
  schedule.num_threads = device.num_units;
  schedule.workspace_bytes = 1234;
  schedule.note = "made for this test";
  return schedule;
}
Schedule no_schedule(const Problem&, const DeviceInfo&, const TuningConfig&) { return {}; }
int num_launches = 0;
Status count_launch(const Plan&, const AttentionArgs&, Workspace, Stream) {
  ++num_launches;
  return std::nullopt;
}

constexpr Kernel kKernels[] = {
    {"cpu_small_fwd", "up to 64", refuses_large, small_schedule, count_launch},
    {"cpu_any_reference", "everything", accepts, no_schedule, count_launch},
};

Problem problem_of(std::int64_t head_dim) {
  Problem p = default_problem();
  p.head_dim = p.head_dim_v = head_dim;
  return p;
}

const DeviceInfo& invented() {
  static const DeviceInfo device = device_from_text("cpu:avx512:16").value();
  return device;
}

bool contains(const std::string& text, const char* part) {
  if (text.find(part) != std::string::npos) return true;
  ADD_FAILURE() << "no \"" << part << "\" in:\n" << text;
  return false;
}

TEST(Select, SelectsTheFirstSupportingKernel) {
  const Plan plan = plan_attention(problem_of(64), invented(), kKernels).value();
  EXPECT_EQ(plan.kernel, &kKernels[0]);
  EXPECT_FALSE(plan.is_fallback);
  EXPECT_TRUE(plan.refused.empty());
  EXPECT_DOUBLE_EQ(plan.problem.softmax_scale, 0.125);
}

struct Heard {
  int count = 0;
  headrace_log_level level = HEADRACE_LOG_INFO;
  std::string text;
};

TEST(Select, FallbackIsMarkedLoggedAndRefusedWhenStrict) {
  Heard heard;
  set_log(
      [](void* user, headrace_log_level level, const char* text) {
        auto* to = static_cast<Heard*>(user);
        ++to->count;
        to->level = level;
        to->text = text;
      },
      &heard);
  Problem p = problem_of(65);
  const Plan plan = plan_attention(p, invented(), kKernels).value();
  EXPECT_EQ(plan.kernel, &kKernels[1]);
  EXPECT_TRUE(plan.is_fallback);
  EXPECT_EQ(heard.count, 1);
  EXPECT_EQ(heard.level, HEADRACE_LOG_WARNING);
  EXPECT_TRUE(contains(heard.text, "slow fallback cpu_any_reference"));
  EXPECT_TRUE(contains(heard.text, "cpu_small_fwd: takes head_dim up to 64, not 65"));
  p.strict_fallback = 1;
  auto strict = plan_attention(p, invented(), kKernels);
  ASSERT_FALSE(strict.ok());
  EXPECT_EQ(strict.failure().code, ErrorCode::unsupported);
  EXPECT_TRUE(contains(strict.failure().message, "strict_fallback=1"));
  EXPECT_TRUE(contains(strict.failure().message, "cpu_small_fwd: takes head_dim up to 64"));
  EXPECT_EQ(heard.count, 1) << "an error does not warn of a fallback";
  set_log(nullptr, nullptr);
}

TEST(Select, ASingleKernelIsNotAFallback) {
  const std::span<const Kernel> one(&kKernels[1], 1);
  Problem p = problem_of(65);
  p.strict_fallback = 1;
  EXPECT_FALSE(plan_attention(p, invented(), one).value().is_fallback);
}

TEST(Select, EnvironmentForcesAKernel) {
  setenv("HEADRACE_KERNEL", "cpu_any_reference", 1);
  const Plan plan = plan_attention(problem_of(64), invented(), kKernels).value();
  EXPECT_EQ(plan.kernel, &kKernels[1]);
  EXPECT_FALSE(plan.is_fallback);
  EXPECT_EQ(plan.refused[0].reason, "HEADRACE_KERNEL=cpu_any_reference names another kernel");
  setenv("HEADRACE_KERNEL", "no_such_kernel", 1);
  auto none = plan_attention(problem_of(64), invented(), kKernels);
  unsetenv("HEADRACE_KERNEL");
  ASSERT_FALSE(none.ok());
  EXPECT_TRUE(contains(none.failure().message, "unset HEADRACE_KERNEL"));
  EXPECT_TRUE(contains(none.failure().message,
                       "cpu_any_reference: HEADRACE_KERNEL=no_such_kernel names another kernel"));
}

TEST(Select, ListsEveryReasonWhenNoKernelAccepts) {
  auto none = plan_attention(problem_of(80), invented(), std::span(kKernels, 1));
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.failure().code, ErrorCode::unsupported);
  EXPECT_TRUE(contains(none.failure().message, "head_dim 80"));
  EXPECT_TRUE(contains(none.failure().message, "cpu avx512, 16 threads"));
  EXPECT_TRUE(contains(none.failure().message, "takes head_dim up to 64, not 80"));
}

TEST(Select, ReportsThatThereAreNoCudaKernels) {
  auto plan = plan_attention(problem_of(64), device_from_text("sm90:132").value(), {});
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.failure().code, ErrorCode::unsupported);
  EXPECT_TRUE(contains(plan.failure().message, "cuda sm90, 132 multiprocessors"));
  EXPECT_TRUE(contains(plan.failure().message, "this build has no CUDA kernels"));
  EXPECT_TRUE(contains(plan.failure().message, "build with CUDA"));
}

TEST(Select, RefusesBadDescriptions) {
  Problem p = problem_of(64);
  p.num_kv_heads = 0;
  EXPECT_FALSE(plan_attention(p, invented(), kKernels).ok());
  DeviceInfo device = invented();
  device.num_units = -4;
  EXPECT_FALSE(plan_attention(problem_of(64), device, kKernels).ok());
}

// Only the given device description decides, not the machine of the test.
TEST(Select, KernelsRequireTheirInstructionSet) {
#if defined(__aarch64__)
  constexpr const char* kSets[] = {"scalar", "neon"};
#elif defined(__x86_64__)
  constexpr const char* kSets[] = {"scalar", "avx2", "avx512"};
#else
  constexpr const char* kSets[] = {"scalar"};
#endif
  for (const std::string set : kSets) {
    const DeviceInfo device = device_from_text("cpu:" + set + ":4").value();
    Problem p = problem_of(64);
    EXPECT_EQ(plan_attention(p, device).value().kernel->name, "cpu_" + set + "_fwd");
    p.phase = HEADRACE_BACKWARD;
    p.has_lse = 1;
    EXPECT_EQ(plan_attention(p, device).value().kernel->name, "cpu_" + set + "_bwd");
  }
}

#if defined(__x86_64__)
// The bf16 dot product kernels are selected only for bf16, on CPUs where they are faster.
TEST(Select, UsesBf16DotProductsAtFmaThroughput) {
  const auto kernel = [](const char* set, DType dtype, headrace_phase phase) {
    Problem p = problem_of(64);
    p.dtype = static_cast<int>(dtype);
    p.phase = phase;
    p.has_lse = 1;
    return plan_attention(p, device_from_text(set).value()).value().kernel->name;
  };
  for (const char* slow : {"cpu:avx512:4", "cpu:avx512_vnni:4", "cpu:avx512_bf16:4"}) {
    EXPECT_EQ(kernel(slow, DType::bf16, HEADRACE_FORWARD), "cpu_avx512_fwd") << slow;
    EXPECT_EQ(kernel(slow, DType::bf16, HEADRACE_BACKWARD), "cpu_avx512_bwd") << slow;
  }
  constexpr const char* kFast = "cpu:avx512_bf16_fast:4";
  EXPECT_EQ(kernel(kFast, DType::bf16, HEADRACE_FORWARD), "cpu_avx512bf16_fwd");
  EXPECT_EQ(kernel(kFast, DType::bf16, HEADRACE_BACKWARD), "cpu_avx512bf16_bwd");
  EXPECT_EQ(kernel(kFast, DType::f32, HEADRACE_FORWARD), "cpu_avx512_fwd");
  EXPECT_EQ(kernel(kFast, DType::f32, HEADRACE_BACKWARD), "cpu_avx512_bwd");
}
#endif

// Equal inputs give equal plans, regardless of plans made in between.
TEST(Select, IsPure) {
  const auto text = [](std::int64_t dim) {
    return explain(plan_attention(problem_of(dim), invented(), kKernels).value());
  };
  const std::string first = text(64);
  const std::string other = text(100);
  EXPECT_NE(first, other);
  EXPECT_EQ(text(64), first);
  EXPECT_EQ(text(100), other);
}

TEST(Explain, PrintsTheFullSelection) {
  Problem p = problem_of(64);
  p.dtype = HEADRACE_BF16;
  p.batch = 2;
  p.num_heads = 8;
  p.num_kv_heads = 2;
  p.seqlen_q = p.seqlen_k = 4096;
  p.causal = HEADRACE_CAUSAL_BOTTOM_RIGHT;
  p.window_left = 128;
  p.softcap = 30;
  const std::string text = explain(plan_attention(p, invented(), kKernels).value());
  for (const char* part :
       {"problem   bf16 batch 2, seqlen_q 4096, seqlen_k 4096, 8 heads (2 kv), head_dim 64, causal "
        "bottom-right, window 128/open, scale 0.125, softcap 30\n",
        "device    cpu avx512, 16 threads", "kernels   1. cpu_small_fwd: -> selected\n",
        "tile_m 48, tile_n 96, up to 7 splits of 512 keys, 16 threads, workspace 1234 bytes",
        "made for this test", "may reach rows of the same sequence and tile",
        "splits depend only on the sequence's own lengths"})
    EXPECT_TRUE(contains(text, part));
  p.head_dim = 128;
  p.num_splits = 3;
  const std::string fallback = explain(plan_attention(p, invented(), kKernels).value());
  for (const char* part : {"1. cpu_small_fwd: refuses, takes head_dim up to 64, not 128",
                           "2. cpu_any_reference: -> selected (slow fallback)",
                           "reaches exactly the rows that see it", "num_splits=3 is given"})
    EXPECT_TRUE(contains(fallback, part));
}

TEST(Run, ChecksWorkspaceStreamAndMachine) {
  Plan plan =
      plan_attention(problem_of(64), device_from_text("cpu:scalar:1").value(), kKernels).value();
  char memory[1234];
  num_launches = 0;
  const Status small = run(plan, {}, {memory, 1233}, nullptr);
  ASSERT_TRUE(small.has_value());
  EXPECT_EQ(small->code, ErrorCode::invalid_argument);
  EXPECT_TRUE(contains(small->message, "workspace of 1233 bytes"));
  EXPECT_TRUE(contains(small->message, "at least 1234 bytes"));
  const Status null = run(plan, {}, {nullptr, 5000}, nullptr);
  ASSERT_TRUE(null.has_value());
  EXPECT_TRUE(contains(null->message, "5000 bytes at NULL"));
  const Status stream = run(plan, {}, {memory, 1234}, memory);
  ASSERT_TRUE(stream.has_value());
  EXPECT_TRUE(contains(stream->message, "stream=0x"));
  plan.device.cpu_isa = HEADRACE_ISA_NEON | HEADRACE_ISA_AVX2;  // no machine has both
  const Status machine = run(plan, {}, {memory, 1234}, nullptr);
  ASSERT_TRUE(machine.has_value());
  EXPECT_EQ(machine->code, ErrorCode::unsupported);
  EXPECT_TRUE(contains(machine->message, "make a plan for headrace_cpu_info()"));
  EXPECT_EQ(num_launches, 0);
  plan.device.cpu_isa =
      HEADRACE_ISA_AVX512_BF16_FAST;  // this bit describes speed; running does not need it
  EXPECT_FALSE(run(plan, {}, {memory, 1234}, nullptr).has_value());
  EXPECT_EQ(num_launches, 1);
  plan.problem.batch = 0;
  EXPECT_FALSE(run(plan, {}, {memory, 1234}, nullptr).has_value());
  EXPECT_EQ(num_launches, 1) << "an empty output launches nothing";
}

// Lower bound of the workspace for split partial results, and upper bound of the threads' scratch
// memory. In double, which does not overflow.
double least_workspace(const Plan& plan) {
  const Problem& p = plan.problem;
  const Schedule& s = plan.schedule;
  if (is_backward(p) || s.max_splits <= 1) return 0;
  const double all_rows = static_cast<double>(p.seqlen_q) * static_cast<double>(group_size(p));
  const double rows = std::min(all_rows, 64.0);
  // A task of the CPU merges up to four splits where the tasks suffice, and all of a row tile. So
  // does a tile of a Hopper GPU with strict_rows.
  const bool is_on_cpu = plan.device.device_type == HEADRACE_CPU;
  if (p.strict_rows && all_rows > 64) return 0;
  const std::int64_t groups = (s.max_splits + 3) / 4;
  const bool suffice =
      groups >= 2 && groups * std::max<std::int64_t>(p.batch, 1) >= 4 * s.num_threads;
  const bool has_groups =
      is_on_cpu && (p.num_splits == 0 || p.strict_rows) && (s.max_splits > 64 || suffice);
  const double results = static_cast<double>(s.max_splits) / (has_groups ? 4 : 1);
  return static_cast<double>(p.batch) * static_cast<double>(p.num_kv_heads) * results * rows *
         static_cast<double>(p.head_dim_v + 2) * 4;
}
double most_scratch(const Plan& plan) {
  const double dq = is_backward(plan.problem) ? 64.0 * 1024 * 1024 : 0;
  return plan.schedule.num_threads * (dq + 16.0 * 1024 * 1024) + 100.0 * INT32_MAX;
}

struct Counted {
  int num_planned = 0, num_refused = 0;
};
void check_workspace(const Problem& p, const char* machine, Counted& counted) {
  const Result<Plan> plan = plan_attention(p, device_from_text(machine).value());
  if (!plan.ok()) {
    ++counted.num_refused;
    const std::string& text = plan.failure().message;
    ASSERT_TRUE(text.find("must fit 64 bits") != std::string::npos ||
                text.find("product must be at most") != std::string::npos)
        << text;
    return;
  }
  ++counted.num_planned;
  const auto bytes = static_cast<double>(plan.value().schedule.workspace_bytes);
  ASSERT_GE(bytes * 1.0001, least_workspace(plan.value())) << explain(plan.value());
  ASSERT_LE(bytes, least_workspace(plan.value()) * 20 + most_scratch(plan.value()))
      << explain(plan.value());
}
void check_extreme_problems(std::int32_t phase, const char* machine, Counted& counted) {
  const std::int64_t counts[] = {0, 1, 64, 1 << 14, INT32_MAX / 2, INT32_MAX};
  for (const std::int64_t batch : counts)
    for (const std::int64_t heads : counts)
      for (const std::int64_t group : {std::int64_t{1}, heads})
        for (const std::int64_t seqlen_q : counts)
          for (const std::int64_t seqlen_k : counts)
            for (const std::int64_t dim : {1, 128, 576})
              for (const auto& [num_splits, is_strict] :
                   {std::pair<std::int32_t, std::int32_t>{0, 0}, {0, 1}, {2, 0}, {INT32_MAX, 0}}) {
                if (group == 0) continue;
                Problem p = default_problem();
                p.phase = phase;
                p.has_lse = 1;
                p.dtype = HEADRACE_BF16;
                p.batch = batch;
                p.num_heads = heads;
                p.num_kv_heads = heads / group;
                p.seqlen_q = seqlen_q;
                p.seqlen_k = seqlen_k;
                p.head_dim = p.head_dim_v = dim;
                p.num_splits = num_splits;
                p.strict_rows = is_strict;
                ASSERT_NO_FATAL_FAILURE(check_workspace(p, machine, counted));
              }
}

// Sizes and options at and around their limits: either a plan's workspace holds its partial results
// and the scratch memory of one thread, or planning fails. On a GPU a backward also keeps dq in
// float, for a number of rows that its kernels limit.
TEST(Select, WorkspacesOfExtremeProblemsAreExactOrRefused) {
  for (const char* machine :
       {"cpu:scalar:1", "cpu:avx2:2", "cpu:avx512:1024", "cpu:avx512_bf16_fast:16"})
    for (const std::int32_t phase : {HEADRACE_FORWARD, HEADRACE_BACKWARD}) {
      Counted counted;
      ASSERT_NO_FATAL_FAILURE(check_extreme_problems(phase, machine, counted));
      EXPECT_GT(counted.num_planned, 0);
      EXPECT_GT(counted.num_refused, 0);
    }
  if (cuda::forward_kernels().empty()) return;
  for (const char* machine : {"sm80:108", "sm90:132"}) {
    Counted counted;
    ASSERT_NO_FATAL_FAILURE(check_extreme_problems(HEADRACE_FORWARD, machine, counted));
    EXPECT_GT(counted.num_planned, 0);
    EXPECT_GT(counted.num_refused, 0);
  }
}

// The kernel of a Hopper GPU for 300 queries over pages or over keys beyond seqused_k.
std::string prefill_kernel(Problem p, bool has_pages) {
  p.dtype = HEADRACE_BF16;
  p.batch = 2;
  p.num_heads = p.num_kv_heads = 4;
  p.seqlen_q = p.seqlen_k = 300;
  p.has_seqused_k = 1;
  if (has_pages) p.page_size = 16, p.num_pages = 50, p.max_pages = 19;
  const auto plan =
      plan_attention(p, device_from_text("sm90:132").value(), cuda::forward_kernels());
  return plan.ok() ? std::string(plan.value().kernel->name) : plan.failure().message;
}

// The Hopper forward has variants for features of scores, of which those with registers to spare
// read pages and seqused_k; a general one stands in for dropout above 128.
TEST(Select, HopperForwardTakesPagesWhereItsVariantReadsThem) {
  if (cuda::forward_kernels().empty()) GTEST_SKIP() << "built without CUDA";
  struct {
    const char* feature;
    void (*set)(Problem&);
    std::int64_t most;  // head_dim with pages
  } const rows[] = {
      {"none", [](Problem&) {}, 256},
      {"alibi", [](Problem& p) { p.has_alibi = 1; }, 256},
      {"bias", [](Problem& p) { p.bias_dtype = HEADRACE_BF16; }, 256},
      {"dropout", [](Problem& p) { p.dropout_p = 0.5; }, 128},
      {"softcap", [](Problem& p) { p.softcap = 30; }, 0},
      {"mask", [](Problem& p) { p.has_mask = 1; }, 0},
      {"alibi and dropout", [](Problem& p) { p.has_alibi = 1, p.dropout_p = 0.5; }, 0},
      {"scarce dropout", [](Problem& p) { p.dropout_p = 1e-6; }, 0},
  };
  for (const auto& row : rows)
    for (std::int64_t head_dim = 8; head_dim <= 264; head_dim += 8)
      for (const bool has_pages : {false, true}) {
        Problem p = problem_of(head_dim);
        row.set(p);
        EXPECT_EQ(prefill_kernel(p, has_pages), head_dim <= row.most ? "cuda_sm90_fwd"
                                                : head_dim <= 256    ? "cuda_sm80_fwd"
                                                                     : "cuda_simple")
            << row.feature << ", head_dim " << head_dim << (has_pages ? ", pages" : "");
      }
}

}  // namespace
}  // namespace headrace
