#include "backends/cuda/sm80/fwd/kernel.h"

#include "backends/cuda/runtime/error_word.cuh"
#include "backends/cuda/sm80/fwd/params.h"

namespace headrace::cuda::sm80::fwd {
namespace {

constexpr std::size_t kWorkspaceAlignment = 16;

constexpr Launchers<Call> kLaunchers = {{{launch_f32_hd64, launch_f32_hd128, launch_f32_hd256},
                                         {launch_f16_hd64, launch_f16_hd128, launch_f16_hd256},
                                         {launch_bf16_hd64, launch_bf16_hd128, launch_bf16_hd256}}};

int smem_of(const Problem& p, Tile tile) {
  const int element_bytes = dtype_of(p) == DType::f32 ? 4 : 2;
  return smem_plan(tile, element_bytes, needs_general_scores(p)).total;
}

std::string refuses(const Problem& p, const DeviceInfo& device) {
  if (has_codes(p)) return "takes no quantised k and v";
  if (device.sm < kMinSm)
    return format_text("needs a GPU of sm{} or newer, not sm{}", kMinSm, device.sm);
  if (dtype_of(p) == DType::f64) return "supports f32, f16 and bf16, not f64";
  if (p.has_probs) return "does not materialise P; only cuda_simple writes probs";
  if (head_dim_bucket(p) == 0)
    return format_text("supports head dims up to {}, not {} and {}", kMaxHeadDim, p.head_dim,
                       p.head_dim_v);
  if (p.seqlen_k > kMaxCount || p.seqlen_q > kMaxCount / group_size(p))
    return format_text(
        "supports at most {} keys and {} rows (queries x heads of a group) per sequence", kMaxCount,
        kMaxCount);
  const int smem = smem_of(p, tile_of(p, device.smem_bytes));
  if (device.smem_bytes != 0 && static_cast<std::int64_t>(device.smem_bytes) < smem)
    return format_text("needs {} bytes of shared memory per CTA, the GPU has {}", smem,
                       device.smem_bytes);
  return {};
}

std::int64_t tiles_per_head(const Problem& p, Tile tile) {
  const std::int64_t tiles = ceil_div<std::int64_t>(p.seqlen_q * group_size(p), tile.rows());
  const std::int64_t splits = tiles == 0 ? 0 : split_layout(p, tile).max_splits;
  return tiles > splits ? tiles : splits;
}

// What a launch needs beside the pointers of the call.
struct ForwardPlan {
  Launch* launch;
  Tile tile;
  bool is_general, use_large_tile;
  WorkOrder order;
  SplitLayout split_layout;
  ScoreParams score_params;
  Divisor by_group, by_page_size;
};

WorkOrder order_of(const Problem& p, const DeviceInfo& device, Tile tile,
                   std::int32_t section_heads) {
  WorkOrder order =
      work_order(p, tiles_per_head(p, tile), std::int64_t{device.num_units} * tile.min_ctas);
  order.last_heads = chosen(section_heads, order.last_heads);
  return order;
}

// Heads whose work tiles are interleaved at the end.
std::vector<TuningConfig> configs(const Problem& p, const DeviceInfo& device) {
  std::vector<TuningConfig> all;
  const WorkOrder own = order_of(p, device, tile_of(p, device.smem_bytes), 0);
  for (const std::int64_t heads : {own.last_heads / 2, own.last_heads * 2, own.last_heads * 4})
    if (heads > 0 && heads <= own.num_heads)
      all.push_back({.section_heads = static_cast<std::int32_t>(heads)});
  return all;
}

Schedule plan(const Problem& p, const DeviceInfo& device, const TuningConfig& config) {
  const Tile tile = tile_of(p, device.smem_bytes);
  const SplitLayout partials = split_layout(p, tile);
  const SplitPlan sequence = plan_splits(split_rule(p), tile, p.seqlen_q, p.seqlen_k);
  Schedule schedule;
  schedule.tile_m = tile.rows();
  schedule.tile_n = tile.keys;
  schedule.packed_heads = static_cast<int>(group_size(p));
  schedule.cta = {.threads = tile.threads(),
                  .registers = launch_registers(tile.threads(), tile.min_ctas),
                  .smem_bytes = smem_of(p, tile),
                  .head_dim = tile.dim,
                  .head_dim_v = tile.dim};
  schedule.split_keys = sequence.num_splits > 1 ? sequence.split_keys : 0;
  schedule.max_splits = partials.max_splits;
  schedule.prob_dtype = dtype_of(p);
  schedule.product_error = dtype_of(p) == DType::f32 ? k3xTf32ProductError : 0;
  schedule.num_ctas = tiles_per_head(p, tile) * p.batch * p.num_kv_heads;
  if (partials.max_splits > 1)
    schedule.workspace_bytes =
        static_cast<std::size_t>(partials.bytes(p.batch * p.num_kv_heads)) + kWorkspaceAlignment;
  schedule.note = format_text(
      "mma.sync, {} warps of {} rows, {} bytes of shared memory, {} scores{}", tile.warps,
      16 * tile.row_blocks, smem_of(p, tile), needs_general_scores(p) ? "general" : "plain",
      p.alignment < kWholeAlignment
          ? "; operands are not aligned to 16 bytes: copied element by element"
          : "");
  if (has_device_lengths(p) && partials.max_splits > 1)
    schedule.note += "; number of splits chosen per sequence";
  schedule.kernel_plan.set(ForwardPlan{.launch = kLaunchers.of(p),
                                       .tile = tile,
                                       .is_general = needs_general_scores(p),
                                       .use_large_tile = takes_large_tile(p, device.smem_bytes),
                                       .order = order_of(p, device, tile, config.section_heads),
                                       .split_layout = partials,
                                       .score_params = make_score_params(p),
                                       .by_group = Divisor::of(group_size(p)),
                                       .by_page_size = page_size_divisor(p)});
  return schedule;
}

Status launch(const Plan& plan, const AttentionArgs& args, Workspace workspace, Stream stream) {
  const Problem& p = plan.problem;
  const auto own = plan.schedule.kernel_plan.get<ForwardPlan>();
  if (own.order.num_tiles() == 0) return std::nullopt;
  Result<std::uint32_t*> word = error_word(plan.device.device_id);
  if (!word.ok()) return std::move(word.failure());
  Params params{.split = {.sizes = sizes_of(p),
                          .lengths = lengths_of(p, args, word.value()),
                          .used_keys = used_keys_of(p, args),
                          .out = args.out,
                          .rows = row_args_of(p, args),
                          .rule = split_rule(p),
                          .layout = own.split_layout,
                          .o_partial = nullptr},
                .q = args.q,
                .k = args.k,
                .v = args.v,
                .pages = page_table_of(p, args, own.by_page_size),
                .window = window_of(p),
                .scores = score_args_of(own.score_params, args),
                .order = own.order,
                .group = static_cast<std::int32_t>(group_size(p)),
                .by_group = own.by_group,
                .is_aligned = p.alignment >= kWholeAlignment,
                .is_even_k = is_even(p, p.head_dim),
                .is_even_v = is_even(p, p.head_dim_v)};
  if (plan.schedule.workspace_bytes > 0) {
    const auto address = reinterpret_cast<std::uintptr_t>(workspace.data);
    const auto aligned = round_up<std::uintptr_t>(address, kWorkspaceAlignment);
    params.split.o_partial = reinterpret_cast<float*>(aligned);
  }
  return own.launch({.params = params,
                     .tile = own.tile,
                     .is_general = own.is_general,
                     .use_large_tile = own.use_large_tile,
                     .stream = stream});
}

}  // namespace

const Kernel kForwardKernel = {
    .name = "cuda_sm80_fwd",
    .summary =
        "tensor cores by mma.sync, f32 (3 x tf32) f16 bf16, head dims to 256, every feature, keys "
        "in pages; any GPU from sm_80",
    .refuses = refuses,
    .plan = plan,
    .launch = launch,
    .configs = configs,
};

}  // namespace headrace::cuda::sm80::fwd
