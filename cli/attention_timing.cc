#include "attention_timing.h"

#include <chrono>
#include <cstdlib>

namespace headrace::cli {
namespace {

using Clock = std::chrono::steady_clock;

// Unsets HEADRACE_KERNEL for its lifetime.
class AnyKernel {
 public:
  AnyKernel() {
    if (const char* value = std::getenv(kVariable)) forced_ = value;
    unsetenv(kVariable);
  }
  AnyKernel(const AnyKernel&) = delete;
  AnyKernel& operator=(const AnyKernel&) = delete;
  ~AnyKernel() {
    if (!forced_.empty()) setenv(kVariable, forced_.c_str(), 1);
  }

 private:
  static constexpr const char* kVariable = "HEADRACE_KERNEL";
  std::string forced_;
};

// Computes the out and lse that a backward reads.
void run_forward(AttentionData& data, Machine& machine) {
  const AnyKernel any;  // HEADRACE_KERNEL names the backward kernel
  const Plan plan = plan_attention(Problem(data.tensors(), data.options()), machine.device);
  const Workspace workspace = data.workspace(plan.workspace_bytes());
  const auto run = [&](void* stream) { plan.run(data.tensors(), workspace, {}, stream); };
  if (machine.gpu)
    machine.gpu->time(run, false);
  else
    run(nullptr);
}

TimedCalls time_calls(const Plan& plan, bool is_backward, AttentionData& data,
                      const TimingOptions& options, Machine& machine) {
  constexpr std::size_t kMostCalls = 100000;
  const Workspace workspace = data.workspace(plan.workspace_bytes());
  const auto run = [&](void* stream) {
    if (is_backward)
      plan.run_backward(data.tensors(), data.gradients(), workspace, {}, stream);
    else
      plan.run(data.tensors(), workspace, {}, stream);
  };
  std::vector<double> reads;  // GB/s
  const auto call = [&] {
    if (machine.gpu) return machine.gpu->time(run, options.is_cold);
    if (machine.evictor) reads.push_back(machine.evictor->read());
    const auto begin = Clock::now();
    run(nullptr);
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  call();  // touches workspace and outputs, starts the threads
  std::vector<double> seconds;
  const auto begin = Clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  while (seconds.size() < kMostCalls &&
         (seconds.size() < static_cast<std::size_t>(options.reps) || elapsed() < options.min_time))
    seconds.push_back(call());
  return {times_of(std::move(seconds)), reads.empty() ? 0 : times_of(std::move(reads)).median};
}

}  // namespace

Machine machine_of(const std::string& name, int num_threads, bool is_cold) {
  Machine machine{.device = device_from_text(name.c_str()), .gpu = {}, .evictor = {}};
  DeviceInfo& device = machine.device;
  if (device.device_type == HEADRACE_CUDA) {
    machine.gpu.emplace(device.device_id);
    return machine;
  }
  if (num_threads > 0) device.num_units = num_threads;
  if (!is_cold) return machine;
  const std::size_t bytes = 2 * probes::last_level_cache_bytes();
  machine.evictor = std::make_unique<probes::StreamBuffer>(
      device.num_units, bytes / static_cast<std::size_t>(device.num_units));
  return machine;
}

std::string check_machine(const std::string& text) {
  if (text == "cpu" || text == "cuda" || text.starts_with("cuda:")) return {};
  return "\"" + text + "\" is no device of this machine; pass cpu, cuda or cuda:NUMBER";
}

namespace {

// Random inputs on the machine, for a backward with the results of a forward.
AttentionData data_of(const AttentionShape& shape, Layout layout, Machine& machine) {
  AttentionData data(shape, layout);
  if (machine.gpu) {
    machine.gpu->release();
    data.move_to(*machine.gpu, machine.device.device_id);
  }
  if (shape.problem.phase == HEADRACE_BACKWARD) run_forward(data, machine);
  return data;
}

}  // namespace

TimedCalls time_attention(const AttentionShape& shape, const Plan& plan,
                          const TimingOptions& options, Machine& machine) {
  AttentionData data = data_of(shape, options.layout, machine);
  return time_calls(plan, shape.problem.phase == HEADRACE_BACKWARD, data, options, machine);
}

TunedCall tune_attention(const AttentionShape& shape, const Plan& plan, bool is_cold,
                         TuneOptions options, Machine& machine, Tuning& tuning) {
  const AttentionData data = data_of(shape, Layout::bshd, machine);
  if (is_cold)
    options.before_call = [&machine](void*) {
      if (machine.gpu)
        machine.gpu->evict();
      else
        machine.evictor->read();
    };
  void* const stream = machine.gpu ? machine.gpu->stream() : nullptr;
  if (shape.problem.phase == HEADRACE_BACKWARD)
    return tuning.tune(plan, data.tensors(), data.gradients(), options, stream);
  return tuning.tune(plan, data.tensors(), options, stream);
}

}  // namespace headrace::cli
