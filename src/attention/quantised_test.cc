// Attention over quantised keys on the CPU.
#include <gtest/gtest.h>

#include "attention/select.h"
#include "core/device.h"
#include "tests/support/quantised_case.h"

namespace headrace {
namespace {

using testing::QuantisedCall;
using testing::QuantisedCase;
using testing::Random;

// Runs a call on a kernel; empty, or why it did not run.
std::string run_on(const Kernel& kernel, QuantisedCall& call, int num_threads) {
  const headrace_attention_tensors tensors = call.tensors();
  const headrace_attention_options options = call.attention_options();
  Result<Problem> problem = validate(tensors, options);
  if (!problem.ok()) return problem.failure().message;
  const AttentionArgs args = make_args(problem.value(), tensors, options);
  if (Status bad = validate_lengths(problem.value(), args)) return bad->message;
  DeviceInfo device = cpu_info().value();
  device.num_units = num_threads;
  Result<Plan> plan = plan_attention(problem.value(), device, {&kernel, 1});
  if (!plan.ok()) return plan.failure().message;
  std::vector<unsigned char> workspace(plan.value().schedule.workspace_bytes);
  const Status bad =
      kernel.launch(plan.value(), args, {workspace.data(), workspace.size()}, nullptr);
  return bad ? bad->message : "";
}

// Integer products round P to 2^-16 of the largest of 64 keys, so a row is off by at most 64 keys
// times 2^-16 of the largest code, in steps of V.
double step_bound(const Kernel& kernel, const QuantisedCase& c) {
  const bool is_integer = kernel.name == "cpu_avx512_fwd" && c.dtype != DType::f32 &&
                          (cpu_info().value().cpu_isa & HEADRACE_ISA_AVX512_VNNI) != 0;
  if (!is_integer) return 0;
  return c.v_dtype == DType::i8     ? 64 * 0x1p-16 * 127
         : c.v_dtype == DType::i4x2 ? 64 * 0x1p-16 * 8
                                    : 0;
}

std::vector<const Kernel*> kernels() {
  std::vector<const Kernel*> found;
  for (const Kernel& kernel : kernels_of(HEADRACE_CPU, HEADRACE_FORWARD))
    if (kernel.name != "cpu_avx512bf16_fwd" && kernel.name != "cpu_scalar_fwd")
      found.push_back(&kernel);
  return found;
}

TEST(Quantised, EveryKernelAgreesWithTheDequantisedKeys) {
  int num_run = 0;
  for (const Kernel* kernel : kernels()) {
    Random random(11);
    for (int i = 0; i < 60; ++i) {
      const DType dtypes[] = {DType::f32, DType::f16, DType::bf16};
      const QuantisedCase c = testing::random_quantised_case(random, dtypes[i % 3]);
      const std::string what = std::string(kernel->name) + ": " + text_of(c);
      QuantisedCall call(c);
      ASSERT_FALSE(call.append_status().has_value()) << call.append_status()->message;
      const std::string reason = run_on(*kernel, call, 1 + i % 3);
      if (reason.find("needs a CPU with") != std::string::npos) continue;
      ASSERT_EQ(reason, "") << what;
      testing::expect_close(call, 2e-5, 3e-5, what, step_bound(*kernel, c));
      ++num_run;
    }
  }
  EXPECT_GE(num_run, 120);  // the reference and one more
}

}  // namespace
}  // namespace headrace
