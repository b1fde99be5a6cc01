// The suite `backward`: every pair of axis values, random cases, cases for kernels specialized on
// plain scores or single features, the named grids, and oracle-free checks. The axis lse decides
// whether there is a dlse. Inputs are in read-only pages surrounded by NaNs, the workspace is
// filled with NaNs and outputs with a sentinel; a GPU computes on copies of that memory.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <span>

#include "conformance/backward_checks.h"
#include "conformance/backward_grids.h"
#include "conformance/slices.h"
#include "conformance/status_line.h"

namespace headrace::testing {
namespace {

constexpr int kOtherThreads[] = {3};

bool is_reference(const Target& target) { return target.kernel->name == "cpu_reference"; }

// Name and replay command of a case, and the required checks.
struct Description {
  std::string text, replay;
  std::span<const int> threads;  // thread counts to repeat a deterministic case with
  bool with_reference = false;   // the reference is slow and is the oracle itself
  bool counts_pairs = false;     // of axis values, for the pair table
  bool has_zeros = false;        // some gradient must be exactly +0
};

class BackwardRun {
 public:
  BackwardRun(const SuiteOptions& options, Report& report)
      : options_(options), report_(report), targets_(chosen_backward_targets(options)) {
    for (const Target& target : targets_) report_.kernels[std::string(target.kernel->name)];
  }

  void run_case(const CaseName& name, bool with_reference) {
    Case test_case(name);
    run(test_case, {.text = describe(name.values),
                    .replay = replay_line("", name) + " --suite backward",
                    .threads = kThreadCounts,
                    .with_reference = with_reference,
                    .counts_pairs = true});
  }

  // Runs this tier's part of a grid; one report line per kernel.
  void run_grid(const NamedGrid& grid) {
    const std::vector<GridCase> cases = grid.cases();
    std::vector<std::size_t> chosen = sample_of(grid, cases, options_.tier);
    if (const auto slash = options_.only.find('/'); slash != std::string::npos) {
      std::size_t idx = cases.size();
      std::from_chars(options_.only.data() + slash + 1, options_.only.data() + options_.only.size(),
                      idx);
      chosen.clear();
      if (idx < cases.size()) chosen.push_back(idx);
    }
    counts_.clear();
    for (std::size_t n = 0; n < chosen.size(); ++n) {
      if (static_cast<int>(n) % options_.num_shards != options_.shard) continue;
      const GridCase& one = cases[chosen[n]];
      Lab lab(one.name, one.shape);
      if (one.prepare != nullptr) one.prepare(lab);
      const std::string id = format_text("{}/{}", grid.id, chosen[n]);
      status_.show(format_text("{}: case {} of {}", grid.id, n + 1, chosen.size()));
      run(lab.test_case, {.text = id + " " + text_of(one),
                          .replay = "headrace_conformance --suite backward --only " + id,
                          .threads = kOtherThreads,
                          .has_zeros = grid.has_zeros});
    }
    for (const auto& [kernel, count] : counts_) {
      const char* status = count.num_failed > 0 ? "failed" : count.num_cases > 0 ? "ok" : "refused";
      report_.checks.push_back(
          {grid.id,
           format_text("{}: {} of {} cases, {} refused, largest error {}, mean {} of the "
                       "straightforward implementation's, {} of the bound",
                       grid.title, count.num_cases, cases.size(), count.num_refused,
                       count.max_ratio, count.mean_ratio, count.utilisation),
           kernel, status});
    }
  }

  // A kernel that refused every case is a failure. Then R1 over all cases.
  void finish() {
    for (const auto& [kernel, sums] : report_.kernels) {
      if (sums.num_cases == 0)
        report_.failures.push_back({kernel, "cases", "nothing was compared", ""});
      if (const double all = sums.sum_mean_ratio / static_cast<double>(sums.num_mean_judged);
          all > kMeanRatio)
        report_.failures.push_back(
            {kernel, "all cases",
             format_text("R1 mean errors are on average {} of the straightforward implementation's",
                         all),
             ""});
    }
    if (num_compared_ == 0)
      report_.failures.push_back({"all", "threads", "nothing was compared", ""});
  }

  const std::vector<Target>& targets() const { return targets_; }
  std::int64_t num_compared() const { return num_compared_; }

 private:
  void run(Case& test_case, const Description& what) {
    // Every fourth case is deterministic and repeated with other thread counts.
    test_case.mutable_options().deterministic = test_case.name().seed % 4 == 0;
    test_case.make_gradients();
    const Result<Problem> problem = backward_problem(test_case);
    if (!problem.ok()) {
      report_.failures.push_back(
          {"all", what.text, "the case is invalid: " + Result<Problem>(problem).failure().message,
           what.replay});
      return;
    }
    const ExpectedGradients expected =
        expected_gradients_of(test_case, problem.value(), rounds_weights(problem.value()));
    if (what.has_zeros && expected.num_zeros() == 0)
      report_.failures.push_back(
          {"all", what.text, "the case has no gradient that must be zero", what.replay});
    for (const Target& target : targets_) {
      if (is_reference(target) && !what.with_reference) continue;
      const std::string replay = what.replay + " --kernel " + std::string(target.kernel->name);
      set_current_case(0, replay);
      KernelReport sums;
      const std::vector<std::string> failures =
          run_on(target, test_case, what, problem.value(), expected, sums);
      const AxisValues& values = test_case.name().values;
      KernelReport& kernel = report_.kernels[std::string(target.kernel->name)];
      if (what.counts_pairs && sums.num_cases > 0) kernel.seen.add(values, expected.num_pairs > 0);
      if (what.counts_pairs && sums.num_refused > 0)
        kernel.refused.add(values, has_lengths(values));
      for (const std::string& text : failures)
        report_.failures.push_back({std::string(target.kernel->name), what.text, text, replay});
    }
    set_current_case(0, "");
  }

