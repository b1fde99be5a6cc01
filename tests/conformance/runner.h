// One case on one kernel: plan, run in poisoned memory, judge.
#pragma once

#include <string>
#include <vector>

#include "core/kernel.h"
#include "support/case.h"
#include "support/rules.h"

namespace headrace::testing {

// The kernels to test: of this CPU, all that its instruction set runs.
struct Target {
  const Kernel* kernel;
  DeviceInfo device;
};
std::vector<Target> targets();  // what this machine runs; those that refuse it by name are left out
std::vector<Target> backward_targets();  // the same for the backward
std::vector<Target> baseline_targets();  // run only when named
bool is_on_gpu(const Target& target);
const Kernel* last_kernel(const Target& target);  // of the list of its device
std::vector<std::string> skipped_targets();

Arithmetic arithmetic_of(const Schedule& schedule);

// A validated call of a case.
struct Call {
  Problem problem;
  AttentionArgs args;
  headrace_attention_tensors tensors;
  headrace_attention_options options;
};
Result<Call> make_call(const headrace_attention_tensors& tensors,
                       const headrace_attention_options& options);
Result<Call> make_call(const Case& test_case);

// Runs a plan on tensors in host memory, in a workspace full of NaNs that ends where it should. A
// plan for a GPU runs there on copies of that memory, and what it wrote is copied back.
Status run_plan(const Plan& plan, const headrace_attention_tensors& tensors,
                const headrace_attention_options& options);
Status run_backward_plan(const Plan& plan, const headrace_attention_tensors& tensors,
                         const headrace_attention_gradients& gradients,
                         const headrace_attention_options& options);

// What a kernel wrote, as doubles, with the memory around it checked.
struct RunOutput {
  std::string refusal;  // the kernel does not take the problem
  std::vector<std::string> failures;
  Schedule schedule;
  std::vector<unsigned char> out_bytes, lse_bytes;  // row-major elements of the views
};
// Plans and runs any call, in a workspace full of NaNs; a refusal goes to `refusal`.
Status run_call(const Target& target, const Call& call, int num_threads, std::string* refusal,
                Schedule* schedule = nullptr);
RunOutput run_kernel(const Target& target, Case& test_case, int num_threads);
RowResult row_result(const Case& test_case, const RunOutput& output, const RowRef& ref);

// Expected rows, computed once and used for every kernel.
struct ExpectedRow {
  RowRef ref;
  cpu::reference::Row exact;
  std::vector<double> low_precision;  // empty: R1 does not apply
};
struct Expected {
  Call call;
  std::vector<ExpectedRow> rows;
};
// Rows at the ends, at tile edges and at random, within a fixed effort; `every_row` takes all.
Expected expect(const Case& test_case, Call call, bool every_row);

struct CaseResult {
  std::string refusal;
  std::vector<std::string> failures;
  Verdict verdict;
};
CaseResult judge(const Target& target, Case& test_case, const Expected& expected,
                 bool must_be_finite = true);

}  // namespace headrace::testing
