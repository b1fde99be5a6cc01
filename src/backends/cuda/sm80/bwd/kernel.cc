#include "backends/cuda/sm80/bwd/kernel.h"

#include <cuda_runtime_api.h>

#include "backends/cuda/common/dbias.h"
#include "backends/cuda/runtime/error_word.cuh"
#include "backends/cuda/runtime/status.cuh"
#include "backends/cuda/sm80/bwd/params.h"

namespace headrace::cuda::sm80::bwd {
namespace {

constexpr int kOldestSm = 80;

struct Instance {
  DType dtype;
  int dim;
  BackwardFn launch;
};
constexpr Instance kInstances[] = {
    {DType::f32, 64, launch_backward_f32_hd64},     {DType::f32, 128, launch_backward_f32_hd128},
    {DType::f32, 256, launch_backward_f32_hd256},   {DType::f16, 64, launch_backward_f16_hd64},
    {DType::f16, 128, launch_backward_f16_hd128},   {DType::f16, 256, launch_backward_f16_hd256},
    {DType::bf16, 64, launch_backward_bf16_hd64},   {DType::bf16, 128, launch_backward_bf16_hd128},
    {DType::bf16, 256, launch_backward_bf16_hd256},
};

const Instance* instance_of(const Problem& p) {
  for (const Instance& x : kInstances)
    if (x.dtype == dtype_of(p) && x.dim == bucket_of(p)) return &x;
  return nullptr;
}

int smem_of(const Problem& p, const BackwardTile& tile) {
  const int element_bytes = dtype_of(p) == DType::f32 ? 4 : 2;
  return backward_smem(tile, element_bytes, needs_general(p)).total;
}

std::string refuses(const Problem& p, const DeviceInfo& device) {
  if (device.sm < kOldestSm)
    return format_text("needs a GPU of sm{} or newer, not sm{}", kOldestSm, device.sm);
  if (dtype_of(p) == DType::f64) return "computes f32, f16 and bf16, not f64";
  if (bucket_of(p) == 0)
    return format_text("takes head dims up to {}, not {} and {}", kLargestDim, p.head_dim,
                       p.head_dim_v);
  if (p.seqlen_k > kMaxBackwardCount || p.seqlen_q > kMaxBackwardCount)
    return format_text("counts up to {} queries and keys of a sequence", kMaxBackwardCount);
  if (group_size(p) * ceil_div<std::int64_t>(p.seqlen_q, 16) > kMaxBackwardCount)
    return format_text("counts up to {} queries of the heads of a group", 16 * kMaxBackwardCount);
  if (num_padded_blocks(p) > kMaxPaddedBlocks) return "there are 2^32 parts of 128 queries or more";
  const int smem_bytes = smem_of(p, backward_tile_of(p, device.smem_bytes));
  if (device.smem_bytes != 0 && static_cast<std::int64_t>(device.smem_bytes) < smem_bytes)
    return format_text("needs {} bytes of shared memory, the GPU has {} a CTA", smem_bytes,
                       device.smem_bytes);
  return {};
}

std::int64_t tiles_per_head(const Problem& p, const BackwardTile& tile) {
  return ceil_div<std::int64_t>(p.seqlen_k, tile.keys);
}

Schedule plan(const Problem& p, const DeviceInfo& device) {
  const BackwardTile tile = backward_tile_of(p, device.smem_bytes);
  Schedule schedule;
  schedule.tile_m = tile.rows;
  schedule.tile_n = tile.keys;
  schedule.prob_dtype = dtype_of(p);
  schedule.product_error = dtype_of(p) == DType::f32 ? kSplitProductError : 0;
  schedule.num_ctas = tiles_per_head(p, tile) * p.batch * p.num_kv_heads;
  schedule.has_fixed_bits = p.deterministic;
  schedule.workspace_bytes = backward_workspace(p, tile).total + kBackwardAlignment;
  schedule.note = format_text(
      "mma.sync, {} warps, {} bytes of shared memory, {} scores; dq added up in float {}{}",
      tile.warps, smem_of(p, tile), needs_general(p) ? "general" : "plain",
      p.deterministic ? "from the last keys to the first" : "by atomics, in any order",
      p.alignment < kWholeAlignment
          ? "; operands are not aligned to 16 bytes: copied element by element"
          : "");
  return schedule;
}

bool is_even(const Problem& p, std::int64_t dim) {
  const int piece = dtype_of(p) == DType::f32 ? 4 : 8;  // elements of 16 bytes
  return p.alignment >= kWholeAlignment && dim % piece == 0;
}

BackwardParams make_params(const Problem& p, const DeviceInfo& device, const AttentionArgs& args,
                           unsigned char* memory, std::uint32_t* error_word) {
  const BackwardTile tile = backward_tile_of(p, device.smem_bytes);
  const BackwardWorkspace x = backward_workspace(p, tile);
  BackwardParams params{.rows = {.problem = p,
                                 .args = args,
                                 .delta = reinterpret_cast<float*>(memory + x.d),
                                 .lse = reinterpret_cast<float*>(memory + x.lse),
                                 .lse_scale = dtype_of(p) == DType::f32 ? 1.0f : kLog2E,
                                 .dq_accum = reinterpret_cast<float*>(memory + x.dq),
                                 .dq_accum_cols = x.dq_accum_cols,
                                 .dq_accum_layout = DqAccumLayout::fragments,
                                 .error_word = error_word},
                        .score_params = make_score_params(p),
                        .order = unit_order(p, tiles_per_head(p, tile),
                                            std::int64_t{device.num_units} * tile.min_ctas),
                        .bias_tiles = bias_tiles_of(p, args.gradients.dbias, tile),
                        .is_large = takes_large_tile(p, device.smem_bytes),
                        .is_aligned = p.alignment >= kWholeAlignment,
                        .is_even_k = is_even(p, p.head_dim),
                        .is_even_v = is_even(p, p.head_dim_v)};
  params.num_bias_units = params.bias_tiles.count();
  if (x.num_turns > 0) {
    params.turns = reinterpret_cast<std::uint32_t*>(memory + x.turns);
    params.ticket = params.turns + x.num_turns - 1;
  }
  return params;
}

Status launch(const Plan& plan, const AttentionArgs& args, Workspace workspace, Stream stream) {
  const Problem& p = plan.problem;
  Result<std::uint32_t*> word = error_word(plan.device.device_id);
  if (!word.ok()) return std::move(word.failure());
  const auto address = reinterpret_cast<std::uintptr_t>(workspace.data);
  auto* memory =
      reinterpret_cast<unsigned char*>(round_up<std::uintptr_t>(address, kBackwardAlignment));
  const BackwardParams params = make_params(p, plan.device, args, memory, word.value());
  if (params.turns != nullptr) {
    const auto bytes = static_cast<std::size_t>(params.ticket + 1 - params.turns) * 4;
    if (Status bad =
            cuda_status(cudaMemsetAsync(params.turns, 0, bytes, static_cast<cudaStream_t>(stream)),
                        "clearing {} bytes of the workspace", bytes))
      return bad;
  }
  return instance_of(p)->launch(params, stream);
}

}  // namespace

const Kernel kBackwardKernel = {
    .name = "cuda_sm80_bwd",
    .summary =
        "tensor cores by mma.sync, f32 (3 x tf32) f16 bf16, head dims to 256, every feature; "
        "any GPU from sm_80",
    .refuses = refuses,
    .plan = plan,
    .launch = launch,
};

}  // namespace headrace::cuda::sm80::bwd

namespace headrace::cuda {

// Scores with a bias have the same tile on every device.
std::size_t dbias_workspace_bytes(const Problem& p) {
  return sm80::bwd::backward_workspace(p, sm80::bwd::backward_tile_of(p, 0))
      .dq;  // lse and D come before it
}

Status launch_dbias(const Problem& p, const AttentionArgs& args, unsigned char* memory,
                    std::uint32_t* error_word, Stream stream) {
  sm80::bwd::BackwardParams params =
      sm80::bwd::make_params(p, DeviceInfo{}, args, memory, error_word);
  params.order.num_heads = 0;
  params.rows.dq_accum = nullptr;
  params.turns = nullptr;
  params.rows.problem.has_dsinks = 0;
  return sm80::bwd::instance_of(p)->launch(params, stream);
}

}  // namespace headrace::cuda
