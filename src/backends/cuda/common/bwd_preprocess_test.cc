#include "backends/cuda/common/bwd_preprocess.h"

#include <gtest/gtest.h>

#include <vector>

namespace headrace::cuda {
namespace {

Sizes ragged_sizes(const std::vector<std::int64_t>& lengths) {
  Sizes p{};
  p.is_ragged = 1;
  p.num_heads = 3;
  p.batch = static_cast<std::int64_t>(lengths.size());
  for (const std::int64_t length : lengths) {
    p.total_q += length;
    p.seqlen_q = std::max(p.seqlen_q, length);
  }
  return p;
}

TEST(BwdPreprocess, DenseSequencesFollowEachOtherInPartsOf128) {
  for (const std::int64_t seqlen_q : {0, 1, 127, 128, 129, 1000}) {
    Sizes p{};
    p.batch = 5;
    p.num_heads = 2;
    p.seqlen_q = seqlen_q;
    const std::int64_t room = ceil_div<std::int64_t>(seqlen_q, 128) * 128;
    for (std::int64_t b = 0; b <= p.batch; ++b) EXPECT_EQ(first_padded_row(p, b, 0), b * room);
    EXPECT_EQ(padded_rows(p), p.batch * room);
    EXPECT_EQ(padded_blocks_per_seq(p) * 128, room);
    EXPECT_EQ(padded_elements(p), padded_offset(p, 1, 0) + padded_rows(p));
  }
}

// A thread holds rows r and r + 8 of 16 of an accumulator and loads both scales as one word.
TEST(BwdPreprocess, ScalesOfRowsEightApartAreOneWord) {
  std::vector<bool> is_taken(64);
  for (std::int64_t row = 0; row < 64; ++row) {
    const std::int64_t index = dq_scale_index(row);
    EXPECT_EQ(index / 16, row / 16);
    EXPECT_FALSE(is_taken.at(static_cast<std::size_t>(index)));
    is_taken[static_cast<std::size_t>(index)] = true;
    if (row % 16 >= 8) continue;
    EXPECT_EQ(index % 2, 0);
    EXPECT_EQ(dq_scale_index(row + 8), index + 1);
  }
}

// Sequences do not overlap, and none spans more blocks than are launched.
TEST(BwdPreprocess, RaggedSequencesHaveRoomOfTheirOwn) {
  const std::vector<std::int64_t> all[] = {
      {0},         {1},           {128},         {0, 0, 0},        {1, 1, 1, 1},
      {127, 1, 2}, {128, 128, 5}, {129, 0, 255}, {300, 7, 0, 513}, {3, 126, 127, 129, 1}};
  for (const auto& lengths : all) {
    const Sizes p = ragged_sizes(lengths);
    std::int64_t row_q = 0;
    for (std::size_t b = 0; b < lengths.size(); ++b) {
      const auto batch_idx = static_cast<std::int64_t>(b);
      const std::int64_t begin = first_padded_row(p, batch_idx, row_q);
      const std::int64_t end = first_padded_row(p, batch_idx + 1, row_q + lengths[b]);
      EXPECT_EQ(begin % 128, 0);
      EXPECT_GE(end - begin, round_up<std::int64_t>(lengths[b], 128));
      EXPECT_LE(end - begin, padded_blocks_per_seq(p) * 128);
      row_q += lengths[b];
    }
    EXPECT_LE(first_padded_row(p, p.batch, p.total_q), padded_rows(p));
  }
}

TEST(BwdPreprocess, PlacesOfPartsAreTheirOwnUpTo2To32) {
  Sizes p{};
  p.is_ragged = 1;
  p.batch = 1 << 15;
  p.num_heads = 15;
  p.seqlen_q = p.total_q = (1 << 20) - 128;
  const std::int64_t partial = padded_blocks_per_seq(p);
  ASSERT_GT(num_padded_blocks(p), kMaxPaddedBlocks - (std::int64_t{1} << 29));
  ASSERT_LE(num_padded_blocks(p), kMaxPaddedBlocks);
  for (const std::int64_t batch_idx : {std::int64_t{0}, std::int64_t{123}, p.batch - 1})
    for (const std::int64_t block : {std::int64_t{0}, std::int64_t{77}, partial - 1})
      for (const std::int64_t head : {0, 5, 14}) {
        const BlockCoord x = block_coord(p, (batch_idx * partial + block) * p.num_heads + head);
        EXPECT_EQ(x.batch_idx, batch_idx);
        EXPECT_EQ(x.block, block);
        EXPECT_EQ(x.head, head);
      }
}

// Lengths on the device are clamped to the buffer; nothing else is known about them.
TEST(BwdPreprocess, AnyRowsWithinTheBufferStayWithinTheWorkspace) {
  const Sizes p = ragged_sizes({300, 7, 0, 513});
  for (std::int64_t b = 0; b < p.batch; ++b)
    for (std::int64_t row_q = 0; row_q <= p.total_q; ++row_q) {
      const std::int64_t length = std::min(p.total_q - row_q, p.seqlen_q);
      EXPECT_LE(first_padded_row(p, b, row_q) + round_up<std::int64_t>(length, 128),
                padded_rows(p));
    }
}

}  // namespace
}  // namespace headrace::cuda
