// The suites of the conformance program and what they report.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "conformance/covering.h"
#include "conformance/runner.h"

namespace headrace::testing {

// The extent of a suite. Small: for sanitizers. Full: the gate. Whole: every case of the named
// grids.
enum class Tier { small, full, whole };

struct SuiteOptions {
  std::string suite = "grid";
  std::string kernel;                   // empty: all kernels of this machine
  std::string device = "all";           // or "cpu", "cuda"
  KeyStorage keys = KeyStorage::whole;  // of a case that is replayed
  std::size_t count = 10000;
  Tier tier = Tier::full;
  // backward: one grid or check, or one case of a grid ("B1/17"); quantised: one grid; empty: all
  std::string only;
  int shard = 0, num_shards = 1;
  int num_threads = 1;  // cases in parallel
  double seconds = 60;  // fuzz
  std::uint64_t seed = 1;
};

struct FailedCheck {
  std::string kernel, name, text, replay;
};

// Cases whose keys are in pages or have seqused_k.
struct StoredKeys {
  std::int64_t num_cases = 0, num_refused = 0;
};

// Sums over the cases of one kernel.
struct KernelReport {
  std::int64_t num_cases = 0, num_refused = 0, num_failed = 0, num_rows = 0;
  std::int64_t num_mean_judged = 0,
               num_nmse_judged = 0;                   // cases to which R1's mean rule, R2 applied
  std::int64_t num_mostly_zero = 0, num_one_hot = 0;  // R6
  std::int64_t num_swaps = 0;                         // cases repeated with a changed input
  double calculation = 0;  // largest fraction of R3's bound before the last rounding
  double utilisation = 0, lse_utilisation = 0, mean_ratio = 0, max_ratio = 0;  // largest
  double sum_mean_ratio = 0;                                                   // of num_mean_judged
  std::string calculation_case;
  std::map<std::string, StoredKeys> stored_keys;  // by the name of the KeyStorage
  PairTable seen, refused;
};

// A named check of the suites bits, catalogue and quantised.
struct NamedCheck {
  std::string id, title, kernel, status;  // "ok", "failed", "refused", "not applicable"
};

struct Report {
  std::string suite;
  std::map<std::string, KernelReport> kernels;
  std::vector<NamedCheck> checks;
  std::vector<FailedCheck> failures;
  std::vector<std::string> notes;
  double seconds = 0;
  bool ok() const { return failures.empty(); }
};

// Whether a judged row sees a key.
bool is_live(const CaseName& name);
// Reports holes: pairs that no case of this kernel ran or was refused with.
void check_holes(const std::vector<CaseName>& of_other_shards, Report& report);

std::vector<Target> chosen_targets(const SuiteOptions& options);
std::vector<Target> chosen_backward_targets(const SuiteOptions& options);
std::string replay_line(const std::string& kernel, const CaseName& name,
                        KeyStorage keys = KeyStorage::whole);

Report run_grid(const SuiteOptions& options);
Report run_fuzz(const SuiteOptions& options);
Report run_backward(const SuiteOptions& options);
Report run_bits(const SuiteOptions& options);
void run_gradient_bits(const SuiteOptions& options, Report& report);  // part of run_bits()
Report run_catalogue(const SuiteOptions& options);
Report run_quantised(const SuiteOptions& options);
// Compares a GPU's kernel in double with the reference.
Report run_oracle(const SuiteOptions& options);
// Replays one case and prints its details.
int replay_case(std::uint64_t id, const SuiteOptions& options);
int replay_backward_case(const CaseName& name, const SuiteOptions& options);
int replay_bits_case(const CaseName& name, const SuiteOptions& options);

// On a crash, prints the running cases. Slot: one of 64 threads of the program.
void install_crash_handler();
void set_current_case(int slot, const std::string& replay);

std::string format_report(const Report& report, const std::string& format);

}  // namespace headrace::testing
