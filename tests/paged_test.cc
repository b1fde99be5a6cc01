// Attention over keys in pages, through the public API.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "headrace/headrace.hpp"

namespace {

using namespace headrace;

// Without seqused_k a call sees all keys; without block_table, the batch is another.
TEST(Paged, OlderStructs) {
  std::vector<float> in(256);
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(i * 37 % 101) / 50 - 1;
  std::vector<std::int32_t> pages = {1, 0}, used = {3};
  const auto outcome = [&](std::size_t size, bool is_paged) {
    std::vector<float> out(64, 0.25f);
    headrace_attention_tensors full, made;
    std::memset(static_cast<void*>(&made), 0xEE, sizeof made);  // behind the older struct
    headrace_attention_tensors_init(&full);
    full.q = TensorView(in.data(), DType::f32, {1, 4, 2, 8});
    full.k = full.v = TensorView(in.data(), DType::f32, {is_paged ? 2 : 1, is_paged ? 2 : 4, 2, 8});
    full.out = TensorView(out.data(), DType::f32, {1, 4, 2, 8});
    if (is_paged) full.block_table = TensorView(pages.data(), DType::i32, {1, 2});
    full.seqused_k = TensorView(used.data(), DType::i32, {1});
    full.struct_size = size;
    std::memcpy(&made, &full, size);
    const headrace_status status = headrace_attention_forward(&made, nullptr, nullptr, 0, nullptr);
    if (status != HEADRACE_OK) return std::string(headrace_last_error());
    return std::string(reinterpret_cast<const char*>(out.data()), out.size() * sizeof(float));
  };
  const std::size_t all = sizeof(headrace_attention_tensors);
  const std::size_t no_used = offsetof(headrace_attention_tensors, seqused_k);
  const std::size_t no_pages = offsetof(headrace_attention_tensors, block_table);
  EXPECT_NE(outcome(all, false), outcome(no_used, false));
  EXPECT_EQ(outcome(no_used, false), outcome(no_pages, false));
  EXPECT_EQ(outcome(all, true).size(), 64 * sizeof(float)) << outcome(all, true);
  EXPECT_NE(outcome(no_used, true).find("seqused_k: not given"), std::string::npos);
  EXPECT_NE(outcome(no_pages, true).find("k.shape[0]=2"), std::string::npos);
}

}  // namespace
