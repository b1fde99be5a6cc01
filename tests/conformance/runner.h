// Runs one case on one kernel: plans, runs in poisoned memory, judges.
#pragma once

#include <string>
#include <vector>

#include "core/kernel.h"
#include "support/case.h"
#include "support/rules.h"

namespace headrace::testing {

// The kernels to test: all that this CPU can run.
struct Target {
  const Kernel* kernel;
  DeviceInfo device;
};
std::vector<Target> targets();  // what this machine runs; those that refuse it by name are left out
std::vector<Target> backward_targets();  // the same for the backward
std::vector<Target> lab_targets();       // run only when named
bool is_on_gpu(const Target& target);
const Kernel* last_kernel(const Target& target);  // the fallback of its device
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

// Runs a plan on tensors in host memory, with an exactly sized workspace full of NaNs. A GPU plan
// runs on device copies of that memory; its outputs are copied back.
Status run_plan(const Plan& plan, const headrace_attention_tensors& tensors,
                const headrace_attention_options& options);
Status run_backward_plan(const Plan& plan, const headrace_attention_tensors& tensors,
                         const headrace_attention_gradients& gradients,
                         const headrace_attention_options& options);

// A kernel's outputs as doubles, after a check of the memory around them.
struct RunOutput {
  std::string refusal;  // nonempty: the kernel refuses the problem
  std::vector<std::string> failures;
  Schedule schedule;
  std::vector<unsigned char> out_bytes, lse_bytes;  // row-major elements of the views
};
// Plans and runs a call in a workspace full of NaNs; sets `refusal` if the kernel refuses.
Status run_call(const Target& target, const Call& call, int num_threads, std::string* refusal,
                Schedule* schedule = nullptr);
RunOutput run_kernel(const Target& target, Case& test_case, int num_threads);
RowResult row_result(const Case& test_case, const RunOutput& output, const RowRef& ref);

// Expected rows, computed once for all kernels.
struct ExpectedRow {
  RowRef ref;
  cpu::reference::Row exact;
  std::vector<double> low_precision;  // empty: R1 does not apply
};
struct Expected {
  Call call;
  std::vector<ExpectedRow> rows;
};
// Rows at the ends, at tile edges and at random, within a fixed effort; `every_row`: all rows.
Expected expect(const Case& test_case, Call call, bool every_row);

struct CaseResult {
  std::string refusal;
  std::vector<std::string> failures;
  Verdict verdict;
};
CaseResult judge(const Target& target, Case& test_case, const Expected& expected,
                 bool must_be_finite = true);

}  // namespace headrace::testing
