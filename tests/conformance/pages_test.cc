// Keys in pages: every kernel that reads them gives the bits of the same keys in one tensor.
#include "support/pages.h"

#include <gtest/gtest.h>

#include <vector>

#include "conformance/plain_call.h"
#include "support/built_dtypes.h"

namespace headrace::testing {
namespace {

constexpr std::int64_t kDim = 20;

// Sequences of these many keys: nothing, and both sides of pages, tiles and splits.
const std::vector<std::int32_t> kKeys = {0, 1, 15, 16, 17, 63, 64, 65, 511, 512, 513, 4097};

std::vector<std::int32_t> prefix_sums(const std::vector<std::int32_t>& lengths) {
  std::vector<std::int32_t> sums = {0};
  for (const std::int32_t length : lengths) sums.push_back(sums.back() + length);
  return sums;
}

// A batch of all lengths, the same number of queries each.
void expect_bits_of_contiguous(const Target& target, DType dtype, std::int64_t queries,
                               std::int64_t heads, std::int64_t kv_heads, Random& random) {
  const auto batch = static_cast<std::int64_t>(kKeys.size());
  std::vector<std::int32_t> sums_q =
      prefix_sums(std::vector(kKeys.size(), static_cast<std::int32_t>(queries)));
  std::vector<std::int32_t> sums_k = prefix_sums(kKeys);
  PlainTensor q(dtype, {sums_q.back(), heads, kDim}, &random);
  PlainTensor k(dtype, {sums_k.back(), kv_heads, kDim}, &random);
  PlainTensor v(dtype, {sums_k.back(), kv_heads, kDim}, &random);
  PlainTensor expected(dtype, {sums_q.back(), heads, kDim}), got = expected;
  headrace_attention_tensors tensors{};
  tensors.struct_size = sizeof tensors;
  tensors.q = q.view;
  tensors.k = k.view;
  tensors.v = v.view;
  tensors.out = expected.view;
  tensors.cu_seqlens_q = TensorView(sums_q.data(), DType::i32, {batch + 1});
  tensors.cu_seqlens_k = TensorView(sums_k.data(), DType::i32, {batch + 1});
  headrace_attention_options options = default_options();
  options.causal = HEADRACE_CAUSAL_BOTTOM_RIGHT;
  options.max_seqlen_q = queries;
  options.max_seqlen_k = kKeys.back();
  ASSERT_EQ(run_on(target, tensors, options), "");
  for (const std::int64_t page_size : {1, 3, 16, 64, 256}) {
    for (const auto& [is_head_major, has_indptr] :
         {std::pair{false, false}, {true, false}, {false, true}}) {
      SCOPED_TRACE(format_text("pages of {}, {} {}", page_size, is_head_major, has_indptr));
      PagedCall call = in_pages(tensors, options, kKeys, {page_size, is_head_major, has_indptr},
                                Guard::after, random);
      got.bytes.assign(got.bytes.size(), kSentinelByte);
      call.tensors.out.data = got.bytes.data();
      EXPECT_EQ(run_on(target, call.tensors, call.options), "");
      EXPECT_EQ(got.bytes, expected.bytes);
      // Dense queries have the same bits.
      call.tensors.cu_seqlens_q = headrace_tensor{};
      call.tensors.q = TensorView(q.bytes.data(), dtype, {batch, queries, heads, kDim});
      call.tensors.out = TensorView(got.bytes.data(), dtype, {batch, queries, heads, kDim});
      call.options.max_seqlen_q = 0;
      got.bytes.assign(got.bytes.size(), kSentinelByte);
      EXPECT_EQ(run_on(target, call.tensors, call.options), "");
      EXPECT_EQ(got.bytes, expected.bytes) << "dense";
    }
  }
}

TEST(Pages, BitsOfContiguousKeys) {
  constexpr std::pair<std::int64_t, std::int64_t> kHeads[] = {{2, 2}, {4, 2}, {3, 1}};
  for (const Target& target : targets()) {
    if (target.kernel->name == "cpu_reference" || is_on_gpu(target)) continue;
    Random random(7);
    int i = 0;
    for (const DType dtype : built_dtypes()) {
      for (const std::int64_t queries : {1, 6, 20, 70}) {
        if (target.kernel->name == "cpu_avx512bf16_fwd" && dtype != DType::bf16) continue;
        const auto& [heads, kv_heads] = kHeads[i++ % 3];
        SCOPED_TRACE(format_text("{} {} queries {} heads {}", target.kernel->name, queries, heads,
                                 dtype_name(dtype)));
        expect_bits_of_contiguous(target, dtype, queries, heads, kv_heads, random);
      }
    }
  }
}

}  // namespace
}  // namespace headrace::testing
