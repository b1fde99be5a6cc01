#include "conformance/runner.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "attention/forward.h"
#include "backends/cpu/kernels.h"
#include "backends/cuda/backend.h"
#include "core/device.h"
#include "core/dtype.h"
#include "lab/kernels.h"
#include "support/device_copy.h"

namespace headrace::testing {
namespace {

constexpr std::int64_t kOracleEffort = 600'000;  // multiply-adds for the expected rows of a case

// The instruction set in a kernel's name; 0: none.
std::uint32_t isa_of(std::string_view kernel) {
  if (kernel.starts_with("cpu_avx512bf16")) return HEADRACE_ISA_AVX512_BF16;
  if (kernel.starts_with("cpu_avx512")) return HEADRACE_ISA_AVX512;
  if (kernel.starts_with("cpu_avx2")) return HEADRACE_ISA_AVX2;
  if (kernel.starts_with("cpu_neon")) return HEADRACE_ISA_NEON;
  return 0;
}

DeviceInfo this_device() {
  DeviceInfo device{};
  Result<DeviceInfo> found = cpu_info();
  if (found.ok()) device = found.value();
  device.cpu_isa &= detected_cpu_isa();
  // Also test kernels that are slower on this CPU: the FAST bit describes speed only.
  if ((device.cpu_isa & HEADRACE_ISA_AVX512_BF16) != 0)
    device.cpu_isa |= HEADRACE_ISA_AVX512_BF16_FAST;
  return device;
}

// The kernels that run on the first GPU, if there is one.
void add_of_gpu(std::span<const Kernel> kernels, std::vector<Target>& list) {
  Result<DeviceInfo> device = cuda::device_info(0);
  if (!device.ok()) return;
  for (const Kernel& kernel : kernels)
    if (!kernel.refuses(default_problem(), device.value()).starts_with("needs a GPU"))
      list.push_back({&kernel, device.value()});
}

std::int64_t row_index(const Case& test_case, const RowRef& ref, bool is_lse) {
  const Shape& s = test_case.shape();
  const std::int64_t row = ref.sequence.row_q + ref.q_idx;
  if (is_lse)
    return s.is_ragged ? ref.head * s.total_q + row
                       : (ref.batch_idx * s.num_heads + ref.head) * s.seqlen_q + row;
  return s.is_ragged ? row * s.num_heads + ref.head
                     : (ref.batch_idx * s.seqlen_q + row) * s.num_heads + ref.head;
}

void check_finite(const Case& test_case, RunOutput& output) {
  const DType dtype = test_case.shape().dtype;
  const auto count = static_cast<std::int64_t>(output.out_bytes.size() / dtype_bytes(dtype));
  for (std::int64_t i = 0; i < count; ++i) {
    if (std::isfinite(load_as_double(dtype, output.out_bytes.data(), i))) continue;
    output.failures.push_back(format_text("element {} of out (row-major) is not finite", i));
    return;
  }
}

void take(const char* name, const headrace_tensor& view, RunOutput& output,
          std::vector<unsigned char>& bytes) {
  Written written = take_written(view);
  if (written.untouched > 0)
    output.failures.push_back(
        format_text("{} elements of {} were not written", written.untouched, name));
  bytes = std::move(written.bytes);
}

}  // namespace

namespace {

std::vector<Target> targets_of(std::span<const Kernel> kernels) {
  const DeviceInfo device = this_device();
  std::vector<Target> list;
  for (const Kernel& kernel : kernels)
    if ((device.cpu_isa & isa_of(kernel.name)) == isa_of(kernel.name))
      list.push_back({&kernel, device});
  return list;
}

}  // namespace

std::vector<Target> backward_targets() {
  std::vector<Target> list = targets_of(cpu::backward_kernels());
  add_of_gpu(cuda::backward_kernels(), list);
  return list;
}

std::vector<Target> targets() {
  std::vector<Target> list = targets_of(cpu::forward_kernels());
  add_of_gpu(cuda::forward_kernels(), list);
  return list;
}

std::vector<Target> lab_targets() {
  std::vector<Target> list;
  add_of_gpu(lab::kernels(), list);
  return list;
}

const Kernel* last_kernel(const Target& target) {
  return is_on_gpu(target) ? &cuda::forward_kernels().back() : &cpu::forward_kernels().back();
}

bool is_on_gpu(const Target& target) { return target.device.device_type == HEADRACE_CUDA; }

std::vector<std::string> skipped_targets() {
  const DeviceInfo device = this_device();
  std::vector<std::string> list;
  for (const Kernel& kernel : cpu::forward_kernels())
    if ((device.cpu_isa & isa_of(kernel.name)) != isa_of(kernel.name))
      list.emplace_back(kernel.name);
  return list;
}

Arithmetic arithmetic_of(const Schedule& schedule) {
  Arithmetic arithmetic;
  if (schedule.tile_n > 0) arithmetic.tile_keys = schedule.tile_n;
  arithmetic.num_splits = std::max<std::int64_t>(schedule.max_splits, 1);
  arithmetic.prob_dtype = schedule.prob_dtype;
  arithmetic.product_error = schedule.product_error;
  return arithmetic;
}

Result<Call> make_call(const headrace_attention_tensors& tensors,
                       const headrace_attention_options& options) {
  Result<Problem> problem = validate(tensors, options);
  if (!problem.ok()) return std::move(problem.failure());
  Call call{problem.value(), make_args(problem.value(), tensors, options), tensors, options};
  if (Status bad = validate_lengths(call.problem, call.args)) return std::move(*bad);
  return call;
}

Result<Call> make_call(const Case& test_case) {
  return make_call(test_case.tensors(), test_case.options());
}

Status run_plan(const Plan& plan, const headrace_attention_tensors& tensors,
                const headrace_attention_options& options) {
  if (plan.device.device_type == HEADRACE_CUDA) return run_on_copies(plan, tensors, options);
  // Ends at its guard page, so it has any alignment; filled with NaNs.
  const GuardedBuffer workspace(plan.schedule.workspace_bytes, Guard::after, kNanByte);
  return run(plan, make_args(plan.problem, tensors, options), {workspace.data(), workspace.bytes()},
             nullptr);
}

Status run_backward_plan(const Plan& plan, const headrace_attention_tensors& tensors,
                         const headrace_attention_gradients& gradients,
                         const headrace_attention_options& options) {
  if (plan.device.device_type == HEADRACE_CUDA)
    return run_backward_on_copies(plan, tensors, gradients, options);
  const GuardedBuffer workspace(plan.schedule.workspace_bytes, Guard::after, kNanByte);
  return run(plan, make_backward_args(plan.problem, tensors, gradients, options),
             {workspace.data(), workspace.bytes()}, nullptr);
}

Status run_call(const Target& target, const Call& call, int num_threads, std::string* refusal,
                Schedule* schedule) {
  Plan plan;
  plan.problem = call.problem;
  plan.device = target.device;
  plan.device.num_units = num_threads;
  plan.kernel = target.kernel;
  *refusal = target.kernel->refuses(plan.problem, plan.device);
  if (!refusal->empty()) return std::nullopt;
  plan.schedule = target.kernel->plan(plan.problem, plan.device, {});
  if (schedule != nullptr) *schedule = plan.schedule;
  return run_plan(plan, call.tensors, call.options);
}

RunOutput run_kernel(const Target& target, Case& test_case, int num_threads) {
  RunOutput output;
  Result<Call> call = make_call(test_case);
  if (!call.ok()) {
    output.failures.push_back("invalid: " + call.failure().message);
    return output;
  }
  test_case.reset_outputs();
  if (Status bad = run_call(target, call.value(), num_threads, &output.refusal, &output.schedule))
    output.failures.push_back("run failed: " + bad->message);
  if (!output.refusal.empty() || !output.failures.empty()) return output;
  take("out", test_case.tensors().out, output, output.out_bytes);
  if (call.value().problem.has_lse) take("lse", test_case.tensors().lse, output, output.lse_bytes);
  if (std::string text = test_case.check_gaps(); !text.empty()) output.failures.push_back(text);
  return output;
}

RowResult row_result(const Case& test_case, const RunOutput& output, const RowRef& ref) {
  RowResult result;
  const DType dtype = test_case.shape().dtype;
  const std::int64_t dim = test_case.shape().head_dim_v;
  const std::int64_t first = row_index(test_case, ref, false) * dim;
  for (std::int64_t d = 0; d < dim; ++d)
    result.out.push_back(load_as_double(dtype, output.out_bytes.data(), first + d));
  if (!output.lse_bytes.empty())
    result.lse = load_as_double(dtype == DType::f64 ? DType::f64 : DType::f32,
                                output.lse_bytes.data(), row_index(test_case, ref, true));
  return result;
}

namespace {

// The query rows of a sequence to judge: all if few, else the ends, tile edges and random ones.
std::vector<std::int64_t> rows_to_judge(Random& random, const Problem& p, std::int64_t seqlen_q,
                                        std::int64_t limit) {
  std::vector<std::int64_t> rows;
  const std::int64_t group = group_size(p);
  const std::int64_t wanted[] = {0,          seqlen_q - 1, 191 / group, 192 / group, 95 / group,
                                 96 / group, 63 / group,   64 / group,  127 / group, 128 / group};
  for (const std::int64_t row : wanted)
    if (row >= 0 && row < seqlen_q) rows.push_back(row);
  while (static_cast<std::int64_t>(rows.size()) < std::min(limit, seqlen_q))
    rows.push_back(random.between(0, seqlen_q - 1));
  if (seqlen_q <= limit) {
    rows.resize(static_cast<std::size_t>(seqlen_q));
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::int64_t>(i);
  }
  std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  while (static_cast<std::int64_t>(rows.size()) > limit)  // keeps the first and the last
    rows.erase(
        rows.begin() +
        random.between(1, std::max<std::int64_t>(static_cast<std::int64_t>(rows.size()) - 2, 1)));
  return rows;
}

// Every head of every sequence if that is cheap, else some of them.
struct HeadRef {
  std::int64_t batch_idx, head;
};
std::vector<HeadRef> heads_to_judge(Random& random, const Problem& p, std::size_t limit) {
  std::vector<HeadRef> all;
  for (std::int64_t b = 0; b < p.batch; ++b)
    for (std::int64_t h = 0; h < p.num_heads; ++h) all.push_back({b, h});
  while (all.size() > limit)
    all.erase(all.begin() + random.between(0, static_cast<std::int64_t>(all.size()) - 1));
  return all;
}

}  // namespace

Expected expect(const Case& test_case, Call call, bool every_row) {
  Expected expected{call, {}};
  const Problem& p = expected.call.problem;
  Random random(test_case.name().seed + 77u);
  const std::int64_t row_cost = std::max<std::int64_t>(p.seqlen_k * (p.head_dim + p.head_dim_v), 1);
  const std::int64_t effort = every_row ? INT64_MAX / 4 : kOracleEffort;
  const std::int64_t budget = std::clamp<std::int64_t>(effort / row_cost, 4, 1 << 20);
  const auto heads = heads_to_judge(random, p, static_cast<std::size_t>(budget));
  const std::int64_t per_head = std::max<std::int64_t>(
      budget / std::max<std::int64_t>(static_cast<std::int64_t>(heads.size()), 1), 2);
  for (const HeadRef& head : heads) {
    const Sequence sequence = sequence_of(p, expected.call.args, head.batch_idx);
    for (const std::int64_t q_idx : rows_to_judge(random, p, sequence.seqlen_q, per_head)) {
      ExpectedRow row{{nullptr, nullptr, sequence, head.batch_idx, head.head, q_idx}, {}, {}};
      cpu::reference::attention_row(p, expected.call.args, sequence, head.batch_idx, head.head,
                                    q_idx, row.exact);
      row.ref.problem = &p;
      row.ref.args = &expected.call.args;
      if (dtype_of(p) == DType::f16 || dtype_of(p) == DType::bf16)
        low_precision_row(row.ref, row.exact, row.low_precision);
      expected.rows.push_back(std::move(row));
    }
  }
  return expected;
}

CaseResult judge(const Target& target, Case& test_case, const Expected& expected,
                 bool must_be_finite) {
  CaseResult result;
  const int num_threads = test_case.name().values.number(Axis::threads);
  RunOutput output = run_kernel(target, test_case, num_threads);
  result.refusal = output.refusal;
  if (!output.refusal.empty()) return result;
  if (must_be_finite) check_finite(test_case, output);
  result.failures = output.failures;
  if (output.out_bytes.empty() || !result.failures.empty()) return result;
  const Problem& p = expected.call.problem;
  Judge judge(p, arithmetic_of(output.schedule), test_case.largest_v());
  for (const ExpectedRow& row : expected.rows) {
    RowRef ref = row.ref;
    ref.problem = &p;
    ref.args = &expected.call.args;
    judge.add_row(ref, row.exact, row_result(test_case, output, ref),
                  row.low_precision.empty() ? nullptr : &row.low_precision);
  }
  result.verdict = judge.finish();
  for (const std::string& text : result.verdict.failures) result.failures.push_back(text);
  return result;
}

}  // namespace headrace::testing
