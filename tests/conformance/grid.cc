// The grid: every pair of axis values, then random cases; each checked against the rules.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <mutex>
#include <thread>

#include "conformance/status_line.h"
#include "conformance/suites.h"
#include "core/dtype.h"

namespace headrace::testing {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// R6: cases that are meant to give empty results or one key with all the weight.
bool is_meant_degenerate(const Case& test_case) {
  const AxisValues& values = test_case.name().values;
  const bool hides_keys = values[Axis::causal] != 0 || values[Axis::window] != 0 ||
                          values[Axis::mask] != 0 || values[Axis::tree_mask] != 0 ||
                          values.get<RaggedKind>(Axis::ragged) == RaggedKind::zeros ||
                          test_case.tensors().seqused_k.rank != 0;
  const bool has_large_scores = values.get<Data>(Axis::data) == Data::negative ||
                                values.get<Data>(Axis::data) == Data::scaled ||
                                values.get<Data>(Axis::data) == Data::integer;
  return hides_keys || has_large_scores || test_case.shape().seqlen_k <= 4 ||
         test_case.shape().is_ragged;
}

// R6: changing V of the heaviest key must change the row. Empty: it does, or the check does not
// apply.
std::string swap_check(const Target& target, Case& test_case, const Expected& expected) {
  for (const ExpectedRow& row : expected.rows) {
    if (row.exact.is_empty) continue;
    const auto top = std::max_element(row.exact.probs.begin(), row.exact.probs.end());
    if (*top < 0.05) continue;
    const int num_threads = test_case.name().values.number(Axis::threads);
    RowRef ref = row.ref;
    const RowResult before = row_result(test_case, run_kernel(target, test_case, num_threads), ref);
    const Operand& v = expected.call.args.v;
    const Problem& p = expected.call.problem;
    const std::int64_t offset =
        key_offset(p, expected.call.args.paged, v, ref.sequence, ref.batch_idx,
                   top - row.exact.probs.begin(), ref.head / group_size(p));
    const DType dtype = test_case.shape().dtype;
    test_case.unlock_inputs();
    const double kept = load_as_double(dtype, v.data, offset);
    store_from_double(dtype, v.data, offset, kept + 4);
    const RowResult after = row_result(test_case, run_kernel(target, test_case, num_threads), ref);
    store_from_double(dtype, v.data, offset, kept);
    test_case.lock_inputs();
    return after.out[0] > before.out[0] ? std::string()
                                        : "R6 the result does not depend on the heaviest key's V";
  }
  return {};
}

bool is_degenerate(const Verdict& verdict) {
  return verdict.zero_share > 0.5 || verdict.one_hot_share > 0.5;
}

void add_verdict(KernelReport& report, const CaseName& name, const Verdict& verdict) {
  report.num_rows += verdict.num_rows;
  report.num_mean_judged += verdict.judged_mean ? 1 : 0;
  report.num_nmse_judged += verdict.judged_nmse ? 1 : 0;
  report.utilisation = std::max(report.utilisation, verdict.utilisation);
  if (verdict.calculation > report.calculation) {
    report.calculation = verdict.calculation;
    report.calculation_case = replay_line("", name);
  }
  report.lse_utilisation = std::max(report.lse_utilisation, verdict.lse_utilisation);
  if (verdict.judged_mean)
    report.mean_ratio = std::max(report.mean_ratio, verdict.mean_error / verdict.pt_mean_error);
  report.num_mostly_zero += verdict.zero_share > 0.5 ? 1 : 0;
  report.num_one_hot += verdict.one_hot_share > 0.5 ? 1 : 0;
}

class GridRun {
 public:
  GridRun(const SuiteOptions& options, Report& report)
      : options_(options), report_(report), targets_(chosen_targets(options)) {
    for (const Target& target : targets_) report_.kernels[std::string(target.kernel->name)];
  }

  // All kernels on one case; the slow reference, which is the oracle itself, if `with_reference`.
  void run_case(int slot, const CaseName& name, bool with_reference,
                KeyStorage storage = KeyStorage::whole) {
    Case test_case(name);
    test_case.store_keys(storage);
    Result<Call> call = make_call(test_case);
    if (!call.ok()) {
      add_failure("all", name, "the case is invalid: " + call.failure().message);
      return;
    }
    const Expected expected = expect(test_case, call.value(), false);
    for (const Target& target : targets_) {
      if (target.kernel->name == "cpu_reference" && !with_reference) continue;
      set_current_case(slot, replay_line(std::string(target.kernel->name), name, storage));
      CaseResult result = judge(target, test_case, expected);
      const bool is_swapped = name.seed % 16 == 0 && result.refusal.empty() &&
                              result.failures.empty() && !expected.rows.empty();
      if (is_swapped)
        if (std::string text = swap_check(target, test_case, expected); !text.empty())
          result.failures.push_back(std::move(text));
      if (is_degenerate(result.verdict) && !is_meant_degenerate(test_case))
        result.failures.push_back("R6 degenerate results from non-degenerate data");
      if (storage == KeyStorage::whole) {
        add(target, name, result, is_swapped);
      } else {
        add_stored(target, name, result, storage);
      }
    }
    set_current_case(slot, "");
  }

 private:
  void add(const Target& target, const CaseName& name, const CaseResult& result, bool is_swapped) {
    const std::lock_guard lock(mutex_);
    const std::string kernel(target.kernel->name);
    KernelReport& report = report_.kernels[kernel];
    if (!result.refusal.empty()) {
      ++report.num_refused;
      report.refused.add(name.values, has_lengths(name.values));
      return;
    }
    ++report.num_cases;
    report.num_swaps += is_swapped ? 1 : 0;
    report.seen.add(name.values, result.verdict.num_full_rows > 0);
    add_verdict(report, name, result.verdict);
    add_failures(report, kernel, name, result, KeyStorage::whole);
  }

