// SparQ attention on a GPU: every case of the CPU's tests against double; bits, its append, graphs,
// lengths and pages out of bounds.
#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <tuple>
#include <vector>

#include "backends/cuda/backend.h"
#include "cuda/gpu.h"
#include "support/sparq_case.h"

namespace headrace::testing {
namespace {

// A call whose tensors are on the device.
class DeviceSparq {
 public:
  explicit DeviceSparq(SparqCall& call)
      : call_(call),
        tensors_(call.tensors()),
        lengths_(call.lengths()),
        block_table_(call.block_table().empty() ? std::vector<std::int32_t>{0}
                                                : call.block_table()) {
    for (Tensor* tensor : call.memory()) copies_.emplace_back(*tensor);
    for (headrace_tensor* x : {&tensors_.q, &tensors_.k, &tensors_.k_components, &tensors_.v,
                               &tensors_.out, &tensors_.v_sum, &tensors_.indices, &tensors_.alpha})
      if (x->rank > 0) to_device(*x);
    move(tensors_.seqused_k, lengths_.data());
    if (tensors_.block_table.rank > 0) move(tensors_.block_table, block_table_.data());
    Result<std::size_t> bytes = sparq_workspace_bytes(tensors_, call.options());
    EXPECT_TRUE(bytes.ok());
    workspace_bytes_ = bytes.value();
    workspace_ = std::make_unique<OnDevice<unsigned char>>(
        std::vector<unsigned char>(workspace_bytes_, 0xFF));
  }
  DeviceSparq(const DeviceSparq&) = delete;
  headrace_sparq_tensors& tensors() { return tensors_; }
  Status run(Stream stream = nullptr) {
    return sparq_attention(tensors_, call_.options(), {workspace_->data(), workspace_bytes_},
                           stream);
  }
  void read_back() {
    HEADRACE_EXPECT_CUDA(cudaDeviceSynchronize());
    for (Copy& copy : copies_) {  // in place: views point into the memory
      const std::vector<unsigned char> bytes = copy.device.read();
      std::copy(bytes.begin(), bytes.end(), copy.tensor.bytes().begin());
    }
  }

 private:
  struct Copy {
    explicit Copy(Tensor& host) : tensor(host), device(host.bytes()) {}
    Tensor& tensor;
    OnDevice<unsigned char> device;
  };
  static void move(headrace_tensor& view, void* data) {
    view.data = data;
    view.device_type = HEADRACE_CUDA;
  }
  void to_device(headrace_tensor& view) {
    for (Copy& copy : copies_)
      if (view.data == copy.tensor.view().data)
        return move(view, copy.tensor.view_at(copy.device.data()).data);
    FAIL() << "a view of no tensor";
  }

