// The decode kernel: what it takes and refuses, and that the bits of a row depend on the keys that
// it sees and on nothing else. Plans for GPUs with another number of multiprocessors take other
// items of work on the GPU that is there.
#include <algorithm>
#include <string>

#include "cuda/repeat.h"

namespace headrace::testing {
namespace {

constexpr const char* kName = "cuda_sm90_decode";

struct Sizes {
  std::int64_t batch, seqlen_q, seqlen_k, heads, kv_heads, dim;
  DType dtype = DType::bf16;
};

// q, k and v on the device, with the same numbers for the same seed.
class Inputs {
 public:
  explicit Inputs(const Sizes& s)
      : sizes(s),
        q_(numbers(s.dtype, s.batch * s.seqlen_q * s.heads * s.dim, 1)),
        k_(numbers(s.dtype, s.batch * s.seqlen_k * s.kv_heads * s.dim, 2)),
        v_(numbers(s.dtype, s.batch * s.seqlen_k * s.kv_heads * s.dim, 3)) {}

  // Of some batch entries and queries, and the first keys; without out and lse.
  AttentionTensors part(std::int64_t entry, std::int64_t num_entries, std::int64_t query,
                        std::int64_t num_queries, std::int64_t num_keys) const {
    const auto cut = [&](const OnDevice<unsigned char>& x, std::int64_t rows, std::int64_t heads,
                         std::int64_t first, std::int64_t count) {
      TensorView whole(x.data(), sizes.dtype, {sizes.batch, rows, heads, sizes.dim});
      whole.device_type = HEADRACE_CUDA;
      return *whole.slice(0, entry, entry + num_entries)->slice(1, first, first + count);
    };
    return {.q = cut(q_, sizes.seqlen_q, sizes.heads, query, num_queries),
            .k = cut(k_, sizes.seqlen_k, sizes.kv_heads, 0, num_keys),
            .v = cut(v_, sizes.seqlen_k, sizes.kv_heads, 0, num_keys)};
  }
  AttentionTensors all() const { return part(0, sizes.batch, 0, sizes.seqlen_q, sizes.seqlen_k); }

  const Sizes sizes;

 private:
  OnDevice<unsigned char> q_, k_, v_;
};

// Rows of out and of the lse, [batch][queries][heads] each.
struct Bits {
  std::vector<unsigned char> out;
  std::vector<float> lse;
  friend bool operator==(const Bits&, const Bits&) = default;
};

// A call with memory of its own for out, lse and the workspace.
class Call {
 public:
  // `num_units`: of the GPU that the plan is made for; 0: of this one.
  Call(AttentionTensors t, const AttentionOptions& options, std::uint32_t num_units = 0)
      : dtype_(static_cast<DType>(t.q.dtype)),
        num_rows_(t.q.shape[0] * t.q.shape[1] * t.q.shape[2]),
        out_(std::vector<unsigned char>(
            static_cast<std::size_t>(num_rows_ * t.q.shape[3]) * bytes_of(dtype_), 0xFF)),
        lse_(std::vector<float>(static_cast<std::size_t>(num_rows_), -1)),
        tensors_(with_outputs(t)),
        plan_(plan_attention(Problem(tensors_, options), device_with(num_units))),
        workspace_(std::vector<unsigned char>(plan_.workspace_bytes() + 1, 0xFF)) {
    EXPECT_STREQ(plan_.kernel(), kName) << plan_.explain();
  }
  void run(cudaStream_t stream) const {
    plan_.run(tensors_, {workspace_.data(), plan_.workspace_bytes()}, {}, stream);
  }
  Bits result(cudaStream_t stream) const {
    HEADRACE_EXPECT_CUDA(cudaStreamSynchronize(stream));
    return {out_.read(), lse_.read()};
  }
  void poison(cudaStream_t stream) const {
    const auto rows = static_cast<std::size_t>(num_rows_);
    const std::size_t row_bytes = static_cast<std::size_t>(tensors_.q.shape[3]) * bytes_of(dtype_);
    HEADRACE_EXPECT_CUDA(cudaMemsetAsync(lse_.data(), 0xFF, rows * sizeof(float), stream));
    HEADRACE_EXPECT_CUDA(cudaMemsetAsync(out_.data(), 0xFF, rows * row_bytes, stream));
  }
  TunedCall tune(const TuneOptions& options) const {
    return Tuning(cuda_info(0)).tune(plan_, tensors_, options);
  }