  // Keys in pages or with seqused_k: counted apart from the pairs of axis values.
  void add_stored(const Target& target, const CaseName& name, const CaseResult& result,
                  KeyStorage storage) {
    const std::lock_guard lock(mutex_);
    const std::string kernel(target.kernel->name);
    KernelReport& report = report_.kernels[kernel];
    StoredKeys& stored = report.stored_keys[kKeyStorages[static_cast<int>(storage)]];
    ++(result.refusal.empty() ? stored.num_cases : stored.num_refused);
    if (result.refusal.empty()) add_failures(report, kernel, name, result, storage);
  }

  void add_failures(KernelReport& report, const std::string& kernel, const CaseName& name,
                    const CaseResult& result, KeyStorage storage) {
    report.num_failed += result.failures.empty() ? 0 : 1;
    for (const std::string& text : result.failures)
      report_.failures.push_back(
          {kernel, describe(name.values), text, replay_line(kernel, name, storage)});
  }

  void add_failure(const std::string& kernel, const CaseName& name, const std::string& text) {
    const std::lock_guard lock(mutex_);
    report_.failures.push_back({kernel, describe(name.values), text, replay_line("", name)});
  }

  const SuiteOptions& options_;
  Report& report_;
  std::vector<Target> targets_;
  std::mutex mutex_;
};

// body(slot, index) for all indices, on several threads.
template <class Body>
void for_all(std::size_t count, int num_threads, Body body) {
  std::atomic<std::size_t> next{0};
  StatusLine status;  // of the first thread
  const auto work = [&](int slot) {
    for (std::size_t i = next++; i < count; i = next++) {
      body(slot, i);
      if (slot == 0) status.show(format_text("case {} of {}", i + 1, count));
    }
  };
  std::vector<std::thread> threads;
  for (int slot = 1; slot < num_threads; ++slot) threads.emplace_back(work, slot);
  work(0);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

bool is_live(const CaseName& name) {
  const Case test_case(name);
  const Result<Call> call = make_call(test_case);
  if (!call.ok()) return true;  // reported later
  const Expected expected = expect(test_case, call.value(), false);
  return std::any_of(expected.rows.begin(), expected.rows.end(),
                     [](const ExpectedRow& row) { return !row.exact.is_empty; });
}

void check_holes(const std::vector<CaseName>& of_other_shards, Report& report) {
  for (auto& [kernel, sums] : report.kernels) {
    PairTable all = sums.seen;
    all.merge(sums.refused);
    for (const CaseName& name : of_other_shards) all.add(name.values, has_lengths(name.values));
    const auto holes = all.holes();
    if (holes.empty()) continue;
    report.failures.push_back({kernel, "pair table",
                               format_text("{} pairs of axis values never ran, the first: {}",
                                           holes.size(), holes.front()),
                               ""});
  }
}

Report run_grid(const SuiteOptions& options) {
  const auto start = Clock::now();
  Report report;
  report.suite = "grid";
  const bool is_small = options.tier == Tier::small;
  const std::size_t count = is_small ? 300 : options.count;
  const std::vector<CaseName> array = covering_array(options.seed, is_live);
  const std::size_t array_size = array.size();
  std::vector<CaseName> all = grid_cases(count, options.seed, array);
  const std::vector<CaseName> features =
      one_feature_cases(is_small ? kOneFeatureSmall : kOneFeatureFull, options.seed);
  all.insert(all.end(), features.begin(), features.end());
  std::vector<CaseName> mine, others;
  std::vector<bool> is_array;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const bool is_mine = static_cast<int>(i) % options.num_shards == options.shard;
    (is_mine ? mine : others).push_back(all[i]);
    if (is_mine) is_array.push_back(i < array_size);
  }
  // The reference only runs the covering array.
  GridRun run(options, report);
  for_all(mine.size(), options.num_threads, [&](int slot, std::size_t i) {
    run.run_case(slot, mine[i], is_array[i]);
    // The covering array and a quarter of the others again, with their keys stored otherwise.
    if (is_array[i] || mine[i].seed % 4 == 0)
      run.run_case(slot, mine[i], false, static_cast<KeyStorage>(1 + mine[i].seed / 4 % 3));
  });
  report.notes.push_back(format_text(
      "{} cases; over all shards {} in the covering array, {} with a single feature; shard "
      "{} of {}",
      mine.size(), array_size, features.size(), options.shard + 1, options.num_shards));
  if (count >= array_size) {
    check_holes(others, report);
    if (options.num_shards > 1)
      report.notes.push_back("pairs are printed for this shard and judged over all shards");
  } else {
    report.notes.push_back("too few cases for every pair: the pair table is not judged");
  }
  report.seconds = seconds_since(start);
  return report;
}

Report run_fuzz(const SuiteOptions& options) {
  const auto start = Clock::now();
  Report report;
  report.suite = "fuzz";
  GridRun run(options, report);
  Random random(options.seed);
  std::mutex mutex;
  constexpr std::size_t kBatch = 64;
  while (seconds_since(start) < options.seconds && report.failures.size() < 20) {
    std::vector<CaseName> cases;
    for (std::size_t i = 0; i < kBatch; ++i) cases.push_back(random_case(random));
    for_all(kBatch, options.num_threads,
            [&](int slot, std::size_t i) { run.run_case(slot, cases[i], false); });
  }
  report.notes.push_back(format_text("seed {}; pairs are counted but not judged", options.seed));
  report.seconds = seconds_since(start);
  return report;
}

}  // namespace headrace::testing
