#include "backends/cuda/sm90/fwd/kernel.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "backends/cuda/runtime/call_token.h"
#include "backends/cuda/runtime/error_word.cuh"
#include "backends/cuda/runtime/launch.cuh"
#include "backends/cuda/sm90/fwd/combine.h"
#include "backends/cuda/sm90/fwd/config.h"
#include "backends/cuda/sm90/fwd/variants.h"
#include "backends/cuda/sm90/operand_map.h"
#include "base/math.h"
#include "core/features.h"

namespace headrace::cuda::sm90::fwd {
namespace {

bool has_splits(const Problem& p, const TileVariant& v) {
  return v.tile.merges_splits || (v.tile.splits_keys && spans_splits(p));
}

// ---- refusals

std::string refused_layout(const Problem& p) {
  if (has_pages(p) && p.num_pages == 0) return "there are no pages";
  const TileVariant* variant = variant_of(p);
  // Dropout above head_dim 128 has a general kernel: what counts is the variant, not the feature.
  if (variant != nullptr && (has_pages(p) || p.has_seqused_k) &&
      !reads_pages(variant->tile, variant->scores))
    return "takes no pages and no seqused_k with softcap, masks or several features of scores, "
           "except of up to 64 rows without dropout, strict_rows and num_splits, nor with dropout "
           "of a head_dim above 128";
  return refused_operands(p, variant != nullptr);
}

std::string refused_scores(const Problem& p) {
  if (p.has_probs) return "returns no probs";
  if (p.num_splits > 1) return "takes no num_splits";
  if (!(p.softmax_scale > 0)) return "needs a positive softmax_scale";
  return {};
}

std::string refused_size(const Problem& p) {
  if (p.seqlen_k == 0 || (has_ragged_keys(p) && p.total_k == 0)) return "there are no keys";
  if (std::max(p.seqlen_q, p.seqlen_k) >= kMaxSeqlen)
    return format_text("sequences must be shorter than {}", kMaxSeqlen);
  const std::int64_t blocks = ceil_div<std::int64_t>(p.seqlen_q, kGroupRows);
  // Of few rows also the CTAs that combine: at most 64 rows, four each.
  const TileVariant* few = few_rows_variant_of(p);
  const std::int64_t tiles =
      few == nullptr || !has_splits(p, *few)
          ? blocks
          : std::max<std::int64_t>(num_splits(static_cast<int>(p.seqlen_k), num_short_splits(p)),
                                   kGroupRows / 4);
  if (p.batch * p.num_heads > INT32_MAX / 4 / std::max<std::int64_t>(tiles, 1))
    return "there are more than 2^29 tiles";
  return {};
}

std::string refuses(const Problem& p, const DeviceInfo& device) {
  if (has_codes(p)) return "takes no quantised k and v";
  if (std::string reason = refused_device(p, device); !reason.empty()) return reason;
  for (const auto check : {refused_layout, refused_scores, refused_size})
    if (std::string reason = check(p); !reason.empty()) return reason;
  return {};
}

// ---- the plan

// Packed GQA: the rows of a tile are (query, head of a group) pairs, where that fills tiles
// noticeably better: sequences much shorter than a tile. It changes no bits.
bool can_pack(const Problem& p, const Tile& tile) {
  return group_size(p) > 1 && group_size(p) <= group_rows(tile);
}
bool is_packed(const Problem& p, const Tile& tile) {
  const std::int64_t group = group_size(p);
  if (!can_pack(p, tile)) return false;
  const std::int64_t rows = rows_of(tile);
  const std::int64_t packed_queries = group_rows(tile) / group * tile.warpgroups;
  const std::int64_t plain_tiles = ceil_div(p.seqlen_q, rows) * group;
  const std::int64_t packed_tiles = ceil_div(p.seqlen_q, packed_queries);
  return 10 * packed_tiles < 9 * plain_tiles;
}

// An upper bound of the number of tiles. A ragged batch has at most one tile a sequence that is not
// full.
std::int64_t num_tiles_of(const Problem& p, const TileParams& tiles) {
  const std::int64_t dense = p.batch * tiles.m_blocks;
  return (p.is_ragged ? std::min(dense, p.total_q / tiles.tile_queries + p.batch) : dense) *
         tiles.tile_heads;
}

TileParams tile_params(const Problem& p, const Tile& tile, std::int32_t packed_heads) {
  TileParams t{};
  t.pack = chosen(packed_heads, is_packed(p, tile) ? static_cast<int>(group_size(p)) : 1);
  t.pack_inverse = ceil_div(1 << 16, t.pack);
  t.group_queries = group_rows(tile) / t.pack;
  t.tile_queries = t.group_queries * tile.warpgroups;
  t.tile_heads = static_cast<int>(p.num_heads) / t.pack;
  t.kv_divisor = static_cast<int>(group_size(p)) / t.pack;
  t.batch_heads = static_cast<int>(p.batch) * t.tile_heads;
  t.seqlen_q = static_cast<int>(p.seqlen_q);
  t.seqlen_k = static_cast<int>(p.seqlen_k);
  const auto window = [](std::int64_t w) {
    return w < 0 ? kOpenWindow : static_cast<int>(std::min<std::int64_t>(w, kOpenWindow - 1));
  };
  t.window_left = window(p.window_left);
  t.window_right = has_causal(p) ? 0 : window(p.window_right);
  t.is_top_left = p.causal == HEADRACE_CAUSAL_TOP_LEFT;
  t.m_blocks = static_cast<int>(ceil_div<std::int64_t>(p.seqlen_q, t.tile_queries));
  t.num_tiles = static_cast<int>(num_tiles_of(p, t));
  t.is_triangular = is_triangular(p);
  return t;
}

// Heads of a section: as many as keep their K and V in this part of the L2 cache, and at most as
// many as give the concurrent CTAs tiles of this many lengths: tiles of one length start and end
// together.
constexpr std::int64_t kSectionShare = 2;  // 1 / 2
constexpr std::int64_t kLengthsAtOnce = 4;

// The last section must have some tiles for each CTA, or a long tile starts last.
constexpr std::int64_t kTilesPerCtaAtTheEnd = 3;

void set_sections(const Problem& p, const DeviceInfo& device, std::int64_t num_ctas,
                  std::int32_t section_heads, TileParams& tiles) {
  const std::int64_t key_bytes = (p.head_dim + p.head_dim_v) * 2;
  const std::int64_t keys = std::max<std::int64_t>(device.l2_bytes / kSectionShare / key_bytes, 1);
  tiles.section_keys = static_cast<int>(std::min<std::int64_t>(keys, INT32_MAX));
  std::int64_t kv_heads = 1;
  while (kv_heads * 2 * p.seqlen_k <= keys) kv_heads *= 2;
  const std::int64_t mixed = std::max<std::int64_t>(num_ctas / kLengthsAtOnce, 1);
  const std::int64_t section =
      chosen(section_heads,
             std::min<std::int64_t>({kv_heads * tiles.kv_divisor, mixed, tiles.batch_heads}));
  const std::int64_t tail = ceil_div<std::int64_t>(kTilesPerCtaAtTheEnd * num_ctas, tiles.m_blocks);
  tiles.section = static_cast<int>(section);
  tiles.num_sections =
      static_cast<int>(std::max<std::int64_t>(0, (tiles.batch_heads - tail) / section));
}

// Tiles of different length, and more than one a CTA: a dynamic tile counter.
bool is_dynamic(const Problem& p, const TileParams& tiles, std::int64_t num_ctas) {
  return tiles.num_tiles > num_ctas &&
         (tiles.is_triangular != 0 || has_device_lengths(p) || p.window_left >= 0);
}

// ---- splits

// Without the places of the partial results.
SplitArgs split_args(const Problem& p, const TileVariant& v, const TileParams& tiles) {
  if (!has_splits(p, v)) return {};
  return {.max_splits = num_splits(static_cast<int>(p.seqlen_k), num_short_splits(p)),
          .num_short = num_short_splits(p),
          .rows = v.tile.merges_splits ? 0 : static_cast<int>(p.seqlen_q) * tiles.pack,
          .out = nullptr,
          .weights = nullptr};
}

std::int64_t num_partial_rows(const Problem& p, const TileParams& tiles, const SplitArgs& x) {
  return p.batch * tiles.tile_heads * x.max_splits * x.rows;
}

// Floats of the workspace: partial results and their weights, or what CTAs have merged.
std::int64_t num_split_floats(const Problem& p, const Tile& tile, const TileParams& tiles,
                              const SplitArgs& x, std::int64_t num_ctas) {
  if (tile.merges_splits)
    return merges_in_smem(tile) ? 0 : num_ctas * tile.warpgroups * merged_bytes(tile) / 4;
  return num_partial_rows(p, tiles, x) * (p.head_dim_v + 2);
}

// What a launch needs beside the pointers of the call.
struct ForwardPlan {
  const TileVariant* variant;
  TileParams tiles;
  SplitArgs splits;
  ScoreParams score_params;
  float scale_log2;
  Divisor by_page_size;
  bool is_dynamic;
  int cluster_size;  // CTAs
};

std::int64_t num_ctas_of(const Tile& tile, const TileParams& tiles, const DeviceInfo& device) {
  const std::int64_t most = std::max<std::int64_t>(device.num_units, 1) * tile.ctas;
  const std::int64_t num_ctas = std::clamp<std::int64_t>(tiles.num_tiles, 1, most);
  if (tile.transposed_rows == 0) return num_ctas;
  // Together their lists hold all splits, also where some CTAs take more than their share.
  return std::max<std::int64_t>(num_ctas, ceil_div<std::int64_t>(tiles.num_tiles, kMaxItems / 2));
}

// The tiles, their order, and whether a counter hands them out.
struct TileChoice {
  const TileVariant* variant;
  TileParams tiles;
  SplitArgs splits;
  std::int64_t num_ctas;
  int cluster_size;  // CTAs
  bool is_dynamic;
};
TileChoice choose_tiles(const Problem& p, const DeviceInfo& device, const TuningConfig& config) {
  const TileVariant& variant = *variant_of(p, config.tile_m);
  TileParams tiles = tile_params(p, variant.tile, config.packed_heads);
  const SplitArgs splits = split_args(p, variant, tiles);
  if (variant.tile.splits_keys && splits.max_splits != 0) tiles.num_tiles *= splits.max_splits;
  const TileVariant* parts = parts_variant_of(variant);
  if (parts != nullptr && tiles.num_tiles > 0 &&
      (splits.max_splits != 0 || p.seqlen_k <= kSplitKeys)) {
    const int size = choose_parts(parts->tile, tiles.num_tiles, device.num_units);
    if (size > 0) return {parts, tiles, splits, std::int64_t{size} * tiles.num_tiles, size, false};
  }
  const std::int64_t num_ctas = num_ctas_of(variant.tile, tiles, device);
  if (tiles.num_tiles > 0) set_sections(p, device, num_ctas, config.section_heads, tiles);
  const bool has_counter = variant.tile.transposed_rows > 0 ? tiles.num_tiles > num_ctas
                                                            : is_dynamic(p, tiles, num_ctas);
  const std::int32_t own = has_counter ? kDynamicTiles : kStaticTiles;
  return {&variant, tiles, splits, num_ctas, 1, chosen(config.tile_order, own) == kDynamicTiles};
}

std::vector<TuningConfig> configs(const Problem& p, const DeviceInfo& device) {
  const TileVariant* few = few_rows_variant_of(p);
  const TileVariant* v = few != nullptr ? few : long_variant_of(p);
  const ShortVariant* s = short_variant_of(v);
  const std::int32_t own_rows = rows_of(variant_of(p)->tile);
  std::vector<std::int32_t> rows{0}, packs{0};
  if (s != nullptr)
    rows.push_back(rows_of(v->tile) == own_rows ? rows_of(s->variant.tile) : rows_of(v->tile));
  std::vector<TuningConfig> all;
  for (const std::int32_t tile_m : rows) {
    const Tile& own_tile = variant_of(p, tile_m)->tile;
    packs.resize(1);
    if (can_pack(p, own_tile))
      packs.push_back(is_packed(p, own_tile) ? 1 : static_cast<std::int32_t>(group_size(p)));
    for (const std::int32_t pack : packs) {
      const TuningConfig tile{.tile_m = tile_m, .packed_heads = pack};
      const TileChoice own = choose_tiles(p, device, tile);
      if (own.tiles.num_tiles == 0) continue;
      std::vector<std::int32_t> sections{0};
      if (own.tiles.is_triangular != 0 && !p.is_ragged && own.splits.max_splits == 0)
        for (const int section : {own.tiles.section / 2, own.tiles.section * 2})
          if (section > 0 && section <= own.tiles.batch_heads) sections.push_back(section);
      std::vector<std::int32_t> orders{0};
      if (own.tiles.num_tiles > own.num_ctas)
        orders.push_back(own.is_dynamic ? kStaticTiles : kDynamicTiles);
      for (const std::int32_t section : sections)
        for (const std::int32_t order : orders) {
          TuningConfig config = tile;
          config.section_heads = section;
          config.tile_order = order;
          if (config != TuningConfig{}) all.push_back(config);
        }
    }
  }
  return all;
}

constexpr std::size_t kCounterBytes = sizeof(CounterWords) + alignof(CounterWords);

Schedule plan(const Problem& p, const DeviceInfo& device, const TuningConfig& config) {
  const TileChoice choice = choose_tiles(p, device, config);
  ForwardPlan own{.variant = choice.variant,
                  .tiles = choice.tiles,
                  .splits = choice.splits,
                  .score_params = make_score_params(p),
                  .scale_log2 = static_cast<float>(p.softmax_scale * M_LOG2E),
                  .by_page_size = page_size_divisor(p),
                  .is_dynamic = choice.is_dynamic,
                  .cluster_size = choice.cluster_size};
  const Tile& tile = own.variant->tile;
  Schedule schedule;
  schedule.tile_m = rows_of(tile);
  schedule.tile_n = tile.keys;
  schedule.packed_heads = own.tiles.pack;
  schedule.cta = {.threads = threads_of(tile),
                  .registers = launch_registers(tile),
                  .smem_bytes = smem_bytes(tile),
                  .head_dim = tile.head_dim,
                  .head_dim_v = tile.head_dim_v};
  schedule.prob_dtype = dtype_of(p);
  schedule.num_ctas = choice.num_ctas;
  const bool dynamic = choice.is_dynamic;
  if (dynamic) schedule.workspace_bytes = kCounterBytes;
  if (own.splits.max_splits != 0) {
    schedule.split_keys = p.seqlen_k > split_begin(own.splits.num_short, own.splits.num_short)
                              ? kSplitKeys
                              : kShortSplitKeys;
    schedule.max_splits = own.splits.max_splits;
    const std::int64_t floats = num_split_floats(p, tile, own.tiles, own.splits, schedule.num_ctas);
    schedule.workspace_bytes =
        kCounterBytes + kWholeAlignment + static_cast<std::size_t>(floats) * sizeof(float);
  }
  const bool has_long_splits =
      own.splits.num_short > 0 && own.splits.max_splits > own.splits.num_short;
  const std::string clusters =
      own.cluster_size > 1 ? format_text("clusters of {} CTAs", own.cluster_size) : "persistent";
  schedule.note = format_text(
      "{}{}, {} tiles at most, {}{}; TMA and wgmma, {} softmax{}",
      has_long_splits ? "the first splits of 1024 keys; " : "", clusters, own.tiles.num_tiles,
      own.tiles.is_triangular != 0 ? "longest first, " : "", dynamic ? "dynamic" : "static",
      dtype_of(p) == DType::bf16 ? "lazy" : "conditional",
      own.tiles.pack > 1 ? format_text(", {} query heads a tile", own.tiles.pack) : std::string());
  schedule.kernel_plan.set(own);
  return schedule;
}

// ---- the launch

// TMA needs rows of the dtype of q that start at multiples of 16 bytes, one for each query.
bool suits_tma(const ScoreOperand& bias, DType dtype, const TileParams& tiles) {
  const bool is_aligned = reinterpret_cast<std::uintptr_t>(bias.data) % kWholeAlignment == 0 &&
                          (bias.stride_batch | bias.stride_head | bias.stride_q) % 8 == 0;
  return bias.data != nullptr && bias.dtype == dtype && bias.stride_k == 1 && is_aligned &&
         bias.stride_batch >= 0 && bias.stride_head >= 0 && bias.stride_q > 0 && tiles.pack == 1;
}

// Keys of a TMA box: all of a k-block, or as many as lie in one page of every k-block.
int box_keys(const Problem& p, const Tile& tile) {
  return static_cast<int>(std::gcd(p.page_size, std::int64_t{stage_keys(tile)}));
}

Status encode_maps(const Problem& p, const AttentionArgs& args, const Tile& tile,
                   const TileParams& tiles, Maps& maps) {
  const std::int64_t rows_q = p.is_ragged ? p.total_q : p.seqlen_q;
  const std::int64_t batch_q = p.is_ragged ? 1 : p.batch;
  constexpr int kStoredRows = 16;  // of a warp
  if (Status bad = encode_operand(p, args.q,
                                  {.columns = p.head_dim,
                                   .rows = rows_q,
                                   .heads = p.num_heads,
                                   .batch = batch_q,
                                   .pack = tiles.pack,
                                   .box_rows = tiles.group_queries},
                                  maps.q))
    return bad;
  const OperandShape k{.columns = p.head_dim,
                       .rows = has_pages(p)         ? p.page_size
                               : has_ragged_keys(p) ? p.total_k
                                                    : p.seqlen_k,
                       .heads = p.num_kv_heads,
                       .batch = has_pages(p) ? p.num_pages : batch_q,
                       .box_rows = box_keys(p, tile),
                       .is_streamed = tile.splits_keys};
  if (Status bad = encode_operand(p, args.k, k, maps.k)) return bad;
  OperandShape v = k;
  v.columns = p.head_dim_v;
  if (Status bad = encode_operand(p, args.v, v, maps.v)) return bad;
  if (tile.has_tma_bias && suits_tma(args.bias, dtype_of(p), tiles)) {
    const Operand bias{.data = const_cast<void*>(args.bias.data),
                       .stride_batch = args.bias.stride_batch,
                       .stride_seq = args.bias.stride_q,
                       .stride_head = args.bias.stride_head};
    // An axis that broadcasts has size 1 in the tensor map.
    if (Status bad = encode_operand(p, bias,
                                    {.columns = p.seqlen_k,
                                     .rows = rows_q,
                                     .heads = args.bias.stride_head != 0 ? p.num_heads : 1,
                                     .batch = bias.stride_batch != 0 ? batch_q : 1,
                                     .box_rows = kGroupRows},
                                    maps.bias))
      return bad;
  }
  return encode_operand(p, args.out,
                        {.columns = p.head_dim_v,
                         .rows = rows_q,
                         .heads = p.num_heads,
                         .batch = batch_q,
                         .box_rows = kStoredRows},
                        maps.out);
}

bool has_pairs(const ScoreOperand& bias, DType dtype) {
  const bool is_aligned = reinterpret_cast<std::uintptr_t>(bias.data) % 4 == 0 &&
                          (bias.stride_batch | bias.stride_head | bias.stride_q) % 2 == 0;
  return bias.data != nullptr && bias.dtype == dtype && bias.stride_k == 1 && is_aligned;
}

CounterWords* tile_counter_in(Workspace workspace) {
  constexpr std::uintptr_t kAlignment = alignof(CounterWords);
  const auto address = reinterpret_cast<std::uintptr_t>(workspace.data);
  return reinterpret_cast<CounterWords*>(ceil_div(address, kAlignment) * kAlignment);
}

float* partial_results_in(Workspace workspace) {
  const auto address = reinterpret_cast<std::uintptr_t>(workspace.data) + kCounterBytes;
  return reinterpret_cast<float*>(round_up<std::uintptr_t>(address, kWholeAlignment));
}

Status launch(const Plan& plan, const AttentionArgs& args, Workspace workspace, Stream stream) {
  const auto own = plan.schedule.kernel_plan.get<ForwardPlan>();
  const Problem& p = plan.problem;
  const DType dtype = dtype_of(p);
  Result<std::uint32_t*> word = error_word(plan.device.device_id);
  if (!word.ok()) return std::move(word.failure());
  Params params{.sizes = sizes_of(p),
                .lengths = lengths_of(p, args, word.value()),
                .out = args.out,
                .rows = row_args_of(p, args),
                .scores = score_args_of(own.score_params, args),
                .scale_log2 = own.scale_log2,
                .tiles = own.tiles,
                .tile_counter = nullptr,
                .tile_counter_token = 0,
                .has_bias_pairs = has_pairs(args.bias, dtype),
                .has_tma_bias = suits_tma(args.bias, dtype, own.tiles),
                .has_device_lengths = has_device_lengths(p),
                .used_keys = used_keys_of(p, args),
                .pages = page_table_of(p, args, own.by_page_size),
                .box_keys = box_keys(p, own.variant->tile),
                .splits = own.splits};
  Maps maps;
  if (Status bad = encode_maps(p, args, own.variant->tile, own.tiles, maps)) return bad;
  if (own.is_dynamic) {
    params.tile_counter = tile_counter_in(workspace);
    params.tile_counter_token = next_call_token();
  }
  if (own.splits.max_splits != 0) {
    params.splits.out = partial_results_in(workspace);
    if (!own.variant->tile.merges_splits)
      params.splits.weights = reinterpret_cast<SplitWeight*>(
          params.splits.out + num_partial_rows(p, own.tiles, own.splits) * p.head_dim_v);
  }
  Kernels& kernels = *own.variant->kernels;
  HEADRACE_TRY(cuda::launch(dtype == DType::bf16 ? kernels.bf16 : kernels.f16,
                            {.grid = dim3(static_cast<unsigned>(plan.schedule.num_ctas)),
                             .cluster = static_cast<unsigned>(own.cluster_size),
                             .use_pdl = true},
                            stream, params, maps));
  const bool leaves_parts = own.splits.max_splits != 0 && !own.variant->tile.merges_splits;
  return leaves_parts ? launch_combine(params, dtype, stream) : std::nullopt;
}

}  // namespace

const Kernel kForwardKernel = {
    .name = "cuda_sm90_fwd",
    .summary =
        "TMA and wgmma on Hopper, bf16 and f16, head_dim in eights up to 256, every "
        "feature but num_splits and probs",
    .refuses = refuses,
    .plan = plan,
    .launch = launch,
    .configs = configs,
};

}  // namespace headrace::cuda::sm90::fwd
