#include "backends/cuda/sm90/decode/kernel.h"

#include <algorithm>
#include <cmath>

#include "backends/cuda/backend.h"
#include "backends/cuda/runtime/call_token.h"
#include "backends/cuda/runtime/error_word.cuh"
#include "backends/cuda/runtime/tensor_map.cuh"
#include "backends/cuda/sm90/decode/launch.h"
#include "backends/cuda/sm90/operand_map.h"
#include "base/math.h"
#include "core/features.h"

namespace headrace::cuda::sm90::decode {
namespace {

static_assert(kMaxRows == kMaxDecodeRows);

// ---- refusals

std::string refused_shape(const Problem& p) {
  const std::int64_t rows = p.seqlen_q * group_size(p);
  if (p.head_dim > kMaxHeadDim || p.head_dim_v > kMaxHeadDim)
    return format_text("head_dim {} with head_dim_v {}: takes up to {}", p.head_dim, p.head_dim_v,
                       kMaxHeadDim);
  if (rows > kMaxRows || p.seqlen_q > kMaxRows)
    return format_text("takes up to {} rows (queries x heads of a group), not {} x {}", kMaxRows,
                       p.seqlen_q, group_size(p));
  if (rows == 0) return "there are no queries";
  if (p.seqlen_k == 0) return "there are no keys";
  if (p.seqlen_k >= kMaxSeqlen) return format_text("sequences must be shorter than {}", kMaxSeqlen);
  if (has_pages(p) && p.num_pages == 0) return "there are no pages";
  if (saturating_product({p.batch, p.num_kv_heads, p.seqlen_k / kGroupKeys + 1}) > kMaxItems)
    return "there are more than 2^30 groups of 512 keys";
  return refused_operands(p, true);
}

std::string refused_scores(const Problem& p) {
  if (const std::string names = used_features(p, FeatureKind::scores); !names.empty())
    return format_text("takes plain scores: no {}", names);
  if (p.has_probs) return "returns no probs";
  if (p.num_splits > 0) return "splits keys at fixed positions, not into num_splits parts";
  if (p.strict_rows) return "does not compute rows as a prefill does (strict_rows)";
  if (!(p.softmax_scale > 0)) return "needs a positive softmax_scale";
  return {};
}

std::string refuses(const Problem& p, const DeviceInfo& device) {
  if (has_codes(p)) return "takes no quantised k and v";
  if (std::string reason = refused_device(p, device); !reason.empty()) return reason;
  for (const auto check : {refused_shape, refused_scores})
    if (std::string reason = check(p); !reason.empty()) return reason;
  return {};
}

// ---- the plan

SequenceKeys longest_keys(const Problem& p) {
  return keys_of_sequence(window_of(p), static_cast<int>(p.seqlen_q), static_cast<int>(p.seqlen_k));
}
WorkspacePlan workspace_of(const Problem& p, const WorkPlan& work, const SharedPrefix& prefix) {
  return workspace_plan(work, prefix, p.batch, p.batch * p.num_kv_heads, p.seqlen_q * group_size(p),
                        head_dim_bucket(p.head_dim, p.head_dim_v));
}
// Keys of a TMA box: it lies in one page.
int box_keys_of(const Problem& p) {
  if (!has_pages(p)) return kBlockKeys;
  return static_cast<int>(std::min<std::int64_t>(p.page_size & -p.page_size, kBlockKeys));
}

// What a launch needs beside the pointers of the call.
struct DecodePlan {
  Launch* launch;
  WorkPlan work;
  SharedPrefix prefix;
  WorkspacePlan workspace;
  Window window;
  SequenceKeys keys;
  int rows, group, box_keys;
  Divisor by_group, by_kv_heads, by_shares, by_share_groups, by_later_items, by_page_size;
  float scale, scale_log2;
};

WorkSize work_size(const Problem& p, const TuningConfig& config) {
  return {.longest = longest_keys(p),
          .is_uniform = !has_device_lengths(p),
          .batch_heads = p.batch * p.num_kv_heads,
          .rows = static_cast<int>(p.seqlen_q * group_size(p)),
          .dim = head_dim_bucket(p.head_dim, p.head_dim_v),
          .batch = p.batch,
          .may_share_prefix = max_prefix_groups(p, window_of(p)) > 0,
          .cluster_size = config.cluster_size,
          .run_groups = config.run_groups};
}

// The kernel computes the runs of a batch whose lengths are on the device.
std::vector<TuningConfig> configs(const Problem& p, const DeviceInfo& device) {
  const WorkSize size = work_size(p, {});
  const WorkPlan own = plan_work(size, device.num_units);
  std::vector<TuningConfig> all;
  for (int cluster_size = 1; cluster_size <= kMaxClusterSize; cluster_size *= 2)
    if (fits_cluster(size, cluster_size) && cluster_size != own.cluster_size)
      all.push_back({.cluster_size = cluster_size});
  if (fits_shares(size, device.num_units) && own.share_slots == 0)
    all.push_back({.run_groups = kEqualShares});
  const bool is_grid = own.cluster_size == 0 && own.share_slots == 0;
  for (int run_log2 = 0; run_log2 <= kChunkLog2 && size.is_uniform; ++run_log2)
    if (!is_grid || run_log2 != own.run_log2) all.push_back({.run_groups = 1 << run_log2});
  return all;
}

DecodePlan own_plan(const Problem& p, const DeviceInfo& device, const TuningConfig& config) {
  const SequenceKeys keys = longest_keys(p);
  const WorkSize size = work_size(p, config);
  const WorkPlan work = plan_work(size, device.num_units);
  const std::int64_t num_units = std::max<std::int64_t>(device.num_units, 1);
  const std::int64_t num_shares = std::clamp<std::int64_t>(work.num_items, 1, num_units);
  const SharedPrefix prefix = plan_prefix(p, window_of(p), work);
  const bool is_hd64 = head_dim_bucket(p.head_dim, p.head_dim_v) == 64;
  return {.launch = prefix.max_groups > 0 ? (is_hd64 ? launch_hd64_prefix : launch_hd128_prefix)
                    : is_hd64             ? launch_hd64
                                          : launch_hd128,
          .work = work,
          .prefix = prefix,
          .workspace = workspace_of(p, work, prefix),
          .window = window_of(p),
          .keys = keys,
          .rows = size.rows,
          .group = static_cast<int>(group_size(p)),
          .box_keys = box_keys_of(p),
          .by_group = Divisor::of(group_size(p)),
          .by_kv_heads = Divisor::of(std::max<std::int64_t>(p.num_kv_heads, 1)),
          .by_shares = Divisor::of(num_shares),
          .by_share_groups = Divisor::of(kWholeGroupCost * num_shares),
          .by_later_items = Divisor::of(std::max(work.head.num_items - 1, 1)),
          .by_page_size = page_size_divisor(p),
          .scale = static_cast<float>(p.softmax_scale),
          .scale_log2 = static_cast<float>(p.softmax_scale * M_LOG2E)};
}

std::string work_text(const WorkPlan& work) {
  if (work.cluster_size > 0)
    return format_text("a cluster of {} CTAs for each sequence and KV head", work.cluster_size);
  if (work.share_slots > 0)
    return format_text("each CTA has an equal share of {} groups of {} keys", work.num_slots,
                       kGroupKeys);
  if (work.is_uniform)
    return format_text("persistent, {} items of up to {} keys", work.num_items,
                       kGroupKeys << work.run_log2);
  return format_text("persistent, at most {} items of {} keys or more, counted on the device",
                     work.num_items, kGroupKeys);
}

Schedule plan(const Problem& p, const DeviceInfo& device, const TuningConfig& config) {
  const DecodePlan own = own_plan(p, device, config);
  const WorkPlan& work = own.work;
  const std::int64_t num_units = std::max<std::int64_t>(device.num_units, 1);
  Schedule schedule;
  schedule.tile_m = row_bucket(own.rows);
  schedule.tile_n = kBlockKeys;
  const bool has_clusters = work.cluster_size > 0, has_shares = work.share_slots > 0;
  const int dim = head_dim_bucket(p.head_dim, p.head_dim_v), rows = row_bucket(own.rows);
  const int threads = has_clusters ? work.cluster_threads : has_shares ? kShareThreads : kThreads;
  const int smem_bytes = has_clusters ? work.cluster_smem_bytes
                         : has_shares ? share_smem_plan(dim, rows).total
                                      : smem_plan(dim, rows).total;
  schedule.cta = {.threads = threads,
                  .registers = launch_registers(threads, 1),
                  .smem_bytes = smem_bytes,
                  .head_dim = dim,
                  .head_dim_v = dim};
  if (work.num_slots > 0) {  // splits of a cluster do not leave its shared memory
    const bool has_groups = has_shares || work.run_log2 < kChunkLog2;
    schedule.split_keys = has_groups ? kGroupKeys : kGroupKeys * kChunkGroups;
    schedule.max_splits = ceil_div(p.seqlen_k, schedule.split_keys);
  }
  schedule.prob_dtype = dtype_of(p);
  schedule.num_ctas =
      has_clusters ? work.num_items : std::clamp<std::int64_t>(work.num_items, 1, num_units);
  const bool has_prefix = own.prefix.max_groups > 0;
  if (work.num_slots > 0 || work.num_items > schedule.num_ctas || has_prefix)
    schedule.workspace_bytes = static_cast<std::size_t>(own.workspace.total + kWorkspaceAlignment);
  schedule.note =
      format_text("{}; keys split every {}; {} and mma.sync, keys as M", work_text(work),
                  kSplitKeys, has_clusters || has_shares ? "cp.async" : "TMA");
  if (has_prefix)
    schedule.note += format_text("; up to {} keys that neighbouring sequences share are read once",
                                 own.prefix.max_groups * kGroupKeys);
  schedule.kernel_plan.set(own);
  return schedule;
}

// ---- the launch

// Rows of 128 columns may come as one box of two halves where a box has all keys of a block, others
// come as boxes of 64 columns, of which those beyond the last column arrive as zeros.
bool has_whole_boxes(std::int64_t columns, int box_keys) {
  return columns == 2 * kSwizzleAtomCols && box_keys == kBlockKeys;
}
// Axes (column, slot, half, head, page). A contiguous tensor has a page for each sequence; a ragged
// one is one page.
Status encode_pages(const Problem& p, const Operand& x, std::int64_t columns, int box_keys,
                    bool is_whole, TensorMap& map) {
  TensorMapSpec spec{.dtype = dtype_of(p), .rank = 0, .l2_promotion = L2Promotion::bytes_128};
  std::int64_t strides[5] = {};
  const auto add = [&](std::int64_t size, std::int64_t stride, int box_size) {
    spec.sizes[spec.rank] = size;
    spec.box[spec.rank] = static_cast<std::uint32_t>(box_size);
    // Any stride does for an axis with one element, but TMA wants a multiple of 16 bytes.
    strides[spec.rank] = size > 1 ? stride : 8;
    ++spec.rank;
  };
  add(is_whole ? kSwizzleAtomCols : columns, 1, kSwizzleAtomCols);
  add(has_pages(p) ? p.page_size : p.is_ragged ? p.total_k : p.seqlen_k, x.stride_seq, box_keys);
  add(is_whole ? 2 : 1, kSwizzleAtomCols, is_whole ? 2 : 1);
  add(p.num_kv_heads, x.stride_head, 1);
  add(has_pages(p) ? p.num_pages : p.is_ragged ? 1 : p.batch, x.stride_batch, 1);
  if (std::string reason = tensor_map_refusal(spec, x.data, strides); !reason.empty())
    return unsupported(
        "a tensor of the call does not suit TMA: {}; make the plan with problem.alignment={} for "
        "another kernel",
        reason, dtype_bytes(dtype_of(p)));
  return encode_tensor_map(spec, x.data, strides, map);
}

void set_workspace(const WorkspacePlan& x, const WorkPlan& work, bool has_prefix,
                   Workspace workspace, Params& params) {
  const auto address = reinterpret_cast<std::uintptr_t>(workspace.data);
  auto* base = reinterpret_cast<char*>(round_up<std::uintptr_t>(address, kWorkspaceAlignment));
  params.counters = reinterpret_cast<CounterWords*>(base);
  params.arrived = reinterpret_cast<int*>(base + x.arrived);
  params.row_sums = reinterpret_cast<RowSums*>(base + x.row_sums);
  params.o_partial = reinterpret_cast<float*>(base + x.o);
  if (work.has_cut_heads) params.cut_heads = reinterpret_cast<int*>(base + x.cut_heads);
  params.token = next_call_token();
  if (!has_prefix) return;
  params.num_slices = reinterpret_cast<int*>(base + x.slices);
  params.slices = reinterpret_cast<PrefixSlice*>(base + x.slices) + 1;
  params.prefix_groups = reinterpret_cast<int*>(base + x.prefix_groups);
}

Status launch(const Plan& plan, const AttentionArgs& args, Workspace workspace, Stream stream) {
  const Problem& p = plan.problem;
  const auto own = plan.schedule.kernel_plan.get<DecodePlan>();
  if (own.work.num_items == 0) return std::nullopt;
  Params params{};
  std::uint32_t* length_errors = nullptr;
  if (has_device_lengths(p)) {
    Result<std::uint32_t*> word = error_word(plan.device.device_id);
    if (!word.ok()) return std::move(word.failure());
    length_errors = word.value();
  }
  params.sizes = sizes_of(p);
  params.lengths = lengths_of(p, args, length_errors);
  params.used_keys = used_keys_of(p, args);
  params.q = args.q;
  params.k = args.k;
  params.v = args.v;
  params.out = args.out;
  params.row_args = row_args_of(p, args);
  params.work = own.work;
  params.window = own.window;
  params.keys = own.keys;
  params.pages = page_table_of(p, args, own.by_page_size);
  params.rows = own.rows;
  params.group = own.group;
  params.by_group = own.by_group;
  params.by_kv_heads = own.by_kv_heads;
  params.by_shares = own.by_shares;
  params.by_share_groups = own.by_share_groups;
  params.by_later_items = own.by_later_items;
  params.batch = static_cast<int>(p.batch);
  params.num_kv_heads = static_cast<int>(p.num_kv_heads);
  params.num_units = plan.device.num_units;
  params.scale = own.scale;
  params.scale_log2 = own.scale_log2;
  params.box_keys = own.box_keys;
  params.prefix = own.prefix;
  const bool has_prefix = own.prefix.max_groups > 0;
  if (plan.schedule.workspace_bytes > 0)
    set_workspace(own.workspace, own.work, has_prefix, workspace, params);
  params.has_whole_k = has_whole_boxes(p.head_dim, own.box_keys);
  params.has_whole_v = has_whole_boxes(p.head_dim_v, own.box_keys);
  Maps maps;
  const auto encode = [&](bool is_whole_k, bool is_whole_v) -> Status {
    HEADRACE_TRY(encode_pages(p, args.k, p.head_dim, own.box_keys, is_whole_k, maps.k));
    return encode_pages(p, args.v, p.head_dim_v, own.box_keys, is_whole_v, maps.v);
  };
  const Call call{params,      maps,
                  dtype_of(p), static_cast<int>(plan.schedule.num_ctas),
                  stream,      args.follows_append};
  if (has_prefix) {
    HEADRACE_TRY(encode(false, false));
    HEADRACE_TRY(launch_prefix(call, head_dim_bucket(p.head_dim, p.head_dim_v)));
  }
  HEADRACE_TRY(encode(params.has_whole_k, params.has_whole_v));
  return own.launch(call);
}

}  // namespace

const Kernel kDecodeKernel = {
    .name = "cuda_sm90_decode",
    .summary =
        "few query rows over many keys on Hopper, contiguous or in pages, bf16 and f16, head_dim "
        "in eights up to 128, causal, window and sinks",
    .refuses = refuses,
    .plan = plan,
    .launch = launch,
    .configs = configs,
};

}  // namespace headrace::cuda::sm90::decode
