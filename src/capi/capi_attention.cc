// Problems, plans, runs.
#include <memory>

#include "attention/forward.h"
#include "attention/select.h"
#include "backends/cuda/backend.h"
#include "capi/capi_common.h"
#include "core/device.h"

namespace headrace::capi {
namespace {

// Options for validating the tensors of a run: those that shapes and arguments depend on. The plan
// holds all others.
headrace_attention_options options_of(const Problem& p, const headrace_run_options& run) {
  headrace_attention_options options = default_options();
  options.max_seqlen_q = p.seqlen_q;  // ignored for dense tensors
  options.max_seqlen_k = p.seqlen_k;
  options.causal = p.causal;  // recent keys need the positions of queries
  options.dropout_seed = run.dropout_seed;
  options.dropout_offset = run.dropout_offset;
  return options;
}

// The caller's tensors and options, converted to this version's structs.
struct Call {
  headrace_attention_tensors tensors;
  headrace_attention_gradients gradients;
  headrace_attention_options options;
  headrace_phase phase;

  Result<Problem> validate() const {
    return phase == HEADRACE_BACKWARD ? validate_backward(tensors, gradients, options)
                                      : headrace::validate(tensors, options);
  }
  AttentionArgs args(const Problem& p) const {
    return phase == HEADRACE_BACKWARD ? make_backward_args(p, tensors, gradients, options)
                                      : make_args(p, tensors, options);
  }
};

Status read_call(const TensorsFromC& from, Call& call) {
  call.phase = from.phase;
  HEADRACE_TRY(read_tensors(from.tensors, call.tensors));
  return from.phase == HEADRACE_BACKWARD ? read_gradients(from.gradients, call.gradients)
                                         : std::nullopt;
}

Status read_call(const TensorsFromC& from, const headrace_attention_options* options, Call& call) {
  HEADRACE_TRY(read_call(from, call));
  return read_options(options, call.options);
}

Status check_device_of(const Plan& plan, const headrace_attention_tensors& tensors) {
  if (tensors.q.device_type == plan.device.device_type &&
      (plan.device.device_type == HEADRACE_CPU || tensors.q.device_id == plan.device.device_id))
    return std::nullopt;
  return invalid_argument(
      "q.device_type={}, q.device_id={}: the plan was made for [{}]; make a plan for the device of "
      "the tensors",
      tensors.q.device_type, tensors.q.device_id, device_text(plan.device));
}

}  // namespace

Result<AttentionArgs> args_of_run(const Plan& plan, const TensorsFromC& from,
                                  const headrace_run_options* options) {
  if (plan.problem.phase != from.phase)
    return invalid_argument(
        "plan: it was made for phase={} ({}); run it with {}", plan.problem.phase,
        is_backward(plan.problem) ? "backward" : "forward",
        is_backward(plan.problem) ? "headrace_plan_run_backward" : "headrace_plan_run");
  Call call;
  headrace_run_options run_options;
  if (auto bad = read_call(from, call)) return std::move(*bad);
  if (auto bad = read_run_options(options, run_options)) return std::move(*bad);
  call.options = options_of(plan.problem, run_options);
  Result<Problem> problem = call.validate();
  if (!problem.ok()) return std::move(problem.failure());
  if (auto bad = check_same_problem(plan.problem, problem.value())) return std::move(*bad);
  if (auto bad = check_device_of(plan, call.tensors)) return std::move(*bad);
  return call.args(plan.problem);
}

namespace {

Status run_plan(const Plan& plan, const TensorsFromC& from, const headrace_run_options* options,
                Workspace workspace, Stream stream) {
  Result<AttentionArgs> args = args_of_run(plan, from, options);
  if (!args.ok()) return std::move(args.failure());
  return run(plan, args.value(), workspace, stream);
}

Status run_with_own_workspace(const Plan& plan, const AttentionArgs& args, Stream stream) {
  OwnWorkspace workspace;
  HEADRACE_TRY(workspace.reserve(plan, stream));
  return run(plan, args, workspace.get(), stream);
}

// Validates, plans and runs.
Status attend(const TensorsFromC& from, const headrace_attention_options* options,
              Workspace workspace, Stream stream) {
  Call call;
  HEADRACE_TRY(read_call(from, options, call));
  Result<Problem> problem = call.validate();
  if (!problem.ok()) return std::move(problem.failure());
  const headrace_tensor& q = call.tensors.q;
  const bool is_cuda = q.device_type == HEADRACE_CUDA;
  Result<DeviceInfo> device = is_cuda ? cuda::device_info(q.device_id) : cpu_info();
  if (!device.ok()) return std::move(device.failure());
  Result<Plan> plan = plan_checked(problem.value(), device.value());
  if (!plan.ok()) return std::move(plan.failure());
  const AttentionArgs args = call.args(plan.value().problem);
  if (workspace.data == nullptr && workspace.bytes == 0)
    return run_with_own_workspace(plan.value(), args, stream);
  return run(plan.value(), args, workspace, stream);
}

headrace_status problem_of(const TensorsFromC& from, const headrace_attention_options* options,
                           headrace_problem* problem) {
  return guarded([&] {
    Call call;
    if (auto bad = read_call(from, options, call)) return fail(std::move(*bad));
    auto result = call.validate();
    if (!result.ok()) return fail(std::move(result.failure()));
    return give("problem", result.value(), problem);
  });
}

headrace_status run_guarded(const headrace_plan* plan, const TensorsFromC& from,
                            const headrace_run_options* options, Workspace workspace,
                            Stream stream) {
  return guarded([&] {
    if (plan == nullptr)
      return fail(null_argument("plan", "create one with headrace_plan_attention"));
    return status_of(run_plan(plan->plan, from, options, workspace, stream));
  });
}

Result<Plan> plan_of(const headrace_problem* problem, const headrace_device_info* device) {
  headrace_problem p;
  headrace_device_info d;
  if (auto bad = read_problem(problem, p)) return std::move(*bad);
  if (auto bad = read_device(device, d)) return std::move(*bad);
  return plan_attention(p, d);
}

}  // namespace
}  // namespace headrace::capi

