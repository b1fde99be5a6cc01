#include "schedule_text.h"

#include <gtest/gtest.h>

namespace headrace::cli {
namespace {

TEST(ScheduleText, ReadsTilesAndSplits) {
  const ScheduleFacts facts = schedule_of(
      "problem   f32 batch 1, 99 splits\n"
      "schedule  tile_m 64, tile_n 128, up to 8 splits of 512 keys, 2 threads, workspace 9 bytes\n"
      "          more\n");
  EXPECT_EQ(facts.tile_m, Cell(std::int64_t{64}));
  EXPECT_EQ(facts.tile_n, Cell(std::int64_t{128}));
  EXPECT_EQ(facts.max_splits, Cell(std::int64_t{8}));
  EXPECT_EQ(schedule_of("schedule  1 split, 2 threads").max_splits, Cell(std::int64_t{1}));
}

TEST(ScheduleText, WhatIsNotThereHasNoValue) {
  EXPECT_EQ(schedule_of("").tile_m, Cell());
  EXPECT_EQ(schedule_of("kernels   1. x").max_splits, Cell());
  EXPECT_EQ(schedule_of("schedule  2 threads\n").tile_m, Cell());
}

}  // namespace
}  // namespace headrace::cli
