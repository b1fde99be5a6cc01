#include "attention/select.h"

#include <cstdint>

#include "attention/tune/table.h"
#include "attention/validate.h"
#include "backends/cpu/kernels.h"
#include "backends/cuda/backend.h"
#include "base/env.h"
#include "base/log.h"
#include "core/device.h"

namespace headrace {
namespace {

std::string refusal_of(const Kernel& kernel, const Problem& problem, const DeviceInfo& device,
                       std::string_view forced) {
  if (!forced.empty() && kernel.name != forced)
    return format_text("{}={} names another kernel", env::name_of(env::Variable::kernel), forced);
  return kernel.refuses(problem, device);
}

std::string refusals_text(const std::vector<RefusedKernel>& refused) {
  std::string text;
  for (const RefusedKernel& kernel : refused)
    text += format_text("\n  {}: {}", kernel.name, kernel.reason);
  return text;
}

Failure no_kernel(const Plan& plan, std::string_view forced) {
  const char* remedy = forced.empty() ? "change the call by the reasons below"
                                      : "unset HEADRACE_KERNEL or name a kernel of this list";
  return unsupported("no kernel of this build supports [{}] on [{}]; {}:{}",
                     problem_text(plan.problem), device_text(plan.device), remedy,
                     refusals_text(plan.refused));
}

Failure strict_failure(const Plan& plan) {
  return unsupported(
      "strict_fallback=1: only the slow fallback {} supports [{}] on [{}]; clear strict_fallback "
      "to allow it, or change the call by the reasons below:{}",
      plan.kernel->name, problem_text(plan.problem), device_text(plan.device),
      refusals_text(plan.refused));
}

// Workspace sizes saturate: on overflow they are INT64_MAX or slightly more.
Status check_workspace_bytes(const Plan& plan) {
  if (plan.schedule.workspace_bytes < PTRDIFF_MAX) return std::nullopt;
  const Problem& p = plan.problem;
  return invalid_argument(
      "batch={}, num_heads={}, seqlen_q={}, seqlen_k={}, num_splits={}: the workspace of {} must "
      "fit 64 bits; split the call{}",
      p.batch, p.num_heads, p.seqlen_q, p.seqlen_k, p.num_splits, plan.kernel->name,
      p.num_splits > 0 ? " or pass num_splits=0" : "");
}

Status report_fallback(const Plan& plan) {
  if (!is_log_set()) return std::nullopt;
  return log_text(HEADRACE_LOG_WARNING,
                  format_text("slow fallback {} for [{}] on [{}]:{}", plan.kernel->name,
                              problem_text(plan.problem), device_text(plan.device),
                              refusals_text(plan.refused)));
}

// Chooses the kernel of plan.problem, which is checked, and its schedule.
Status complete_plan(Plan& plan, const DeviceInfo& device, std::span<const Kernel> kernels,
                     const tune::Table* table) {
  HEADRACE_TRY(check_device(device));
  if (device.device_type == HEADRACE_CUDA && kernels.empty())
    return unsupported(
        "device [{}]: this build has no CUDA kernels; build with CUDA or pass tensors in CPU "
        "memory",
        device_text(device));
  plan.device = device;
  const std::string_view forced = env::value_of(env::Variable::kernel);
  for (const Kernel& kernel : kernels) {
    std::string reason = refusal_of(kernel, plan.problem, device, forced);
    if (!reason.empty()) {
      plan.refused.push_back({kernel.name, std::move(reason)});
      continue;
    }
    plan.kernel = &kernel;
    plan.is_fallback = forced.empty() && &kernel == &kernels.back() && !plan.refused.empty();
    break;
  }
  if (plan.kernel == nullptr) return no_kernel(plan, forced);
  if (plan.is_fallback && plan.problem.strict_fallback) return strict_failure(plan);
  if (table != nullptr) table->choose(plan);
  HEADRACE_TRY(choose_config(plan.config, plan));
  return plan.is_fallback ? report_fallback(plan) : std::nullopt;
}

}  // namespace

std::span<const Kernel> kernels_of(std::int32_t device_type, std::int32_t phase) {
  const bool is_forward = phase == HEADRACE_FORWARD;
  if (!is_forward && phase != HEADRACE_BACKWARD) return {};
  if (device_type == HEADRACE_CPU)
    return is_forward ? cpu::forward_kernels() : cpu::backward_kernels();
  if (device_type == HEADRACE_CUDA)
    return is_forward ? cuda::forward_kernels() : cuda::backward_kernels();
  return {};
}

Status choose_config(const TuningConfig& config, Plan& plan) {
  plan.config = config;
  plan.schedule = plan.kernel->plan(plan.problem, plan.device, config);
  return check_workspace_bytes(plan);
}

Result<Plan> plan_attention(const Problem& problem, const DeviceInfo& device) {
  return plan_attention(problem, device, kernels_of(device.device_type, problem.phase),
                        tune::table_of(device).get());
}

Result<Plan> plan_attention(const Problem& problem, const DeviceInfo& device,
                            std::span<const Kernel> kernels, const tune::Table* table) {
  Result<Plan> result{std::in_place};
  result.value().problem = problem;
  if (auto bad = complete_problem(result.value().problem)) return std::move(*bad);
  if (auto bad = complete_plan(result.value(), device, kernels, table)) return std::move(*bad);
  return result;
}

Result<Plan> plan_checked(const Problem& checked, const DeviceInfo& device) {
  Result<Plan> result{std::in_place};
  result.value().problem = checked;
  const auto kernels = kernels_of(device.device_type, checked.phase);
  const auto table = tune::table_of(device);
  if (auto bad = complete_plan(result.value(), device, kernels, table.get()))
    return std::move(*bad);
  return result;
}

}  // namespace headrace
