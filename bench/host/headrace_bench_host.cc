// Host overhead of a C++ call on the CPU: f32, [batch 1, seqlen 64, num_heads 8, head_dim 64].
// Microseconds per call: minimum and median of many rounds. Exits with 1 if the minimum of a row
// exceeds its limit.
#include <cstdio>
#include <vector>

#include "headrace/headrace.hpp"
#include "host/idle_plan.h"
#include "host/rows.h"

using namespace headrace;
using namespace headrace::bench;

int main() {
  std::vector<float> q(64 * 8 * 64, 0.5f), k = q, v = q, out = q;
  const auto view = [](std::vector<float>& x) {
    return TensorView(x.data(), DType::f32, {1, 64, 8, 64});
  };
  const AttentionTensors tensors{.q = view(q), .k = view(k), .v = view(v), .out = view(out)};
  const DeviceInfo device = cpu_info();
  const Problem problem(tensors);
  const Plan plan = plan_attention(problem, device), idle(make_idle_plan(problem, device));
  std::vector<char> memory(plan.workspace_bytes());
  const Workspace workspace{memory.data(), memory.size()};
  std::printf("headrace %s, %s, %d threads, %s\n", version(), device.name, device.num_units,
              plan.kernel());
  std::printf("%-40s %8s %8s %8s\n", "us per call", "min", "median", "limit");
  is_within(kNoLimit, "run of a cached plan", 10, [&] { plan.run(tensors, workspace); });
  bool is_fast = is_within(2, "run of a cached plan, without its kernel", 200,
                           [&] { idle.run(tensors, workspace); });
  is_fast &= is_within(5, "plan_attention", 100, [&] { (void)plan_attention(problem, device); });
  is_within(kNoLimit, "plan_attention and explain", 50,
            [&] { (void)plan_attention(problem, device).explain(); });
  is_within(kNoLimit, "Problem of tensors", 200, [&] { (void)Problem(tensors); });
  is_within(kNoLimit, "cpu_info", 50, [&] { (void)cpu_info(); });
  return is_fast ? 0 : 1;
}
