#include "backends/cuda/common/bwd_preprocess.cuh"
#include "backends/cuda/common/bwd_preprocess.h"
#include "backends/cuda/runtime/launch.cuh"

namespace headrace::cuda {
namespace {

static_assert(sizeof(BwdPreprocessParams) <= 336 && sizeof(KvAbsMaxParams) <= 192 &&
              sizeof(ConvertDqParams) <= 192 && sizeof(DsinksParams) <= 160);

template <class Params>
using BlockKernel = void (*)(Params, std::int64_t);

template <class Params>
BlockKernel<Params> of_dtype(const Problem& p, BlockKernel<Params> f32, BlockKernel<Params> f16,
                             BlockKernel<Params> bf16) {
  const DType dtype = dtype_of(p);
  return dtype == DType::f32 ? f32 : dtype == DType::f16 ? f16 : bf16;
}

template <class Params>
Status launch_blocks(const char* name, BlockKernel<Params> kernel, const Params& params,
                     Stream stream, bool use_pdl = false) {
  const std::int64_t num_blocks = num_padded_blocks(params.sizes);
  if (num_blocks == 0) return std::nullopt;
  const LaunchShape shape{
      .name = name,
      .grid = dim3(static_cast<unsigned>(num_blocks < kMaxGridX ? num_blocks : kMaxGridX)),
      .block = dim3(kPreprocessThreads),
      .use_pdl = use_pdl};
  return launch(shape, static_cast<cudaStream_t>(stream), kernel, params, num_blocks);
}

}  // namespace

Status launch_bwd_preprocess(const BwdCall& call, Stream stream) {
  const Problem& p = call.problem;
  const AttentionArgs& args = call.args;
  const BwdPreprocessParams params{.sizes = sizes_of(p),
                                   .lengths = lengths_of(p, args, call.error_word),
                                   .out = args.out,
                                   .dout = args.gradients.dout,
                                   .lse = args.lse,
                                   .dlse = args.gradients.dlse,
                                   .sinks = sink_args_of(p, args),
                                   .rows = call.rows,
                                   .lse_scale = call.lse_scale,
                                   .delta_scale = call.delta_scale,
                                   .kv_abs_max = call.kv_abs_max};
  const bool is_fixed_point = call.rows.dq_scale != nullptr;
  const std::int64_t chunk = 16 / static_cast<std::int64_t>(dtype_bytes(dtype_of(p)));
  const bool is_whole_chunks = p.alignment >= kWholeAlignment && p.head_dim_v % chunk == 0;
  using Kernel = BlockKernel<BwdPreprocessParams>;
  const Kernel kernel =
      is_fixed_point ? of_dtype<BwdPreprocessParams>(p, nullptr, bwd_preprocess<__half, true, true>,
                                                     bwd_preprocess<__nv_bfloat16, true, true>)
      : is_whole_chunks
          ? of_dtype<BwdPreprocessParams>(p, bwd_preprocess<float, true, false>,
                                          bwd_preprocess<__half, true, false>,
                                          bwd_preprocess<__nv_bfloat16, true, false>)
          : of_dtype<BwdPreprocessParams>(p, bwd_preprocess<float, false, false>,
                                          bwd_preprocess<__half, false, false>,
                                          bwd_preprocess<__nv_bfloat16, false, false>);
  // PDL: overlaps with kv_abs_max_kernel, and waits for it before the first store.
  return launch_blocks("bwd_preprocess", kernel, params, stream, is_fixed_point);
}

Status launch_kv_abs_max(const BwdCall& call, Stream stream) {
  const Problem& p = call.problem;
  const KvAbsMaxParams params{.sizes = sizes_of(p),
                              .lengths = lengths_of(p, call.args, call.error_word),
                              .k = call.args.k,
                              .v = call.args.v,
                              .kv_abs_max = call.kv_abs_max};
  const LaunchShape shape{.name = "kv_abs_max_kernel",
                          .grid = dim3(static_cast<unsigned>(p.num_kv_heads),
                                       static_cast<unsigned>(num_key_chunks(params.sizes)),
                                       static_cast<unsigned>(p.batch)),
                          .block = dim3(kPreprocessThreads)};
  auto* const s = static_cast<cudaStream_t>(stream);
  if (dtype_of(p) == DType::f16) return launch(shape, s, kv_abs_max_kernel<__half>, params);
  return launch(shape, s, kv_abs_max_kernel<__nv_bfloat16>, params);
}

Status launch_convert_dq(const BwdCall& call, Stream stream) {
  const Problem& p = call.problem;
  const ConvertDqParams params{.sizes = sizes_of(p),
                               .lengths = lengths_of(p, call.args, call.error_word),
                               .dq = call.args.gradients.dq,
                               .dq_accum = call.rows.dq_accum,
                               .dq_accum_cols = call.rows.dq_accum_cols,
                               .scale = static_cast<float>(p.softmax_scale),
                               .is_aligned = p.alignment >= kWholeAlignment};
  const auto kernel = of_dtype<ConvertDqParams>(
      p, convert_dq_kernel<float>, convert_dq_kernel<__half>, convert_dq_kernel<__nv_bfloat16>);
  return launch_blocks("convert_dq_kernel", kernel, params, stream);
}

Status launch_dsinks(const BwdCall& call, Stream stream) {
  const Problem& p = call.problem;
  if (p.num_heads == 0) return std::nullopt;
  const DsinksParams params{.sizes = sizes_of(p),
                            .sinks = sink_args_of(p, call.args),
                            .delta = call.rows.delta,
                            .lse = call.rows.lse,
                            .lse_scale = call.lse_scale,
                            .delta_scale = call.delta_scale,
                            .dsinks = call.args.gradients.dsinks,
                            .dsinks_stride = call.args.gradients.dsinks_stride};
  const LaunchShape shape{.name = "dsinks_kernel",
                          .grid = dim3(static_cast<unsigned>(p.num_heads)),
                          .block = dim3(kDsinksThreads)};
  return launch(shape, static_cast<cudaStream_t>(stream), dsinks_kernel, params);
}

}  // namespace headrace::cuda
