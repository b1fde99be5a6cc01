// Attention over quantised keys on a GPU: against the dequantised keys in double, and its bits.
#include <gtest/gtest.h>

#include <cstring>
#include <list>

#include "attention/select.h"
#include "backends/cuda/backend.h"
#include "cuda/gpu.h"
#include "support/quantised_call.h"
#include "support/quantised_close.h"

namespace headrace::testing {
namespace {

using Bytes = std::vector<unsigned char>;

// A call whose tensors are on the device.
class DeviceCall {
 public:
  // Scales begin `scale_offset` bytes behind a multiple of 256.
  explicit DeviceCall(QuantisedCall& call, std::size_t scale_offset = 0)
      : call_(call),
        moved_(call, HEADRACE_CUDA, [&](const QuantisedCall::Memory& memory, headrace_tensor&) {
          const headrace_quantised_kv& scales = *call.tensors().quantised;
          const bool is_scale =
              memory.data == scales.k_scale.data || memory.data == scales.v_scale.data;
          return copies_.emplace_back(memory, is_scale ? scale_offset : 0).data();
        }) {}
  headrace_attention_tensors& tensors() { return moved_.tensors; }

  // Empty, or why the kernel did not run.
  std::string run(const Kernel& kernel) {
    const headrace_attention_options options = call_.attention_options();
    Result<Problem> problem = validate(moved_.tensors, options);
    if (!problem.ok()) return problem.failure().message;
    Result<DeviceInfo> device = cuda::device_info(0);
    if (!device.ok()) return device.failure().message;
    Result<Plan> plan = plan_attention(problem.value(), device.value(), {&kernel, 1});
    if (!plan.ok()) return plan.failure().message;
    const OnDevice<unsigned char> workspace(Bytes(plan.value().schedule.workspace_bytes + 1, 0xff));
    const Status bad =
        kernel.launch(plan.value(), make_args(problem.value(), moved_.tensors, options),
                      {workspace.data(), plan.value().schedule.workspace_bytes}, nullptr);
    HEADRACE_EXPECT_CUDA(cudaDeviceSynchronize());
    const Status broken = cuda::check(0, nullptr);
    EXPECT_FALSE(broken) << broken->message;
    for (Copy& copy : copies_) {
      const Bytes bytes = copy.device.read();
      if (copy.host.data == call_.out().data() || copy.host.data == call_.lse().data())
        std::memcpy(copy.host.data, bytes.data(), copy.host.bytes);
    }
    return bad ? bad->message : "";
  }

