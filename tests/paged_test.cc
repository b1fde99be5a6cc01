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

// The same pages with rows of any length, with a plan that serves tables of several sizes, in
// shuffled order; a struct of a program that has no page_indptr is another call.
TEST(Paged, PageIndptr) {
  std::vector<float> in(512);
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(i * 37 % 101) / 50 - 1;
  std::vector<std::int32_t> table = {7, 0, 3, -1, -1, -1, 2, 4, -1}, used = {11, 0, 6},
                            entries = {-1, 7, 0, 3, 2, 4, -1}, offsets = {1, 4, 4, 6};
  std::vector<float> expected(48, 0.25f), out = expected;
  AttentionTensors t{.q = TensorView(in.data(), DType::f32, {3, 1, 2, 8}),
                     .k = TensorView(in.data(), DType::f32, {8, 4, 2, 8}),
                     .v = TensorView(in.data(), DType::f32, {8, 4, 2, 8}),
                     .out = TensorView(expected.data(), DType::f32, {3, 1, 2, 8})};
  t.block_table = TensorView(table.data(), DType::i32, {3, 3});
  t.seqused_k = TensorView(used.data(), DType::i32, {3});
  attention_forward(t);
  t.out = TensorView(out.data(), DType::f32, {3, 1, 2, 8});
  t.block_table = TensorView(entries.data(), DType::i32, {7});
  t.page_indptr = TensorView(offsets.data(), DType::i32, {4});
  const AttentionOptions options{.max_seqlen_k = 12};
  attention_forward(t, options);
  EXPECT_EQ(out, expected);
  const Plan plan = plan_attention(Problem(t, options), cpu_info());
  std::vector<char> workspace(plan.workspace_bytes());
  for (const std::int64_t num_entries : {6, 7}) {
    out.assign(48, 0.25f);
    t.block_table.shape[0] = num_entries;
    plan.run(t, {workspace.data(), workspace.size()}, {});
    EXPECT_EQ(out, expected);
  }
  headrace_attention_tensors older = t.to_c();
  older.struct_size = offsetof(headrace_attention_tensors, page_indptr);
  EXPECT_EQ(headrace_attention_forward(&older, nullptr, nullptr, 0, nullptr),
            HEADRACE_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(headrace_last_error()).find("block_table.rank=1: must be 2"), 0u)
      << headrace_last_error();
}

}  // namespace
