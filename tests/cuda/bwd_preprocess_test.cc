// Fixed-point scales of dQ on a GPU: max |K| and max |V| over all keys of a head.
#include "backends/cuda/common/bwd_preprocess.h"

#include <cmath>
#include <cstring>

#include "cuda/gpu.h"

namespace headrace::cuda {
namespace {

using headrace::testing::OnDevice;
using Bits = std::uint16_t;  // of a bf16

Bits bf16(float x) {
  std::uint32_t word;
  std::memcpy(&word, &x, sizeof word);
  return static_cast<Bits>(word >> 16);
}

// One query head per KV head. K and V are zero except one element each, in key `key` of the last
// head. dout is 1 and out is 0: sum |dout| is head_dim, D is 0.
std::vector<Bits> scales_of(std::int64_t seqlen_k, std::int64_t key, float of_k, float of_v) {
  constexpr std::int64_t kHeads = 2, kQueries = 128, kDim = 64;
  Problem p{};
  p.dtype = static_cast<std::int32_t>(DType::bf16);
  p.batch = 1;
  p.num_heads = p.num_kv_heads = kHeads;
  p.seqlen_q = kQueries;
  p.seqlen_k = seqlen_k;
  p.head_dim = p.head_dim_v = kDim;
  p.alignment = 16;
  p.softmax_scale = 1;
  const auto count = [](std::int64_t n) { return static_cast<std::size_t>(n); };
  const std::size_t last = count((key * kHeads + 1) * kDim + kDim - 1);  // [key, head, column]
  std::vector<Bits> keys(count(seqlen_k * kHeads * kDim)), values = keys;
  keys[last] = bf16(of_k);
  values[last - 5] = bf16(of_v);
  const std::vector<Bits> rows(count(kQueries * kHeads * kDim));
  const OnDevice<Bits> k(keys), v(values), out(rows), dout(std::vector<Bits>(rows.size(), bf16(1)));
  const OnDevice<float> lse(std::vector<float>(count(kHeads * kQueries))), d(lse.read()),
      scaled_lse(lse.read());
  const OnDevice<Bits> scale(std::vector<Bits>(count(kHeads * kQueries)));
  const OnDevice<KvAbsMax> kv_abs_max(
      std::vector<KvAbsMax>(count(num_kv_abs_max(sizes_of(p))), {NAN, NAN}));
  const OnDevice<std::uint32_t> error_word(std::vector<std::uint32_t>(1));
  AttentionArgs args{};
  const auto operand = [](const OnDevice<Bits>& x) {
    return Operand{.data = x.data(), .stride_seq = kHeads * kDim, .stride_head = kDim};
  };
  args.k = operand(k);
  args.v = operand(v);
  args.out = operand(out);
  args.gradients.dout = operand(dout);
  args.lse = {.data = lse.data(), .stride_head = kQueries, .stride_q = 1};
  const BwdCall c{.problem = p,
                  .args = args,
                  .rows = {.delta = d.data(),
                           .lse = scaled_lse.data(),
                           .dq_accum = nullptr,
                           .dq_accum_cols = kDim,
                           .dq_scale = scale.data()},
                  .lse_scale = 1,
                  .kv_abs_max = kv_abs_max.data(),
                  .error_word = error_word.data()};
  EXPECT_FALSE(launch_kv_abs_max(c, nullptr));
  EXPECT_FALSE(launch_bwd_preprocess(c, nullptr));
  HEADRACE_EXPECT_CUDA(cudaDeviceSynchronize());
  return scale.read();
}

constexpr float kScaleOfZero = 0x1p126f;  // for a bound of zero; its inverse is not subnormal

TEST(FixedPointScales, CoverEveryKeyOfTheHead) {
  HEADRACE_NEEDS_GPU(90);
  for (const std::int64_t seqlen_k : {1, 127, 128, 129, 4096, 4097, 9000})
    for (const std::int64_t key : {std::int64_t{0}, seqlen_k / 2, seqlen_k - 1}) {
      // Bound: 64 * 2 * 4 = 512, plus slack for rounding, is below 2^10.
      const std::vector<Bits> scales = scales_of(seqlen_k, key, -4.0f, 2.0f);
      const std::size_t half = scales.size() / 2;
      for (std::size_t row = 0; row < scales.size(); ++row)
        ASSERT_EQ(scales[row], bf16(row < half ? kScaleOfZero : std::exp2f(kFixedPointBits - 10)))
            << "row " << row << " of " << seqlen_k << " keys, large is key " << key;
    }
}

TEST(FixedPointScales, AreNanIfKOrVHasNanOrInf) {
  HEADRACE_NEEDS_GPU(90);
  for (const float bad : {NAN, INFINITY, -INFINITY})
    for (const bool is_in_v : {false, true}) {
      const std::vector<Bits> scales =
          scales_of(5000, 4999, is_in_v ? 4.0f : bad, is_in_v ? bad : 2.0f);
      EXPECT_EQ(scales.front(), bf16(kScaleOfZero));
      EXPECT_GT(scales.back() & 0x7fff, 0x7f80) << bad;
    }
}

}  // namespace
}  // namespace headrace::cuda
