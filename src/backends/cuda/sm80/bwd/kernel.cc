#include "backends/cuda/sm80/bwd/kernel.h"

#include <cuda_runtime_api.h>

#include "backends/cuda/common/dbias.h"
#include "backends/cuda/runtime/error_word.cuh"
#include "backends/cuda/runtime/status.cuh"
#include "backends/cuda/sm80/bwd/params.h"

namespace headrace::cuda::sm80::bwd {
namespace {

constexpr Launchers<Call> kLaunchers = {{{launch_f32_hd64, launch_f32_hd128, launch_f32_hd256},
                                         {launch_f16_hd64, launch_f16_hd128, launch_f16_hd256},
                                         {launch_bf16_hd64, launch_bf16_hd128, launch_bf16_hd256}}};

int smem_of(const Problem& p, const Tile& tile) {
  const int element_bytes = dtype_of(p) == DType::f32 ? 4 : 2;
  return smem_plan(tile, element_bytes, needs_general_scores(p)).total;
}

std::string refuses(const Problem& p, const DeviceInfo& device) {
  if (device.sm < kMinSm)
    return format_text("needs a GPU of sm{} or newer, not sm{}", kMinSm, device.sm);
  if (dtype_of(p) == DType::f64) return "supports f32, f16 and bf16, not f64";
  if (head_dim_bucket(p) == 0)
    return format_text("supports head dims up to {}, not {} and {}", kMaxHeadDim, p.head_dim,
                       p.head_dim_v);
  if (p.seqlen_k > kMaxCount || p.seqlen_q > kMaxCount)
    return format_text("supports at most {} queries and keys per sequence", kMaxCount);
  if (group_size(p) * ceil_div<std::int64_t>(p.seqlen_q, 16) > kMaxCount)
    return format_text("supports at most {} queries x heads of a group", 16 * kMaxCount);
  if (num_padded_blocks(sizes_of(p)) > kMaxPaddedBlocks)
    return "supports at most 2^32 - 1 blocks of 128 query rows";
  const int smem_bytes = smem_of(p, tile_of(p, device.smem_bytes));
  if (device.smem_bytes != 0 && static_cast<std::int64_t>(device.smem_bytes) < smem_bytes)
    return format_text("needs {} bytes of shared memory per CTA, the GPU has {}", smem_bytes,
                       device.smem_bytes);
  return {};
}

std::int64_t tiles_per_head(const Problem& p, const Tile& tile) {
  return ceil_div<std::int64_t>(p.seqlen_k, tile.keys);
}

// What a launch needs beside the pointers of the call.
struct BackwardPlan {
  Launch* launch;
  Tile tile;
  bool is_general, use_large_tile;
  WorkOrder order;
  WorkspacePlan workspace;
  ScoreParams score_params;
};

BackwardPlan own_plan(const Problem& p, const DeviceInfo& device) {
  const Tile tile = tile_of(p, device.smem_bytes);
  return {.launch = kLaunchers.of(p),
          .tile = tile,
          .is_general = needs_general_scores(p),
          .use_large_tile = takes_large_tile(p, device.smem_bytes),
          .order = work_order(p, tiles_per_head(p, tile),
                              std::int64_t{device.num_units} * tile.min_ctas),
          .workspace = workspace_plan(p, tile),
          .score_params = make_score_params(p)};
}

Schedule plan(const Problem& p, const DeviceInfo& device, const TuningConfig&) {
  const BackwardPlan own = own_plan(p, device);
  const Tile& tile = own.tile;
  Schedule schedule;
  schedule.tile_m = tile.rows;
  schedule.tile_n = tile.keys;
  schedule.cta = {.threads = tile.threads(),
                  .registers = launch_registers(tile.threads(), tile.min_ctas),
                  .smem_bytes = smem_of(p, tile),
                  .head_dim = tile.dim,
                  .head_dim_v = tile.dim};
  schedule.prob_dtype = dtype_of(p);
  schedule.product_error = dtype_of(p) == DType::f32 ? k3xTf32ProductError : 0;
  schedule.num_ctas = own.order.num_tiles();
  schedule.has_fixed_bits = p.deterministic;
  schedule.workspace_bytes = own.workspace.total + kWorkspaceAlignment;
  schedule.note = format_text(
      "mma.sync, {} warps, {} bytes of shared memory, {} scores; dq accumulated in float {}{}",
      tile.warps, smem_of(p, tile), own.is_general ? "general" : "plain",
      p.deterministic ? "from the last keys to the first" : "by atomics, in any order",
      p.alignment < kWholeAlignment
          ? "; operands are not aligned to 16 bytes: copied element by element"
          : "");
  schedule.kernel_plan.set(own);
  return schedule;
}

GradParams grad_params(const BwdCall& call, const ScoreParams& score_params) {
  const Problem& p = call.problem;
  const AttentionArgs& args = call.args;
  return {.sizes = sizes_of(p),
          .lengths = lengths_of(p, args, call.error_word),
          .q = args.q,
          .k = args.k,
          .v = args.v,
          .dout = args.gradients.dout,
          .window = window_of(p),
          .scores = score_args_of(score_params, args),
          .delta = call.rows.delta,
          .lse = call.rows.lse,
          .group = static_cast<std::int32_t>(group_size(p)),
          .element_bytes = dtype_of(p) == DType::f32 ? 4 : 2,
          .is_aligned = p.alignment >= kWholeAlignment,
          .is_even_k = is_even(p, p.head_dim),
          .is_even_v = is_even(p, p.head_dim_v)};
}

// `memory`: the workspace, aligned.
Status launch_kernels(const Problem& p, const BackwardPlan& own, const AttentionArgs& args,
                      unsigned char* memory, std::uint32_t* error_word, bool only_dbias,
                      Stream stream) {
  const WorkspacePlan& x = own.workspace;
  const BwdCall call{
      .problem = p,
      .args = args,
      .rows = {.delta = reinterpret_cast<float*>(memory + x.delta),
               .lse = reinterpret_cast<float*>(memory + x.lse),
               .dq_accum = only_dbias ? nullptr : reinterpret_cast<float*>(memory + x.dq_accum),
               .dq_accum_cols = x.dq_accum_cols},
      .lse_scale = dtype_of(p) == DType::f32 ? 1.0f : kLog2E,
      .error_word = error_word};
  Params params{.grads = grad_params(call, own.score_params),
                .dk = args.gradients.dk,
                .dv = args.gradients.dv,
                .order = own.order,
                .dq_accum = call.rows.dq_accum,
                .dq_accum_cols = call.rows.dq_accum_cols,
                .dq_semaphores = nullptr,
                .tile_counter = nullptr};
  if (x.num_dq_semaphores > 0 && !only_dbias) {
    const auto bytes = static_cast<std::size_t>(x.num_dq_semaphores) * sizeof(std::uint32_t);
    params.dq_semaphores = reinterpret_cast<std::uint32_t*>(memory + x.dq_semaphores);
    params.tile_counter = params.dq_semaphores + x.num_dq_semaphores - 1;
    HEADRACE_TRY(cuda_status(
        cudaMemsetAsync(params.dq_semaphores, 0, bytes, static_cast<cudaStream_t>(stream)),
        "clearing {} bytes of the workspace", bytes));
  }
  const DBiasParams dbias{.grads = params.grads,
                          .dbias = args.gradients.dbias,
                          .tiles = dbias_tiles_of(p, args.gradients.dbias, own.tile)};
  return own.launch({.backward = call,
                     .main = params,
                     .dbias = dbias,
                     .is_general = own.is_general,
                     .use_large_tile = own.use_large_tile,
                     .only_dbias = only_dbias,
                     .stream = stream});
}

Status launch(const Plan& plan, const AttentionArgs& args, Workspace workspace, Stream stream) {
  Result<std::uint32_t*> word = error_word(plan.device.device_id);
  if (!word.ok()) return std::move(word.failure());
  const auto address = reinterpret_cast<std::uintptr_t>(workspace.data);
  auto* memory =
      reinterpret_cast<unsigned char*>(round_up<std::uintptr_t>(address, kWorkspaceAlignment));
  return launch_kernels(plan.problem, plan.schedule.kernel_plan.get<BackwardPlan>(), args, memory,
                        word.value(), false, stream);
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

// General scores have the same tile on every device.
std::size_t dbias_workspace_bytes(const Problem& p) {
  return sm80::bwd::workspace_plan(p, sm80::bwd::tile_of(p, 0))
      .dq_accum;  // delta and lse precede it
}

Status launch_dbias(const Problem& p, const AttentionArgs& args, unsigned char* memory,
                    std::uint32_t* error_word, Stream stream) {
  return sm80::bwd::launch_kernels(p, sm80::bwd::own_plan(p, DeviceInfo{}), args, memory,
                                   error_word, true, stream);
}

}  // namespace headrace::cuda
