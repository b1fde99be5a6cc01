// Appends on a GPU: every case of the CPU's tests against double and near the CPU's results; bits,
// graphs, and tokens that cannot be stored.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <list>

#include "backends/cuda/backend.h"
#include "cuda/gpu.h"
#include "support/kv_append_case.h"

namespace headrace::testing {
namespace {

using Bytes = std::vector<unsigned char>;

// A call whose tensors are on the device.
class DeviceCall {
 public:
  explicit DeviceCall(AppendCall& call)
      : call_(call), slots_(call.slots()), positions_(call.positions()) {
    for (Tensor* tensor : call.memory()) copies_.emplace_back(*tensor);
  }

  // Of all tokens, or of one.
  Status run(Stream stream = nullptr, std::int64_t token = -1) {
    headrace_kv_append_tensors t = call_.tensors();
    for (headrace_tensor* x : {&t.k, &t.v, &t.k_pages, &t.v_pages, &t.q, &t.q_out, &t.cos, &t.sin,
                               &t.q_norm_weight, &t.k_norm_weight, &t.channel_factors})
      if (x->rank > 0) to_device(*x);
    for (headrace_tensor* x : {&t.slot_mapping, &t.positions})
      if (x->rank > 0) x->device_type = HEADRACE_CUDA;
    t.slot_mapping.data = t.slot_mapping.rank > 0 ? slots_.data() : nullptr;
    t.positions.data = t.positions.rank > 0 ? positions_.data() : nullptr;
    if (token >= 0)
      for (headrace_tensor* x : {&t.k, &t.v, &t.q, &t.q_out, &t.slot_mapping, &t.positions})
        if (x->rank > 0)
          static_cast<headrace_tensor&>(*x) = *TensorView(*x).slice(0, token, token + 1);
    const headrace_rope_options rope = call_.rope();
    const bool has_rope = call_.options().rotation != Rotation::none;
    return kv_append(t, call_.append_options(), has_rope ? &rope : nullptr, stream);
  }
  // Everything that the call may have written, in the host's tensors.
  void read_back() {
    HEADRACE_EXPECT_CUDA(cudaDeviceSynchronize());
    for (Copy& copy : copies_) {
      const Bytes bytes = copy.device.read();
      std::copy(bytes.begin(), bytes.end(), copy.tensor.bytes().begin());
    }
  }
  Bytes written() {
    HEADRACE_EXPECT_CUDA(cudaDeviceSynchronize());
    Bytes all;
    for (Copy& copy : copies_) {
      const Bytes bytes = copy.device.read();
      all.insert(all.end(), bytes.begin(), bytes.end());
    }
    return all;
  }

 private:
  struct Copy {
    explicit Copy(Tensor& host) : tensor(host), device(host.bytes()) {}
    Tensor& tensor;
    OnDevice<unsigned char> device;
  };
  void to_device(headrace_tensor& view) {
    for (Copy& copy : copies_) {
      const auto offset = static_cast<unsigned char*>(view.data) - copy.tensor.bytes().data();
      if (offset < 0 || offset >= static_cast<std::ptrdiff_t>(copy.tensor.bytes().size())) continue;
      view.data = copy.device.data() + offset;
      view.device_type = HEADRACE_CUDA;
      return;
    }
    FAIL() << "a view of no tensor";
  }