  SparqCall& call_;
  std::list<Copy> copies_;
  headrace_sparq_tensors tensors_;
  OnDevice<std::int32_t> lengths_, block_table_;
  std::unique_ptr<OnDevice<unsigned char>> workspace_;
  std::size_t workspace_bytes_ = 0;
};

void run_on_device(SparqCall& call) {
  DeviceSparq on_device(call);
  const Status bad = on_device.run();
  ASSERT_FALSE(bad) << bad->message;
  on_device.read_back();
}

TEST(CudaSparq, IsSparqInDouble) {
  HEADRACE_NEEDS_GPU(80);
  for_sparq_cases(4, [](const SparqCase& c) {
    SparqCall call(c);
    run_on_device(call);
    call.expect_sparq();
  });
  const Status bad = cuda::check(0, nullptr);
  EXPECT_FALSE(bad) << bad->message;
}

TEST(CudaSparq, EqualEstimatesAreTheLowestKeys) {
  HEADRACE_NEEDS_GPU(80);
  // A threshold in all values, candidates that are too many, and few.
  for (const auto& [num_keys, length] : {std::pair{3000, 6000}, {40, 6000}, {40, 500}}) {
    SparqCase c;
    c.seqlen_k = length;
    c.lengths = {length, 2 * length / 5};
    c.num_keys = num_keys;
    SparqCall call(c);
    call.q().set(Doubles(static_cast<std::size_t>(call.q().view().num_elements()), 0.0));
    run_on_device(call);
    std::vector<std::int64_t> want;
    for (std::int64_t j = 0; j < num_keys - 2; ++j) want.push_back(j);
    want.insert(want.end(), {length - 2, length - 1});
    EXPECT_EQ(call.keys(0, 1), want);
    call.expect_sparq();
  }
}

TEST(CudaSparq, BitsDependOnTheSequenceAlone) {
  HEADRACE_NEEDS_GPU(80);
  SparqCase c;
  c.dtype = DType::bf16;
  c.group = 2;
  c.seqlen_k = 9000;
  c.lengths = {9000, 5000, 1024};
  c.page_size = 16;
  SparqCall all(c), alone(c);
  run_on_device(all);
  DeviceSparq on_device(alone);
  headrace_sparq_tensors& t = on_device.tensors();
  for (headrace_tensor* x :
       {&t.q, &t.out, &t.v_sum, &t.block_table, &t.seqused_k, &t.indices, &t.alpha})
    *x = *TensorView(*x).slice(0, 1, 2);
  const Status bad = on_device.run();
  ASSERT_FALSE(bad) << bad->message;
  on_device.read_back();
  EXPECT_EQ(alone.keys(1, 0), all.keys(1, 0));
  const std::int64_t row = all.out().view().strides[0];
  for (std::int64_t i = row; i < 2 * row; ++i)
    ASSERT_EQ(SparqCall::get(alone.out(), i), SparqCall::get(all.out(), i)) << i;
}

// Lengths are clamped and pages left out; both are reported.
TEST(CudaSparq, LengthsAndPagesOutOfBoundsAreReported) {
  HEADRACE_NEEDS_GPU(80);
  SparqCase c;
  c.page_size = 8;
  SparqCall long_call(c), bad_page(c);
  long_call.lengths()[1] = 1000;
  for (std::int32_t& page : long_call.block_table()) page = std::max(page, 0);
  DeviceSparq first(long_call);
  Status bad = first.run();
  ASSERT_FALSE(bad) << bad->message;
  bad = cuda::check(0, nullptr);
  ASSERT_TRUE(bad);
  EXPECT_NE(bad->message.find("seqused_k"), std::string::npos) << bad->message;
  bad_page.block_table()[1] = 1 << 30;
  DeviceSparq second(bad_page);
  bad = second.run();
  ASSERT_FALSE(bad) << bad->message;
  bad = cuda::check(0, nullptr);
  ASSERT_TRUE(bad);
  EXPECT_NE(bad->message.find("block_table"), std::string::npos) << bad->message;
  EXPECT_FALSE(cuda::check(0, nullptr));
}

TEST(CudaSparq, IsCapturedInAGraph) {
  HEADRACE_NEEDS_GPU(80);
  SparqCase c;
  c.seqlen_k = 3000;
  c.lengths = {3000, 17};
  SparqCall call(c), plain(c);
  run_on_device(plain);
  DeviceSparq on_device(call);
  cudaStream_t stream{};
  cudaGraph_t graph{};
  cudaGraphExec_t exec{};
  HEADRACE_EXPECT_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  HEADRACE_EXPECT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  const Status bad = on_device.run(stream);
  HEADRACE_EXPECT_CUDA(cudaStreamEndCapture(stream, &graph));
  ASSERT_FALSE(bad) << bad->message;
  HEADRACE_EXPECT_CUDA(cudaGraphInstantiate(&exec, graph, 0));
  HEADRACE_EXPECT_CUDA(cudaGraphLaunch(exec, stream));
  on_device.read_back();
  EXPECT_EQ(call.out().bytes(), plain.out().bytes());
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

TEST(CudaSparq, AppendKeepsComponentsAndSumsUpToDate) {
  HEADRACE_NEEDS_GPU(80);
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    SparqCase c;
    c.dtype = dtype;
    c.seqlen_k = 70;
    c.lengths = {70, 70};
    SparqCall want(c), call(c);
    std::fill(call.components().bytes().begin(), call.components().bytes().end(), 0xFF);
    call.v_sum().set(Doubles(static_cast<std::size_t>(call.v_sum().view().num_elements()), 0.0));
    DeviceSparq on_device(call);
    std::vector<std::int64_t> slots;
    for (std::int64_t slot = 0; slot < 140; ++slot) slots.push_back(slot);
    slots.push_back(-1);
    slots.push_back(140);  // not in the cache
    const OnDevice<std::int64_t> device_slots(slots);
    const OnDevice<std::int32_t> cu_seqlens({0, 70, 142});
    headrace_sparq_append_tensors t{};
    t.struct_size = sizeof t;
    t.k = on_device.tensors().k;
    t.v = on_device.tensors().v;
    t.k_components = on_device.tensors().k_components;
    t.v_sum = on_device.tensors().v_sum;
    t.slot_mapping = TensorView(device_slots.data(), DType::i64, {142});
    t.cu_seqlens = TensorView(cu_seqlens.data(), DType::i32, {3});
    t.slot_mapping.device_type = t.cu_seqlens.device_type = HEADRACE_CUDA;
    Status bad = sparq_append(t, nullptr);
    ASSERT_FALSE(bad) << bad->message;
    on_device.read_back();
    EXPECT_EQ(call.components().bytes(), want.components().bytes());
    EXPECT_EQ(call.v_sum().bytes(), want.v_sum().bytes());
    bad = cuda::check(0, nullptr);
    ASSERT_TRUE(bad);
    EXPECT_NE(bad->message.find("slot_mapping"), std::string::npos) << bad->message;
  }
}

TEST(CudaSparq, RefusesMemoryOfTheHost) {
  HEADRACE_NEEDS_GPU(80);
  SparqCall call(SparqCase{});
  headrace_sparq_tensors t = call.tensors();
  for (headrace_tensor* x :
       {&t.q, &t.k, &t.k_components, &t.v, &t.out, &t.v_sum, &t.seqused_k, &t.indices, &t.alpha})
    x->device_type = HEADRACE_CUDA;
  const Status bad = sparq_attention(t, call.options(), {}, nullptr);
  ASSERT_TRUE(bad);
  EXPECT_EQ(bad->message.find("q"), 0u) << bad->message;
}

// While a call of the other data runs on another stream.
TEST(CudaSparq, RepeatedCallsBesideOthersHaveTheSameBits) {
  HEADRACE_NEEDS_GPU(80);
  constexpr int kCalls = 3000;
  cudaStream_t stream = nullptr, other_stream = nullptr;
  HEADRACE_EXPECT_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  HEADRACE_EXPECT_CUDA(cudaStreamCreateWithFlags(&other_stream, cudaStreamNonBlocking));
  SparqCase c;
  c.head_dim = c.head_dim_v = 128;
  c.num_components = 32;
  c.local_window = 32;
  c.has_mean = false;
  for (const auto& [dtype, group, page_size, num_keys] :
       {std::tuple{DType::bf16, 4, 0, 128}, {DType::f16, 9, 16, 128}, {DType::f32, 1, 64, 700}}) {
    c.dtype = dtype;
    c.group = group;
    c.page_size = page_size;
    c.num_keys = num_keys;
    c.seqlen_k = 9000;
    c.lengths = {9000, 4097, 5};
    SparqCall call(c), other_call(c);
    DeviceSparq on_device(call), other(other_call);
    std::vector<unsigned char> first, out(call.out().bytes().size());
    for (int i = 0; i < kCalls; ++i) {
      ASSERT_FALSE(other.run(other_stream));
      ASSERT_FALSE(on_device.run(stream));
      HEADRACE_EXPECT_CUDA(cudaMemcpyAsync(out.data(), on_device.tensors().out.data, out.size(),
                                           cudaMemcpyDeviceToHost, stream));
      HEADRACE_EXPECT_CUDA(cudaMemsetAsync(on_device.tensors().out.data, 0xFF, out.size(), stream));
      HEADRACE_EXPECT_CUDA(cudaStreamSynchronize(stream));
      if (first.empty()) first = out;
      ASSERT_EQ(out, first) << "call " << i;
    }
  }
  HEADRACE_EXPECT_CUDA(cudaDeviceSynchronize());
  HEADRACE_EXPECT_CUDA(cudaStreamDestroy(stream));
  HEADRACE_EXPECT_CUDA(cudaStreamDestroy(other_stream));
}

}  // namespace
}  // namespace headrace::testing
