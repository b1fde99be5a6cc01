#include "backends/cuda/sm80/codes/kernel.h"

#include <cmath>

#include "backends/cuda/common/constants.h"
#include "backends/cuda/runtime/error_word.cuh"
#include "backends/cuda/sm80/codes/params.h"
#include "core/features.h"
#include "core/plan.h"

namespace headrace::cuda::sm80::codes {
namespace {

constexpr std::size_t kWorkspaceAlignment = 16;
constexpr double kLog2E = 1.4426950408889634;
constexpr std::int64_t kCtasPerSm = 2;

std::string refuses(const Problem& p, const DeviceInfo& device) {
  if (device.sm < kMinSm)
    return format_text("needs a GPU of sm{} or newer, not sm{}", kMinSm, device.sm);
  if (!has_codes(p)) return "takes quantised k and v only";
  if (p.k_dtype != p.v_dtype) return "takes k and v of one dtype";
  const bool has_zeros = has_zero_points(k_dtype_of(p));
  if (!has_zeros &&
      (p.k_scaling != HEADRACE_SCALING_PER_KEY || p.v_scaling != HEADRACE_SCALING_PER_KEY))
    return "takes a scale for each key and head, or zero points";
  if (dtype_of(p) != DType::bf16 && dtype_of(p) != DType::f16)
    return format_text("supports f16 and bf16, not {}", dtype_name(dtype_of(p)));
  if (p.head_dim != p.head_dim_v || (p.head_dim != 64 && p.head_dim != 128))
    return format_text("supports head dims of 64 and 128, not {} and {}", p.head_dim, p.head_dim_v);
  if (!has_pages(p) || p.page_size % kBlockKeys != 0)
    return format_text("takes pages of a multiple of {} keys", kBlockKeys);
  const std::int64_t group = recent_group_of(k_dtype_of(p));
  if (has_recent(p) ? p.recent_group != group : has_zeros)
    return format_text("takes recent keys in groups of {}", group);
  if (p.alignment < kWholeAlignment) return "needs operands aligned to 16 bytes";
  if (p.causal == HEADRACE_CAUSAL_TOP_LEFT || (p.causal == 0 && p.seqlen_q > 1) ||
      p.window_right >= 0)
    return "takes causal bottom-right masks, with a window to the left";
  if (const std::string names = used_features(p, FeatureKind::scores); !names.empty())
    return format_text("takes plain scores: no {}", names);
  if (p.has_sinks || p.has_probs) return "takes no sinks and returns no probs";
  if (!(p.softmax_scale > 0)) return "needs a positive softmax_scale";
  if (p.num_splits > 1)
    return format_text("sums keys in chunks of {}, not in num_splits parts", kChunkKeys);
  constexpr std::int64_t kMost = INT32_MAX / 2;
  const std::int64_t rows = saturating_product({p.seqlen_q, group_size(p)});
  const std::int64_t chunks = p.seqlen_k / kChunkKeys + 1;
  if (p.seqlen_k >= kMost || rows >= kMost ||
      saturating_product({p.batch, p.num_kv_heads, rows / (kTileRows / 2) + 1, chunks}) >= kMost)
    return "there are more than 2^30 tiles of rows and chunks of keys";
  return {};
}

// What a launch needs beside the pointers of the call.
struct CodesPlan {
  Launch* launch;
  std::int32_t num_tiles, tile_rows, max_chunks, num_splits, split_chunks;
  bool is_split, has_large_ring;
  Divisor by_group, by_page_size;
};

std::int64_t num_query_rows(const Problem& p) {
  return p.is_ragged ? p.total_q : p.batch * p.seqlen_q;
}

// Chunks of a CTA, so that the waves of CTAs end soonest.
std::int32_t split_chunks_of(std::int64_t tiles, std::int32_t max_chunks, std::int64_t rows,
                             const DeviceInfo& device) {
  if (rows > kMaxSplitRows) return max_chunks;
  const std::int64_t slots = kCtasPerSm * std::max<std::int64_t>(device.num_units, 1);
  std::int32_t best = 1;
  double least = HUGE_VAL;
  constexpr std::int32_t kMostTried = 64;
  for (std::int32_t chunks = 1; chunks <= std::min(max_chunks, kMostTried); ++chunks) {
    const std::int64_t ctas = tiles * ceil_div(max_chunks, chunks);
    // Starting a CTA takes about a third of a chunk.
    const double time = static_cast<double>(ceil_div(ctas, slots)) * (chunks + 0.33);
    if (time >= least) continue;
    least = time;
    best = chunks;
  }
  return best;
}

Schedule plan(const Problem& p, const DeviceInfo& device, const TuningConfig&) {
  const std::int64_t rows = p.seqlen_q * group_size(p);
  CodesPlan own{};
  // Weights for the two groups of V that a tile of elements of u2x4 holds: two columns a row.
  own.tile_rows = k_dtype_of(p) == DType::u2x4 ? kTileRows / 2 : kTileRows;
  own.num_tiles = static_cast<std::int32_t>(ceil_div<std::int64_t>(rows, own.tile_rows));
  own.max_chunks = static_cast<std::int32_t>(
      std::max<std::int64_t>(ceil_div(p.seqlen_k, std::int64_t{kChunkKeys}), 1));
  own.split_chunks =
      split_chunks_of(p.batch * p.num_kv_heads * own.num_tiles, own.max_chunks, rows, device);
  own.num_splits = ceil_div(own.max_chunks, own.split_chunks);
  own.is_split = own.num_splits > 1;
  own.has_large_ring = device.smem_bytes == 0 || device.smem_bytes >= kLargeRing;
  own.by_group = Divisor::of(group_size(p));
  own.by_page_size = page_size_divisor(p);
  const bool is_bf16 = dtype_of(p) == DType::bf16;
  own.launch = p.head_dim == 64 ? (is_bf16 ? launch_bf16_hd64 : launch_f16_hd64)
                                : (is_bf16 ? launch_bf16_hd128 : launch_f16_hd128);
  Schedule schedule;
  schedule.tile_m = own.tile_rows;
  schedule.tile_n = has_zero_points(k_dtype_of(p))
                        ? kZeroPointGroup
                        : kBlockKeys * blocks_at_once(k_dtype_of(p) == DType::i4x2 ? 4 : 8);
  schedule.split_keys = own.is_split ? own.split_chunks * kChunkKeys : 0;
  schedule.max_splits = own.num_splits;
  schedule.prob_dtype = DType::f16;
  schedule.num_ctas = p.batch * p.num_kv_heads * own.num_tiles * schedule.max_splits;
  if (own.is_split)
    schedule.workspace_bytes =
        static_cast<std::size_t>(saturating_product(
            {num_query_rows(p), p.num_heads, own.max_chunks, p.head_dim + 4, sizeof(float)})) +
        kWorkspaceAlignment;
  schedule.note = format_text(
      "codes as f16 operands of mma.sync, {} warps, chunks of {} keys, {} for each CTA; a row's "
      "bits depend on its position alone",
      kWarps, kChunkKeys, own.split_chunks);
  schedule.kernel_plan.set(own);
  return schedule;
}

// A page of K, V or their scales, whose rows have `row` elements of `bytes` each. False: an offset
// in it, or the stride of pages, may not fit 32 bits.
bool read_pages(const void* data, const std::int64_t (&strides)[3], std::int64_t row,
                std::int64_t bytes, const Problem& p, PageRows& to) {
  const auto [page, slot, head] = strides;
  constexpr std::int64_t kMost = INT32_MAX / 4;
  // One page may have any stride.
  const std::int64_t stride_page = p.num_pages > 1 ? saturating_product({page, bytes}) : 0;
  if (stride_page < 0 || stride_page > UINT32_MAX) return false;
  if (saturating_product({std::abs(slot), p.page_size, bytes}) > kMost ||
      saturating_product({std::abs(head), p.num_kv_heads, bytes}) > kMost || row * bytes > kMost)
    return false;
  to = {static_cast<const std::byte*>(data), static_cast<std::uint32_t>(stride_page),
        static_cast<std::int32_t>(slot * bytes), static_cast<std::int32_t>(head * bytes)};
  return true;
}
bool read_pages(const Operand& x, std::int64_t row, const Problem& p, PageRows& to) {
  return read_pages(x.data, {x.stride_batch, x.stride_seq, x.stride_head}, row, 1, p, to);
}
bool read_pages(const ScaleOperand& x, std::int64_t row, const Problem& p, PageRows& to) {
  return read_pages(x.data, {x.stride_batch, x.stride_seq, x.stride_head}, row, sizeof(float), p,
                    to);
}

// Whether the words of a value's scales, and those of K that a lane copies, are aligned to their
// bytes everywhere.
bool has_whole_scales(const Params& params, const Problem& p) {
  const auto bytes = static_cast<std::uintptr_t>(p.head_dim / 32 * 4);
  const auto lies_at_multiples = [&](const PageRows& x) {
    return (reinterpret_cast<std::uintptr_t>(x.data) | x.stride_page |
            static_cast<std::uint32_t>(x.stride_slot) | static_cast<std::uint32_t>(x.stride_head)) %
               bytes ==
           0;
  };
  return lies_at_multiples(params.k_scale) && lies_at_multiples(params.v_scale);
}

Status launch(const Plan& plan, const AttentionArgs& args, Workspace workspace, Stream stream) {
  const Problem& p = plan.problem;
  const auto own = plan.schedule.kernel_plan.get<CodesPlan>();
  if (plan.schedule.num_ctas == 0 || num_query_rows(p) == 0) return std::nullopt;
  Result<std::uint32_t*> word = error_word(plan.device.device_id);
  if (!word.ok()) return std::move(word.failure());
  Params params{.sizes = sizes_of(p),
                .lengths = lengths_of(p, args, word.value()),
                .used_keys = used_keys_of(p, args),
                .q = args.q,
                .out = args.out,
                .lse = args.lse,
                .k = {},
                .v = {},
                .k_scale = {},
                .v_scale = {},
                .has_whole_scales = false,
                .pages = page_table_of(p, args, own.by_page_size),
                .k_recent = args.recent.k,
                .v_recent = args.recent.v,
                .recent_table = args.recent.table,
                .stride_recent_table = args.recent.stride_table,
                .num_recent_pages = static_cast<std::int32_t>(p.num_recent_pages),
                .max_recent = static_cast<std::int32_t>(p.max_recent),
                .window_left = static_cast<std::int32_t>(p.window_left),
                .group = static_cast<std::int32_t>(group_size(p)),
                .by_group = own.by_group,
                .scale_log2 = static_cast<float>(p.softmax_scale * kLog2E),
                .partial = nullptr,
                .max_chunks = own.max_chunks,
                .num_splits = own.num_splits,
                .split_chunks = own.split_chunks,
                .num_tiles = own.num_tiles,
                .tile_rows = own.tile_rows,
                .has_large_ring = own.has_large_ring};
  const DType codes = k_dtype_of(p);
  if (!read_pages(args.k, p.head_dim, p, params.k) ||
      !read_pages(args.v, p.head_dim_v, p, params.v) ||
      !read_pages(args.k_scale, scales_of_key(codes, p.head_dim), p, params.k_scale) ||
      !read_pages(args.v_scale, scales_of_value(codes, p.head_dim_v), p, params.v_scale))
    return unsupported(
        "k and v: pages whose slots or heads span more than 512 MiB with page_size={} and "
        "num_kv_heads={}, or that are 4 GiB apart or in descending order; put the axes of a page "
        "next "
        "to each other",
        p.page_size, p.num_kv_heads);
  params.has_whole_scales = has_whole_scales(params, p);
  if (own.is_split) {
    const auto address = reinterpret_cast<std::uintptr_t>(workspace.data);
    params.partial =
        reinterpret_cast<float*>(round_up<std::uintptr_t>(address, kWorkspaceAlignment));
  }
  return own.launch(params, k_dtype_of(p), stream);
}

}  // namespace

const Kernel kCodesKernel = {
    .name = "cuda_sm80_codes",
    .summary =
        "int8, fp8 and int4 k and v in pages with a scale for each key and head, or u4x2 and u2x4 "
        "with zero points, f16 and bf16, head dims 64 and 128, causal, window; any GPU from sm_80",
    .refuses = refuses,
    .plan = plan,
    .launch = launch,
};

}  // namespace headrace::cuda::sm80::codes
