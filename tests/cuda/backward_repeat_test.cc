// Repeated backward calls: in a stream, in a CUDA graph, in two streams at once. Workspace and
// gradients are poisoned each time. All gradients of deterministic calls must have equal bits; dk
// and dv of the others, too.
#include "cuda/repeat.h"

namespace headrace::testing {
namespace {

struct Shape {
  const char* kernel;  // the kernel that a Hopper GPU must select; null: any
  DType dtype;
  std::int64_t batch, seqlen, heads, kv_heads, dim;
  AttentionOptions options;
};

// One shape for every tile of the portable kernel, in each mode of the dq sums if it matters.
std::vector<Shape> shapes() {
  const AttentionOptions causal{.causal = Causal::bottom_right};
  const AttentionOptions ordered{.causal = Causal::bottom_right, .deterministic = true};
  AttentionOptions local = ordered;
  local.window_left = 200;
  return {
      {nullptr, DType::bf16, 2, 700, 8, 8, 64, ordered},
      {nullptr, DType::bf16, 2, 900, 8, 2, 64, local},
      {nullptr, DType::f16, 2, 700, 8, 2, 128, ordered},
      {nullptr, DType::bf16, 1, 600, 4, 4, 256, ordered},
      {nullptr, DType::bf16, 2, 640, 8, 2, 128, causal},
      {nullptr, DType::f16, 1, 513, 4, 4, 64, {.softcap = 30, .deterministic = true}},
      {"cuda_sm80_bwd", DType::f32, 1, 300, 6, 2, 64, ordered},
      // Every key tile adds to every row, in an order that varies without determinism.
      {"cuda_sm80_bwd", DType::f32, 2, 512, 16, 16, 64, {.deterministic = true}},
      {"cuda_sm80_bwd", DType::f32, 1, 200, 4, 4, 128, causal},
      {"cuda_sm80_bwd", DType::f32, 1, 150, 2, 2, 256, ordered},
      // head_dim not a multiple of 8 selects the portable kernel: its tiles with async warps.
      {"cuda_sm80_bwd", DType::bf16, 2, 640, 8, 2, 124, causal},
      {"cuda_sm80_bwd", DType::f16, 1, 500, 4, 4, 252, causal},
      {"cuda_simple", DType::bf16, 1, 60, 2, 1, 320, causal},
  };
}

// A shape on the device with its own plan and workspace; out and lse come from its forward.
class Call {
 public:
  explicit Call(const Shape& s)
      : shape_(s),
        q_(numbers(s.dtype, size(s.heads), 1)),
        k_(numbers(s.dtype, size(s.kv_heads), 2)),
        v_(numbers(s.dtype, size(s.kv_heads), 3)),
        out_(numbers(s.dtype, size(s.heads), 4)),
        dout_(numbers(s.dtype, size(s.heads), 5)),
        dq_(numbers(s.dtype, size(s.heads), 6)),
        dk_(numbers(s.dtype, size(s.kv_heads), 7)),
        dv_(numbers(s.dtype, size(s.kv_heads), 8)),
        lse_(std::vector<float>(static_cast<std::size_t>(s.batch * s.heads * s.seqlen))),
        plan_(plan_attention(Problem(tensors(), gradients(), s.options), cuda_info(0))),
        workspace_(std::vector<unsigned char>(plan_.workspace_bytes() + 1)) {
    const Plan forward = plan_attention(Problem(tensors(), s.options), cuda_info(0));
    const OnDevice<unsigned char> memory{std::vector<unsigned char>(forward.workspace_bytes() + 1)};
    forward.run(tensors(), {memory.data(), forward.workspace_bytes()});
    HEADRACE_EXPECT_CUDA(cudaDeviceSynchronize());
  }

