// The backward over the grid: every pair of axis values, then random cases. The axis lse says
// whether there is a gradient of lse. Inputs lie in read-only pages between NaNs, the workspace is
// full of NaNs, outputs hold a sentinel; a GPU computes on copies of all that.
#include <algorithm>
#include <chrono>
#include <cmath>

#include "conformance/suites.h"
#include "core/dtype.h"
#include "support/backward_rules.h"

namespace headrace::testing {
namespace {

using Bytes = std::vector<unsigned char>;

constexpr int kThreads[] = {1, 2, 3, 5, 16};

struct Output {
  const char* name;
  headrace_tensor headrace_attention_gradients::*tensor;
  std::vector<double> Gradients::*values;
};
constexpr Output kOutputs[] = {
    {"dq", &headrace_attention_gradients::dq, &Gradients::dq},
    {"dk", &headrace_attention_gradients::dk, &Gradients::dk},
    {"dv", &headrace_attention_gradients::dv, &Gradients::dv},
    {"dbias", &headrace_attention_gradients::dbias, &Gradients::dbias},
    {"dsinks", &headrace_attention_gradients::dsinks, &Gradients::dsinks},
};

struct BackwardOutput {
  std::string refusal;
  Schedule schedule;
  std::vector<std::string> failures;
  Bytes bytes[std::size(kOutputs)];  // row-major elements of each output
};

BackwardOutput run_backward_kernel(const Target& target, Case& test_case, const Problem& p,
                                   int num_threads) {
  BackwardOutput output;
  Plan plan;
  plan.problem = p;
  plan.device = target.device;
  plan.device.num_units = num_threads;
  plan.kernel = target.kernel;
  output.refusal = target.kernel->refuses(p, plan.device);
  if (!output.refusal.empty()) return output;
  output.schedule = plan.schedule = target.kernel->plan(p, plan.device);
  test_case.reset_outputs();
  if (Status bad =
          run_backward_plan(plan, test_case.tensors(), test_case.gradients(), test_case.options()))
    output.failures.push_back("did not run: " + bad->message);
  for (std::size_t i = 0; i < std::size(kOutputs); ++i) {
    const headrace_tensor& view = test_case.gradients().*kOutputs[i].tensor;
    if (view.rank == 0) continue;
    Written written = take_written(view);
    if (written.untouched > 0)
      output.failures.push_back(
          format_text("{} elements of {} were not written", written.untouched, kOutputs[i].name));
    output.bytes[i] = std::move(written.bytes);
  }
  if (std::string text = test_case.check_gaps(); !text.empty()) output.failures.push_back(text);
  return output;
}

std::vector<double> doubles_of(const headrace_tensor& view, const Bytes& bytes) {
  const auto dtype = static_cast<DType>(view.dtype);
  std::vector<double> values(bytes.size() / dtype_bytes(dtype));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = load_as_double(dtype, bytes.data(), static_cast<std::int64_t>(i));
  return values;
}

class BackwardRun {
 public:
  BackwardRun(const SuiteOptions& options, Report& report) : report_(report) {
    for (const Target& target : backward_targets()) {
      if (!options.kernel.empty() && target.kernel->name != options.kernel) continue;
      if (options.device == "all" || is_on_gpu(target) == (options.device == "cuda"))
        targets_.push_back(target);
    }
    for (const Target& target : targets_) report_.kernels[std::string(target.kernel->name)];
  }

  // The reference is slow and its own oracle: `with_reference` says when.
  void run_case(const CaseName& name, bool with_reference) {
    Case test_case(name);
    test_case.mutable_options().deterministic = compares_threads(name);
    test_case.make_gradients();
    const Result<Problem> problem =
        validate_backward(test_case.tensors(), test_case.gradients(), test_case.options());
    if (!problem.ok()) {
      report_.failures.push_back(
          {"all", describe(name.values),
           "the case is not accepted: " + Result<Problem>(problem).failure().message, ""});
      return;
    }
    const Problem& p = problem.value();
    const ExpectedGradients expected = expected_gradients(
        p, make_backward_args(p, test_case.tensors(), test_case.gradients(), test_case.options()),
        test_case.largest_v());
    for (const Target& target : targets_) {
      if (target.kernel->name == "cpu_reference" && !with_reference) continue;
      set_current_case(0, replay_line(std::string(target.kernel->name), name));
      run_on(target, test_case, p, expected);
    }
    set_current_case(0, "");
  }

