#include "operator_times.h"

namespace headrace::cli {

Table operator_times_table() {
  return {.key = "operators",
          .columns = {{.key = "test", .title = "test", .is_key = true},
                      {.key = "operator", .title = "operator", .is_key = true},
                      {"calls", "calls"},
                      {"kernel", "kernel"},
                      {"bytes", "MB", 2, 1e6},
                      {"microseconds", "us", 1},
                      {"percent_of_step", "% step", 1},
                      {"bound_microseconds", "bound us", 1},
                      {"percent_of_bound", "% bound", 0}},
          .rows = {}};
}

void add_operator_times(const std::string& test, const StepTimes& times, const DeviceInfo& device,
                        const std::vector<Ceiling>& ceilings, Table& table) {
  const auto known = [](double value) { return value > 0 ? Cell(value) : Cell(); };
  const auto add = [&](const OperatorCost& cost, double least) {
    table.rows.push_back({test, cost.name, cost.num_calls, cost.kernel, cost.bytes,
                          cost.seconds * 1e6, 100 * cost.seconds / times.seconds,
                          known(least * 1e6),
                          known(cost.seconds > 0 ? 100 * least / cost.seconds : 0)});
  };
  OperatorCost rest{.name = "rest", .kernel = {}, .seconds = times.seconds},
      step{.name = "step", .kernel = {}, .seconds = times.seconds};
  double all_bounds = 0;
  for (const OperatorCost& cost : times.operators) {
    const double bound = bound_seconds(cost, device, ceilings);
    add(cost, bound);
    step.num_calls += cost.num_calls;
    step.bytes += cost.bytes;
    rest.seconds -= cost.seconds;
    all_bounds += bound;
  }
  add(rest, 0);
  add(step, all_bounds);
}

}  // namespace headrace::cli
