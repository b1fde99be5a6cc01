// block_table with rows of any length, which page_indptr has: sizes, plans, and an error for every
// broken rule. tests/conformance/pages_test.cc has the bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/support/bad_call.h"

namespace headrace {
namespace {

constexpr std::int64_t kNumPages = 6, kPageSize = 4, kNumEntries = 7, kMaxSeqlenK = 12;

// Pages 5, 2 and 0 of the first sequence, 1 of the second. Entries that are not used hold anything.
Call with_indptr() {
  Call c = Call::dense();
  c.t.k = c.fresh(DType::f32, {kNumPages, kPageSize, kKvHeads, kDim});
  c.t.v = c.fresh(DType::f32, {kNumPages, kPageSize, kKvHeads, kDimV});
  c.t.block_table = c.fresh(DType::i32, {kNumEntries});
  c.t.page_indptr = c.fresh(DType::i32, {kBatch + 1});
  c.t.seqused_k = c.fresh(DType::i32, {kBatch});
  Call::set_lengths(c.t.block_table, {-3, 5, 2, 0, 1, INT32_MAX, -9});
  Call::set_lengths(c.t.page_indptr, {1, 4, 6});
  Call::set_lengths(c.t.seqused_k, {9, 3});
  c.o.max_seqlen_k = kMaxSeqlenK;
  return c;
}
Call without_pages() { return Call::dense(); }
Call ragged_with_indptr() {
  Call c = with_indptr();
  c.t.q = c.fresh(DType::f32, {7, kHeads, kDim});
  c.t.out = c.fresh(DType::f32, {7, kHeads, kDimV});
  c.t.cu_seqlens_q = c.fresh(DType::i32, {kBatch + 1});
  Call::set_lengths(c.t.cu_seqlens_q, {0, 2, 7});
  c.o.max_seqlen_q = 5;
  return c;
}

TEST(PageIndptr, BoundsAreThoseOfMaxSeqlenK) {
  Call c = with_indptr();
  EXPECT_FALSE(c.check()) << c.check()->message;
  const Problem p = validate(c.t, c.o).value();
  EXPECT_EQ(p.page_size, kPageSize);
  EXPECT_EQ(p.num_pages, kNumPages);
  EXPECT_EQ(p.seqlen_k, kMaxSeqlenK);
  EXPECT_EQ(p.max_pages, kMaxSeqlenK / kPageSize);
  c.o.max_seqlen_k = 10;
  EXPECT_EQ(validate(c.t, c.o).value().max_pages, 3);
  // A sequence may have all entries.
  c.o.max_seqlen_k = 0;
  EXPECT_EQ(validate(c.t, c.o).value().max_pages, kNumEntries);
  EXPECT_EQ(validate(c.t, c.o).value().seqlen_k, kNumEntries * kPageSize);
  c.t.block_table.shape[0] = 1 << 30;
  EXPECT_EQ(validate(c.t, c.o).value().max_pages, 1 << 29);
  EXPECT_EQ(validate(c.t, c.o).value().seqlen_k, INT32_MAX);
}

TEST(PageIndptr, TakesRaggedQueries) {
  const Call c = ragged_with_indptr();
  EXPECT_FALSE(c.check()) << c.check()->message;
}

// The number of entries changes from step to step.
TEST(PageIndptr, APlanServesTablesOfAnySize) {
  Call c = with_indptr();
  const Problem planned = validate(c.t, c.o).value();
  c.t.block_table = c.fresh(DType::i32, {500});
  EXPECT_FALSE(check_same_problem(planned, validate(c.t, c.o).value()));
  c.t.block_table.shape[0] = 1;
  EXPECT_FALSE(check_same_problem(planned, validate(c.t, c.o).value()));
}

TEST(PageIndptr, ATableMayBeEmpty) {
  Call c = with_indptr();
  c.t.block_table.shape[0] = 0;
  Call::set_lengths(c.t.page_indptr, {0, 0, 0});
  Call::set_lengths(c.t.seqused_k, {0, 0});
  for (void* data : {c.t.block_table.data, static_cast<void*>(nullptr)}) {
    c.t.block_table.data = data;
    EXPECT_FALSE(c.check()) << c.check()->message;
    const Problem p = validate(c.t, c.o).value();
    EXPECT_NE(make_args(p, c.t, c.o).paged.block_table, nullptr);
    EXPECT_EQ(make_args(p, c.t, c.o).paged.num_entries, 0);
  }
}

std::vector<BadCall> bad_views() {
  return {
      {with_indptr,
       [](Call& c) { c.t.block_table = {}; },
       {"page_indptr: given without block_table", "leave page_indptr out"}},
      {without_pages,
       [](Call& c) { c.t.page_indptr = c.fresh(DType::i32, {kBatch + 1}); },
       {"page_indptr: given without block_table"}},
      {with_indptr,
       [](Call& c) {
         c.t.block_table = c.fresh(DType::i32, {kBatch, 3});
       },
       {"block_table.rank=2", "must be 1", "page_indptr is given"}},
      {with_indptr,
       [](Call& c) { c.t.page_indptr = {}; },
       {"block_table.rank=1", "must be 2", "or [num_entries] with page_indptr"}},
      {with_indptr,
       [](Call& c) { c.t.block_table.strides[0] = 2; },
       {"block_table", "stride", "num_entries"}},
      {with_indptr,
       [](Call& c) { c.t.page_indptr.rank = 2; },
       {"page_indptr.rank=2", "must be 1", "[batch + 1]"}},
      {with_indptr,
       [](Call& c) { c.t.page_indptr.dtype = HEADRACE_I64; },
       {"page_indptr.dtype=i64", "must be i32", "convert page_indptr"}},
      {with_indptr, [](Call& c) { c.t.page_indptr.strides[0] = 2; }, {"page_indptr", "stride"}},
      {with_indptr,
       [](Call& c) { c.t.page_indptr.shape[0] = kBatch; },
       {"page_indptr.shape[0]=2", "must equal batch + 1=3"}},
      {ragged_with_indptr,
       [](Call& c) { c.t.page_indptr.shape[0] = kBatch + 2; },
       {"page_indptr.shape[0]=4", "must equal batch + 1=3"}},
      {with_indptr,
       [](Call& c) { c.t.seqused_k = {}; },
       {"seqused_k: not given, but block_table is"}},
      {with_indptr, [](Call& c) { c.o.max_seqlen_k = -1; }, {"seqlen_k=-1", "must be 0 to"}},
      {with_indptr,
       [](Call& c) { c.t.page_indptr.device_type = HEADRACE_CUDA; },
       {"page_indptr is on cuda:0", "must be on cpu:0"}},
      {with_indptr,
       [](Call& c) {
         c.t.out = TensorView(c.t.page_indptr.data, DType::f32, {kBatch, kSeqlenQ, kHeads, kDimV});
       },
       {"out", "overlaps page_indptr", "must share no memory"}},
  };
}

std::vector<BadCall> bad_entries() {
  const auto offsets = [](std::initializer_list<std::int32_t> values) {
    return [list = std::vector(values)](Call& c) {
      std::copy(list.begin(), list.end(), static_cast<std::int32_t*>(c.t.page_indptr.data));
    };
  };
  return {
      {with_indptr, offsets({-1, 4, 6}), {"page_indptr[0]=-1", "must not be negative"}},
      {with_indptr,
       offsets({1, 4, 3}),
       {"page_indptr[2]=3 after page_indptr[1]=4", "must not decrease"}},
      {with_indptr, offsets({5, 4, 6}), {"page_indptr[1]=4 after page_indptr[0]=5"}},
      {with_indptr, offsets({1, 4, 8}), {"page_indptr[2]=8", "must be at most 7"}},
      {with_indptr,
       offsets({1, INT32_MAX, INT32_MAX}),
       {"page_indptr[2]=2147483647", "must be at most 7"}},
      {with_indptr, offsets({INT32_MIN, 4, 6}), {"page_indptr[0]=-2147483648"}},
      {with_indptr,
       offsets({1, 3, 6}),
       {"page_indptr[1]=3 after page_indptr[0]=1", "at least 3 more", "seqused_k[0]=9"}},
      {with_indptr,
       offsets({1, 4, 4}),
       {"page_indptr[2]=4 after page_indptr[1]=4", "at least 1 more", "seqused_k[1]=3"}},
      {with_indptr, offsets({0, 4, 6}), {"block_table[0]=-3", "must be 0 to 5", "seqused_k[0]=9"}},
      {with_indptr, offsets({1, 5, 7}), {"block_table[5]=2147483647", "seqused_k[1]=3 uses it"}},
      {with_indptr,
       [](Call& c) {
         Call::set_lengths(c.t.seqused_k, {13, 3});
       },
       {"seqused_k[0]=13", "must be 0 to 12"}},
  };
}

TEST(PageIndptr, RefusesBadCalls) {
  std::vector<BadCall> all = bad_views();
  for (const BadCall& bad : bad_entries()) all.push_back(bad);
  expect_refusals(all);
}

}  // namespace
}  // namespace headrace