  // Whether a kernel that supports the problem rounds P and dS or uses 3xTF32.
  bool rounds_weights(const Problem& p) const {
    return std::any_of(targets_.begin(), targets_.end(), [&](const Target& target) {
      if (!target.kernel->refuses(p, target.device).empty()) return false;
      const Schedule schedule = target.kernel->plan(p, target.device, {});
      return schedule.prob_dtype != DType::f32 || schedule.product_error > 0;
    });
  }

  // Runs one kernel and returns its failures; updates the sums of kernel and grid.
  std::vector<std::string> run_on(const Target& target, Case& test_case, const Description& what,
                                  const Problem& p, const ExpectedGradients& expected,
                                  KernelReport& sums) {
    const BackwardCall call = backward_call(test_case);
    GradientOutput output =
        run_gradients(target, test_case, call, test_case.name().values.number(Axis::threads));
    if (!output.refusal.empty()) {
      sums.num_refused = 1;
    } else {
      sums.num_cases = 1;
      sums.num_rows = p.batch * p.num_heads * p.seqlen_q;
      judge_gradients(test_case, p, expected, output, sums);
      if (call.options.deterministic != 0)
        compare_threads(target, test_case, call, what.threads, output);
      sums.num_failed = output.failures.empty() ? 0 : 1;
    }
    add_sums(report_.kernels[std::string(target.kernel->name)], sums);
    add_sums(counts_[std::string(target.kernel->name)], sums);
    return output.failures;
  }

  void compare_threads(const Target& target, Case& test_case, const BackwardCall& call,
                       std::span<const int> threads, GradientOutput& output) {
    ++num_compared_;
    for (const int num_threads : threads)
      if (const char* name =
              other_bits(output, run_gradients(target, test_case, call, num_threads)))
        output.failures.push_back(
            format_text("{} has different bits with {} threads", name, num_threads));
  }

  static void add_sums(KernelReport& to, const KernelReport& from) {
    to.num_cases += from.num_cases;
    to.num_refused += from.num_refused;
    to.num_failed += from.num_failed;
    to.num_rows += from.num_rows;
    to.num_mean_judged += from.num_mean_judged;
    to.sum_mean_ratio += from.sum_mean_ratio;
    to.utilisation = std::max(to.utilisation, from.utilisation);
    to.max_ratio = std::max(to.max_ratio, from.max_ratio);
    to.mean_ratio = std::max(to.mean_ratio, from.mean_ratio);
  }

  const SuiteOptions& options_;
  Report& report_;
  StatusLine status_;
  std::vector<Target> targets_;
  std::map<std::string, KernelReport> counts_;  // of one grid
  std::int64_t num_compared_ = 0;
};

void run_random(const SuiteOptions& options, BackwardRun& run, Report& report) {
  const bool is_small = options.tier == Tier::small;
  const std::vector<CaseName> array = covering_array(options.seed, is_live);
  // A fifth of the forward's count: the oracle computes every gradient of a case.
  const std::size_t count = is_small ? 150 : std::max(options.count / 5, array.size());
  std::vector<CaseName> all = grid_cases(count, options.seed, array);
  const std::vector<CaseName> plain =
      plain_cases(is_small ? kPlainSmall : kPlainFull, options.seed);
  all.insert(all.end(), plain.begin(), plain.end());
  const std::vector<CaseName> scored =
      scored_cases(is_small ? kScoredSmall : kScoredFull, options.seed);
  all.insert(all.end(), scored.begin(), scored.end());
  std::vector<CaseName> others;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (static_cast<int>(i) % options.num_shards == options.shard) {
      run.run_case(all[i], i < std::min(count, array.size()));
    } else {
      others.push_back(all[i]);
    }
  }
  const auto num_shards = static_cast<std::size_t>(options.num_shards);
  report.notes.push_back(format_text(
      "{} cases of axis values, {} of them plain, {} plain but for softcap, ALiBi or bias",
      all.size() - others.size(), plain.size() / num_shards, scored.size() / num_shards));
  if (!is_small) check_holes(others, report);
}

// Notes on where the other guarantees about gradients are tested.
void add_pointers(Report& report) {
  report.notes.push_back(
      "NaN in the workspace and in memory that must not be read: part of every case's memory");
  report.notes.push_back(
      "B10, central differences, and directional derivatives of the reference: "
      "src/backends/cpu/reference/backward_test.cc");
  report.notes.push_back("the other cases of a grid: --tier whole runs all of them, with --shard");
}

}  // namespace

Report run_backward(const SuiteOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  Report report;
  report.suite = "backward";
  BackwardRun run(options, report);
  const std::string only = options.only.substr(0, options.only.find('/'));
  if (only.empty()) run_random(options, run, report);
  for (const NamedGrid& grid : backward_grids())
    if (only.empty() || only == grid.id) run.run_grid(grid);
  if (only.empty()) run.finish();
  run_backward_checks(options, run.targets(), report);
  if (!only.empty() && report.checks.empty())
    report.failures.push_back({"all", options.only, "no grid, check or case has this name", ""});
  add_pointers(report);
  report.notes.push_back(
      format_text("{} deterministic runs compared with other thread counts", run.num_compared()));
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

int replay_backward_case(const CaseName& name, const SuiteOptions& options) {
  Report report;
  report.suite = "backward";
  BackwardRun run(options, report);
  run.run_case(name, true);
  std::fputs(format_report(report, "text").c_str(), stdout);
  return report.ok() ? 0 : 1;
}

}  // namespace headrace::testing
