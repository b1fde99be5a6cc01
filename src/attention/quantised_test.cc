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

bool has_integer_products(const Kernel& kernel, const QuantisedCase& c) {
  const bool has_vnni = (cpu_info().value().cpu_isa & HEADRACE_ISA_AVX512_VNNI) != 0;
  return c.dtype != DType::f32 &&
         (kernel.name == "cpu_avx2_fwd" || (kernel.name == "cpu_avx512_fwd" && has_vnni));
}

// Integer products round P to 2^-16 of the largest of 64 keys, so a row is off by at most 64 keys
// times 2^-16 of the largest code, in steps of V. With zero points they also round Q times the
// steps of K to 2^-16 of its largest: 2.7 sqrt(head_dim) of that is one standard deviation with
// codes of 4 bits, of which 6 are allowed.
testing::ErrorBounds bounds_of(const Kernel& kernel, const QuantisedCase& c) {
  testing::ErrorBounds bounds{.out = 2e-5, .lse = 3e-5};
  if (!has_integer_products(kernel, c)) return bounds;
  const double largest_code = c.v_dtype == DType::i8                                 ? 127
                              : c.v_dtype == DType::i4x2 || c.v_dtype == DType::u4x2 ? 8
                              : c.v_dtype == DType::u2x4                             ? 2
                                                                                     : 0;
  bounds.of_step = 64 * 0x1p-16 * largest_code;
  bounds.of_key_step = 16 * 0x1p-16;
  return bounds;
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
      testing::expect_close(call, bounds_of(*kernel, c), what);
      ++num_run;
    }
  }
  EXPECT_GE(num_run, 120);  // the reference and one more
}

TEST(Quantised, ErrorsOfZeroPointsNameTheArgument) {
  const struct {
    void (*break_it)(headrace_attention_tensors&, headrace_quantised_kv&);
    const char* text;
  } cases[] = {
      {[](auto&, auto& x) { x.k_scale = {}; },
       "k_scale: not given, but k has codes of dtype u2x4; pass words of scales and zero points, "
       "u32 [num_pages, page_size / 32, num_kv_heads, head_dim]"},
      {[](auto&, auto& x) { x.v_scale.dtype = HEADRACE_F32; },
       "v_scale.dtype=f32: must be u32 (a scale and a zero point)"},
      {[](auto&, auto& x) { x.k_scale.shape[1] = 1; }, "k_scale.shape[1]=1"},
      {[](auto&, auto& x) { x.k_scale.strides[3] = 2; }, "k_scale.strides[3]=2"},
      {[](auto& t, auto& x) { t.k.shape[1] = t.v.shape[1] = x.v_scale.shape[1] = 80; },
       "k.dtype=u2x4 with page_size=80 and groups of 32 recent keys: both must be multiples of 32"},
      {[](auto&, auto& x) { x.k_recent.shape[1] = x.v_recent.shape[1] = 16; },
       "k.dtype=u2x4 with page_size=64 and groups of 16 recent keys: both must be multiples of "
       "32"}};
  QuantisedCase c;
  c.k_dtype = DType::u2x4;
  c.v_dtype = DType::u4x2;
  c.page_size = 64;
  c.group = 32;
  QuantisedCall call(c);
  for (const auto& [break_it, text] : cases) {
    headrace_attention_tensors tensors = call.tensors();
    headrace_quantised_kv quantised = *tensors.quantised;
    tensors.quantised = &quantised;
    ASSERT_TRUE(validate(tensors, call.attention_options()).ok());
    break_it(tensors, quantised);
    const Result<Problem> bad = validate(tensors, call.attention_options());
    ASSERT_FALSE(bad.ok()) << text;
    EXPECT_EQ(bad.failure().message.find(text), 0u) << bad.failure().message << ", not " << text;
  }
}

}  // namespace
}  // namespace headrace
