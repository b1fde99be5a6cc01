#include "backends/cpu/attention/flash/kernel.h"

#include <algorithm>
#include <cstring>

#include "backends/cpu/attention/flash/backward.h"
#include "backends/cpu/thread_pool.h"

namespace headrace::cpu::flash {
namespace {

constexpr int64_t kLineBytes = 64;
constexpr int64_t kMaxHeadsPerTask =
    8;  // scratch memory has rows for this many heads with few rows

// An instance and its requirements for selection.
struct Target {
  const Instance& instance;
  uint32_t isa;             // headrace_cpu_isa bits, 0: any machine
  const char* isa_refusal;  // "needs a CPU with AVX2 and FMA": most plans make one of these
};

std::string refuses(const Target& target, const Problem& p, const DeviceInfo& device) {
  if ((device.cpu_isa & target.isa) != target.isa) return target.isa_refusal;
  if (p.dtype < 0 || p.dtype > 2)
    return format_text("supports f32, f16 and bf16, not {}", dtype_name(dtype_of(p)));
  if (target.instance.task_body[p.dtype] == nullptr)
    return format_text("is not compiled for {} in this build", dtype_name(dtype_of(p)));
  if (has_codes(p) && target.instance.shape.pair != 1)
    return "multiplies pairs of bf16, and codes are converted to f32";
  if (has_codes(p) && target.instance.shape.width == 1)
    return "takes no quantised k and v: they need vectors of floats";
  if (p.has_probs) return "never materializes the probabilities; only cpu_reference writes probs";
  return {};
}

// Rows of a tile of up to `most` rows, so that the tiles of a head are of equal size.
int64_t even_rows(int64_t rows, int64_t most, const IsaShape& isa) {
  return round_up<int64_t>(ceil_div(rows, ceil_div(rows, most)), isa.tile_rows);
}

// Rows whose products take as long as what a task does beside them, the packing of K and V: tiles
// of 576 rows were 5 % faster than of 384, and (384 + 64) / 384 is 1.05 of (576 + 64) / 576.
constexpr int64_t kRowsOfPacking = 64;

// The tiles of a head, `least` or a few more, with which the last thread ends first. With many
// tasks all counts are equally good.
int64_t balanced_tiles(int64_t rows, int64_t heads, int64_t num_threads, int64_t least) {
  constexpr int64_t kManyTasks = 16, kMore = 3;  // of a thread; tiles
  if (heads * least >= kManyTasks * num_threads) return least;
  const auto end_of = [&](int64_t tiles) {
    return ceil_div(heads * tiles, num_threads) * (ceil_div(rows, tiles) + kRowsOfPacking);
  };
  int64_t best = least;
  for (int64_t tiles = least + 1; tiles <= least + kMore; ++tiles)
    if (end_of(tiles) < end_of(best)) best = tiles;
  return best;
}

// Rows per tile: as many as fit, fewer if threads would be idle otherwise (at least 4 tasks per
// thread). Tiles are of equal size, or a thread would wait for the last large one: 1024 rows as 3
// of 288 and 1 of 160, for 4 heads, keep 2 threads busy for 2176 rows instead of 2048.
Tile choose_tile(const Problem& p, const IsaShape& isa, const DeviceInfo& device, int num_threads,
                 Path path) {
  Tile tile = largest_tile(p, device.l2_bytes);
  const int64_t rows = std::max<int64_t>(p.seqlen_q * group_size(p), 1);
  const int64_t heads = std::max<int64_t>(p.batch * p.num_kv_heads, 1);
  const int64_t least =
      std::min(path == Path::direct ? kMaxHeadsPerTask * kDirectRows : kSplitRows, tile.m);
  if (rows <= least) {
    tile.m = least;
    return tile;
  }
  const int64_t wanted_tiles = ceil_div<int64_t>(kTasksOfThread * num_threads, heads);
  const int64_t fair = round_up<int64_t>(ceil_div(rows, wanted_tiles), isa.tile_rows);
  tile.m = std::clamp<int64_t>(fair, least, tile.m);
  tile.m = std::max(even_rows(rows, tile.m, isa), least);
  const int64_t tiles = ceil_div(rows, tile.m);
  if (tiles == 1) return tile;
  const int64_t balanced = balanced_tiles(rows, heads, num_threads, tiles);
  tile.m = std::max(round_up<int64_t>(ceil_div(rows, balanced), isa.tile_rows), least);
  return tile;
}

// Scratch rows per head, padded to whole register tiles.
int64_t rows_per_head(int64_t rows, const IsaShape& isa) {
  return round_up<int64_t>(round_up<int64_t>(rows, isa.tile_rows), 16);
}

// KV heads per task. Heads with few rows that are adjacent in memory are computed together, one key
// tile after the other, so that memory is read in order; so are those of small pages, so that a
// tile is prefetched long before its products. By the kernel's own rule a tile's data must fit the
// L2 cache, and all threads must have work.
int64_t choose_heads_per_task(const Plan& plan, const ForwardPlan& own, const AttentionArgs& args) {
  const Problem& p = plan.problem;
  const int64_t rows = p.seqlen_q * group_size(p);
  const int64_t k_size = stored_size(k_dtype_of(p), p.head_dim);
  const int64_t v_size = stored_size(v_dtype_of(p), p.head_dim_v);
  const bool is_side_by_side = args.k.stride_head == k_size && args.v.stride_head == v_size &&
                               args.k.stride_seq > k_size && args.v.stride_seq > v_size;
  // Tiles of several heads of larger pages would share the sets of the caches.
  const bool has_small_pages = has_pages(p) && p.page_size <= kDirectKeys;
  if (!is_side_by_side && !has_small_pages) return 1;
  // Whether a sequence takes the direct path depends on its queries, and none has more.
  if (own.sequence.path != Path::direct) return 1;
  const int64_t tile_bytes =
      kDirectKeys * (k_size * static_cast<int64_t>(dtype_bytes(k_dtype_of(p))) +
                     v_size * static_cast<int64_t>(dtype_bytes(v_dtype_of(p))));
  // In small pages several heads save one thread a sixth of its time, but 8 and 16 threads of a
  // Xeon, of which some are slower than others, took 10 to 40 % longer with 4 to 8 large tasks
  // each.
  constexpr int64_t kL2Share = 2, kFewThreads = 4;
  const int64_t num_threads = plan.schedule.num_threads;
  const int64_t tasks_of_thread =
      is_side_by_side || num_threads <= kFewThreads ? kTasksOfThread : 32;
  const int64_t tuned = plan.config.heads_per_task;
  const auto fits = [&](int64_t heads) {
    if (p.num_kv_heads % heads != 0 || heads * rows > kSweepRows ||
        heads * own.rows_per_head > plan.schedule.tile_m)
      return false;
    if (tuned > 0) return heads <= tuned;
    return heads * tile_bytes * kL2Share <= plan.device.l2_bytes &&
           heads * tasks_of_thread * num_threads <= p.batch * p.num_kv_heads * own.units_per_head;
  };
  int64_t heads = p.num_kv_heads;
  while (heads > 1 && !fits(heads)) --heads;
  return heads;
}

// Words of 16 bits hold f16 and bf16 as well as products need, but not f32.
bool has_integer_products(const Problem& p, const IsaShape& isa, const DeviceInfo& device) {
  return (isa.integer_products_isa & device.cpu_isa) != 0 && has_codes(p) &&
         dtype_of(p) != DType::f32 && p.head_dim <= kMaxIntegerDim;
}

ForwardPlan plan_forward(const Problem& p, Tile tile, const IsaShape& isa, const DeviceInfo& device,
                         int num_threads, const SequencePlan& sequence) {
  ForwardPlan x;  // every field is set: zeroing it first costs a twentieth of planning
  const int64_t rows = p.seqlen_q * group_size(p);
  x.sequence = sequence;
  x.scratch = scratch_layout(p, tile, isa);
  x.partials = partials_layout(p, x.scratch, sequence);
  x.units_per_head = std::max(ceil_div(rows, tile.m), x.partials.max_tasks);
  x.rows_per_head = static_cast<int32_t>(rows_per_head(std::min(rows, kDirectRows), isa));
  x.has_integer_products = has_integer_products(p, isa, device);
  const bool is_split = x.partials.max_tasks > 1;
  x.num_counters = is_split ? p.batch * p.num_kv_heads : 0;
  x.scratch_bytes = static_cast<size_t>(num_threads * x.scratch.total) * sizeof(float);
  x.partial_bytes = static_cast<size_t>(
      saturating_product({x.num_counters, x.partials.head_floats, sizeof(float)}));
  return x;
}

// Tiles up to twice as large as by the kernel's own rule.
constexpr int64_t kTileRows[] = {96, 144, 192, 288, 384, 576, 768};
constexpr int32_t kHeadsPerTask[] = {1, 2, 4, 8};

std::vector<TuningConfig> configs(const Target& target, const Problem& p,
                                  const DeviceInfo& device) {
  const IsaShape& isa = target.instance.shape;
  const int64_t rows = p.seqlen_q * group_size(p), most = 2 * largest_tile(p, device.l2_bytes).m;
  const Path path = plan_sequence(p, p.seqlen_q, p.seqlen_k).path;
  std::vector<TuningConfig> all;
  const auto add = [&all](const TuningConfig& config) {
    if (config != TuningConfig{} && std::find(all.begin(), all.end(), config) == all.end())
      all.push_back(config);
  };
  for (const int32_t num_threads : tuned_threads(device)) {
    TuningConfig config{.num_threads = num_threads};
    add(config);
    const int64_t own = choose_tile(p, isa, device, chosen(num_threads, device.num_units), path).m;
    for (const int64_t target_rows : kTileRows) {
      if (rows <= kSplitRows || target_rows > most) continue;
      const int64_t tile_m = std::max(even_rows(rows, target_rows, isa), kSplitRows);
      config.tile_m = static_cast<int32_t>(tile_m == own ? 0 : tile_m);
      add(config);
    }
    for (const int32_t heads : kHeadsPerTask) {
      if (path != Path::direct || has_codes(p) || p.num_kv_heads % heads != 0 ||
          heads * rows > kSweepRows)
        continue;
      config.heads_per_task = heads;
      add(config);
    }
  }
  return all;
}

Schedule plan(const Target& target, const Problem& p, const DeviceInfo& device,
              const TuningConfig& config) {
  const IsaShape& isa = target.instance.shape;
  const int num_threads = chosen(config.num_threads, std::max(device.num_units, 1));
  const SequencePlan sequence =
      plan_sequence(p, p.seqlen_q, p.seqlen_k, min_key_tasks(p, num_threads));
  Tile tile = choose_tile(p, isa, device, num_threads, sequence.path);
  tile.m = chosen(config.tile_m, tile.m);
  const ForwardPlan own = plan_forward(p, tile, isa, device, num_threads, sequence);
  Schedule schedule{.tile_m = tile.m,
                    .tile_n = tile.n,
                    .split_keys = sequence.num_splits > 1 ? sequence.split_keys : 0,
                    .max_splits = own.partials.max_splits,
                    .num_threads = num_threads,
                    .workspace_bytes = own.scratch_bytes + own.partial_bytes +
                                       static_cast<size_t>(own.num_counters) * sizeof(uint32_t) +
                                       kLineBytes,
                    .note = {}};
  schedule.kernel_plan.set(own);
  // Constants: formatting takes a tenth of planning.
  if (sequence.path == Path::direct) {
    static_assert(kDirectRows == 16);  // in the text
    schedule.note = "direct: at most 16 rows share a KV head, K and V are read once in place";
  } else {
    schedule.note = "packed: register tiles over packed panels of K and V";
  }
  if (own.has_integer_products)
    schedule.note += "; products of up to 16 rows with integer codes as integers";
  if (has_device_lengths(p)) schedule.note += "; chosen per sequence by its own lengths";
  return schedule;
}

Status launch(const Target& target, const Plan& plan, const AttentionArgs& args,
              Workspace workspace) {
  const Problem& p = plan.problem;
  const Schedule& schedule = plan.schedule;
  const auto& own = schedule.kernel_plan.get<ForwardPlan>();
  const auto address = reinterpret_cast<uintptr_t>(workspace.data);
  char* base =
      static_cast<char*>(workspace.data) + (kLineBytes - address % kLineBytes) % kLineBytes;
  const int64_t heads = choose_heads_per_task(plan, own, args);

  Call call{
      .problem = &p,
      .args = &args,
      .tile = {schedule.tile_m, schedule.tile_n},
      .num_threads = schedule.num_threads,
      .num_tasks = p.batch * p.num_kv_heads / heads * own.units_per_head,
      .plan = &own,
      .heads_per_task = heads,
      .worker_scratch = reinterpret_cast<float*>(base),
      .partial = reinterpret_cast<float*>(base + own.scratch_bytes),
      .num_finished = reinterpret_cast<uint32_t*>(base + own.scratch_bytes + own.partial_bytes)};
  std::memset(call.num_finished, 0, static_cast<size_t>(own.num_counters) * sizeof(uint32_t));
  return parallel_for(call.num_tasks, schedule.num_threads, target.instance.task_body[p.dtype],
                      &call);
}

// One Kernel per target and phase: the functions of a Kernel are plain pointers, so the target is a
// template argument.
template <const Target& kTarget>
constexpr Kernel make_kernel(std::string_view name, std::string_view summary) {
  return {.name = name,
          .summary = summary,
          .refuses = [](const Problem& p, const DeviceInfo& d) { return refuses(kTarget, p, d); },
          .plan = [](const Problem& p, const DeviceInfo& d,
                     const TuningConfig& config) { return plan(kTarget, p, d, config); },
          .launch = [](const Plan& plan, const AttentionArgs& args, Workspace workspace,
                       Stream) { return launch(kTarget, plan, args, workspace); },
          .configs = [](const Problem& p, const DeviceInfo& d) { return configs(kTarget, p, d); }};
}

template <const Target& kTarget>
constexpr Kernel make_backward_kernel(std::string_view name, std::string_view summary) {
  return {.name = name,
          .summary = summary,
          .refuses = [](const Problem& p, const DeviceInfo& d) { return refuses(kTarget, p, d); },
          .plan =
              [](const Problem& p, const DeviceInfo& d, const TuningConfig& config) {
                return plan_backward(kTarget.instance.shape, p, d, config);
              },
          .launch =
              [](const Plan& plan, const AttentionArgs& args, Workspace workspace, Stream) {
                return launch_backward(kTarget.instance, plan, args, workspace.data);
              },
          .configs =
              [](const Problem& p, const DeviceInfo& d) {
                return backward_configs(kTarget.instance.shape, p, d);
              }};
}

}  // namespace

// The kernels of each architecture; the scalar ones run everywhere.

constexpr Target kScalar{scalar::kInstance, 0, ""};
constexpr Target kScalarBackward{scalar::kBackwardInstance, kScalar.isa, kScalar.isa_refusal};

const Kernel kScalarKernel = make_kernel<kScalar>(
    "cpu_scalar_fwd", "tiled online softmax, f32 f16 bf16, every feature, any CPU");
const Kernel kScalarBackwardKernel = make_backward_kernel<kScalarBackward>(
    "cpu_scalar_bwd", "tiled, recomputes P from lse, f32 f16 bf16, every feature, any CPU");

#if defined(__x86_64__)

constexpr Target kAvx2{avx2::kInstance, HEADRACE_ISA_AVX2, "needs a CPU with AVX2, FMA and F16C"};
constexpr Target kAvx512{avx512::kInstance, HEADRACE_ISA_AVX512,
                         "needs a CPU with AVX-512 F, BW, DQ and VL"};
// On CPUs whose dot products are not faster, the float kernels are preferred.
constexpr Target kAvx512Bf16{
    avx512bf16::kInstance, HEADRACE_ISA_AVX512_BF16 | HEADRACE_ISA_AVX512_BF16_FAST,
    "needs a CPU with AVX-512 BF16 with dot products at FMA throughput (AMD)"};
constexpr Target kAvx2Backward{avx2::kBackwardInstance, kAvx2.isa, kAvx2.isa_refusal};
constexpr Target kAvx512Backward{avx512::kBackwardInstance, kAvx512.isa, kAvx512.isa_refusal};
constexpr Target kAvx512Bf16Backward{avx512bf16::kBackwardInstance, kAvx512Bf16.isa,
                                     kAvx512Bf16.isa_refusal};

const Kernel kAvx2Kernel = make_kernel<kAvx2>(
    "cpu_avx2_fwd", "tiled online softmax, f32 f16 bf16, every feature, 6 x 16 float tiles");
const Kernel kAvx512Kernel = make_kernel<kAvx512>(
    "cpu_avx512_fwd", "tiled online softmax, f32 f16 bf16, every feature, 12 x 32 float tiles");
const Kernel kAvx512Bf16Kernel = make_kernel<kAvx512Bf16>(
    "cpu_avx512bf16_fwd",
    "tiled online softmax, bf16, every feature, Q K^T as 12 x 32 tiles of bf16 dot products");
const Kernel kAvx2BackwardKernel = make_backward_kernel<kAvx2Backward>(
    "cpu_avx2_bwd",
    "tiled, recomputes P from lse, f32 f16 bf16, every feature, 6 x 16 float tiles");
const Kernel kAvx512BackwardKernel = make_backward_kernel<kAvx512Backward>(
    "cpu_avx512_bwd",
    "tiled, recomputes P from lse, f32 f16 bf16, every feature, 12 x 32 float tiles");
const Kernel kAvx512Bf16BackwardKernel = make_backward_kernel<kAvx512Bf16Backward>(
    "cpu_avx512bf16_bwd",
    "tiled, recomputes P from lse, bf16, every feature, 12 x 32 tiles of bf16 dot products");

#elif defined(__aarch64__)

constexpr Target kNeon{neon::kInstance, HEADRACE_ISA_NEON, "needs a CPU with NEON"};
constexpr Target kNeonBackward{neon::kBackwardInstance, kNeon.isa, kNeon.isa_refusal};

const Kernel kNeonKernel = make_kernel<kNeon>(
    "cpu_neon_fwd", "tiled online softmax, f32 f16 bf16, every feature, 4 x 16 float tiles");
const Kernel kNeonBackwardKernel = make_backward_kernel<kNeonBackward>(
    "cpu_neon_bwd",
    "tiled, recomputes P from lse, f32 f16 bf16, every feature, 4 x 16 float tiles");

#endif

}  // namespace headrace::cpu::flash
