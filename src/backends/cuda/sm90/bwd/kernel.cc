#include "backends/cuda/sm90/bwd/kernel.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "backends/cuda/common/bwd_preprocess.h"
#include "backends/cuda/common/dbias.h"
#include "backends/cuda/runtime/error_word.cuh"
#include "backends/cuda/runtime/launch.cuh"
#include "backends/cuda/sm90/bwd/config.h"
#include "backends/cuda/sm90/bwd/kernels.h"
#include "backends/cuda/sm90/bwd/postprocess.h"
#include "backends/cuda/sm90/operand_map.h"
#include "core/features.h"

namespace headrace::cuda::sm90::bwd {
namespace {

constexpr std::int64_t kMaxGrid = 65535;    // of axes y and z
constexpr double kSmallestScale = 0x1p-64;  // the lse is divided by it

struct Variant {
  Tile tile;
  Kernels *kernels, *fixed_kernels;
  Postprocess* postprocess;
};
// The first large enough one is used.
constexpr Variant kPlain[] = {
    {kTile64, &kernels_hd64, &kernels_hd64_fixed, launch_postprocess_hd64},
    {kTile128, &kernels_hd128, &kernels_hd128_fixed, launch_postprocess_hd128},
    {kTile192v128, &kernels_hd192v128, &kernels_hd192v128_fixed, launch_postprocess_hd192},
    {kTile192, &kernels_hd192, &kernels_hd192_fixed, launch_postprocess_hd192},
    {kTile256, &kernels_hd256, &kernels_hd256_fixed, launch_postprocess_hd256},
};
// With softcap, ALiBi or bias.
constexpr Variant kGeneral[] = {
    {kTile64, &kernels_hd64_general, &kernels_hd64_general_fixed, launch_postprocess_hd64},
    {kTile128, &kernels_hd128_general, &kernels_hd128_general_fixed, launch_postprocess_hd128},
    {kTile256, &kernels_hd256_general, &kernels_hd256_general_fixed, launch_postprocess_hd256},
};

// Null above 256.
const Variant* variant_of(const Problem& p) {
  const auto variants = has_general_scores(p) ? std::span<const Variant>(kGeneral) : kPlain;
  for (const Variant& v : variants)
    if (p.head_dim <= v.tile.head_dim && p.head_dim_v <= v.tile.head_dim_v) return &v;
  return nullptr;
}
std::int64_t key_blocks(const Problem& p) {
  return ceil_div<std::int64_t>(p.seqlen_k, variant_of(p)->tile.keys);
}

// ---- refusals

std::string refused_layout(const Problem& p) {
  return refused_operands(p, variant_of(p) != nullptr);
}

std::string refused_scores(const Problem& p) {
  if (const std::string names =
          used_features(p, {Feature::dropout, Feature::mask, Feature::tree_mask});
      !names.empty())
    return format_text("takes no {}", names);
  if (has_softcap(p) && num_used(p, FeatureKind::scores) > 1)
    return format_text("takes no {} beside a softcap",
                       used_features(p, {Feature::bias, Feature::alibi}));
  if (!(p.softmax_scale >= kSmallestScale))
    return format_text("needs a softmax_scale of at least {}", kSmallestScale);
  return {};
}

std::string refused_size(const Problem& p) {
  if (p.batch == 0 || p.num_heads == 0) return "there is nothing to do";
  if (p.seqlen_k == 0 || (p.is_ragged && (p.total_k == 0 || p.total_q == 0)))
    return "there are no keys or no queries";
  if (p.seqlen_q == 0) return "there are no queries";
  if (std::max(p.seqlen_q, p.seqlen_k) >= kMaxSeqlen)
    return format_text("sequences must be shorter than {}", kMaxSeqlen);
  if (std::max({key_blocks(p), p.num_kv_heads, p.batch}) > kMaxGrid)
    return format_text("there are more than {} batch entries, KV heads or blocks of {} keys",
                       kMaxGrid, variant_of(p)->tile.keys);
  if (p.batch * p.num_heads > INT32_MAX / ceil_div<std::int64_t>(p.seqlen_q, 64))
    return "there are more than 2^31 blocks of queries";
  return {};
}

std::string refuses(const Problem& p, const DeviceInfo& device) {
  if (std::string reason = refused_device(p, device); !reason.empty()) return reason;
  for (const auto check : {refused_layout, refused_scores, refused_size})
    if (std::string reason = check(p); !reason.empty()) return reason;
  return {};
}

// ---- the plan

// The workspace: lse and D of padded rows and, for dq in fixed point, its scales; the dq
// accumulator; bounds of K and V; the workspace of the bias gradient.
constexpr std::size_t kWorkspaceAlignment = 128;
struct Layout {
  std::int64_t lse, scale, dq, bounds, bias, end;  // in floats; D is at 0
  std::size_t bytes() const { return static_cast<std::size_t>(end) * 4 + kWorkspaceAlignment; }
};
Layout layout_of(const Problem& p) {
  const Sizes sizes = sizes_of(p);
  const std::int64_t rows = padded_elements(sizes);
  Layout layout{};
  const auto take = [&layout](std::int64_t floats) {
    const std::int64_t first = layout.end;
    layout.end += floats;
    return first;
  };
  take(rows);
  layout.lse = take(rows);
  layout.scale = take(p.deterministic ? rows / 2 : 0);
  layout.dq = take(rows * variant_of(p)->tile.head_dim);
  layout.bounds = take(p.deterministic ? num_kv_abs_max(sizes) * 2 : 0);
  layout.end = round_up<std::int64_t>(layout.end, kWorkspaceAlignment / 4);
  layout.bias = take(p.has_dbias ? static_cast<std::int64_t>(dbias_workspace_bytes(p) / 4) : 0);
  return layout;
}

// KV heads of a section: as many as keep Q, dO and the dQ accumulator in this part of the L2 cache,
// and at least as many as keep the device busy while their longest CTA runs, or the end of the grid
// would wait for it. With a causal mask a CTA takes half as long as the longest on average. Of a
// ragged batch only the longest length is known: sections stay within a sequence, or short
// sequences would leave the cache before their second key blocks.
constexpr std::int64_t kSectionShare = 2;  // 1 / 2

std::int64_t most_section_heads(const Problem& p) {
  return p.is_ragged ? p.num_kv_heads : p.batch * p.num_kv_heads;
}
std::int64_t least_section_heads(const Problem& p) {
  return ceil_div(p.batch * p.num_kv_heads, kMaxGrid);
}
int section_of(const Problem& p, const DeviceInfo& device) {
  if (!is_triangular(p)) return 0;
  const std::int64_t head_bytes =
      p.seqlen_q * group_size(p) * (2 * (p.head_dim + p.head_dim_v) + 4 * p.head_dim);
  const std::int64_t cached = device.l2_bytes / kSectionShare / head_bytes;
  const std::int64_t busy = ceil_div<std::int64_t>(2 * device.num_units, key_blocks(p));
  return static_cast<int>(
      std::min(std::max({cached, busy, least_section_heads(p)}), most_section_heads(p)));
}

// With a float dq accumulator the order of the sums is that of the atomics anyway.
std::vector<TuningConfig> configs(const Problem& p, const DeviceInfo& device) {
  std::vector<TuningConfig> all;
  const std::int32_t own = section_of(p, device);
  for (const std::int32_t section : {own / 4, own / 2, own * 2, own * 4})
    if (section > 0 && section >= least_section_heads(p) && section <= most_section_heads(p))
      all.push_back({.section_heads = section});
  return all;
}

// What a launch needs beside the pointers of the call.
struct BackwardPlan {
  const Variant* variant;
  Layout layout;
  int section, window_left, window_right;
  float lse_scale, scale_log2, inverse_scale, inverse_softcap;
  ScoreParams score_params;
};

BackwardPlan own_plan(const Problem& p, const DeviceInfo& device, const TuningConfig& config) {
  const auto window = [](std::int64_t w) {
    return w < 0 ? kOpenWindow : static_cast<int>(std::min<std::int64_t>(w, kOpenWindow - 1));
  };
  const auto inverse_scale = static_cast<float>(1 / p.softmax_scale);
  return {.variant = variant_of(p),
          .layout = layout_of(p),
          .section = chosen(config.section_heads, section_of(p, device)),
          .window_left = window(p.window_left),
          .window_right = has_causal(p) ? 0 : window(p.window_right),
          .lse_scale = has_general_scores(p) ? -1.0f : -inverse_scale,
          .scale_log2 = static_cast<float>(p.softmax_scale * M_LOG2E),
          .inverse_scale = inverse_scale,
          .inverse_softcap = has_softcap(p) ? static_cast<float>(1 / p.softcap) : 0.0f,
          .score_params = make_score_params(p)};
}

Schedule plan(const Problem& p, const DeviceInfo& device, const TuningConfig& config) {
  const BackwardPlan own = own_plan(p, device, config);
  const Tile& tile = own.variant->tile;
  Schedule schedule;
  schedule.tile_m = tile.queries;
  schedule.tile_n = tile.keys;
  schedule.cta = {.threads = threads_of(tile),
                  .registers = launch_registers(threads_of(tile), 1),
                  .smem_bytes = smem_bytes(tile),
                  .head_dim = tile.head_dim,
                  .head_dim_v = tile.head_dim_v};
  schedule.prob_dtype = dtype_of(p);
  schedule.num_ctas = p.batch * p.num_kv_heads * key_blocks(p);
  schedule.workspace_bytes = own.layout.bytes();
  schedule.ds_from_rounded_p = tile.is_specialized;
  schedule.sum_bits = p.deterministic ? kFixedPointBits : 0;
  schedule.has_fixed_bits = p.deterministic;
  schedule.note =
      format_text("{} keys a CTA, {} queries an iteration{}; TMA and wgmma, dq by atomics in {}{}",
                  tile.keys, tile.queries, is_triangular(p) ? ", longest first" : "",
                  p.deterministic ? "fixed point" : "float (not the same bits from run to run)",
                  p.has_dbias ? "; dbias by mma.sync" : "");
  schedule.kernel_plan.set(own);
  return schedule;
}

// ---- the launch

Status encode_maps(const Problem& p, const AttentionArgs& args, const Tile& tile, Maps& maps) {
  const OperandShape q{.columns = p.head_dim,
                       .rows = p.is_ragged ? p.total_q : p.seqlen_q,
                       .heads = p.num_heads,
                       .batch = p.is_ragged ? 1 : p.batch,
                       .box_rows = tile.queries};
  const OperandShape k{.columns = p.head_dim,
                       .rows = p.is_ragged ? p.total_k : p.seqlen_k,
                       .heads = p.num_kv_heads,
                       .batch = q.batch,
                       .box_rows = tile.keys};
  OperandShape dout = q, v = k;
  dout.columns = v.columns = p.head_dim_v;
  if (Status bad = encode_operand(p, args.q, q, maps.q)) return bad;
  if (Status bad = encode_operand(p, args.k, k, maps.k)) return bad;
  if (Status bad = encode_operand(p, args.v, v, maps.v)) return bad;
  return encode_operand(p, args.gradients.dout, dout, maps.dout);
}

dim3 grid_of(const Problem& p, int section) {
  const auto size = [](std::int64_t n) { return static_cast<unsigned>(n); };
  if (section == 0) return {size(key_blocks(p)), size(p.num_kv_heads), size(p.batch)};
  return {size(section), size(key_blocks(p)),
          size(ceil_div<std::int64_t>(p.batch * p.num_kv_heads, section))};
}

BwdCall call_of(const Problem& p, const BackwardPlan& own, const AttentionArgs& args, float* floats,
                std::uint32_t* error_word) {
  const Layout& layout = own.layout;
  BwdCall call{.problem = p,
               .args = args,
               .rows = {.delta = floats,
                        .lse = floats + layout.lse,
                        .dq_accum = floats + layout.dq,
                        .dq_accum_cols = own.variant->tile.head_dim},
               .lse_scale = own.lse_scale,
               .delta_scale = -1.0f,
               .error_word = error_word};
  if (p.deterministic) {
    call.rows.dq_scale = reinterpret_cast<std::uint16_t*>(floats + layout.scale);
    call.kv_abs_max = reinterpret_cast<KvAbsMax*>(floats + layout.bounds);
  }
  return call;
}

BlockParams block_params(const Problem& p, const BackwardPlan& own, const BwdCall& call) {
  return {.sizes = sizes_of(p),
          .lengths = lengths_of(p, call.args, call.error_word),
          .group = static_cast<int>(group_size(p)),
          .window_left = own.window_left,
          .window_right = own.window_right,
          .is_top_left = own.score_params.is_top_left,
          .section = own.section};
}

Params main_params(const BlockParams& blocks, const BackwardPlan& own, const BwdCall& call) {
  return {.blocks = blocks,
          .rows = call.rows,
          .dk = call.args.gradients.dk,
          .dv = call.args.gradients.dv,
          .bias = call.args.bias,
          .alibi = alibi_args_of(call.args),
          .scale_log2 = own.scale_log2,
          .scale = own.score_params.scale,
          .inverse_scale = own.inverse_scale,
          .inverse_softcap = own.inverse_softcap,
          .score_params = own.score_params};
}

Status launch(const Plan& plan, const AttentionArgs& args, Workspace workspace, Stream stream) {
  const Problem& p = plan.problem;
  const auto own = plan.schedule.kernel_plan.get<BackwardPlan>();
  const Variant& variant = *own.variant;
  auto* const floats = reinterpret_cast<float*>(round_up<std::uintptr_t>(
      reinterpret_cast<std::uintptr_t>(workspace.data), kWorkspaceAlignment));
  Maps maps;
  HEADRACE_TRY(encode_maps(p, args, variant.tile, maps));
  Result<std::uint32_t*> word = error_word(plan.device.device_id);
  if (!word.ok()) return std::move(word.failure());
  const BwdCall call = call_of(p, own, args, floats, word.value());
  const BlockParams blocks = block_params(p, own, call);
  const Params params = main_params(blocks, own, call);
  if (p.deterministic) HEADRACE_TRY(launch_kv_abs_max(call, stream));
  HEADRACE_TRY(launch_bwd_preprocess(call, stream));
  if (p.has_dsinks) HEADRACE_TRY(launch_dsinks(call, stream));
  Kernels& kernels = p.deterministic ? *variant.fixed_kernels : *variant.kernels;
  HEADRACE_TRY(cuda::launch(dtype_of(p) == DType::bf16 ? kernels.bf16 : kernels.f16,
                            {.grid = grid_of(p, own.section)}, stream, params, maps));
  const PostprocessParams postprocess{
      .blocks = blocks, .rows = call.rows, .dq = args.gradients.dq, .scale = params.scale};
  HEADRACE_TRY(variant.postprocess(postprocess, dtype_of(p), stream));
  if (!p.has_dbias) return std::nullopt;
  return launch_dbias(p, args, reinterpret_cast<unsigned char*>(floats + own.layout.bias),
                      word.value(), stream);
}

}  // namespace

const Kernel kBackwardKernel = {
    .name = "cuda_sm90_bwd",
    .summary =
        "TMA and wgmma on Hopper, bf16 and f16, head_dim in eights up to 256, causal, windows, "
        "sinks, softcap, ALiBi, bias, ragged, deterministic on request",
    .refuses = refuses,
    .plan = plan,
    .launch = launch,
    .configs = configs,
};

}  // namespace headrace::cuda::sm90::bwd