  const Plan& plan() const { return plan_; }
  void poison(cudaStream_t stream) {
    const OnDevice<unsigned char>* const written[] = {&dq_, &dk_, &dv_, &workspace_};
    const std::size_t sizes[] = {bytes(shape_.heads), bytes(shape_.kv_heads),
                                 bytes(shape_.kv_heads), plan_.workspace_bytes()};
    for (int i = 0; i < 4; ++i)
      HEADRACE_EXPECT_CUDA(cudaMemsetAsync(written[i]->data(), 0xFF, sizes[i], stream));
  }
  void run(cudaStream_t stream) {
    poison(stream);
    plan_.run_backward(tensors(), gradients(), {workspace_.data(), plan_.workspace_bytes()}, {},
                       stream);
  }
  TunedCall tune(const TuneOptions& options) const {
    return Tuning(cuda_info(0)).tune(plan_, tensors(), gradients(), options);
  }
  // dk and dv; dq only if it is deterministic.
  std::vector<unsigned char> result(cudaStream_t stream) const {
    HEADRACE_EXPECT_CUDA(cudaStreamSynchronize(stream));
    std::vector<unsigned char> all = dk_.read();
    const auto add = [&](const std::vector<unsigned char>& x) {
      all.insert(all.end(), x.begin(), x.end());
    };
    add(dv_.read());
    if (shape_.options.deterministic) add(dq_.read());
    return all;
  }

 private:
  std::int64_t size(std::int64_t heads) const {
    return shape_.batch * shape_.seqlen * heads * shape_.dim;
  }
  std::size_t bytes(std::int64_t heads) const {
    return static_cast<std::size_t>(size(heads)) * bytes_of(shape_.dtype);
  }
  TensorView view(void* data, std::int64_t heads) const {
    TensorView x(data, shape_.dtype, {shape_.batch, shape_.seqlen, heads, shape_.dim});
    x.device_type = HEADRACE_CUDA;
    return x;
  }
  AttentionTensors tensors() const {
    TensorView lse(lse_.data(), DType::f32, {shape_.batch, shape_.heads, shape_.seqlen});
    lse.device_type = HEADRACE_CUDA;
    return {.q = view(q_.data(), shape_.heads),
            .k = view(k_.data(), shape_.kv_heads),
            .v = view(v_.data(), shape_.kv_heads),
            .out = view(out_.data(), shape_.heads),
            .lse = lse};
  }
  AttentionGradients gradients() const {
    return {.dout = view(dout_.data(), shape_.heads),
            .dq = view(dq_.data(), shape_.heads),
            .dk = view(dk_.data(), shape_.kv_heads),
            .dv = view(dv_.data(), shape_.kv_heads)};
  }

  Shape shape_;
  OnDevice<unsigned char> q_, k_, v_, out_, dout_, dq_, dk_, dv_;
  OnDevice<float> lse_;
  Plan plan_;
  OnDevice<unsigned char> workspace_;
};

class BackwardRepeats : public ::testing::TestWithParam<Shape> {
 protected:
  void SetUp() override { HEADRACE_NEEDS_GPU(90); }
};

TEST_P(BackwardRepeats, AThousandRunsGiveTheSameBits) {
  Call call(GetParam());
  if (GetParam().kernel != nullptr) {
    EXPECT_STREQ(call.plan().kernel(), GetParam().kernel) << call.plan().explain();
  }
  expect_same_bits(call, 1000);
}

TEST_P(BackwardRepeats, AGraphReplaysTheSameBits) {
  Call call(GetParam());
  expect_graph_replays(call);
}

TEST_P(BackwardRepeats, TunedChoicesGiveTheSameBits) {
  Call call(GetParam());
  expect_tuning_keeps_bits(call);
}

TEST_P(BackwardRepeats, TwoStreamsDoNotDisturbEachOther) {
  Call one(GetParam()), other(GetParam());
  expect_streams_apart(one, other);
}

INSTANTIATE_TEST_SUITE_P(Kernels, BackwardRepeats, ::testing::ValuesIn(shapes()),
                         [](const auto& test) { return "Shape" + std::to_string(test.index); });

}  // namespace
}  // namespace headrace::testing
