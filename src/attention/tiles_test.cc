// The row tiles of the CPU kernels, as tasks of threads.
#include <gtest/gtest.h>

#include "attention/select.h"
#include "attention/validate.h"
#include "base/math.h"
#include "core/device.h"

namespace headrace {
namespace {

// Of a forward in f32 without pages, heads of 64.
std::int64_t tiles_of(std::int64_t seqlen_q, std::int64_t num_kv_heads, int num_threads,
                      std::int64_t l2_bytes) {
  DeviceInfo device = device_from_text("cpu:scalar").value();
  device.num_units = num_threads;
  device.l2_bytes = l2_bytes;
  Problem p = default_problem();
  p.seqlen_q = seqlen_q;
  p.seqlen_k = 4096;
  p.num_heads = 3 * num_kv_heads;
  p.num_kv_heads = num_kv_heads;
  p.head_dim = p.head_dim_v = 64;
  const Result<Plan> plan = plan_attention(p, device);
  EXPECT_TRUE(plan.ok()) << plan.failure().message;
  return ceil_div<std::int64_t>(3 * seqlen_q, plan.value().schedule.tile_m);
}

constexpr std::int64_t kKiB = 1024;

// 1536 rows of 3 KV heads: 9 tasks of 512 rows would keep one of two threads busy for 5 of them,
// which is a tenth longer than 12 tasks of 384.
TEST(CpuTiles, TwoThreadsShareThreeHeads) {
  EXPECT_EQ(tiles_of(512, 3, 2, 2048 * kKiB), 4);
  EXPECT_EQ(tiles_of(512, 3, 1, 2048 * kKiB), 3);
  EXPECT_EQ(tiles_of(512, 4, 2, 2048 * kKiB), 3);
  EXPECT_EQ(tiles_of(512, 3, 2, 512 * kKiB), 8);
}

// Work that a thread waits for others is at most a twelfth of all work, where heads are large
// enough to be cut.
TEST(CpuTiles, NoThreadWaitsLong) {
  for (const std::int64_t l2 : {512 * kKiB, 1024 * kKiB, 2048 * kKiB})
    for (int num_threads = 1; num_threads <= 8; ++num_threads)
      for (std::int64_t heads = 1; heads <= 12; ++heads)
        for (const std::int64_t seqlen_q : {1024, 1500, 2048, 3000}) {
          const std::int64_t tasks = heads * tiles_of(seqlen_q, heads, num_threads, l2);
          const auto rounds = ceil_div<std::int64_t>(tasks, num_threads);
          EXPECT_LE(12 * (rounds * num_threads - tasks), tasks)
              << tasks << " tasks of " << heads << " heads, " << num_threads << " threads";
        }
}

}  // namespace
}  // namespace headrace
