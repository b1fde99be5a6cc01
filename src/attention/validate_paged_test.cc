// Keys in pages and batches with seqused_k: what is accepted, and an error for every broken rule.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/support/bad_call.h"

namespace headrace {
namespace {

constexpr std::int64_t kNumPages = 6, kPageSize = 4, kMaxPages = 3;

Call paged() {
  Call c = Call::dense();
  c.t.k = c.fresh(DType::f32, {kNumPages, kPageSize, kKvHeads, kDim});
  c.t.v = c.fresh(DType::f32, {kNumPages, kPageSize, kKvHeads, kDimV});
  c.t.block_table = c.fresh(DType::i32, {kBatch, kMaxPages});
  c.t.seqused_k = c.fresh(DType::i32, {kBatch});
  // Entries beyond the used pages hold anything.
  Call::set_lengths(c.t.block_table, {5, 2, -7, 0, INT32_MAX, INT32_MAX});
  Call::set_lengths(c.t.seqused_k, {8, 3});
  return c;
}
Call paged_ragged() {
  Call c = paged();
  c.t.q = c.fresh(DType::f32, {7, kHeads, kDim});
  c.t.out = c.fresh(DType::f32, {7, kHeads, kDimV});
  c.t.cu_seqlens_q = c.fresh(DType::i32, {kBatch + 1});
  Call::set_lengths(c.t.cu_seqlens_q, {0, 2, 7});
  c.o.max_seqlen_q = 5;
  return c;
}
Call with_used() {
  Call c = Call::dense();
  c.t.seqused_k = c.fresh(DType::i32, {kBatch});
  Call::set_lengths(c.t.seqused_k, {0, kSeqlenK});
  return c;
}

TEST(ValidatePaged, ReadsSizesFromPages) {
  const Call c = paged();
  const Result<Problem> p = validate(c.t, c.o);
  ASSERT_TRUE(p.ok()) << p.failure().message;
  EXPECT_EQ(p.value().page_size, kPageSize);
  EXPECT_EQ(p.value().num_pages, kNumPages);
  EXPECT_EQ(p.value().max_pages, kMaxPages);
  EXPECT_EQ(p.value().seqlen_k, kPageSize * kMaxPages);
  EXPECT_EQ(p.value().num_kv_heads, kKvHeads);
  EXPECT_EQ(p.value().batch, kBatch);
  EXPECT_FALSE(c.check()) << c.check()->message;
}

TEST(ValidatePaged, TakesRaggedQueries) {
  Call c = paged_ragged();
  EXPECT_FALSE(c.check()) << c.check()->message;
  const Result<Problem> p = validate(c.t, c.o);
  EXPECT_EQ(p.value().total_q, 7);
  EXPECT_EQ(p.value().total_k, 0);
  EXPECT_EQ(p.value().seqlen_q, 5);
}

TEST(ValidatePaged, BoundOfLengthsIsTheSmallerOne) {
  Call c = paged();
  c.o.max_seqlen_k = 9;
  EXPECT_EQ(validate(c.t, c.o).value().seqlen_k, 9);
  c.o.max_seqlen_k = 100;
  EXPECT_EQ(validate(c.t, c.o).value().seqlen_k, kPageSize * kMaxPages);
}

TEST(ValidatePaged, UsedKeysOfDenseAndRaggedBatches) {
  EXPECT_FALSE(with_used().check());
  Call c = Call::ragged();
  c.t.seqused_k = c.fresh(DType::i32, {3});
  Call::set_lengths(c.t.seqused_k, {5, 0, 1});
  EXPECT_FALSE(c.check());
  Call::set_lengths(c.t.seqused_k, {6, 0, 1});  // of 5 rows
  ASSERT_TRUE(c.check());
  EXPECT_NE(c.check()->message.find("seqused_k[0]=6: must be 0 to 5"), std::string::npos)
      << c.check()->message;
}

// Moves a list, or the rows of a table, apart; what lies between them is no length and no page.
void spread(Call& c, headrace_tensor& x) {
  const bool is_table = x.rank == 2;
  const std::int64_t width = is_table ? x.shape[1] : 1, stride = width + 2;
  const TensorView wide = c.fresh(DType::i32, {x.shape[0] * stride});
  auto* to = static_cast<std::int32_t*>(wide.data);
  std::fill_n(to, x.shape[0] * stride, -9);
  for (std::int64_t i = 0; i < x.shape[0]; ++i)
    std::copy_n(static_cast<const std::int32_t*>(x.data) + i * width, width, to + i * stride);
  x.data = wide.data;
  x.strides[0] = stride;
}

TEST(ValidatePaged, LengthsAndTablesMayHaveStrides) {
  for (Call (*make)() : {paged, paged_ragged, with_used}) {
    Call c = make();
    spread(c, c.t.seqused_k);
    if (c.t.block_table.rank != 0) spread(c, c.t.block_table);
    ASSERT_FALSE(c.check()) << c.check()->message;
    auto* used = static_cast<std::int32_t*>(c.t.seqused_k.data);
    used[c.t.seqused_k.strides[0]] = 13;
    ASSERT_TRUE(c.check());
    EXPECT_EQ(c.check()->message.find("seqused_k[1]=13: must be 0 to "), 0u) << c.check()->message;
    if (c.t.block_table.rank == 0) continue;
    used[c.t.seqused_k.strides[0]] = 5;
    ASSERT_TRUE(c.check());
    EXPECT_EQ(c.check()->message.find("block_table[1, 1]=2147483647: must be 0 to 5"), 0u)
        << c.check()->message;
  }
}

std::vector<BadCall> bad_pages() {
  return {
      {paged,
       [](Call& c) { c.t.seqused_k = {}; },
       {"seqused_k: not given, but block_table is", "pass i32 [batch]"}},
      {paged,
       [](Call& c) { c.t.seqused_k.dtype = HEADRACE_U32; },
       {"seqused_k.dtype=u32", "must be i32", "convert seqused_k"}},
      {paged,
       [](Call& c) { c.t.seqused_k.shape[0] = 1; },
       {"seqused_k.shape[0]=1", "must equal batch=2"}},
      {paged, [](Call& c) { c.t.block_table.rank = 1; }, {"block_table.rank=1", "must be 2"}},
      {paged,
       [](Call& c) { c.t.block_table.dtype = HEADRACE_F32; },
       {"block_table.dtype=f32", "must be i32", "convert block_table"}},
      {paged,
       [](Call& c) { c.t.block_table.shape[0] = 1; },
       {"block_table.shape[0]=1", "must equal batch=2"}},
      {paged, [](Call& c) { c.t.block_table.strides[1] = 2; }, {"block_table", "stride"}},
      {paged, [](Call& c) { c.t.k.rank = 3; }, {"k.rank=3", "must be 4", "num_pages, page_size"}},
      {paged,
       [](Call& c) { c.t.k.shape[1] = c.t.v.shape[1] = 0; },
       {"k.shape[1]=0", "page size must be at least 1"}},
      {paged, [](Call& c) { c.t.v.shape[1] = 3; }, {"v.shape[1]=3", "must equal page_size=4 of k"}},
      {paged, [](Call& c) { c.t.v.shape[0] = 5; }, {"v.shape[0]=5", "must equal num_pages=6 of k"}},
      {paged, [](Call& c) { c.o.max_seqlen_k = -1; }, {"seqlen_k=-1", "must be 0 to"}},
      {paged,
       [](Call& c) {
         Call::set_lengths(c.t.seqused_k, {13, 3});
       },
       {"seqused_k[0]=13", "must be 0 to 12", "pass the number of its keys"}},
      {paged,
       [](Call& c) {
         Call::set_lengths(c.t.seqused_k, {8, -1});
       },
       {"seqused_k[1]=-1", "must be 0 to 12"}},
      {paged,
       [](Call& c) {
         Call::set_lengths(c.t.seqused_k, {9, 3});
       },
       {"block_table[0, 2]=-7", "must be 0 to 5", "seqused_k[0]=9 uses it"}},
      {paged,
       [](Call& c) {
         Call::set_lengths(c.t.block_table, {5, 6, 0, 0, 0, 0});
       },
       {"block_table[0, 1]=6", "must be 0 to 5", "pass the page that holds keys 4"}},
      {paged,
       [](Call& c) {
         c.t.probs = c.fresh(DType::f32, {kBatch, kHeads, kSeqlenQ, 12});
       },
       {"probs given for a batch with seqused_k", "call without probs"}},
      {paged,
       [](Call& c) {
         c.t.out = TensorView(c.t.k.data, DType::f32, {kBatch, kSeqlenQ, kHeads, kDimV});
       },
       {"out overlaps k", "must share no memory"}},
      {paged_ragged,
       [](Call& c) { c.t.cu_seqlens_k = c.t.cu_seqlens_q; },
       {"cu_seqlens_k: given with block_table", "pass their number in seqused_k"}},
      {paged_ragged,
       [](Call& c) { c.t.block_table.shape[0] = 3; },
       {"block_table.shape[0]=3", "must equal batch=2"}},
      {with_used,
       [](Call& c) {
         Call::set_lengths(c.t.seqused_k, {0, kSeqlenK + 1});
       },
       {"seqused_k[1]=8", "must be 0 to 7"}},
      {paged,
       [](Call& c) {
         c.t.tree_mask = c.fresh(DType::u32, {kBatch, kSeqlenQ, 1});
       },
       {"tree_mask with sequence 1", "seqlen_q=5", "seqlen_k=3"}},
  };
}

TEST(ValidatePaged, RefusesBadPages) { expect_refusals(bad_pages()); }

// A plan does not depend on what lies beyond the longest sequence.
TEST(ValidatePaged, ASharedPrefixIsAtMostAllKeys) {
  for (const std::int64_t max_seqlen_k : {12, 7}) {
    Call c = paged();
    c.o.max_seqlen_k = max_seqlen_k;
    for (const std::int64_t max_shared : {0, 5, 7, 12, 1000}) {
      c.o.max_shared_prefix = max_shared;
      EXPECT_EQ(validate(c.t, c.o).value().max_shared_prefix, std::min(max_shared, max_seqlen_k));
    }
  }
}

TEST(ValidatePaged, ProblemsMadeByHand) {
  testing::GoldenTexts texts("attention.txt");
  const Call c = paged();
  const Problem good = validate(c.t, c.o).value();
  const struct {
    std::function<void(Problem&)> mutate;
    const char* text;
  } cases[] = {
      {[](Problem& p) { p.has_seqused_k = 0; }, "has_seqused_k=0"},
      {[](Problem& p) { p.total_k = 3; }, "total_k=3"},
      {[](Problem& p) { p.page_size = 0; }, "num_pages=6"},
      {[](Problem& p) { p.page_size = -4; }, "problem.page_size=-4"},
      {[](Problem& p) { p.max_shared_prefix = -1; }, "problem.max_shared_prefix=-1: must be 0 to"},
      {[](Problem& p) {
         p.page_size = p.num_pages = p.max_pages = 0;
         p.max_shared_prefix = 512;
       },
       "max_shared_prefix=512: must be 0 without block_table"},
      {[](Problem& p) { p.seqlen_k = 13; }, "problem.seqlen_k=13: must be at most max_pages=3"},
      {[](Problem& p) {
         p.phase = HEADRACE_BACKWARD;
         p.has_lse = 1;
       },
       "problem.has_seqused_k=1: needs phase 0"},
  };
  for (const auto& [mutate, text] : cases) {
    Problem p = good;
    mutate(p);
    const Result<Problem> checked = check_problem(p);
    ASSERT_FALSE(checked.ok()) << text;
    texts.add(static_cast<int>(checked.failure().code), checked.failure().message);
    EXPECT_NE(checked.failure().message.find(text), std::string::npos) << checked.failure().message;
  }
}

}  // namespace
}  // namespace headrace
