// SparQ attention over quantised keys and values on a GPU: the cases of the CPU's tests, bits of a
// sequence, pages out of bounds, its append.
#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <vector>

#include "backends/cuda/backend.h"
#include "cuda/gpu.h"
#include "support/sparq_codes_call.h"

namespace headrace::testing {
namespace {

// A call whose tensors are on the device.
class DeviceCall {
 public:
  explicit DeviceCall(SparqCodesCall& call)
      : call_(call),
        dense_(call.keys, HEADRACE_CUDA,
               [&](const QuantisedCall::Memory& memory, headrace_tensor&) {
                 return copy(memory.data, memory.bytes);
               }) {
    tensors = call.tensors(dense_.tensors);
    for (headrace_tensor* view :
         {&tensors.k_components, &tensors.v_sum, &tensors.indices, &tensors.alpha}) {
      if (view->rank == 0) continue;
      std::int64_t count = 1;
      for (int i = 0; i < view->rank; ++i) count *= view->shape[i];
      view->data = copy(view->data, static_cast<std::size_t>(count) *
                                        dtype_bytes(static_cast<DType>(view->dtype)));
      view->device_type = HEADRACE_CUDA;
    }
  }
  DeviceCall(const DeviceCall&) = delete;
  void run() {
    const Status bad = sparq_attention(tensors, call_.options(), {}, nullptr);
    ASSERT_FALSE(bad) << bad->message;
    HEADRACE_EXPECT_CUDA(cudaDeviceSynchronize());
    for (Copy& x : copies_) {
      const std::vector<unsigned char> bytes = x.device->read();
      std::copy(bytes.begin(), bytes.end(), static_cast<unsigned char*>(x.host));
    }
  }
  headrace_sparq_tensors tensors{};

 private:
  struct Copy {
    void* host;
    std::unique_ptr<OnDevice<unsigned char>> device;
  };
  void* copy(void* host, std::size_t bytes) {
    const auto* first = static_cast<const unsigned char*>(host);
    copies_.push_back({host, std::make_unique<OnDevice<unsigned char>>(
                                 std::vector<unsigned char>(first, first + bytes))});
    return copies_.back().device->data();
  }

  SparqCodesCall& call_;
  std::list<Copy> copies_;
  MovedTensors dense_;
};

TEST(CudaSparqCodes, IsAttentionOverTheChosenKeys) {
  HEADRACE_NEEDS_GPU(80);
  Random random(5);
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
    for (int i = 0; i < 80; ++i) {
      SparqCodesCall call(random_sparq_codes_case(random, dtype));
      DeviceCall(call).run();
      call.expect_attention_over_keys();
      if (HasFailure()) return;
    }
  const Status bad = cuda::check(0, nullptr);
  EXPECT_FALSE(bad) << bad->message;
}

TEST(CudaSparqCodes, BitsDependOnTheSequenceAlone) {
  HEADRACE_NEEDS_GPU(80);
  SparqCodesCase c;
  c.of_keys.dtype = DType::bf16;
  c.of_keys.keys = {1100, 700, 513};
  c.of_keys.queries = {1, 1, 1};
  c.num_keys = 40;
  SparqCodesCall all(c), one(c);
  DeviceCall(all).run();
  DeviceCall alone(one);
  headrace_sparq_tensors& t = alone.tensors;
  headrace_quantised_kv codes = *t.quantised;
  t.quantised = &codes;
  for (headrace_tensor* x : {&t.q, &t.out, &t.v_sum, &t.block_table, &t.seqused_k, &t.indices,
                             &t.alpha, &codes.recent_table})
    *x = *TensorView(*x).slice(0, 1, 2);
  alone.run();
  for (std::int64_t head = 0; head < c.of_keys.num_heads; ++head)
    for (std::int64_t d = 0; d < c.of_keys.head_dim_v; ++d)
      EXPECT_EQ(one.keys.result(1, 0, head, d), all.keys.result(1, 0, head, d));
}

TEST(CudaSparqCodes, PagesOutOfBoundsAreReportedAndLeftOut) {
  HEADRACE_NEEDS_GPU(80);
  for (const bool is_recent : {false, true}) {
    SparqCodesCase c;
    c.of_keys.keys = {40};
    c.num_keys = 100;
    SparqCodesCall call(c);
    DeviceCall on_device(call);
    headrace_quantised_kv codes = *on_device.tensors.quantised;
    on_device.tensors.quantised = &codes;
    const OnDevice<std::int32_t> far(std::vector<std::int32_t>{1 << 20, 1 << 20, 1 << 20});
    headrace_tensor& table = is_recent ? codes.recent_table : on_device.tensors.block_table;
    table.data = far.data();
    on_device.run();
    const Status bad = cuda::check(0, nullptr);
    ASSERT_TRUE(bad);
    EXPECT_NE(bad->message.find("block_table"), std::string::npos) << bad->message;
    for (std::int64_t d = 0; d < c.of_keys.head_dim_v; ++d)
      EXPECT_TRUE(std::isfinite(call.keys.result(0, 0, 0, d)));
  }
}

}  // namespace
}  // namespace headrace::testing