  AppendCall& call_;
  std::list<Copy> copies_;
  OnDevice<std::int64_t> slots_;
  OnDevice<std::int32_t> positions_;
};

void expect_runs(DeviceCall& call, Stream stream = nullptr) {
  const Status bad = call.run(stream);
  ASSERT_FALSE(bad) << bad->message;
}

TEST(CudaKvAppend, WritesNormalisedAndRotatedHeads) {
  HEADRACE_NEEDS_GPU(80);
  for_append_cases([](const AppendCase& c) {
    AppendCall call(c);
    DeviceCall on_device(call);
    expect_runs(on_device);
    on_device.read_back();
    call.expect_written("");
  });
  EXPECT_FALSE(cuda::check(0, nullptr));
}

// Operands of one 16-bit format, whole heads that rotate by tables of floats: a kernel of its own.
// Also with each option that it lacks, which goes to the general kernel.
TEST(CudaKvAppend, WholeVectorsOfOneFormat) {
  HEADRACE_NEEDS_GPU(80);
  bool AppendCase::*const kLacks[] = {nullptr, &AppendCase::has_factors, &AppendCase::has_hadamard,
                                      &AppendCase::has_q_norm, &AppendCase::has_k_norm};
  for (const DType dtype : {DType::bf16, DType::f16})
    for (const RopeLayout layout : {RopeLayout::interleaved, RopeLayout::halves})
      for (const std::int64_t head_dim : {16, 48, 64, 128, 256})
        for (const bool is_in_place : {false, true})
          for (bool AppendCase::*const lacks : kLacks) {
            AppendCase c;
            c.dtype = c.k_page_dtype = c.v_page_dtype = c.q_out_dtype = dtype;
            c.rotation = Rotation::tables;
            c.last_position = 40;
            c.layout = layout;
            c.num_tokens = 37;
            c.num_heads = 6;
            c.head_dim = c.head_dim_v = c.rot_dim = head_dim;
            c.page_size = 5;
            c.is_in_place = is_in_place;
            c.page_order = {0, 2, 1, 3};
            if (lacks != nullptr) c.*lacks = true;
            AppendCall call(c);
            DeviceCall on_device(call);
            expect_runs(on_device);
            on_device.read_back();
            call.expect_written("");
          }
  EXPECT_FALSE(cuda::check(0, nullptr));
}

// As many tokens as give every division of a token's heads among CTAs.
TEST(CudaKvAppend, BitsOfATokenDependOnItAlone) {
  HEADRACE_NEEDS_GPU(80);
  AppendCase c;
  c.dtype = c.k_page_dtype = c.v_page_dtype = c.q_out_dtype = DType::bf16;
  c.num_heads = 32;
  c.num_kv_heads = 8;
  c.head_dim = c.head_dim_v = c.rot_dim = 128;
  c.has_q_norm = c.has_k_norm = true;
  c.page_size = 16;
  c.is_fused = false;
  for (const std::int64_t num_tokens : {2, 70, 700}) {
    c.num_tokens = num_tokens;
    AppendCall whole(c), parts(c);
    DeviceCall on_device(whole), by_token(parts);
    expect_runs(on_device);
    for (std::int64_t token = num_tokens - 1; token >= 0; --token) {
      const Status bad = by_token.run(nullptr, token);
      ASSERT_FALSE(bad) << bad->message;
    }
    ASSERT_EQ(by_token.written(), on_device.written()) << num_tokens << " tokens";
  }
}

// The first bad token is reported, the others are stored.
void expect_bad_tokens_are_reported(DType dtype) {
  AppendCase c;
  c.dtype = c.k_page_dtype = c.v_page_dtype = c.q_out_dtype = dtype;
  c.rotation = Rotation::tables;
  c.is_fused = false;
  const auto expect_reported = [&](auto change, auto exclude, const std::string& text) {
    AppendCall call(c);
    change(call);
    DeviceCall on_device(call);
    expect_runs(on_device);
    on_device.read_back();
    exclude(call);
    call.expect_written(text);
    const Status bad = cuda::check(0, nullptr);
    ASSERT_TRUE(bad.has_value()) << text;
    EXPECT_EQ(bad->code, ErrorCode::invalid_argument);
    EXPECT_EQ(bad->message.find(text), 0u) << bad->message;
    EXPECT_NE(bad->message.find("token 3"), std::string::npos) << bad->message;
    EXPECT_FALSE(cuda::check(0, nullptr)) << "the error word was not cleared";
  };
  const std::int64_t num_slots = AppendCall(c).k_pages().view().shape[0] * c.page_size;
  const auto not_stored = [](AppendCall& call) { call.slots()[3] = -1; };
  for (const std::int64_t slot : {num_slots, std::int64_t{1} << 62})
    expect_reported([&](AppendCall& call) { call.slots()[3] = slot; }, not_stored,
                    "slot_mapping on cuda:0");
  c.has_q = false;  // q of that token is not written either
  for (const std::int32_t position : {40, -1})
    expect_reported(
        [&](AppendCall& call) {
          call.slots()[3] = num_slots - 1;
          std::replace(call.slots().begin(), call.slots().begin() + 3, num_slots - 1,
                       std::int64_t{-1});
          std::replace(call.slots().begin() + 4, call.slots().end(), num_slots - 1,
                       std::int64_t{-1});
          call.positions()[3] = position;
        },
        [&](AppendCall& call) {
          not_stored(call);
          call.positions()[3] = 0;
        },
        "positions on cuda:0");
}

TEST(CudaKvAppend, TokensOutOfRangeAreReportedAndNotStored) {
  HEADRACE_NEEDS_GPU(80);
  expect_bad_tokens_are_reported(DType::f32);
  expect_bad_tokens_are_reported(DType::bf16);
}

TEST(CudaKvAppend, GraphsReplay) {
  HEADRACE_NEEDS_GPU(80);
  AppendCase c;
  c.num_tokens = 20;
  c.head_dim = c.head_dim_v = c.rot_dim = 64;
  c.has_q_norm = c.has_k_norm = true;
  c.is_fused = false;
  AppendCall call(c);
  DeviceCall eager(call), replayed(call);
  expect_runs(eager);
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  HEADRACE_EXPECT_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  HEADRACE_EXPECT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  expect_runs(replayed, stream);
  HEADRACE_EXPECT_CUDA(cudaStreamEndCapture(stream, &graph));
  HEADRACE_EXPECT_CUDA(cudaGraphInstantiate(&replay, graph, 0));
  for (int i = 0; i < 3; ++i) HEADRACE_EXPECT_CUDA(cudaGraphLaunch(replay, stream));
  EXPECT_EQ(replayed.written(), eager.written());
  cudaGraphExecDestroy(replay);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

}  // namespace
}  // namespace headrace::testing