 private:
  // Every fourth case is deterministic, and then the same bits are asked for again.
  static bool compares_threads(const CaseName& name) { return name.seed % 4 == 0; }

  void run_on(const Target& target, Case& test_case, const Problem& p,
              const ExpectedGradients& expected) {
    const CaseName& name = test_case.name();
    KernelReport& report = report_.kernels[std::string(target.kernel->name)];
    BackwardOutput output =
        run_backward_kernel(target, test_case, p, name.values.number(Axis::threads));
    if (!output.refusal.empty()) {
      ++report.num_refused;
      report.refused.add(name.values, has_lengths(name.values));
      return;
    }
    ++report.num_cases;
    report.num_rows += p.batch * p.num_heads * p.seqlen_q;
    report.seen.add(name.values, expected.num_pairs > 0);
    judge_outputs(test_case, p, expected, output, report);
    if (compares_threads(name)) compare_threads(target, test_case, p, output);
    if (!output.failures.empty()) ++report.num_failed;
    const std::string kernel(target.kernel->name);
    for (const std::string& text : output.failures)
      report_.failures.push_back(
          {kernel, describe(name.values), text, "--suite backward, " + replay_line(kernel, name)});
  }

  static void judge_outputs(const Case& test_case, const Problem& p,
                            const ExpectedGradients& expected, BackwardOutput& output,
                            KernelReport& report) {
    const bool is_16_bit = dtype_of(p) != DType::f32;
    for (std::size_t i = 0; i < std::size(kOutputs); ++i) {
      const headrace_tensor& view = test_case.gradients().*kOutputs[i].tensor;
      if (view.rank == 0 || TensorView(view).num_elements() == 0) continue;
      const auto values = kOutputs[i].values;
      const std::vector<double> got = doubles_of(view, output.bytes[i]);
      if (const std::size_t size = (expected.exact.*values).size(); got.size() != size) {
        output.failures.push_back(format_text("{} has {} elements, {} were expected",
                                              kOutputs[i].name, got.size(), size));
        continue;
      }
      const bool is_relative = is_16_bit && values != &Gradients::dsinks;
      const bool is_tensor =
          output.schedule.prob_dtype != DType::f32 || output.schedule.product_error > 0;
      const GradientVerdict verdict =
          judge_gradient({kOutputs[i].name, static_cast<DType>(view.dtype), got, expected, values,
                          is_relative, is_tensor});
      output.failures.insert(output.failures.end(), verdict.failures.begin(),
                             verdict.failures.end());
      report.utilisation = std::max(report.utilisation, verdict.utilisation);
      report.mean_ratio = std::max(report.mean_ratio, verdict.mean_ratio);
      report.num_mean_judged += verdict.judged_mean ? 1 : 0;
    }
  }

  void compare_threads(const Target& target, Case& test_case, const Problem& p,
                       BackwardOutput& output) {
    ++num_compared_;
    for (const int num_threads : kThreads) {
      const BackwardOutput other = run_backward_kernel(target, test_case, p, num_threads);
      for (std::size_t i = 0; i < std::size(kOutputs); ++i) {
        if (other.bytes[i] != output.bytes[i])
          output.failures.push_back(
              format_text("{} has other bits with {} threads", kOutputs[i].name, num_threads));
      }
    }
  }

 public:
  std::int64_t num_compared() const { return num_compared_; }

 private:
  Report& report_;
  std::vector<Target> targets_;
  std::int64_t num_compared_ = 0;
};

}  // namespace

Report run_backward(const SuiteOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  Report report;
  report.suite = "backward";
  const std::vector<CaseName> array = covering_array(options.seed, is_live);
  // A fifth of the forward's: the oracle computes every gradient of a case.
  const std::size_t count = options.is_small ? 150 : std::max(options.count / 5, array.size());
  const std::vector<CaseName> all = grid_cases(count, options.seed, array);
  BackwardRun run(options, report);
  std::vector<CaseName> others;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (static_cast<int>(i) % options.num_shards == options.shard) {
      run.run_case(all[i], i < array.size());
    } else {
      others.push_back(all[i]);
    }
  }
  report.notes.push_back(format_text("{} cases; {} of them with 1, 2, 3, 5 and 16 threads",
                                     all.size() - others.size(), run.num_compared()));
  if (run.num_compared() == 0)
    report.failures.push_back({"all", "threads", "nothing was compared", ""});
  if (!options.is_small) check_holes(others, report);
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace headrace::testing
