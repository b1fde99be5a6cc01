#include <algorithm>

#include "conformance/backward.h"
#include "core/dtype.h"

namespace headrace::testing {

BackwardCall backward_call(const Case& test_case) {
  return {test_case.tensors(), test_case.gradients(), test_case.options()};
}

GradientOutput run_gradients(const Target& target, Case& test_case, const BackwardCall& call,
                             int num_threads, const TuningConfig& config) {
  GradientOutput output;
  Result<Problem> problem = validate_backward(call.tensors, call.gradients, call.options);
  if (!problem.ok()) {
    output.failures.push_back("invalid: " + problem.failure().message);
    return output;
  }
  Plan plan;
  plan.problem = problem.value();
  plan.device = target.device;
  // On a GPU keep num_units: the order of deterministic sums depends on it.
  if (!is_on_gpu(target)) plan.device.num_units = num_threads;
  plan.kernel = target.kernel;
  output.refusal = target.kernel->refuses(plan.problem, plan.device);
  if (!output.refusal.empty()) return output;
  plan.config = config;
  output.schedule = plan.schedule = target.kernel->plan(plan.problem, plan.device, config);
  test_case.reset_outputs();
  if (Status bad = run_backward_plan(plan, call.tensors, call.gradients, call.options))
    output.failures.push_back("run failed: " + bad->message);
  for (std::size_t i = 0; i < std::size(kGradients); ++i) {
    const headrace_tensor& view = call.gradients.*kGradients[i].tensor;
    if (view.rank == 0) continue;
    Written written = take_written(view);
    if (written.untouched > 0)
      output.failures.push_back(
          format_text("{} elements of {} were not written", written.untouched, kGradients[i].name));
    output.bytes[i] = std::move(written.bytes);
  }
  if (std::string text = test_case.check_gaps(); !text.empty()) output.failures.push_back(text);
  return output;
}

std::vector<double> doubles_of(const headrace_tensor& view,
                               const std::vector<unsigned char>& bytes) {
  const auto dtype = static_cast<DType>(view.dtype);
  std::vector<double> values(bytes.size() / dtype_bytes(dtype));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = load_as_double(dtype, bytes.data(), static_cast<std::int64_t>(i));
  return values;
}

const char* other_bits(const GradientOutput& one, const GradientOutput& other) {
  for (std::size_t i = 0; i < std::size(kGradients); ++i)
    if (one.bytes[i] != other.bytes[i]) return kGradients[i].name;
  return nullptr;
}

Result<Problem> backward_problem(const Case& test_case) {
  return validate_backward(test_case.tensors(), test_case.gradients(), test_case.options());
}

ExpectedGradients expected_gradients_of(const Case& test_case, const Problem& p,
                                        bool with_tensor_cores) {
  return expected_gradients(
      p, make_backward_args(p, test_case.tensors(), test_case.gradients(), test_case.options()),
      test_case.largest_v(), with_tensor_cores);
}

void judge_gradients(const Case& test_case, const Problem& problem,
                     const ExpectedGradients& expected, GradientOutput& output,
                     KernelReport& report) {
  for (std::size_t i = 0; i < std::size(kGradients); ++i) {
    const headrace_tensor& view = test_case.gradients().*kGradients[i].tensor;
    if (view.rank == 0 || TensorView(view).num_elements() == 0) continue;
    const auto values = kGradients[i].values;
    const std::vector<double> got = doubles_of(view, output.bytes[i]);
    if (const std::size_t size = (expected.exact.*values).size(); got.size() != size) {
      output.failures.push_back(
          format_text("{} has {} elements instead of {}", kGradients[i].name, got.size(), size));
      continue;
    }
    const bool is_relative = expected.dtype != DType::f32 && values != &Gradients::dsinks;
    const std::int64_t row_size = values == &Gradients::dbias ? 1 : view.shape[view.rank - 1];
    const GradientVerdict verdict =
        judge_gradient({kGradients[i].name, static_cast<DType>(view.dtype), got, expected, values,
                        is_relative, gradient_arithmetic(problem, output.schedule), row_size});
    output.failures.insert(output.failures.end(), verdict.failures.begin(), verdict.failures.end());
    report.utilisation = std::max(report.utilisation, verdict.utilisation);
    report.max_ratio = std::max(report.max_ratio, verdict.max_ratio);
    report.mean_ratio = std::max(report.mean_ratio, verdict.mean_ratio);
    report.num_mean_judged += verdict.judged_mean ? 1 : 0;
    report.sum_mean_ratio += verdict.mean_ratio;
  }
}

std::vector<Target> chosen_backward_targets(const SuiteOptions& options) {
  std::vector<Target> list;
  for (const Target& target : backward_targets()) {
    if (!options.kernel.empty() && target.kernel->name != options.kernel) continue;
    if (options.device == "all" || is_on_gpu(target) == (options.device == "cuda"))
      list.push_back(target);
  }
  return list;
}

}  // namespace headrace::testing
