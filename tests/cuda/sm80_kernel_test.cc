// What cuda_sm80_fwd and cuda_sm80_bwd support and refuse; needs no GPU.
#include <gtest/gtest.h>

#include "attention/select.h"
#include "attention/validate.h"
#include "backends/cuda/backend.h"
#include "core/device.h"

namespace headrace {
namespace {

constexpr std::uint32_t kSmallSmem = 99 * 1024;  // per CTA on sm86 and sm89

DeviceInfo gpu(std::uint32_t smem_bytes) {
  DeviceInfo device = device_from_text("sm89:128").value();
  device.smem_bytes = smem_bytes;
  return device;
}

Problem problem(DType dtype, std::int64_t head_dim) {
  Problem p = default_problem();
  p.dtype = static_cast<std::int32_t>(dtype);
  p.batch = 2;
  p.seqlen_q = p.seqlen_k = 1000;
  p.num_heads = p.num_kv_heads = 4;
  p.head_dim = p.head_dim_v = head_dim;
  return p;
}

std::string chosen(const Problem& p, const DeviceInfo& device) {
  Result<Plan> plan = plan_attention(p, device);
  return plan.ok() ? std::string(plan.value().kernel->name) : plan.failure().message;
}

TEST(Sm80Kernel, RunsEveryDtypeAndHeadDimIn99KiB) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
    for (const std::int64_t dim : {1, 40, 64, 96, 128, 192, 203, 256})
      for (const bool is_general : {false, true}) {
        Problem p = problem(dtype, dim);
        p.has_alibi = is_general;
        EXPECT_EQ(chosen(p, gpu(kSmallSmem)), "cuda_sm80_fwd") << dim;
      }
}

TEST(Sm80Kernel, TakesOperandsOfAnyAlignment) {
  Problem p = problem(DType::bf16, 128);
  p.alignment = 2;
  p.has_negative_strides = 1;
  EXPECT_EQ(chosen(p, gpu(kSmallSmem)), "cuda_sm80_fwd");
}

TEST(Sm80Kernel, LeavesTheRestToTheSimpleKernel) {
  EXPECT_EQ(chosen(problem(DType::f64, 64), gpu(kSmallSmem)), "cuda_simple");
  EXPECT_EQ(chosen(problem(DType::bf16, 257), gpu(kSmallSmem)), "cuda_simple");
  EXPECT_EQ(chosen(problem(DType::bf16, 256), gpu(48 * 1024)), "cuda_simple");
  Problem p = problem(DType::bf16, 64);
  p.has_probs = 1;
  EXPECT_EQ(chosen(p, gpu(kSmallSmem)), "cuda_simple");
  p = problem(DType::f16, 64);
  p.seqlen_k = (std::int64_t{1} << 31) - 2;
  EXPECT_EQ(chosen(p, gpu(kSmallSmem)), "cuda_simple");
}

TEST(Sm80Kernel, PlansAWorkspaceOnlyWhereKeysAreSplit) {
  Problem p = problem(DType::bf16, 128);
  EXPECT_EQ(plan_attention(p, gpu(kSmallSmem)).value().schedule.workspace_bytes, 0u);
  p.seqlen_q = 1;
  const Plan plan = plan_attention(p, gpu(kSmallSmem)).value();
  EXPECT_EQ(plan.schedule.max_splits, 4);
  EXPECT_GT(plan.schedule.workspace_bytes, 0u);
}

Problem backward(DType dtype, std::int64_t head_dim) {
  Problem p = problem(dtype, head_dim);
  p.phase = HEADRACE_BACKWARD;
  p.has_lse = 1;
  return p;
}

TEST(Sm80Backward, RunsEveryDtypeAndHeadDimIn99KiB) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
    for (const std::int64_t dim : {1, 40, 64, 96, 128, 192, 203, 256})
      for (const bool is_general : {false, true}) {
        Problem p = backward(dtype, dim);
        p.has_alibi = is_general;
        EXPECT_EQ(chosen(p, gpu(kSmallSmem)), "cuda_sm80_bwd") << dim;
      }
}

TEST(Sm80Backward, LeavesTheRestToTheSimpleKernel) {
  EXPECT_EQ(chosen(backward(DType::f64, 64), gpu(kSmallSmem)), "cuda_simple");
  EXPECT_EQ(chosen(backward(DType::bf16, 257), gpu(kSmallSmem)), "cuda_simple");
  EXPECT_EQ(chosen(backward(DType::bf16, 256), gpu(48 * 1024)), "cuda_simple");
  Problem p = backward(DType::f16, 64);
  p.seqlen_k = (std::int64_t{1} << 30) - 2;
  EXPECT_EQ(chosen(p, gpu(kSmallSmem)), "cuda_simple");
  p = backward(DType::bf16, 64);
  p.is_ragged = 1;
  p.num_heads = p.num_kv_heads = 16;
  p.seqlen_q = p.total_q = p.total_k = 1 << 20;
  for (const int batch : {1 << 14, 1 << 15}) {
    p.batch = batch;
    EXPECT_EQ(chosen(p, gpu(kSmallSmem)), batch < 1 << 15 ? "cuda_sm80_bwd" : "cuda_simple");
  }
}

TEST(Sm80Backward, SaysWhichBitsMayChange) {
  Problem p = backward(DType::bf16, 128);
  const auto text = [&] { return explain(plan_attention(p, gpu(kSmallSmem)).value()); };
  EXPECT_NE(text().find("by atomics, in any order"), std::string::npos) << text();
  EXPECT_NE(text().find("dq only with deterministic=1"), std::string::npos) << text();
  p.deterministic = 1;
  EXPECT_NE(text().find("from the last keys to the first"), std::string::npos) << text();
  EXPECT_NE(text().find("bits      identical from run to run"), std::string::npos) << text();
}

}  // namespace
}  // namespace headrace