using namespace headrace::capi;  // the functions below are the C face of this namespace

extern "C" {

headrace_status headrace_attention_problem(const headrace_attention_tensors* tensors,
                                           const headrace_attention_options* options,
                                           headrace_problem* problem) {
  return problem_of({tensors, nullptr, HEADRACE_FORWARD}, options, problem);
}

headrace_status headrace_attention_backward_problem(const headrace_attention_tensors* tensors,
                                                    const headrace_attention_gradients* gradients,
                                                    const headrace_attention_options* options,
                                                    headrace_problem* problem) {
  return problem_of({tensors, gradients, HEADRACE_BACKWARD}, options, problem);
}

headrace_status headrace_plan_attention(const headrace_problem* problem,
                                        const headrace_device_info* device, headrace_plan** plan) {
  return guarded([&] {
    if (plan == nullptr) return fail(null_argument("plan", "pass the address of a pointer"));
    auto result = plan_of(problem, device);
    if (!result.ok()) return fail(std::move(result.failure()));
    auto made = std::make_unique_for_overwrite<headrace_plan>();
    made->plan = std::move(result.value());
    made->kernel_name = made->plan.kernel->name;
    *plan = made.release();
    return HEADRACE_OK;
  });
}

void headrace_plan_destroy(headrace_plan* plan) { delete plan; }

size_t headrace_plan_workspace_bytes(const headrace_plan* plan) {
  return plan == nullptr ? 0 : plan->plan.schedule.workspace_bytes;
}

int headrace_plan_is_fallback(const headrace_plan* plan) {
  return plan != nullptr && plan->plan.is_fallback ? 1 : 0;
}

const char* headrace_plan_kernel(const headrace_plan* plan) {
  return plan == nullptr ? "" : plan->kernel_name.c_str();
}

const char* headrace_plan_explain(const headrace_plan* plan) {
  if (plan == nullptr) return "";
  const headrace_status status = guarded([&] {
    std::call_once(plan->is_explained, [&] { plan->explain = headrace::explain(plan->plan); });
    return HEADRACE_OK;
  });
  return status == HEADRACE_OK ? plan->explain.c_str() : "";
}

headrace_status headrace_plan_run(const headrace_plan* plan,
                                  const headrace_attention_tensors* tensors,
                                  const headrace_run_options* options, void* workspace,
                                  size_t workspace_bytes, void* stream) {
  return run_guarded(plan, {tensors, nullptr, HEADRACE_FORWARD}, options,
                     {workspace, workspace_bytes}, stream);
}

headrace_status headrace_plan_run_backward(const headrace_plan* plan,
                                           const headrace_attention_tensors* tensors,
                                           const headrace_attention_gradients* gradients,
                                           const headrace_run_options* options, void* workspace,
                                           size_t workspace_bytes, void* stream) {
  return run_guarded(plan, {tensors, gradients, HEADRACE_BACKWARD}, options,
                     {workspace, workspace_bytes}, stream);
}

headrace_status headrace_attention_supports(const headrace_problem* problem,
                                            const headrace_device_info* device) {
  return guarded([&] {
    auto result = plan_of(problem, device);
    return result.ok() ? HEADRACE_OK : fail(std::move(result.failure()));
  });
}

headrace_status headrace_attention_forward(const headrace_attention_tensors* tensors,
                                           const headrace_attention_options* options,
                                           void* workspace, size_t workspace_bytes, void* stream) {
  return guarded([&] {
    return status_of(attend({tensors, nullptr, HEADRACE_FORWARD}, options,
                            {workspace, workspace_bytes}, stream));
  });
}

headrace_status headrace_attention_backward(const headrace_attention_tensors* tensors,
                                            const headrace_attention_gradients* gradients,
                                            const headrace_attention_options* options,
                                            void* workspace, size_t workspace_bytes, void* stream) {
  return guarded([&] {
    return status_of(attend({tensors, gradients, HEADRACE_BACKWARD}, options,
                            {workspace, workspace_bytes}, stream));
  });
}

}  // extern "C"
