// Models of kernels against cases that are computed by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attention/predict/model_constants.h"
#include "attention/predict/prediction.h"
#include "attention/select.h"
#include "attention/validate.h"
#include "backends/cuda/sm80/bwd/config.h"
#include "backends/cuda/sm80/fwd/config.h"
#include "backends/cuda/sm90/bwd/config.h"
#include "backends/cuda/sm90/fwd/config.h"
#include "core/device.h"
#include "core/kernel.h"

namespace headrace::predict {
namespace {

DeviceInfo device_of(const char* text) { return device_from_text(text).value(); }

Problem problem_of(std::int64_t seqlen, std::int64_t heads, std::int64_t kv_heads,
                   std::int64_t head_dim) {
  Problem p = default_problem();
  p.dtype = HEADRACE_BF16;
  p.seqlen_q = p.seqlen_k = seqlen;
  p.num_heads = heads;
  p.num_kv_heads = kv_heads;
  p.head_dim = p.head_dim_v = head_dim;
  return p;
}

// ---- waves

TEST(Waves, TheLastWaveOfEqualTilesLeavesSlotsIdle) {
  const Waves w = share_tiles({{4, 5}}, 2, 1);
  EXPECT_EQ(w.num_tiles, 5);
  EXPECT_DOUBLE_EQ(w.waves(), 2.5);
  EXPECT_DOUBLE_EQ(w.total_work, 20);
  EXPECT_DOUBLE_EQ(w.busiest_work, 12);
  EXPECT_DOUBLE_EQ(w.busiest_tiles, 3);
  EXPECT_DOUBLE_EQ(w.balance(), 10. / 12);
}

TEST(Waves, LongTilesFirstThenToTheSlotThatIsFree) {
  // 8 | 4 4, then 2 2 2: 12 | 10, whatever the order of the groups.
  const Waves w = share_tiles({{2, 3}, {8, 1}, {4, 2}}, 2, 0);
  EXPECT_DOUBLE_EQ(w.busiest_work, 12);
  EXPECT_DOUBLE_EQ(w.balance(), 11. / 12);
  // A prologue of 3 makes short tiles as long as that: 8+3 | 4+3, 4+3, then 2+3 2+3 2+3.
  const Waves slow = share_tiles({{2, 3}, {8, 1}, {4, 2}}, 2, 3);
  EXPECT_DOUBLE_EQ(slow.busiest_tiles + slow.busiest_work, 3 + 12);
}

TEST(Waves, ManyEqualTilesAreSharedAsOneByOne) {
  const Waves w = share_tiles({{7, 132 * 1000 + 1}, {1, 131}}, 132, 0);
  EXPECT_DOUBLE_EQ(w.busiest_work, 7007);
  EXPECT_EQ(w.num_tiles, 132 * 1000 + 132);
}

TEST(Waves, NoTilesTakeNoTime) {
  const Waves w = share_tiles({}, 4, 1);
  EXPECT_EQ(w.busiest_work, 0);
  EXPECT_EQ(w.balance(), 1);
}

TEST(Waves, ACausalMaskShortensRowTiles) {
  Problem p = problem_of(512, 3, 3, 64);
  p.batch = 2;
  Schedule s;
  s.tile_m = 128;
  s.tile_n = 128;
  const auto blocks = [&] {
    std::vector<double> all;
    for (const TileGroup& group : row_tiles(p, s))
      all.insert(all.end(), static_cast<std::size_t>(group.count) / 6, group.work);
    return all;
  };
  EXPECT_EQ(blocks(), (std::vector<double>{4, 4, 4, 4}));
  p.causal = HEADRACE_CAUSAL_BOTTOM_RIGHT;
  EXPECT_EQ(blocks(), (std::vector<double>{1, 2, 3, 4}));
  p.window_left = 128;  // rows 128 to 255 see keys 0 to 255
  EXPECT_EQ(blocks(), (std::vector<double>{1, 2, 2, 2}));
  p.window_left = -1;
  p.seqlen_k = 640;  // the last query sees the last key
  EXPECT_EQ(blocks(), (std::vector<double>{2, 3, 4, 5}));
}

TEST(Waves, HeadsOfAGroupMayShareATile) {
  const Problem p = problem_of(64, 8, 2, 64);
  Schedule s;
  s.tile_m = 128;
  s.tile_n = 64;
  EXPECT_EQ(share_tiles(row_tiles(p, s), 1, 0).num_tiles, 8);
  s.packed_heads = 4;  // 64 queries x 4 heads are two tiles, of 2 KV heads
  EXPECT_EQ(share_tiles(row_tiles(p, s), 1, 0).num_tiles, 4);
}

TEST(Waves, KeyTilesCountTheQueriesThatSeeThem) {
  Problem p = problem_of(512, 4, 2, 128);
  Schedule s;
  s.tile_m = 64;
  s.tile_n = 128;
  const auto groups = [&] {
    std::vector<double> all;
    for (const TileGroup& group : key_tiles(p, s)) all.push_back(group.work);
    return all;
  };
  EXPECT_EQ(groups(), (std::vector<double>{16}));  // 8 q-blocks of 2 heads; equal tiles
  p.causal = HEADRACE_CAUSAL_BOTTOM_RIGHT;
  EXPECT_EQ(groups(), (std::vector<double>{16, 12, 8, 4}));
  p.window_left = 63;  // keys 0 to 127 are seen by queries 0 to 190
  EXPECT_EQ(groups(), (std::vector<double>{6, 4}));
}

// Both sides of a mask: the visible pairs of tiles of one row or key are those of the problem.
TEST(Waves, TilesOfOneCountAllVisiblePairs) {
  for (const int mask :
       {HEADRACE_CAUSAL_NONE, HEADRACE_CAUSAL_BOTTOM_RIGHT, HEADRACE_CAUSAL_TOP_LEFT})
    for (const std::int64_t left : {-1, 0, 5})
      for (const std::int64_t seqlen_k : {7, 23, 40}) {
        Problem p = problem_of(23, 1, 1, 64);
        p.causal = mask;
        p.window_left = left;
        p.seqlen_k = seqlen_k;
        Schedule s;
        s.tile_m = s.tile_n = 1;
        const double pairs = visible_pairs(p);
        EXPECT_DOUBLE_EQ(share_tiles(row_tiles(p, s), 1, 0).total_work, pairs);
        EXPECT_DOUBLE_EQ(share_tiles(key_tiles(p, s), 1, 0).total_work, pairs);
        EXPECT_DOUBLE_EQ(block_pairs(p, 1, 1), pairs);
      }
}

TEST(Waves, BlocksCountAllTheirPairs) {
  Problem p = problem_of(128, 4, 2, 64);
  EXPECT_EQ(block_pairs(p, 96, 96), 128 * 128);
  p.causal = HEADRACE_CAUSAL_BOTTOM_RIGHT;
  // Blocks of 48 queries of 2 heads. Keys 0 to 95 are seen from query 0 on, the last 32 from 96 on.
  EXPECT_EQ(block_pairs(p, 96, 96), 128 * 96 + 32 * 32);
  p.window_left = 15;  // keys 0 to 95: queries 0 to 110, of which blocks have 128
  EXPECT_EQ(block_pairs(p, 96, 96), 128 * 96 + 32 * 32);
  EXPECT_EQ(block_pairs(p, 64, 32), 4 * 64 * 32 - 32 * 32);  // the last keys: 32 queries
}

// ---- occupancy

TEST(Occupancy, IsTheTightestLimit) {
  const DeviceInfo h200 = device_of("h200");
  // 228 KiB, of which each CTA reserves one: two of 113.
  const Occupancy two =
      occupancy_of({.threads = 128, .registers = 64, .smem_bytes = 113 * 1024}, h200);
  EXPECT_EQ(two.ctas, 2);
  EXPECT_EQ(two.limit, "shared memory");
  const Occupancy one =
      occupancy_of({.threads = 128, .registers = 64, .smem_bytes = 113 * 1024 + 1}, h200);
  EXPECT_EQ(one.ctas, 1);
  // 64 Ki registers: 3 x 128 x 168 = 64512.
  const Occupancy three =
      occupancy_of({.threads = 128, .registers = 168, .smem_bytes = 1024}, h200);
  EXPECT_EQ(three.ctas, 3);
  EXPECT_EQ(three.limit, "registers");
  const Occupancy four = occupancy_of({.threads = 512, .registers = 24, .smem_bytes = 0}, h200);
  EXPECT_EQ(four.ctas, 4);
  EXPECT_EQ(four.limit, "threads");
  EXPECT_EQ(occupancy_of({}, h200).ctas, 0);
}

TEST(Occupancy, LaunchBoundsGiveTheirCtasRoom) {
  const DeviceInfo h200 = device_of("h200");
  for (int threads = 32; threads <= 1024; threads += 32)
    for (int ctas = 1; ctas * threads <= 2048; ++ctas) {
      const Occupancy found = occupancy_of(
          {.threads = threads, .registers = launch_registers(threads, ctas), .smem_bytes = 0},
          h200);
      EXPECT_GE(found.ctas, ctas) << threads;
    }
}

TEST(Occupancy, OfTheTilesOfTheReadmes) {
  const DeviceInfo h200 = device_of("h200");
  const auto sm80 = [&](const cuda::sm80::fwd::Tile& tile) {
    return occupancy_of({.threads = tile.threads(),
                         .registers = launch_registers(tile.threads(), tile.min_ctas),
                         .smem_bytes = cuda::sm80::fwd::smem_plan(tile, 2, false).total},
                        h200)
        .ctas;
  };
  for (const int dim : {64, 128, 256}) {
    const auto tile = cuda::sm80::fwd::tile_of(false, dim, false);
    EXPECT_EQ(sm80(tile), tile.min_ctas) << dim;
  }
  const auto& sm90 = cuda::sm90::fwd::kTile128;
  const Occupancy one = occupancy_of({.threads = cuda::sm90::fwd::threads_of(sm90),
                                      .registers = cuda::sm90::fwd::launch_registers(sm90),
                                      .smem_bytes = cuda::sm90::fwd::smem_bytes(sm90)},
                                     h200);
  EXPECT_EQ(one.ctas, 1);
  EXPECT_EQ(one.limit, "registers and shared memory");
}

// ---- work

TEST(Work, CountsInputsAndOutputsOnce) {
  Problem p = problem_of(256, 4, 2, 64);
  const double out = 256. * 4 * 64 * 2, kv = 256. * 2 * 64 * 2;
  EXPECT_EQ(work_of(p).bytes, 2 * out + 2 * kv);
  EXPECT_EQ(work_of(p).flops, 4. * 64 * 4 * 256 * 256);
  EXPECT_EQ(work_of(p).exps, 4. * 256 * 256);
  p.causal = HEADRACE_CAUSAL_BOTTOM_RIGHT;
  EXPECT_EQ(work_of(p).exps, 4. * 256 * 257 / 2);
  p.has_lse = 1;
  p.phase = HEADRACE_BACKWARD;
  EXPECT_EQ(work_of(p).bytes, 4 * out + 4 * kv + 256. * 4 * 4);
  EXPECT_EQ(work_of(p).flops, 10. * 64 * work_of(p).exps);
}

// Every mask with fewer, as many and more queries than keys, beside a count of all pairs.
TEST(Work, CountsTheKeysThatSomeQuerySees) {
  for (const std::int32_t causal :
       {HEADRACE_CAUSAL_NONE, HEADRACE_CAUSAL_BOTTOM_RIGHT, HEADRACE_CAUSAL_TOP_LEFT})
    for (const std::int64_t left : {-1, 0, 3, 30, 1000})
      for (const std::int64_t right : {-1, 0, 5, 60})
        for (const auto& [seqlen_q, seqlen_k] : {std::pair{100, 40}, {40, 40}, {40, 100}, {1, 9}}) {
          Problem p = problem_of(1, 4, 2, 64);
          p.seqlen_q = seqlen_q;
          p.seqlen_k = seqlen_k;
          p.causal = causal;
          p.window_left = left;
          p.window_right = right;
          std::int64_t pairs = 0, first = seqlen_k, end = 0;
          for (std::int64_t i = 0; i < seqlen_q; ++i)
            for (std::int64_t j = 0; j < seqlen_k; ++j) {
              const std::int64_t at =
                  causal == HEADRACE_CAUSAL_TOP_LEFT ? i : i + seqlen_k - seqlen_q;
              const bool is_hidden = (causal != HEADRACE_CAUSAL_NONE && j > at) ||
                                     (left >= 0 && j < at - left) || (right >= 0 && j > at + right);
              if (is_hidden) continue;
              ++pairs;
              first = std::min(first, j);
              end = std::max(end, j + 1);
            }
          const Work work = work_of(p);
          const auto seen = static_cast<double>(std::max<std::int64_t>(end - first, 0));
          EXPECT_EQ(work.exps, 4. * static_cast<double>(pairs));
          EXPECT_EQ(work.flops, 4. * 4 * 64 * static_cast<double>(pairs));
          EXPECT_EQ(work.bytes, 2. * 2 * 64 * (4. * static_cast<double>(seqlen_q) + 2 * seen))
              << "causal " << causal << ", window " << left << ' ' << right << ", " << seqlen_q
              << " queries, " << seqlen_k << " keys";
        }
}

TEST(Work, ADecodeReadsTheKeysOfItsWindow) {
  Problem p = problem_of(4096, 8, 8, 128);
  p.seqlen_q = 1;
  const double row = 8. * 128 * 2;
  EXPECT_EQ(work_of(p).bytes, 2 * row + 2 * 4096 * row);
  p.causal = HEADRACE_CAUSAL_BOTTOM_RIGHT;
  p.window_left = 99;
  EXPECT_EQ(work_of(p).bytes, 2 * row + 2 * 100 * row);
}

// ---- models

Plan plan_of(std::string_view kernel_name, const Problem& p, const Schedule& schedule,
             const DeviceInfo& device) {
  static std::vector<std::unique_ptr<Kernel>> kernels;
  kernels.push_back(std::make_unique<Kernel>(Kernel{kernel_name, "", nullptr, nullptr, nullptr}));
  Plan plan;
  plan.problem = p;
  plan.device = device;
  plan.kernel = kernels.back().get();
  plan.schedule = schedule;
  return plan;
}

Schedule sm90_schedule(const cuda::sm90::fwd::Tile& tile) {
  Schedule s;
  s.tile_m = cuda::sm90::fwd::rows_of(tile);
  s.tile_n = tile.keys;
  s.cta = {.threads = cuda::sm90::fwd::threads_of(tile),
           .registers = cuda::sm90::fwd::launch_registers(tile),
           .smem_bytes = cuda::sm90::fwd::smem_bytes(tile),
           .head_dim = tile.head_dim,
           .head_dim_v = tile.head_dim_v};
  return s;
}

double unit_of(const Prediction& x, std::string_view name) {
  for (const Part& part : x.time.parts)
    if (part.name == name) return part.unit_seconds;
  ADD_FAILURE() << "no part " << name;
  return 0;
}

TEST(Models, OfTheHopperForwardByHand) {
  Problem p = problem_of(2048, 16, 16, 128);
  p.batch = 8;
  const Plan plan =
      plan_of("cuda_sm90_fwd", p, sm90_schedule(cuda::sm90::fwd::kTile128), device_of("h200"));
  const Prediction x = predict(plan, {});
  // 8 x 16 heads x 16 tiles on 132 multiprocessors: 15.5 waves, the busiest has 16 tiles of 16.
  EXPECT_EQ(x.time.waves.num_tiles, 2048);
  EXPECT_DOUBLE_EQ(x.time.waves.busiest_work, 256);
  EXPECT_NEAR(unit_of(x, "tensor cores"), 256. * 4 * 128 * 128 * 128 / (911e12 / 132), 1e-12);
  EXPECT_NEAR(unit_of(x, "exponentials"), 256. * 128 * 128 / (4.20e12 / 132), 1e-12);
  EXPECT_DOUBLE_EQ(unit_of(x, "tiles"), 16e-6);
  EXPECT_EQ(unit_of(x, "f16 maxima"), 0);
  EXPECT_EQ(x.occupancy.ctas, 1);
  EXPECT_EQ(x.bound, "tensor cores");
  double sum = 0;
  for (const Part& part : x.time.parts) sum += part.seconds();
  EXPECT_DOUBLE_EQ(x.seconds, sum);
}

// 64 x 32 heads of 64 rows: 2048 tiles, on 264 CTAs, two of a multiprocessor.
TEST(Models, OfTilesOfWhichAMultiprocessorHasTwo) {
  Problem p = problem_of(64, 32, 32, 128);
  p.batch = 64;
  const Plan plan =
      plan_of("cuda_sm90_fwd", p, sm90_schedule(cuda::sm90::fwd::kFewRows128), device_of("h200"));
  const Prediction x = predict(plan, {});
  EXPECT_EQ(x.occupancy.ctas, 2);
  EXPECT_EQ(x.time.waves.num_tiles, 2048);
  EXPECT_DOUBLE_EQ(x.time.waves.busiest_tiles, 8);
  EXPECT_NEAR(unit_of(x, "tensor cores"), 8. * 2 * 4 * 64 * 64 * 128 / (911e12 / 132), 1e-12);
}

TEST(Models, ACausalMaskHalvesTheTimeOfALongSequence) {
  Problem p = problem_of(32768, 16, 16, 128);
  const Schedule s = sm90_schedule(cuda::sm90::fwd::kTile128);
  const double all = predict(plan_of("cuda_sm90_fwd", p, s, device_of("h200")), {}).seconds;
  p.causal = HEADRACE_CAUSAL_BOTTOM_RIGHT;
  const double half = predict(plan_of("cuda_sm90_fwd", p, s, device_of("h200")), {}).seconds;
  EXPECT_NEAR(half / all, 0.5, 0.02);
}

TEST(Models, SayWhyThereIsNoPrediction) {
  const Schedule s = sm90_schedule(cuda::sm90::fwd::kTile128);
  const auto reason = [&](const char* kernel, const Problem& p, const char* device) {
    const Prediction x = predict(plan_of(kernel, p, s, device_of(device)), {});
    EXPECT_EQ(x.seconds, 0);
    EXPECT_TRUE(x.bound.empty());
    EXPECT_NE(x.text.find("no time: " + x.time.reason), std::string::npos) << x.text;
    return x.time.reason;
  };
  Problem p = problem_of(1024, 8, 8, 128);
  EXPECT_EQ(reason("cuda_simple", p, "h200"), "cuda_simple has no model for bf16");
  EXPECT_EQ(reason("cuda_sm90_fwd", p, "sm90:132"),
            "no ceilings of this device are known; measure them with headrace roofline");
  p.softcap = 30;
  EXPECT_EQ(reason("cuda_sm90_fwd", p, "h200"),
            "the model of cuda_sm90_fwd does not cover softcap");
  p.softcap = 0;
  p.is_ragged = 1;
  EXPECT_EQ(reason("cuda_sm90_fwd", p, "h200"),
            "lengths of a ragged batch are known to the call alone");
}

TEST(Models, TakeMeasuredCeilingsBeforeTheTable) {
  const std::vector<probes::Ceiling> slow = {{.kind = probes::CeilingKind::compute,
                                              .resource = "tensor core",
                                              .operation = "bf16",
                                              .num_units = 132,
                                              .value = 1e12},
                                             {.kind = probes::CeilingKind::compute,
                                              .resource = "MUFU",
                                              .operation = "exp2",
                                              .num_units = 132,
                                              .value = 1e12},
                                             {.kind = probes::CeilingKind::bandwidth,
                                              .resource = "DRAM",
                                              .operation = "read",
                                              .num_units = 132,
                                              .value = 1e12}};
  const Plan plan = plan_of("cuda_sm90_fwd", problem_of(4096, 8, 8, 128),
                            sm90_schedule(cuda::sm90::fwd::kTile128), device_of("h200"));
  const Prediction x = predict(plan, slow);
  EXPECT_EQ(x.source, "measured");
  EXPECT_NEAR(unit_of(x, "tensor cores") / unit_of(predict(plan, {}), "tensor cores"), 911, 1e-6);
  const Prediction none = predict(plan, std::span(slow).subspan(2));
  EXPECT_EQ(none.time.reason, "the ceilings of this device lack products or DRAM reads");
}

// Of two threads.
std::vector<probes::Ceiling> cpu_ceilings() {
  return {{.kind = probes::CeilingKind::compute,
           .resource = "avx2",
           .operation = "f32",
           .num_units = 2,
           .value = 200e9},
          {.kind = probes::CeilingKind::bandwidth,
           .resource = "DRAM",
           .operation = "read",
           .num_units = 2,
           .value = 40e9}};
}

TEST(Models, OfACpuFollowItsThreads) {
  const std::vector<probes::Ceiling> ceilings = cpu_ceilings();
  Problem p = problem_of(2048, 16, 16, 64);
  p.dtype = HEADRACE_F32;
  const auto seconds = [&](const char* device) {
    return predict(plan_attention(p, device_of(device)).value(), ceilings).seconds;
  };
  EXPECT_GT(seconds("cpu:avx2:2"), 0);
  EXPECT_NEAR(seconds("cpu:avx2:2") / seconds("cpu:avx2:8"), 4, 0.1);
  EXPECT_EQ(seconds("cpu:avx2:1"), 0) << "ceilings of two threads say nothing of one";
}

TEST(Models, TimesAreFiniteForAnySize) {
  const std::int64_t sizes[] = {1, 17, 4096, std::int64_t{1} << 24};
  for (const std::int64_t queries : sizes)
    for (const std::int64_t keys : sizes)
      for (const int causal : {0, 1}) {
        Problem p = problem_of(keys, 8, 2, 128);
        p.seqlen_q = queries;
        p.causal = causal;
        const Prediction x =
            predict(plan_of("cuda_sm90_fwd", p, sm90_schedule(cuda::sm90::fwd::kTile128),
                            device_of("h200")),
                    {});
        EXPECT_TRUE(std::isfinite(x.seconds)) << queries << ' ' << keys;
        EXPECT_GT(x.seconds, 0);
      }
}

// No keys, no queries, a row, fewer rows than a block.
TEST(Models, TimesOfACpuAreFiniteForAnySize) {
  const std::int64_t sizes[] = {0, 1, 17, 4096, std::int64_t{1} << 20};
  for (const std::int64_t queries : sizes)
    for (const std::int64_t keys : sizes)
      for (const int causal : {HEADRACE_CAUSAL_NONE, HEADRACE_CAUSAL_BOTTOM_RIGHT})
        for (const int phase : {HEADRACE_FORWARD, HEADRACE_BACKWARD}) {
          Problem p = problem_of(keys, 8, 2, 128);
          p.seqlen_q = queries;
          p.dtype = HEADRACE_F32;
          p.causal = causal;
          p.phase = phase;
          p.has_lse = phase == HEADRACE_BACKWARD;
          const Result<Plan> plan = plan_attention(p, device_of("cpu:avx2:2"));
          ASSERT_TRUE(plan.ok()) << plan.failure().message;
          const Prediction x = predict(plan.value(), cpu_ceilings());
          EXPECT_TRUE(std::isfinite(x.seconds)) << queries << ' ' << keys << ' ' << phase;
          EXPECT_GE(x.seconds, 0);
        }
}

TEST(Models, HaveAtMostSixConstantsThatAreNotNegative) {
  for (const ModelConstants& c : kModelConstants)
    for (const double value : c.values) EXPECT_GE(value, 0) << c.name;
}

}  // namespace
}  // namespace headrace::predict
