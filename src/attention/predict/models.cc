#include "attention/predict/models.h"

#include <algorithm>
#include <array>

#include "attention/predict/model_constants.h"
#include "backends/cpu/attention/flash/backward_config.h"
#include "backends/cpu/attention/flash/config.h"
#include "backends/cuda/sm90/decode/config.h"
#include "base/math.h"
#include "core/features.h"
#include "core/kernel.h"

namespace headrace::predict {
namespace {

constexpr double kMicrosecond = 1e-6;
// Of a call on a GPU: the launch and the first loads.
constexpr double kGpuCallSeconds = 5 * kMicrosecond;

struct Input {
  const Plan& plan;
  const Problem& p;
  const Schedule& schedule;
  const Rates& rates;
  int ctas;  // that share a multiprocessor
  Work work;
};

double units_of(const Input& in) { return in.plan.device.num_units; }
// A CPU's rates are those of all its threads, of which a tuned plan may use fewer.
double idle_threads_factor(const Input& in) { return units_of(in) / in.schedule.num_threads; }
double element_bytes(const Problem& p) { return static_cast<double>(dtype_bytes(dtype_of(p))); }

// Seconds of an amount that the busiest slot computes, at the rate of its share of the device.
double slot_seconds(const Input& in, double amount, double rate) {
  return rate > 0 ? amount * in.ctas * units_of(in) / rate : 0;
}

// ---- forward on a GPU. A slot is a CTA that is resident, a tile tile_m rows of a head, an
// iteration tile_n keys.

struct Iteration {
  double flops, exps, smem_bytes;
};
std::int64_t num_slots(const Input& in) {
  return static_cast<std::int64_t>(in.plan.device.num_units) * in.ctas;
}
Iteration forward_iteration(const Input& in) {
  const Schedule& s = in.schedule;
  const auto dims = static_cast<double>(s.cta.head_dim + s.cta.head_dim_v);
  const auto keys = static_cast<double>(s.tile_n), rows = static_cast<double>(s.tile_m);
  constexpr int kWarpThreads = 32;
  // Every warp of mma.sync reads all of K and V for its own rows.
  return {2 * rows * keys * dims, rows * keys,
          keys * dims * element_bytes(in.p) * (s.cta.threads / kWarpThreads)};
}

ModelTime sm90_forward(const Input& in) {
  ModelTime t;
  t.waves = share_tiles(row_tiles(in.p, in.schedule), num_slots(in), 1);
  const Iteration one = forward_iteration(in);
  const double blocks = t.waves.busiest_work;
  const double exps = slot_seconds(in, blocks * one.exps, in.rates.exp2);
  t.parts = {{"tensor cores", slot_seconds(in, blocks * one.flops, in.rates.products)},
             {"exponentials", exps},
             {"f16 maxima", dtype_of(in.p) == DType::f16 ? exps : 0},
             {"tiles", t.waves.busiest_tiles * kMicrosecond},
             {"memory", in.work.bytes / in.rates.dram}};
  return t;
}

ModelTime sm80_forward(const Input& in) {
  ModelTime t;
  t.waves = share_tiles(row_tiles(in.p, in.schedule), num_slots(in), 1);
  const Iteration one = forward_iteration(in);
  const double blocks = t.waves.busiest_work;
  const double products = slot_seconds(in, blocks * one.flops, in.rates.products);
  const Part tiles{"tiles", t.waves.busiest_tiles * kMicrosecond};
  const Part memory{"memory", in.work.bytes / in.rates.dram};
  if (dtype_of(in.p) == DType::f32) {
    // A CTA alone on its multiprocessor overlaps nothing with its loads.
    const Part loads{"waits for loads", in.ctas == 1 ? blocks * kMicrosecond : 0};
    t.parts = {{"tensor cores", products}, loads, tiles, memory};
    return t;
  }
  t.parts = {{"tensor cores", products},
             {"exponentials", slot_seconds(in, blocks * one.exps, in.rates.exp2)},
             {"shared memory", slot_seconds(in, blocks * one.smem_bytes, in.rates.shared)},
             tiles,
             memory};
  return t;
}

// ---- backward on a GPU. A tile is tile_n keys, an iteration tile_m queries.

// The kernels around the main one: D and zeroed sums before it, rounding of dq after it.
double backward_bytes(const Problem& p) {
  const double bytes = element_bytes(p);
  const double query_elements = static_cast<double>(p.batch * p.num_heads * p.seqlen_q) *
                                static_cast<double>(p.head_dim + p.head_dim_v) / 2;
  const double key_elements = static_cast<double>(p.batch * p.num_kv_heads * p.seqlen_k) *
                              static_cast<double>(p.head_dim + p.head_dim_v) / 2;
  constexpr double kSums = 2 * sizeof(float);  // written and read
  // q; out and dout before; dout again; dq. k, v, dk, dv.
  return query_elements * (5 * bytes + kSums) + key_elements * 4 * bytes;
}

ModelTime gpu_backward(const Input& in, bool is_sm90) {
  ModelTime t;
  t.waves = share_tiles(key_tiles(in.p, in.schedule), num_slots(in), 1);
  const Schedule& s = in.schedule;
  const double blocks = t.waves.busiest_work;
  const auto pairs = static_cast<double>(s.tile_m * s.tile_n);
  const double flops = pairs * (6. * s.cta.head_dim + 4. * s.cta.head_dim_v);
  const double dq_bytes = static_cast<double>(s.tile_m) * s.cta.head_dim * sizeof(float);
  const double dq = slot_seconds(in, blocks * dq_bytes, in.rates.l2_write);
  const Part products{"tensor cores", slot_seconds(in, blocks * flops, in.rates.products)};
  const Part additions{"additions to dq", dq};
  const Part memory{"kernels around", backward_bytes(in.p) / in.rates.dram};
  const Part fixed{"fixed order of dq", in.p.deterministic ? dq : 0};
  if (!is_sm90) {
    t.parts = {products, additions, memory, fixed};
    return t;
  }
  t.parts = {products,
             additions,
             {"exponentials", slot_seconds(in, blocks * pairs, in.rates.exp2)},
             {"tiles", t.waves.busiest_tiles * kMicrosecond},
             memory,
             fixed};
  return t;
}
ModelTime sm90_backward(const Input& in) { return gpu_backward(in, true); }
ModelTime sm80_backward(const Input& in) { return gpu_backward(in, false); }

// ---- decode on Hopper

ModelTime sm90_decode(const Input& in) {
  namespace decode = cuda::sm90::decode;
  const Problem& p = in.p;
  const TuningConfig& config = in.plan.config;
  const std::int64_t heads = p.batch * p.num_kv_heads;
  const decode::Window window = decode::window_of(p);
  const auto keys =
      decode::keys_of_sequence(window, static_cast<int>(p.seqlen_q), static_cast<int>(p.seqlen_k));
  const auto work = decode::plan_work({.longest = keys,
                                       .is_uniform = true,
                                       .batch_heads = heads,
                                       .rows = static_cast<int>(p.seqlen_q * group_size(p)),
                                       .dim = decode::head_dim_bucket(p.head_dim, p.head_dim_v),
                                       .batch = p.batch,
                                       .may_share_prefix = decode::max_prefix_groups(p, window) > 0,
                                       .cluster_size = config.cluster_size,
                                       .run_groups = config.run_groups},
                                      in.plan.device.num_units);
  const bool has_shares = work.share_slots > 0;
  const bool is_grid = work.cluster_size == 0 && !has_shares;
  // Partial results are merged as groups, then as chunks; those of equal shares by a second kernel.
  int levels = has_shares ? 1 : 0;
  if (is_grid && work.head.num_items > 1)
    levels =
        work.run_log2 == decode::kChunkLog2 || work.head.num_slots <= decode::kChunkGroups ? 1 : 2;
  ModelTime t;
  t.waves =
      share_tiles({{1, std::max<std::int64_t>(work.num_items, 1)}}, in.plan.device.num_units, 0);
  // Items of later waves come from a counter, so only a first wave that is not full has idle CTAs.
  // Those of clusters and of equal shares ask for twice their part of the bandwidth: on an H100 64
  // of them read 1 x 8192 keys as fast as 132 would.
  const double busy = std::min(1., (is_grid ? 1 : 2) * t.waves.waves());
  t.parts = {{"memory", in.work.bytes / in.rates.dram / busy},
             {"start", kMicrosecond},
             {"persistent grid", is_grid ? kMicrosecond : 0},
             {"merges", levels * kMicrosecond},
             {"pages", has_pages(p) ? kMicrosecond : 0}};
  return t;
}

// ---- CPU

// An operation for each element of q, k, v and out: what causal masks do not halve, as packing and
// the division by the sum.
double element_seconds(const Input& in) {
  const Problem& p = in.p;
  const auto rows = static_cast<double>(p.batch) *
                    static_cast<double>(p.num_heads * p.seqlen_q + p.num_kv_heads * p.seqlen_k);
  return idle_threads_factor(in) * rows * static_cast<double>(p.head_dim + p.head_dim_v) /
         in.rates.f32;
}

ModelTime cpu_forward(const Input& in) {
  namespace flash = cpu::flash;
  const Problem& p = in.p;
  const double all_pairs = in.work.exps;
  const double dims = 2 * static_cast<double>(p.head_dim + p.head_dim_v);
  ModelTime t;
  const flash::SequencePlan sequence = flash::plan_sequence(
      p, p.seqlen_q, p.seqlen_k, flash::min_key_tasks(p, in.schedule.num_threads));
  if (sequence.path == flash::Path::direct) {
    t.waves = share_tiles({{1, p.batch * p.num_kv_heads * sequence.num_key_tasks}},
                          in.schedule.num_threads, 0);
    // Between half of the last cache and one and a half of it ever more bytes come from memory.
    const double of_cache =
        in.rates.last_cache_bytes > 0 ? in.work.bytes / in.rates.last_cache_bytes : 2;
    const double from_memory = std::clamp(of_cache - .5, 0., 1.);
    const double cached = (1 - from_memory) * in.work.bytes;
    // Products hide behind what comes from memory.
    const double stream = from_memory * in.work.bytes / in.rates.dram;
    const double products = idle_threads_factor(in) * all_pairs * dims / in.rates.f32;
    t.parts = {{"products", 0},
               {"softmax", 0},
               {"few rows", std::max(0., products - stream)},
               {"last cache", cached > 0 ? cached / in.rates.last_cache : 0},
               {"memory", stream},
               {"elements", 0}};
    return t;
  }
  Schedule rows = in.schedule;
  rows.packed_heads = static_cast<int>(group_size(p));
  rows.tile_n = 16;  // a part of a tile beyond the diagonal is skipped
  t.waves = share_tiles(row_tiles(p, rows), in.schedule.num_threads, 0);
  const double pairs = idle_threads_factor(in) * all_pairs / t.waves.balance();
  t.parts = {{"products", pairs * dims / in.rates.products},
             {"softmax", pairs / in.rates.f32},
             {"few rows", 0},
             {"last cache", 0},
             {"memory", 0},
             {"elements", element_seconds(in) / t.waves.balance()}};
  return t;
}

ModelTime cpu_backward(const Input& in) {
  namespace flash = cpu::flash;
  const Problem& p = in.p;
  const int threads = in.schedule.num_threads;
  const bool is_fused =
      in.schedule.kernel_plan.get<flash::BackwardLayout>().path == flash::BackwardPath::fused;
  ModelTime t;
  constexpr double kSeparate = 7. / 5;  // S and dP are computed twice
  if (is_fused)
    t.waves = share_tiles({{1, p.batch * p.num_kv_heads}}, threads, 0);
  else
    t.waves = share_tiles(key_tiles(p, in.schedule), threads, 0);
  const double more = idle_threads_factor(in) * (is_fused ? 1 : kSeparate) / t.waves.balance();
  // S and dP are computed for what is visible, two of the five matmuls; dQ, dK and dV for whole
  // blocks.
  const double blocks = static_cast<double>(p.batch * p.num_heads) *
                        block_pairs(p, in.schedule.tile_m, in.schedule.tile_n);
  const double flops = .4 * in.work.flops + .6 * 2 * (3. * p.head_dim + 2. * p.head_dim_v) * blocks;
  t.parts = {{"products", more * flops / in.rates.products},
             {"softmax", more * in.work.exps / in.rates.f32},
             {"elements", element_seconds(in) / t.waves.balance()}};
  return t;
}

// ---- which model

struct Model {
  std::string_view kernel;
  ModelTime (*time)(const Input&);
};
constexpr Model kModels[] = {
    {"cuda_sm90_fwd", sm90_forward},     {"cuda_sm90_bwd", sm90_backward},
    {"cuda_sm90_decode", sm90_decode},   {"cuda_sm80_fwd", sm80_forward},
    {"cuda_sm80_bwd", sm80_backward},    {"cpu_avx2_fwd", cpu_forward},
    {"cpu_avx512_fwd", cpu_forward},     {"cpu_avx512bf16_fwd", cpu_forward},
    {"cpu_avx2_bwd", cpu_backward},      {"cpu_avx512_bwd", cpu_backward},
    {"cpu_avx512bf16_bwd", cpu_backward}};

const ModelConstants* constants_of(const Plan& plan) {
  const std::string name =
      std::string(plan.kernel->name) +
      (plan.kernel->name == "cuda_sm80_fwd" && dtype_of(plan.problem) == DType::f32 ? " f32" : "");
  for (const ModelConstants& c : kModelConstants)
    if (c.name == name) return &c;
  return nullptr;
}

// Empty: the model covers the problem.
std::string not_covered(const Plan& plan, const ModelConstants* constants) {
  const Problem& p = plan.problem;
  const std::string_view name = plan.kernel->name;
  if (constants == nullptr)
    return format_text("{} has no model for {}", name, dtype_name(dtype_of(p)));
  if (p.is_ragged) return "lengths of a ragged batch are known to the call alone";
  std::string features = used_features(p, FeatureKind::scores);
  if (features.empty()) features = used_features(p, FeatureKind::keys);
  if (features.empty()) features = used_features(p, {Feature::probs, Feature::dbias});
  if (features.empty() && has_pages(p) && name != "cuda_sm90_decode") features = "pages";
  if (!features.empty()) return format_text("the model of {} does not cover {}", name, features);
  const bool has_no_splits = name.starts_with("cuda_sm80") || name == "cuda_sm90_fwd";
  if (has_no_splits && plan.schedule.max_splits > 1)
    return format_text("the model of {} does not cover splits of keys", name);
  return {};
}

}  // namespace

Work work_of(const Problem& p) {
  const double bytes = element_bytes(p);
  const auto stored = [](DType dtype) {
    return static_cast<double>(dtype_bytes(dtype)) / static_cast<double>(codes_per_byte(dtype));
  };
  const auto heads = static_cast<double>(p.batch * p.num_heads);
  const double pairs = heads * visible_pairs(p);
  const auto dims = static_cast<double>(p.head_dim + p.head_dim_v);
  const auto queries = heads * static_cast<double>(p.seqlen_q);
  const auto key_heads = static_cast<double>(p.batch * p.num_kv_heads);
  // The union of the keys that queries see. Gradients of all others are written, too.
  const double seen = static_cast<double>(
      std::max<std::int64_t>(0, visible_keys(p, p.seqlen_q - 1, p.seqlen_q, p.seqlen_k).end -
                                    visible_keys(p, 0, p.seqlen_q, p.seqlen_k).begin));
  const double key_bytes = static_cast<double>(p.head_dim) * stored(k_dtype_of(p)) +
                           static_cast<double>(p.head_dim_v) * stored(v_dtype_of(p));
  const bool backward = is_backward(p);
  const double products = backward ? 3. * p.head_dim + 2. * p.head_dim_v : dims;
  const double lse = p.has_lse ? queries * std::max(bytes, 4.) : 0;
  return {
      .bytes = (backward ? 2 : 1) * queries * dims * bytes + lse +
               key_heads * key_bytes * (seen + (backward ? static_cast<double>(p.seqlen_k) : 0)),
      .flops = 2 * products * pairs,
      .exps = pairs};
}

ModelTime model_time(const Plan& plan, const Rates& rates, const Occupancy& occupancy) {
  ModelTime t;
  const ModelConstants* constants = constants_of(plan);
  t.reason = not_covered(plan, constants);
  if (t.reason.empty() && rates.source.empty())
    t.reason = "no ceilings of this device are known; measure them with headrace roofline";
  else if (t.reason.empty() && !(rates.products > 0 && rates.dram > 0))
    t.reason = "the ceilings of this device lack products or DRAM reads";
  if (!t.reason.empty()) return t;
  for (const Model& model : kModels) {
    if (model.kernel != plan.kernel->name) continue;
    t = model.time({plan, plan.problem, plan.schedule, rates, std::max(occupancy.ctas, 1),
                    work_of(plan.problem)});
  }
  for (std::size_t i = 0; i < t.parts.size(); ++i) t.parts[i].constant = constants->values[i];
  if (plan.device.device_type == HEADRACE_CUDA) t.parts.push_back({"launch", kGpuCallSeconds, 1});
  return t;
}

}  // namespace headrace::predict
