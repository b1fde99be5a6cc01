#include "executor/kernel_names.h"

#include <gtest/gtest.h>

#include "executor/common.h"

namespace headrace {
namespace {

DeviceInfo device(const char* text) { return device_from_text(text).value(); }

TEST(KernelNames, OfProductsOnAGpuFollowTheTokens) {
  const std::pair<std::int64_t, const char*> names[] = {
      {1, "cuda_sm90_gemm_stream"}, {16, "cuda_sm90_gemm_stream"}, {17, "cuda_sm90_gemm_wide"},
      {128, "cuda_sm90_gemm_wide"}, {129, "cuda_sm90_gemm_tiles"}, {8192, "cuda_sm90_gemm_tiles"}};
  for (const auto& [num_tokens, name] : names) {
    const auto kernel = [&](const char* gpu, MatmulMode mode, bool has_bias) {
      return product_kernel(device(gpu), mode, WeightType::bf16, num_tokens, has_bias);
    };
    EXPECT_EQ(kernel("sm90:132", MatmulMode::normal, false), name);
    EXPECT_EQ(kernel("sm80:108", MatmulMode::normal, false), "cuda_gemm_portable");
    // The fast mode has another kernel for many tokens, which adds no bias and has no SwiGLU.
    const bool is_other = num_tokens > 128;
    EXPECT_EQ(kernel("sm90:132", MatmulMode::fast, false), is_other ? "cublaslt" : name);
    EXPECT_EQ(kernel("sm90:132", MatmulMode::fast, true), name);
    EXPECT_EQ(has_swiglu(device("sm90:132"), MatmulMode::fast, num_tokens, false), !is_other);
    EXPECT_TRUE(has_swiglu(device("sm90:132"), MatmulMode::fast, num_tokens, true));
    EXPECT_TRUE(has_swiglu(device("sm90:132"), MatmulMode::normal, num_tokens, false));
    EXPECT_FALSE(has_swiglu(device("cpu"), MatmulMode::normal, num_tokens, false));
  }
}

// Every CTA keeps the rows that it normalises: 4096 columns of one token, fewer of more.
TEST(KernelNames, ProductsOfFewTokensOnHopperHaveANorm) {
  const auto has = [](const char* text, std::int64_t num_tokens, std::int64_t columns) {
    return has_norm(device(text), num_tokens, columns);
  };
  EXPECT_TRUE(has("sm90:132", 1, 4096));
  EXPECT_FALSE(has("sm90:132", 1, 4104));
  EXPECT_FALSE(has("sm90:132", 2, 4096));
  EXPECT_TRUE(has("sm90:132", 6, 576));
  EXPECT_FALSE(has("sm90:132", 7, 576));
  EXPECT_TRUE(has("sm90:132", 8, 512));
  EXPECT_FALSE(has("sm90:132", 9, 64));
  EXPECT_FALSE(has("sm80:108", 1, 576));
  EXPECT_FALSE(has("cpu", 1, 576));
}

// Of a cache in the format of products, whose heads rotate as a whole.
TEST(KernelNames, ProductsOfFewTokensOnHopperAppend) {
  const KvShape good{1, 2, 128, 128, DType::bf16};
  const auto has = [](const char* text, std::int64_t num_tokens, const KvShape& kv,
                      std::int64_t rot_dim) {
    return has_append(device(text), num_tokens, kv, rot_dim);
  };
  EXPECT_TRUE(has("sm90:132", 1, good, 128));
  EXPECT_TRUE(has("sm90:132", 16, good, 128));
  EXPECT_FALSE(has("sm90:132", 17, good, 128));
  EXPECT_FALSE(has("sm90:132", 1, good, 64));
  EXPECT_FALSE(has("sm80:108", 1, good, 128));
  EXPECT_FALSE(has("cpu", 1, good, 128));
  EXPECT_FALSE(has("sm90:132", 1, {1, 2, 128, 128, DType::f16}, 128));
  EXPECT_FALSE(has("sm90:132", 1, {1, 2, 128, 128, DType::bf16, DType::i8}, 128));
  EXPECT_FALSE(has("sm90:132", 1, {1, 2, 128, 64, DType::bf16}, 128));
  EXPECT_FALSE(has("sm90:132", 1, {1, 2, 72, 72, DType::bf16}, 72));
}

TEST(KernelNames, OfACpuHaveItsInstructionSet) {
  const auto product = [](const char* text, WeightType type, MatmulMode mode = MatmulMode::normal) {
    return product_kernel(device(text), mode, type, 1, false);
  };
  EXPECT_EQ(product("cpu:scalar", WeightType::q8_0), "cpu_scalar_gemm");
#if defined(__x86_64__)
  EXPECT_EQ(product("cpu:avx2", WeightType::q8_0), "cpu_avx2_gemm");
  EXPECT_EQ(product("cpu:avx512_vnni", WeightType::bf16), "cpu_avx512vnni_gemm");
  // bf16 dot products take bf16 weights alone.
  EXPECT_EQ(product("cpu:avx512_bf16", WeightType::bf16), "cpu_avx512bf16_gemm");
  EXPECT_EQ(product("cpu:avx512_bf16", WeightType::q4_0), "cpu_avx512vnni_gemm");
  EXPECT_EQ(product("cpu:avx512_bf16", WeightType::bf16, MatmulMode::exact), "cpu_avx512vnni_gemm");
  EXPECT_EQ(elementwise_kernel(device("cpu:avx2"), "rms_norm"), "cpu_avx2_rms_norm");
#endif
  EXPECT_EQ(elementwise_kernel(device("cpu:scalar"), "swiglu"), "cpu_scalar_swiglu");
  EXPECT_EQ(elementwise_kernel(device("sm90:132"), "rms_norm"), "cuda_rms_norm");
}

TEST(KernelNames, AGpuSplitsTheKeysOfFewRows) {
  for (const std::int64_t rows : {1, 16, 17, 4096}) {
    EXPECT_EQ(num_splits_of(device("cpu"), rows), 0) << rows;
    EXPECT_EQ(num_splits_of(device("sm90:132"), rows), rows > 16 ? 1 : 0) << rows;
  }
}

}  // namespace
}  // namespace headrace
