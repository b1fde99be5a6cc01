#include "kv_cache/kv_pages.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "core/device.h"

namespace headrace {
namespace {

constexpr std::int64_t kLayers = 3, kHeads = 2, kPageSize = 5, kPages = 4;

class KvPagesOf : public testing::TestWithParam<KvLayout> {
 protected:
  KvPages make(std::int64_t num_pages) const {
    const KvPageShape shape = {
        {kLayers, kHeads, 3, 7, DType::bf16}, GetParam(), kPageSize, num_pages};
    const auto bytes = static_cast<std::size_t>(KvPages::num_bytes(shape));
    Buffer memory = device_->allocate(bytes);
    std::memset(memory.data(), 0, bytes);
    return KvPages(shape, device_->info(), std::move(memory));
  }
  std::unique_ptr<Device> device_ = make_host_device(cpu_info().value());
};
INSTANTIATE_TEST_SUITE_P(Layouts, KvPagesOf, testing::Values(KvLayout::nhd, KvLayout::hnd));

std::vector<TensorView> views_of(const KvPages& pages) {
  std::vector<TensorView> views;
  for (std::int64_t layer = 0; layer < kLayers; ++layer) {
    views.push_back(pages.k(layer));
    views.push_back(pages.v(layer));
  }
  return views;
}

// visit(address, page, slot in the page) for each element.
template <class Visit>
void for_each_element(const TensorView& view, Visit visit) {
  for (std::int64_t page = 0; page < view.shape[0]; ++page)
    for (std::int64_t idx = 0; idx < view.shape[1]; ++idx)
      for (std::int64_t head = 0; head < view.shape[2]; ++head)
        for (std::int64_t d = 0; d < view.shape[3]; ++d)
          visit(static_cast<std::uint16_t*>(view.data) + page * view.strides[0] +
                    idx * view.strides[1] + head * view.strides[2] + d * view.strides[3],
                page, idx);
}

TEST_P(KvPagesOf, ViewsDoNotOverlap) {
  const KvPages pages = make(kPages);
  std::set<std::uint16_t*> places;
  for (const TensorView& view : views_of(pages)) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(view.data) % 64, 0u);
    for_each_element(view, [&](std::uint16_t* x, std::int64_t, std::int64_t) {
      EXPECT_TRUE(places.insert(x).second);
      *x = 1;  // inside the memory: the sanitizers look
    });
  }
  EXPECT_EQ(places.size(),
            static_cast<std::size_t>(kLayers * kPages * kPageSize * kHeads * (3 + 7)));
}

TEST_P(KvPagesOf, ViewsHaveTheStridesOfTheLayout) {
  const KvPages pages = make(kPages);
  for (const TensorView& view : {pages.k(1), pages.v(1)}) {
    const std::int64_t dim = view.shape[3];
    const TensorView nhd(view.data, DType::bf16, {kPages, kPageSize, kHeads, dim});
    const TensorView hnd =
        *TensorView(view.data, DType::bf16, {kPages, kHeads, kPageSize, dim}).permute({0, 2, 1, 3});
    const TensorView& expected = GetParam() == KvLayout::nhd ? nhd : hnd;
    EXPECT_TRUE(std::equal(view.strides, view.strides + 4, expected.strides));
    EXPECT_TRUE(std::equal(view.shape, view.shape + 4, expected.shape));
    EXPECT_EQ(view.device_type, HEADRACE_CPU);
  }
}

// Fills every element of the page with its own number.
void number(const KvPages& pages, std::int32_t page) {
  std::uint16_t n = 0;
  for (const TensorView& view : views_of(pages))
    for_each_element(view, [&](std::uint16_t* x, std::int64_t p, std::int64_t) {
      ++n;
      if (p == page) *x = n;
    });
}

