// Repeated forward calls: in a stream, in a CUDA graph, in two streams at once. The output is
// poisoned each time and must have equal bits; a race between warps would show as a difference.
#include "cuda/repeat.h"

namespace headrace::testing {
namespace {

struct Shape {
  const char* kernel;  // the kernel that a Hopper GPU must select
  DType dtype;
  std::int64_t batch, seqlen, heads, kv_heads, dim;
  AttentionOptions options;
  std::int64_t seqlen_q = 0;  // 0: seqlen
};

// One shape for every kernel and for every tile of the Hopper kernel. The causal shapes have more
// tiles than a GPU has SMs, so that the tile counter is used.
std::vector<Shape> shapes() {
  const AttentionOptions causal{.causal = Causal::bottom_right};
  return {
      {"cuda_sm90_fwd", DType::bf16, 2, 1500, 16, 4, 64, causal},
      {"cuda_sm90_fwd", DType::f16, 1, 700, 24, 24, 64, causal},
      {"cuda_sm90_fwd", DType::bf16, 2, 1100, 16, 4, 80, causal},
      {"cuda_sm90_fwd", DType::bf16, 2, 513, 8, 8, 96, {}},
      {"cuda_sm90_fwd", DType::f16, 2, 1100, 16, 16, 80, {}},
      {"cuda_sm90_fwd", DType::bf16, 1, 2100, 16, 8, 96, causal},
      {"cuda_sm90_fwd", DType::f16, 1, 900, 16, 16, 112, causal},
      {"cuda_sm90_fwd", DType::bf16, 2, 1500, 16, 4, 128, causal},
      {"cuda_sm90_fwd", DType::f16, 2, 640, 8, 2, 128, {}},
      // Many tiles per CTA, the last of each sequence with one row: finds a Q released early.
      {"cuda_sm90_fwd", DType::bf16, 60, 257, 4, 4, 128, causal},
      {"cuda_sm90_fwd", DType::f16, 60, 257, 4, 4, 112, causal},
      {"cuda_sm90_fwd", DType::bf16, 1, 1200, 16, 16, 192, causal},
      {"cuda_sm90_fwd", DType::bf16, 2, 1100, 10, 10, 256, causal},
      {"cuda_sm90_fwd",
       DType::bf16,
       2,
       600,
       8,
       8,
       128,
       {.softcap = 30, .causal = Causal::bottom_right}},
      // Items of work: single splits, runs of one group, runs of whole heads.
      {"cuda_sm90_decode", DType::bf16, 1, 1000, 32, 8, 128, causal, 1},
      {"cuda_sm90_decode", DType::f16, 2, 5000, 16, 8, 64, causal, 4},
      {"cuda_sm90_decode", DType::bf16, 100, 1030, 16, 4, 128, causal, 4},
      {"cuda_sm90_decode", DType::f16, 40, 600, 8, 8, 128, {.window_left = 300}, 16},
      {"cuda_sm90_decode", DType::bf16, 1, 70000, 8, 1, 128, {}, 1},
      {"cuda_sm80_fwd", DType::f32, 1, 400, 6, 2, 64, causal},
      {"cuda_sm80_fwd", DType::bf16, 1, 1, 4, 4, 100, {.num_splits = 4}},
      {"cuda_simple", DType::bf16, 1, 90, 2, 1, 320, causal},
  };
}

// A shape on the device with its own plan and workspace.
class Call {
 public:
  explicit Call(const Shape& s)
      : shape_(s),
        q_(numbers(s.dtype, s.batch * queries() * s.heads * s.dim, 1)),
        k_(numbers(s.dtype, s.batch * s.seqlen * s.kv_heads * s.dim, 2)),
        v_(numbers(s.dtype, s.batch * s.seqlen * s.kv_heads * s.dim, 3)),
        out_(numbers(s.dtype, s.batch * queries() * s.heads * s.dim, 4)),
        plan_(plan_attention(Problem(tensors(), s.options), cuda_info(0))),
        workspace_(std::vector<unsigned char>(plan_.workspace_bytes() + 1)) {}

  const Plan& plan() const { return plan_; }
  void poison(cudaStream_t stream) {
    HEADRACE_EXPECT_CUDA(cudaMemsetAsync(out_.data(), 0xFF, num_bytes(), stream));
  }
  void run(cudaStream_t stream) {
    poison(stream);
    plan_.run(tensors(), {workspace_.data(), plan_.workspace_bytes()}, {}, stream);
  }
  std::vector<unsigned char> result(cudaStream_t stream) const {
    HEADRACE_EXPECT_CUDA(cudaStreamSynchronize(stream));
    return out_.read();
  }
  TunedCall tune(const TuneOptions& options) const {
    return Tuning(cuda_info(0)).tune(plan_, tensors(), options);
  }

 private:
  std::int64_t queries() const { return shape_.seqlen_q > 0 ? shape_.seqlen_q : shape_.seqlen; }
  std::size_t num_bytes() const {
    return static_cast<std::size_t>(shape_.batch * queries() * shape_.heads * shape_.dim) *
           bytes_of(shape_.dtype);
  }
  TensorView view(void* data, std::int64_t seqlen, std::int64_t heads) const {
    TensorView x(data, shape_.dtype, {shape_.batch, seqlen, heads, shape_.dim});
    x.device_type = HEADRACE_CUDA;
    return x;
  }
  AttentionTensors tensors() const {
    return {.q = view(q_.data(), queries(), shape_.heads),
            .k = view(k_.data(), shape_.seqlen, shape_.kv_heads),
            .v = view(v_.data(), shape_.seqlen, shape_.kv_heads),
            .out = view(out_.data(), queries(), shape_.heads)};
  }

  Shape shape_;
  OnDevice<unsigned char> q_, k_, v_, out_;
  Plan plan_;
  OnDevice<unsigned char> workspace_;
};

class Repeats : public ::testing::TestWithParam<Shape> {
 protected:
  void SetUp() override { HEADRACE_NEEDS_GPU(90); }
};

TEST_P(Repeats, AThousandRunsGiveTheSameBits) {
  Call call(GetParam());
  EXPECT_STREQ(call.plan().kernel(), GetParam().kernel) << call.plan().explain();
  expect_same_bits(call, 1000);
}

TEST_P(Repeats, AGraphReplaysTheSameBits) {
  Call call(GetParam());
  expect_graph_replays(call);
}

TEST_P(Repeats, TunedChoicesGiveTheSameBits) {
  Call call(GetParam());
  expect_tuning_keeps_bits(call);
}

TEST_P(Repeats, TwoStreamsDoNotDisturbEachOther) {
  Call one(GetParam()), other(GetParam());
  expect_streams_apart(one, other);
}

INSTANTIATE_TEST_SUITE_P(Kernels, Repeats, ::testing::ValuesIn(shapes()),
                         [](const auto& test) { return "Shape" + std::to_string(test.index); });

}  // namespace
}  // namespace headrace::testing
