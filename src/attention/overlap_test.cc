// Overlap of strided views against a count of every byte.
#include "attention/overlap.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace headrace {
namespace {

// Calls visit(byte offset) for every element.
template <class Visit>
void for_each_element(const TensorView& view, Visit visit) {
  if (view.num_elements() == 0) return;
  std::int64_t index[HEADRACE_MAX_RANK] = {};
  for (;;) {
    std::int64_t offset = 0;
    for (int i = 0; i < view.rank; ++i) offset += index[i] * view.strides[i];
    visit(static_cast<char*>(view.data) +
          offset * static_cast<std::int64_t>(dtype_bytes(view.type())));
    int axis = view.rank - 1;
    while (axis >= 0 && ++index[axis] == view.shape[axis]) index[axis--] = 0;
    if (axis < 0) return;
  }
}

TEST(Overlap, MatchesCountingEveryByte) {
  std::mt19937 random(7);
  std::vector<char> memory(1 << 16);
  const auto make = [&] {
    const DType dtypes[] = {DType::boolean, DType::f16, DType::f32, DType::f64};
    TensorView view(memory.data() + (1 << 15) + random() % 16 * 8, dtypes[random() % 4], {});
    view.rank = static_cast<int>(random() % 4);
    for (int i = 0; i < view.rank; ++i) {
      view.shape[i] = random() % 8 == 0 ? 0 : 1 + random() % 5;
      view.strides[i] = static_cast<std::int64_t>(random() % 41) - 20;
    }
    return view;
  };
  int num_overlapping = 0, num_apart = 0, num_folded = 0;
  for (int round = 0; round < 20000; ++round) {
    const TensorView a = make();
    const TensorView b = make();
    std::vector<char> count(memory.size());
    bool folds = false, meets = false;
    const char* base = memory.data();
    for_each_element(a, [&](const char* element) {
      folds = folds || count[static_cast<std::size_t>(element - base)] != 0;
      for (std::size_t i = 0; i < dtype_bytes(a.type()); ++i)
        count[static_cast<std::size_t>(element - base) + i] = 1;
    });
    for_each_element(b, [&](const char* element) {
      for (std::size_t i = 0; i < dtype_bytes(b.type()); ++i)
        meets = meets || count[static_cast<std::size_t>(element - base) + i] != 0;
    });
    ASSERT_EQ(overlap_within(a), folds ? Overlap::certain : Overlap::none) << round;
    ASSERT_EQ(overlap_between(a, address_range(a), b, address_range(b)),
              meets ? Overlap::certain : Overlap::none)
        << round;
    num_overlapping += meets;
    num_apart += !meets;
    num_folded += folds;
  }
  EXPECT_GT(num_overlapping, 1000);
  EXPECT_GT(num_apart, 1000);
  EXPECT_GT(num_folded, 1000);
}

// Large packed buffers are decided exactly, in a few steps.
TEST(Overlap, DecidesPackedBuffersExactly) {
  char byte = 0;
  const TensorView packed(&byte, DType::bf16, {64, 8192, 3, 32, 128});
  const TensorView q = *packed.select(2, 0), out = *packed.select(2, 2);
  EXPECT_EQ(overlap_between(out, address_range(out), q, address_range(q)), Overlap::none);
  EXPECT_EQ(overlap_between(q, address_range(q), q, address_range(q)), Overlap::certain);
  const TensorView transposed = *out.permute({0, 2, 1, 3});
  EXPECT_EQ(overlap_between(transposed, address_range(transposed), q, address_range(q)),
            Overlap::none);
  EXPECT_EQ(overlap_within(transposed), Overlap::none);
}

// The effort is bounded for any strides.
TEST(Overlap, GivesUpOnComplexLayouts) {
  char byte = 0;
  TensorView a(&byte, DType::f64, {1 << 20, 1 << 20, 1 << 20, 1 << 20, 1 << 20, 1 << 20});
  TensorView b = a;
  const std::int64_t strides[] = {2, 4, 6, 10, 14, 22};
  for (int i = 0; i < 6; ++i) {
    a.strides[i] = strides[i];
    b.strides[i] = strides[i] + 60;
  }
  b.data =
      reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(a.data) +
                              8);  // odd and even elements do not overlap, but no bound proves it
  EXPECT_EQ(overlap_between(a, address_range(a), b, address_range(b)), Overlap::undecided);
}

}  // namespace
}  // namespace headrace