 private:
  struct Copy {
    Copy(const QuantisedCall::Memory& memory, std::size_t first)
        : host(memory), offset(first), device(bytes_behind(memory, first)) {}
    unsigned char* data() const { return device.data() + offset; }
    static Bytes bytes_behind(const QuantisedCall::Memory& memory, std::size_t offset) {
      Bytes bytes(offset, 0xff);
      const auto* data = static_cast<const unsigned char*>(memory.data);
      bytes.insert(bytes.end(), data, data + memory.bytes);
      return bytes;
    }
    QuantisedCall::Memory host;
    std::size_t offset;
    OnDevice<unsigned char> device;
  };
  QuantisedCall& call_;
  std::list<Copy> copies_;
  MovedTensors moved_;
};

const Kernel& kernel_named(std::string_view name) {
  for (const Kernel& kernel : kernels_of(HEADRACE_CUDA, HEADRACE_FORWARD))
    if (kernel.name == name) return kernel;
  ADD_FAILURE() << name;
  return kernels_of(HEADRACE_CUDA, HEADRACE_FORWARD).back();
}

constexpr DType kCodes[] = {DType::i8, DType::f8e4m3, DType::i4x2, DType::u4x2, DType::u2x4};

// What the fast kernel takes.
QuantisedCase fast_case(Random& random) {
  QuantisedCase c = random_quantised_case(random, random.chance(50) ? DType::bf16 : DType::f16);
  constexpr std::int64_t kPages[] = {16, 32, 48, 64};
  c.k_dtype = c.v_dtype = random.pick(kCodes);
  c.head_dim = c.head_dim_v = random.chance(50) ? 64 : 128;
  c.page_size = random.pick(kPages);
  c.group = random.chance(70) ? 16 : 0;
  if (has_zero_points(c.k_dtype)) {
    c.page_size = random.chance(50) ? 32 : 96;
    c.group = 32;
  }
  c.has_per_sequence_scales = c.has_softcap = false;
  // Scores far apart: the references of rows move after the first keys.
  if (random.chance(30)) c.q_scale = 6;
  constexpr std::int64_t kGroups[] = {1, 2, 4, 7, 8, 9};
  c.num_heads = c.num_kv_heads * random.pick(kGroups);
  if (random.chance(30)) {
    c.keys[0] = static_cast<std::int32_t>(random.between(1000, 6000));
    c.queries[0] = std::min(c.queries[0], c.keys[0]);
  }
  return c;
}

TEST(CudaCodes, TheSimpleKernelTakesEveryCase) {
  HEADRACE_NEEDS_GPU(80);
  Random random(21);
  for (int i = 0; i < 90; ++i) {
    const DType dtypes[] = {DType::f32, DType::f16, DType::bf16};
    const QuantisedCase c = random_quantised_case(random, dtypes[i % 3]);
    QuantisedCall call(c);
    ASSERT_EQ(DeviceCall(call).run(kernel_named("cuda_simple")), "") << text_of(c);
    expect_close(call, {.out = 2e-5, .lse = 3e-5}, text_of(c));
  }
}

void expect_agreement(const QuantisedCase& c) {
  QuantisedCall call(c);
  const Kernel& kernel = kernel_named("cuda_sm80_codes");
  ASSERT_EQ(DeviceCall(call).run(kernel), "") << text_of(c);
  expect_close(call, bounds_of(kernel, c), text_of(c));
}

TEST(CudaCodes, TheFastKernelAgrees) {
  HEADRACE_NEEDS_GPU(80);
  Random random(22);
  for (int i = 0; i < 300; ++i) {
    expect_agreement(fast_case(random));
  }
}

TEST(CudaCodes, PageIndptrHasTheBitsOfABlockTable) {
  HEADRACE_NEEDS_GPU(80);
  Random random(23);
  for (int i = 0; i < 200; ++i) {
    QuantisedCase c = i % 4 == 0 ? random_quantised_case(random, DType::bf16) : fast_case(random);
    const Kernel& kernel = kernel_named(i % 4 == 0 ? "cuda_simple" : "cuda_sm80_codes");
    QuantisedCall of_table(c);
    c.has_page_indptr = true;
    QuantisedCall of_entries(c);
    ASSERT_EQ(DeviceCall(of_table).run(kernel), "") << text_of(c);
    ASSERT_EQ(DeviceCall(of_entries).run(kernel), "") << text_of(c);
    ASSERT_EQ(of_entries.out(), of_table.out()) << text_of(c);
    ASSERT_EQ(of_entries.lse(), of_table.lse()) << text_of(c);
  }
}

// With zero points words of scales are copied four at a time where they are aligned to that.
TEST(CudaCodes, ScalesAtAnyWordGiveTheSameBits) {
  HEADRACE_NEEDS_GPU(80);
  Random random(25);
  const Kernel& kernel = kernel_named("cuda_sm80_codes");
  for (int i = 0; i < 40; ++i) {
    QuantisedCase c = fast_case(random);
    if (i % 2 == 0) {
      c.k_dtype = c.v_dtype = i % 4 == 0 ? DType::u4x2 : DType::u2x4;
      c.page_size = c.group = 32;
    }
    QuantisedCall aligned(c), at_word(c);
    ASSERT_EQ(DeviceCall(aligned).run(kernel), "") << text_of(c);
    ASSERT_EQ(DeviceCall(at_word, 4).run(kernel), "") << text_of(c);
    ASSERT_EQ(at_word.out(), aligned.out()) << text_of(c);
    ASSERT_EQ(at_word.lse(), aligned.lse()) << text_of(c);
  }
}

TEST(CudaCodes, PagesFarApartAreRefused) {
  HEADRACE_NEEDS_GPU(80);
  QuantisedCase c;
  c.dtype = DType::bf16;
  c.k_dtype = c.v_dtype = DType::i8;
  c.group = c.page_size = 16;
  c.head_dim = c.head_dim_v = 64;
  c.keys = {1000};
  c.queries = {1};
  QuantisedCall call(c);
  DeviceCall on_device(call);
  on_device.tensors().k.strides[0] = std::int64_t{1} << 32;
  const std::string refusal = on_device.run(kernel_named("cuda_sm80_codes"));
  EXPECT_NE(refusal.find("4 GiB apart"), std::string::npos) << refusal;
}

// Later keys of a warp have far larger scores, so that all sums so far follow.
TEST(CudaCodes, TheReferencesOfRowsMove) {
  HEADRACE_NEEDS_GPU(80);
  for (const DType format : kCodes)
    for (const DType dtype : {DType::bf16, DType::f16})
      for (const std::int64_t head_dim : {64, 128}) {
        QuantisedCase c;
        c.dtype = dtype;
        c.k_dtype = c.v_dtype = format;
        c.group = c.page_size = recent_group_of(format);
        c.head_dim = c.head_dim_v = head_dim;
        c.keys = {3000};
        c.queries = {4};
        c.q_scale = 6;
        expect_agreement(c);
      }
}

// A row has the bits of the same row alone: in any batch, in a decode of a few tokens and in a
// prefill, whose CTAs take all chunks of keys.
TEST(CudaCodes, BitsOfARowDependOnItsPositionAlone) {
  HEADRACE_NEEDS_GPU(80);
  for (const DType format : kCodes) {
    QuantisedCase whole;
    whole.dtype = DType::bf16;
    whole.k_dtype = whole.v_dtype = format;
    whole.group = whole.page_size = recent_group_of(format);
    whole.num_heads = 8;
    whole.num_kv_heads = 2;
    whole.head_dim = whole.head_dim_v = 128;
    whole.keys = {5000};
    whole.queries = {300};
    QuantisedCall prefill(whole);
    ASSERT_EQ(DeviceCall(prefill).run(kernel_named("cuda_sm80_codes")), "");
    for (const std::int32_t queries : {1, 3, 17, 60}) {
      QuantisedCall decode(whole);
      const Bytes expected = prefill.out();
      decode.keep_last_queries(queries);
      ASSERT_EQ(DeviceCall(decode).run(kernel_named("cuda_sm80_codes")), "");
      const std::size_t bytes = static_cast<std::size_t>(queries) * 8 * 128 * 2;
      EXPECT_TRUE(std::equal(decode.out().begin(),
                             decode.out().begin() + static_cast<std::ptrdiff_t>(bytes),
                             expected.end() - static_cast<std::ptrdiff_t>(bytes)))
          << dtype_name(format) << ", the last " << queries;
    }
  }
}

TEST(CudaCodes, TheSameBitsUnderLoad) {
  HEADRACE_NEEDS_GPU(80);
  Random random(23);
  for (int i = 0; i < 20; ++i) {
    const QuantisedCase c = fast_case(random);
    QuantisedCall call(c);
    DeviceCall on_device(call);
    ASSERT_EQ(on_device.run(kernel_named("cuda_sm80_codes")), "") << text_of(c);
    const Bytes first = call.out();
    for (int repeat = 0; repeat < 50; ++repeat) {
      ASSERT_EQ(on_device.run(kernel_named("cuda_sm80_codes")), "");
      ASSERT_EQ(call.out(), first) << text_of(c);
    }
  }
}

}  // namespace
}  // namespace headrace::testing
