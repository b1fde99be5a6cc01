#include "backends/cuda/common/bwd_preprocess.cuh"
#include "backends/cuda/runtime/launch.cuh"

namespace headrace::cuda {
namespace {

using PreprocessKernel = void (*)(BwdPreprocessParams, std::int64_t);

PreprocessKernel of_dtype(const Problem& p, PreprocessKernel f32, PreprocessKernel f16,
                          PreprocessKernel bf16) {
  const DType dtype = dtype_of(p);
  return dtype == DType::f32 ? f32 : dtype == DType::f16 ? f16 : bf16;
}

LaunchShape shape_of(const char* name, std::int64_t num_blocks) {
  return {.name = name,
          .grid = dim3(static_cast<unsigned>(num_blocks < kMaxGridX ? num_blocks : kMaxGridX)),
          .block = dim3(kPreprocessThreads)};
}

Status launch_blocks(const char* name, PreprocessKernel kernel, const BwdPreprocessParams& rows,
                     Stream stream, bool use_pdl = false) {
  const std::int64_t num_blocks = num_padded_blocks(rows.problem);
  if (num_blocks == 0) return std::nullopt;
  LaunchShape shape = shape_of(name, num_blocks);
  shape.use_pdl = use_pdl;
  return launch(shape, static_cast<cudaStream_t>(stream), kernel, rows, num_blocks);
}

}  // namespace

Status launch_bwd_preprocess(const BwdPreprocessParams& rows, Stream stream) {
  const Problem& p = rows.problem;
  const bool is_fixed_point = rows.dq_scale != nullptr;
  const std::int64_t chunk = 16 / static_cast<std::int64_t>(dtype_bytes(dtype_of(p)));
  const bool is_whole_chunks = p.alignment >= kWholeAlignment && p.head_dim_v % chunk == 0;
  const PreprocessKernel kernel =
      is_fixed_point ? of_dtype(p, nullptr, bwd_preprocess<__half, true, true>,
                                bwd_preprocess<__nv_bfloat16, true, true>)
      : is_whole_chunks
          ? of_dtype(p, bwd_preprocess<float, true, false>, bwd_preprocess<__half, true, false>,
                     bwd_preprocess<__nv_bfloat16, true, false>)
          : of_dtype(p, bwd_preprocess<float, false, false>, bwd_preprocess<__half, false, false>,
                     bwd_preprocess<__nv_bfloat16, false, false>);
  // PDL: overlaps with kv_abs_max_kernel, and waits for it before the first store.
  return launch_blocks("bwd_preprocess", kernel, rows, stream, is_fixed_point);
}

Status launch_kv_abs_max(const BwdPreprocessParams& rows, Stream stream) {
  const Problem& p = rows.problem;
  const LaunchShape shape{
      .name = "kv_abs_max_kernel",
      .grid = dim3(static_cast<unsigned>(p.num_kv_heads), static_cast<unsigned>(num_key_chunks(p)),
                   static_cast<unsigned>(p.batch)),
      .block = dim3(kPreprocessThreads)};
  auto* const s = static_cast<cudaStream_t>(stream);
  if (dtype_of(p) == DType::f16) return launch(shape, s, kv_abs_max_kernel<__half>, rows);
  return launch(shape, s, kv_abs_max_kernel<__nv_bfloat16>, rows);
}

Status launch_convert_dq(const BwdPreprocessParams& rows, Stream stream) {
  const PreprocessKernel kernel =
      of_dtype(rows.problem, convert_dq_kernel<float>, convert_dq_kernel<__half>,
               convert_dq_kernel<__nv_bfloat16>);
  return launch_blocks("convert_dq_kernel", kernel, rows, stream);
}

Status launch_dsinks(const BwdPreprocessParams& rows, Stream stream) {
  if (rows.problem.num_heads == 0) return std::nullopt;
  const LaunchShape shape{.name = "dsinks_kernel",
                          .grid = dim3(static_cast<unsigned>(rows.problem.num_heads)),
                          .block = dim3(kDsinksThreads)};
  return launch(shape, static_cast<cudaStream_t>(stream), dsinks_kernel, rows);
}

}  // namespace headrace::cuda
