// Replays one case and prints its details.
#include <cstdio>

#include "attention/select.h"
#include "conformance/suites.h"

namespace headrace::testing {
namespace {

void print_axes(const CaseName& name) {
  for (const AxisInfo& axis : axes())
    std::printf("  %-12s %s\n", axis.name,
                axis.values[static_cast<std::size_t>(name.values[axis.axis])]);
  std::printf("  %-12s %u\n", "seed", static_cast<unsigned>(name.seed));
}

bool print_result(const Target& target, const CaseResult& result) {
  const Verdict& v = result.verdict;
  std::printf("%.*s: ", static_cast<int>(target.kernel->name.size()), target.kernel->name.data());
  if (!result.refusal.empty()) {
    std::printf("refuses: %s\n", result.refusal.c_str());
    return true;
  }
  std::printf("%s\n", result.failures.empty() ? "ok" : "FAILED");
  for (const std::string& text : result.failures) std::printf("  %s\n", text.c_str());
  std::printf("  rows %lld, fraction of the bound %.3g, of the lse bound %.3g\n",
              static_cast<long long>(v.num_rows), v.utilisation, v.lse_utilisation);
  std::printf("  error max %.3g mean %.3g; straightforward max %.3g mean %.3g%s\n", v.max_error,
              v.mean_error, v.pt_max_error, v.pt_mean_error,
              v.judged_mean ? "" : " (mean rule does not apply)");
  std::printf("  nmse %.3g%s; zeros %.2f, one-hot rows %.2f\n", v.nmse,
              v.judged_nmse ? "" : " (does not apply)", v.zero_share, v.one_hot_share);
  return result.failures.empty();
}

}  // namespace

std::vector<Target> chosen_targets(const SuiteOptions& options) {
  std::vector<Target> list;
  for (const Target& target : targets()) {
    if (!options.kernel.empty() && target.kernel->name != options.kernel) continue;
    if (options.device == "all" || is_on_gpu(target) == (options.device == "cuda"))
      list.push_back(target);
  }
  for (const Target& target : lab_targets())
    if (target.kernel->name == options.kernel) list.push_back(target);
  return list;
}

int replay_case(std::uint64_t id, const SuiteOptions& options) {
  const auto name = case_from_id(id);
  if (!name) {
    std::fprintf(stderr, "no such case\n");
    return 2;
  }
  print_axes(*name);
  if (options.suite == "backward") return replay_backward_case(*name, options);
  if (options.suite == "bits") return replay_bits_case(*name, options);
  Case test_case(*name);
  test_case.store_keys(options.keys);
  Result<Call> call = make_call(test_case);
  if (!call.ok()) {
    std::printf("invalid: %s\n", call.failure().message.c_str());
    return 1;
  }
  std::printf("%s\n", problem_text(call.value().problem).c_str());
  const Expected expected = expect(test_case, call.value(), false);
  bool ok = true;
  for (const Target& target : chosen_targets(options)) {
    set_current_case(0, replay_line(std::string(target.kernel->name), *name, options.keys));
    ok = print_result(target, judge(target, test_case, expected)) && ok;
  }
  return ok ? 0 : 1;
}

}  // namespace headrace::testing