// The plain values of a step name the same elements as the tensors.
TEST_P(KvPagesOf, TheViewOfAStepHasTheSamePages) {
  const KvPages pages = make(kPages);
  const KvView kv = pages.kv_view();
  EXPECT_EQ(kv.page_size, kPageSize);
  EXPECT_EQ(kv.num_pages, kPages);
  const auto expect_same = [](const Operand& operand, const TensorView& view) {
    EXPECT_EQ(operand.data, view.data);
    EXPECT_EQ(operand.stride_batch, view.strides[0]);
    EXPECT_EQ(operand.stride_seq, view.strides[1]);
    EXPECT_EQ(operand.stride_head, view.strides[2]);
  };
  for (std::int64_t layer = 0; layer < kLayers; ++layer) {
    expect_same(layer_of(kv, kv.k, layer), pages.k(layer));
    expect_same(layer_of(kv, kv.v, layer), pages.v(layer));
  }
}

TEST_P(KvPagesOf, CopiesAPageOfAllLayersAndNothingElse) {
  const KvPages from = make(kPages), to = make(kPages - 1);
  number(from, 3);
  std::vector<ByteCopy> copies;
  from.add_page_copies(3, to, 1, copies);
  EXPECT_EQ(copies.size(), from.copies_per_page());
  ASSERT_FALSE(device_->copy(copies, nullptr));
  const auto from_views = views_of(from), to_views = views_of(to);
  for (std::size_t i = 0; i < from_views.size(); ++i) {
    const std::int64_t offset = 3 * from_views[i].strides[0] - to_views[i].strides[0];
    auto* const source = static_cast<std::uint16_t*>(from_views[i].data);
    auto* const target = static_cast<std::uint16_t*>(to_views[i].data);
    for_each_element(to_views[i], [&](std::uint16_t* x, std::int64_t page, std::int64_t) {
      EXPECT_EQ(*x, page == 1 ? source[x - target + offset] : 0);
    });
  }
}

TEST_P(KvPagesOf, CopiesASlotOfAllLayersAndNothingElse) {
  const KvPages pages = make(kPages);
  number(pages, 2);
  std::vector<ByteCopy> copies;
  pages.add_slot_copies(2 * kPageSize + 4, 0 * kPageSize + 1, copies);
  EXPECT_EQ(copies.size(), pages.copies_per_slot());
  ASSERT_FALSE(device_->copy(copies, nullptr));
  for (const TensorView& view : views_of(pages)) {
    const std::int64_t offset = 2 * view.strides[0] + 3 * view.strides[1];
    for_each_element(view, [&](std::uint16_t* x, std::int64_t page, std::int64_t idx) {
      const bool is_target = page == 0 && idx == 1;
      EXPECT_TRUE(!is_target || *x == x[offset]);
      EXPECT_EQ(*x != 0, page == 2 || is_target);
    });
  }
}

TEST(KvPages, BytesDoNotWrapAround) {
  const KvPageShape small = {{2, 3, 8, 16, DType::f16}, KvLayout::nhd, 16, 5};
  EXPECT_EQ(KvPages::num_bytes(small), 2 * (5 * 16 * 3 * (8 + 16) * 2));
  for (const std::int64_t huge : {std::int64_t{1} << 31, std::int64_t{1} << 44, INT64_MAX}) {
    KvPageShape shape = small;
    shape.page_size = shape.num_pages = huge;
    EXPECT_EQ(KvPages::num_bytes(shape), INT64_MAX);
    shape = small;
    shape.kv.num_layers = shape.num_pages = huge;
    EXPECT_EQ(KvPages::num_bytes(shape), INT64_MAX);
  }
  // K and V fit 64 bits, and their sum does not.
  const KvPageShape sum = {
      {1, 1, 1, 1, DType::f32}, KvLayout::nhd, std::int64_t{3} << 29, std::int64_t{1} << 30};
  EXPECT_EQ(KvPages::num_bytes(sum), INT64_MAX);
}

}  // namespace
}  // namespace headrace