 private:
  AttentionTensors with_outputs(AttentionTensors t) const {
    const auto& shape = t.q.shape;
    t.out = TensorView(out_.data(), dtype_, {shape[0], shape[1], shape[2], shape[3]});
    t.lse = TensorView(lse_.data(), DType::f32, {shape[0], shape[1], shape[2]});
    t.lse = *t.lse.permute({0, 2, 1});
    t.out.device_type = t.lse.device_type = HEADRACE_CUDA;
    return t;
  }
  static DeviceInfo device_with(std::uint32_t num_units) {
    DeviceInfo device = cuda_info(0);
    if (num_units > 0) device.num_units = num_units;
    return device;
  }

  const DType dtype_;
  const std::int64_t num_rows_;
  OnDevice<unsigned char> out_;
  OnDevice<float> lse_;
  const AttentionTensors tensors_;
  const Plan plan_;
  OnDevice<unsigned char> workspace_;
};

Bits run(const AttentionTensors& t, const AttentionOptions& options, std::uint32_t num_units = 0) {
  const Call call(t, options, num_units);
  call.run(nullptr);
  return call.result(nullptr);
}

// Of entry b and query i, out of [batch][queries][heads] rows.
Bits rows_of(const Bits& all, const Sizes& s, std::int64_t b, std::int64_t i,
             std::int64_t num_queries) {
  const std::int64_t first = (b * s.seqlen_q + i) * s.heads, count = num_queries * s.heads;
  const auto bytes = s.dim * static_cast<std::int64_t>(bytes_of(s.dtype));
  return {{all.out.begin() + first * bytes, all.out.begin() + (first + count) * bytes},
          {all.lse.begin() + first, all.lse.begin() + first + count}};
}

// Lengths around blocks, splits, groups and chunks; 1 to 16 rows.
const Sizes kSizes[] = {
    {1, 1, 1, 4, 1, 128},     {2, 1, 15, 8, 2, 64},    {1, 1, 63, 4, 4, 128},
    {3, 1, 64, 16, 1, 128},   {1, 2, 65, 8, 2, 64},    {2, 4, 511, 8, 2, 128},
    {1, 1, 512, 32, 8, 128},  {3, 2, 513, 6, 2, 96},   {1, 16, 2047, 2, 2, 128},
    {2, 1, 2048, 8, 1, 64},   {1, 4, 2049, 4, 1, 128}, {5, 1, 4097, 4, 2, 128},
    {1, 3, 16385, 4, 1, 128}, {1, 1, 40000, 8, 2, 64}, {7, 8, 1300, 2, 1, 120, DType::f16},
    {1, 1, 16000, 4, 1, 128}, {1, 4, 9000, 8, 2, 64},  {7, 1, 8500, 8, 2, 128},
    {9, 2, 8300, 4, 1, 64},
};

class DecodeBits : public ::testing::TestWithParam<Sizes> {
 protected:
  void SetUp() override { HEADRACE_NEEDS_GPU(90); }
};

TEST_P(DecodeBits, DoNotDependOnTheItemsOfWork) {
  const Inputs inputs(GetParam());
  for (const Causal causal : {Causal::none, Causal::bottom_right, Causal::top_left})
    for (const std::int64_t window : {-1, 0, 70, 600, 9000}) {  // the last: parts of two chunks
      const AttentionOptions options{.causal = causal, .window_left = window};
      const Bits expected = run(inputs.all(), options);
      for (const std::uint32_t num_units : {1, 2, 5, 16, 50, 1024})
        EXPECT_EQ(run(inputs.all(), options, num_units), expected)
            << num_units << " units, causal " << static_cast<int>(causal) << ", window " << window;
    }
}

// Clusters of each size, runs of each length and equal shares, also where the plan takes none of
// them: with a window, they begin anywhere in a chunk.
TEST_P(DecodeBits, TunedChoicesGiveTheSameBits) {
  const Inputs inputs(GetParam());
  for (const std::int64_t window : {-1, 70, 600, 9000}) {
    SCOPED_TRACE("window " + std::to_string(window));
    Call call(inputs.all(), {.causal = Causal::bottom_right, .window_left = window});
    expect_tuning_keeps_bits(call);
  }
}

TEST_P(DecodeBits, AreThoseOfTheSequenceAlone) {
  const Inputs inputs(GetParam());
  const Sizes& s = inputs.sizes;
  const AttentionOptions options{.causal = Causal::bottom_right};
  const Bits all = run(inputs.all(), options);
  for (std::int64_t b = 0; b < s.batch; ++b)
    EXPECT_EQ(run(inputs.part(b, 1, 0, s.seqlen_q, s.seqlen_k), options),
              rows_of(all, s, b, 0, s.seqlen_q))
        << "entry " << b;
}

// As in speculative decoding: a query with keys behind it that it does not see.
TEST_P(DecodeBits, AreThoseOfTheQueryAlone) {
  const Inputs inputs(GetParam());
  const Sizes& s = inputs.sizes;
  for (const std::int64_t window : {-1, 100}) {
    const AttentionOptions options{.causal = Causal::bottom_right, .window_left = window};
    const Bits all = run(inputs.all(), options);
    for (std::int64_t b = 0; b < s.batch; ++b)
      for (std::int64_t i = std::max<std::int64_t>(s.seqlen_q - s.seqlen_k, 0); i < s.seqlen_q; ++i)
        EXPECT_EQ(run(inputs.part(b, 1, i, 1, s.seqlen_k - s.seqlen_q + i + 1), options),
                  rows_of(all, s, b, i, 1))
            << "entry " << b << ", query " << i << ", window " << window;
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, DecodeBits, ::testing::ValuesIn(kSizes),
                         [](const auto& test) { return "Sizes" + std::to_string(test.index); });

// ---- selection: needs no GPU

headrace_problem decode_problem() {
  Problem p;
  p.dtype = HEADRACE_BF16;
  p.batch = 2;
  p.seqlen_q = 1;
  p.seqlen_k = 1000;
  p.num_heads = 8;
  p.num_kv_heads = 2;
  p.head_dim = p.head_dim_v = 128;
  p.has_lse = 1;
  return p;
}

std::string chosen(const headrace_problem& p, const char* device = "sm90:132") {
  DeviceInfo info{};
  info.struct_size = sizeof info;
  check(headrace_device_from_text(device, &info));
  return plan_attention(p, info).kernel();
}

TEST(DecodeSelection, TakesFewRowsWhateverTheBatch) {
  headrace_problem p = decode_problem();
  for (const std::int64_t batch : {1, 64, 100000}) {
    p.batch = batch;
    EXPECT_EQ(chosen(p), kName);
  }
  p.seqlen_q = 4;
  EXPECT_EQ(chosen(p), kName);
  p.seqlen_q = 5;  // 20 rows
  EXPECT_EQ(chosen(p), "cuda_sm90_fwd");
  p = decode_problem();
  EXPECT_EQ(chosen(p, "sm80:108"), "cuda_sm80_fwd");
}

TEST(DecodeSelection, PlansBatchesOfNothing) {
  headrace_problem p = decode_problem();
  p.num_heads = p.num_kv_heads = 0;
  EXPECT_EQ(chosen(p), kName);
  p = decode_problem();
  p.batch = 0;
  EXPECT_EQ(chosen(p), kName);
}

TEST(DecodeSelection, LeavesOtherFeaturesToOtherKernels) {
  const auto with = [](auto change) {
    headrace_problem p = decode_problem();
    change(p);
    return chosen(p);
  };
  EXPECT_EQ(with([](auto& p) { p.softcap = 30; }), "cuda_sm90_fwd");
  EXPECT_EQ(with([](auto& p) { p.has_alibi = 1; }), "cuda_sm90_fwd");
  EXPECT_EQ(with([](auto& p) { p.has_mask = 1; }), "cuda_sm90_fwd");
  EXPECT_EQ(with([](auto& p) { p.dropout_p = 0.5; }), "cuda_sm90_fwd");
  EXPECT_EQ(with([](auto& p) { p.strict_rows = 1; }), "cuda_sm90_fwd");
  EXPECT_EQ(with([](auto& p) { p.head_dim = p.head_dim_v = 256; }), "cuda_sm90_fwd");
  EXPECT_EQ(with([](auto& p) { p.num_splits = 3; }), "cuda_sm80_fwd");
  EXPECT_EQ(with([](auto& p) { p.dtype = HEADRACE_F32; }), "cuda_sm80_fwd");
  EXPECT_EQ(with([](auto& p) { p.alignment = 2; }), "cuda_sm80_fwd");
}

}  // namespace
}  // namespace headrace::testing
