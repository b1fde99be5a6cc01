#include "stress/stress_call.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "attention/forward.h"
#include "backends/cuda/backend.h"
#include "core/dtype.h"

namespace headrace::testing {
namespace {

// Inputs are uniform: scores at head_dim 128 have a standard deviation of 0.6 and all keys have
// comparable weights, so that the error of a wrong row is as large as the row.
constexpr float kInputSize = 1.3f;
// Seeds of a case's tensors.
enum TensorSeed : std::uint64_t {
  kSeedQ = 1,
  kSeedK,
  kSeedV,
  kSeedDout,
  kSeedBias,
  kSeedMask,
  kNumSeeds
};

std::int64_t num_elements(const headrace_tensor& x) { return TensorView(x).num_elements(); }

Result<Problem> problem_of(const StressCase& c, const headrace_attention_tensors& tensors,
                           const headrace_attention_gradients& gradients) {
  return c.cell.is_backward ? validate_backward(tensors, gradients, c.options)
                            : validate(tensors, c.options);
}

Plan make_plan(const Problem& problem, const Kernel& kernel, const DeviceInfo& device,
               const TuningConfig& config = {}) {
  Plan plan;
  plan.problem = problem;
  plan.device = device;
  plan.kernel = &kernel;
  plan.config = config;
  plan.schedule = kernel.plan(problem, device, config);
  return plan;
}

}  // namespace

// ---- inputs

Inputs::Inputs(const StressCase& c, DType dtype) : tensors{}, case_(c), dtype_(dtype) {
  if (c.quantised) {
    add_quantised();
    return;
  }
  tensors.struct_size = sizeof tensors;
  const Cell& cell = c.cell;
  tensors.q = add_operand(c.num_heads, cell.head_dim, true, kSeedQ, kInputSize);
  tensors.k = add_operand(c.num_kv_heads, cell.head_dim, false, kSeedK, kInputSize);
  tensors.v = add_operand(c.num_kv_heads, cell.head_dim_v, false, kSeedV, kInputSize);
  if (cell.is_backward) dout = add_operand(c.num_heads, cell.head_dim_v, true, kSeedDout, 1);
  const auto add_list = [&](DType type, const auto& list) {
    void* data = keep(static_cast<std::int64_t>(list.size() * sizeof(list[0])));
    require(cudaMemcpy(data, list.data(), list.size() * sizeof(list[0]), cudaMemcpyHostToDevice),
            "cudaMemcpy");
    return on_device(TensorView(data, type, {static_cast<std::int64_t>(list.size())}));
  };
  if (c.page_size > 0) {
    tensors.seqused_k = add_list(DType::i32, c.lengths);
    tensors.block_table = add_list(DType::i32, c.block_table);
    if (c.page_indptr.empty())
      tensors.block_table = on_device(TensorView(
          tensors.block_table.data, DType::i32, {c.batch, tensors.block_table.shape[0] / c.batch}));
    else
      tensors.page_indptr = add_list(DType::i32, c.page_indptr);
  }
  if (c.is_ragged()) {
    tensors.cu_seqlens_q = add_list(DType::i32, c.cu_seqlens_q);
    tensors.cu_seqlens_k = add_list(DType::i32, c.cu_seqlens_k);
  }
  std::vector<float> per_head(static_cast<std::size_t>(c.num_heads));
  for (std::size_t h = 0; h < per_head.size(); ++h)
    per_head[h] = std::ldexp(1.0f, -1 - static_cast<int>(h));
  if (c.has_sinks) tensors.sinks = add_list(DType::f32, per_head);
  if (cell.feature == Feature::alibi || cell.feature == Feature::several)
    tensors.alibi_slopes = add_list(DType::f32, per_head);
  add_scores_operands();
  require(cudaDeviceSynchronize(), "filling the inputs");
}

// Unused slots and pages are NaN or no codes, and have scales of NaN.
void Inputs::add_quantised() {
  QuantisedCall call(*case_.quantised);
  quantised_.emplace(
      call, HEADRACE_CUDA, [&](const QuantisedCall::Memory& from, headrace_tensor& view) {
        void* data = keep(static_cast<std::int64_t>(from.bytes));
        require(cudaMemcpy(data, from.data, from.bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
        const DType own = case_.cell.dtype;
        if (static_cast<DType>(view.dtype) != own) return data;
        view.dtype = static_cast<std::int32_t>(dtype_);
        return in_dtype(data, static_cast<std::int64_t>(from.bytes / dtype_bytes(own)));
      });
  tensors = quantised_->tensors;
  tensors.out = tensors.lse = {};
  require(cudaDeviceSynchronize(), "filling the inputs");
}

// The same for all batch entries.
void Inputs::add_scores_operands() {
  const StressCase& c = case_;
  const std::int64_t pairs = c.seqlen_q * c.seqlen_k;
  if (c.cell.feature == Feature::bias) {
    const std::int64_t count = c.num_heads * pairs;
    void* data = keep(bytes_of(c.cell.dtype, count));
    fill_uniform(data, c.cell.dtype, count, c.seed * kNumSeeds + kSeedBias, 1, nullptr);
    data = in_dtype(data, count);
    tensors.bias = on_device(TensorView(data, dtype_, {1, c.num_heads, c.seqlen_q, c.seqlen_k}));
  }
  if (c.cell.feature == Feature::several) {
    void* data = keep(pairs);
    fill_mask(static_cast<unsigned char*>(data), pairs, c.seed * kNumSeeds + kSeedMask, nullptr);
    tensors.mask = on_device(TensorView(data, DType::boolean, {1, 1, c.seqlen_q, c.seqlen_k}));
  }
}

headrace_tensor Inputs::view(void* data, DType dtype, std::int64_t heads, int dim,
                             bool is_query) const {
  const StressCase& c = case_;
  if (c.page_size > 0 && !is_query)
    return on_device(TensorView(data, dtype, {c.num_pages, c.page_size, heads, dim}));
  if (c.is_ragged())
    return on_device(
        TensorView(data, dtype, {(is_query ? c.cu_seqlens_q : c.cu_seqlens_k).back(), heads, dim}));
  return on_device(
      TensorView(data, dtype, {c.batch, is_query ? c.seqlen_q : c.seqlen_k, heads, dim}));
}

headrace_tensor Inputs::lse_view(void* data, DType dtype) const {
  const StressCase& c = case_;
  if (c.is_ragged())
    return on_device(TensorView(data, dtype, {c.num_heads, c.cu_seqlens_q.back()}));
  return on_device(TensorView(data, dtype, {c.batch, c.num_heads, c.seqlen_q}));
}

headrace_tensor Inputs::add_operand(std::int64_t heads, int dim, bool is_query, std::uint64_t seed,
                                    float size) {
  const DType own = case_.cell.dtype;
  const std::int64_t count = num_elements(view(nullptr, own, heads, dim, is_query));
  void* data = keep(bytes_of(own, count));
  fill_uniform(data, own, count, case_.seed * kNumSeeds + seed, size, nullptr);
  return view(in_dtype(data, count), dtype_, heads, dim, is_query);
}

void* Inputs::in_dtype(void* data, std::int64_t count) {
  if (dtype_ != DType::f64) return data;
  void* exact = keep(bytes_of(DType::f64, count));
  convert_to_f64(data, case_.cell.dtype, count, static_cast<double*>(exact), nullptr);
  return exact;
}

void* Inputs::keep(std::int64_t bytes) {
  memory_.push_back(allocate(bytes));
  return memory_.back().get();
}

// ---- calls

StressCall::StressCall(const StressCase& c, const Inputs& inputs, const Kernel& kernel,
                       const DeviceInfo& device)
    : case_(c), tensors_(inputs.tensors) {
  const Cell& cell = c.cell;
  const auto dtype = static_cast<DType>(tensors_.q.dtype);
  const DType lse_dtype = dtype == DType::f64 ? DType::f64 : DType::f32;
  const headrace_tensor out = inputs.view(nullptr, dtype, c.num_heads, cell.head_dim_v, true);
  const headrace_tensor lse = inputs.lse_view(nullptr, lse_dtype);
  if (!cell.is_backward) {
    outputs_.push_back(make_output("out", out, cell.head_dim_v, true));
    outputs_.push_back(make_output("lse", lse, 1, true));
    tensors_.out = outputs_[0].view;
    tensors_.lse = outputs_[1].view;
  } else {
    const bool is_fixed = cell.is_deterministic || std::string_view(kernel.name) == "cuda_simple";
    outputs_.push_back(make_output("dq", inputs.tensors.q, cell.head_dim, is_fixed));
    outputs_.push_back(make_output("dk", inputs.tensors.k, cell.head_dim, true));
    outputs_.push_back(make_output("dv", inputs.tensors.v, cell.head_dim_v, true));
    gradients_.struct_size = sizeof gradients_;
    gradients_.dout = inputs.dout;
    gradients_.dq = outputs_[0].view;
    gradients_.dk = outputs_[1].view;
    gradients_.dv = outputs_[2].view;
    out_ = allocate(bytes_of(dtype, num_elements(out)));
    lse_ = allocate(bytes_of(lse_dtype, num_elements(lse)));
    tensors_.out = out;
    tensors_.out.data = out_.get();
    tensors_.lse = lse;
    tensors_.lse.data = lse_.get();
  }
  Result<Problem> problem = problem_of(c, tensors_, gradients_);
  if (!problem.ok()) throw std::runtime_error("invalid: " + problem.failure().message);
  refusal_ = kernel.refuses(problem.value(), device);
  if (!refusal_.empty()) return;
  if (cell.is_backward) run_forward_once(device);
  plans_ = {make_plan(problem.value(), kernel, device)};
  for (const TuningConfig& config : configs_of(kernel, problem.value(), device))
    plans_.push_back(make_plan(problem.value(), kernel, device, config));
  args_ = cell.is_backward ? make_backward_args(problem.value(), tensors_, gradients_, c.options)
                           : make_args(problem.value(), tensors_, c.options);
  for (const Plan& plan : plans_)
    workspace_bytes_ = std::max(workspace_bytes_, plan.schedule.workspace_bytes);
  workspace_ = allocate(static_cast<std::int64_t>(workspace_bytes_));
  for (const Output& x : outputs_) poison(x);
  run(nullptr);
  require(cuda::check(device.device_id, nullptr), "the first call");
  for (Output& x : outputs_) keep_as_expected(x);
  require(cudaDeviceSynchronize(), "the first call");
}

// Computes the backward's out and lse with the first kernel that supports the problem.
void StressCall::run_forward_once(const DeviceInfo& device) {
  Result<Problem> problem = validate(tensors_, case_.options);
  if (!problem.ok()) throw std::runtime_error("invalid: " + problem.failure().message);
  for (const Kernel& kernel : cuda::forward_kernels()) {
    if (!kernel.refuses(problem.value(), device).empty()) continue;
    const Plan plan = make_plan(problem.value(), kernel, device);
    const DeviceMemory memory = allocate(static_cast<std::int64_t>(plan.schedule.workspace_bytes));
    require(headrace::run(plan, make_args(plan.problem, tensors_, case_.options),
                          {memory.get(), plan.schedule.workspace_bytes}, nullptr),
            "the forward");
    require(cudaDeviceSynchronize(), "the forward");
    return;
  }
}

void StressCall::run(cudaStream_t stream) {
  const Plan& plan = plans_[num_runs_++ % plans_.size()];
  require(headrace::run(plan, args_, {workspace_.get(), workspace_bytes_}, stream), "the call");
}

void StressCall::compare(Difference* differences, bool poisons_all, cudaStream_t stream) {
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    const Output& x = outputs_[i];
    Difference* difference = differences + i;
    if (x.has_fixed_bits) {
      compare_and_poison(x.got.get(), x.expected.get(), x.bytes, difference, stream);
      continue;
    }
    // Floating-point sums in another order differ by some 2^-24 of the summands, which may exceed
    // the result if it cancels, and then by one ulp of the dtype.
    const auto dtype = static_cast<DType>(x.view.dtype);
    const float unit = dtype == DType::bf16 ? 0x1p-7f : dtype == DType::f16 ? 0x1p-10f : 0.0f;
    compare_near_and_poison(x.got.get(), x.expected.get(), dtype, x.rows * x.dim, unit,
                            0x1p-12f * x.largest, difference, stream);
  }
  if (poisons_all)
    require(cudaMemsetAsync(workspace_.get(), 0xFF, workspace_bytes_, stream), "cudaMemsetAsync");
}

std::string StressCall::compare_with(const StressCall& exact) const {
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    const Output& x = outputs_[i];
    if (x.rows == 0 || x.dim == 1) continue;  // the lse has infinities
    // With zero points Q and P are rounded again, with the scales of codes.
    const Cell& cell = case_.cell;
    const DType limit = cell.codes && has_zero_points(cell.codes->k) ? DType::bf16 : cell.dtype;
    std::string text = compare_with_exact(x, exact.outputs_[i].expected.get(), limit);
    if (!text.empty()) return text;
  }
  return {};
}

// ---- kernels

const Kernel* find_kernel(const Cell& cell) {
  const auto kernels = cell.is_backward ? cuda::backward_kernels() : cuda::forward_kernels();
  for (const Kernel& kernel : kernels)
    if (kernel.name == cell.kernel) return &kernel;
  return nullptr;
}

}  // namespace headrace::testing
