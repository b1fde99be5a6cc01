// The suite `quantised`: attention over codes on every kernel that takes them, against the
// dequantised keys and values in double.
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>

#include "conformance/quantised_grids.h"

namespace headrace::testing {
namespace {

// A case between guard pages.
class GuardedCall {
 public:
  explicit GuardedCall(const QuantisedCase& c)
      : call(c),
        moved_(call, HEADRACE_CPU, [this](const QuantisedCall::Memory& from, headrace_tensor&) {
          GuardedBuffer& memory = memory_.emplace_back(from.bytes, Guard::after, kNanByte);
          std::memcpy(memory.data(), from.data, from.bytes);
          const bool is_output = from.data == call.out().data() || from.data == call.lse().data();
          if (!is_output) memory.make_read_only();
          return memory.data();
        }) {}

  // Runs a kernel and takes its results into `call`. Empty, or what went wrong.
  std::string run(const Target& target, std::string* refusal) {
    Result<Call> made = make_call(moved_.tensors, call.attention_options());
    if (!made.ok()) return "invalid: " + made.failure().message;
    std::memset(moved_.tensors.out.data, kNanByte, call.out().size());
    std::memset(moved_.tensors.lse.data, kNanByte, call.lse().size() * sizeof(float));
    constexpr int kNumThreads = 2;
    const int num_units = is_on_gpu(target) ? target.device.num_units : kNumThreads;
    if (Status bad = run_call(target, made.value(), num_units, refusal))
      return "run failed: " + bad->message;
    std::memcpy(call.out().data(), moved_.tensors.out.data, call.out().size());
    std::memcpy(call.lse().data(), moved_.tensors.lse.data, call.lse().size() * sizeof(float));
    return {};
  }

  QuantisedCall call;

 private:
  std::vector<GuardedBuffer> memory_;
  MovedTensors moved_;
};

// Squares of results beside a cache of 16 bits, and of what codes change of them.
struct Noise {
  double signal = 0, noise = 0;
  double sqnr() const { return 10 * std::log10(signal / noise); }
};

void add_noise(const QuantisedCall& call, const std::vector<JudgedRow>& beside, Noise& sum) {
  for (const auto& [b, i, head, exact] : beside)
    for (std::int64_t d = 0; d < call.options().head_dim_v; ++d) {
      const double want = exact.out[static_cast<std::size_t>(d)];
      const double error = call.result(b, i, head, d) - want;
      sum.signal += want * want;
      sum.noise += error * error;
    }
}

class QuantisedSuite {
 public:
  QuantisedSuite(const SuiteOptions& options, Report& report)
      : options_(options), report_(report), targets_(chosen_targets(options)) {}

  void run_grid(const QuantisedGrid& grid) {
    std::map<std::string, Counts> counts;
    for (const QuantisedCase& c : grid.cases(options_.tier)) {
      GuardedCall guarded(c);
      QuantisedExpected expected{judged_rows(guarded.call), {}};
      if (grid.reports_sqnr)
        expected.beside_16_bits = judged_rows(guarded.call, QuantisedCall::Form::unquantised);
      for (const Target& target : targets_) run_case(grid, guarded, expected, target, counts);
    }
    for (const auto& [kernel, x] : counts) {
      const std::string cases = format_text("{} cases, {} refused", x.num_cases, x.num_refused);
      report_.checks.push_back({grid.id, grid.title, kernel,
                                (x.num_failed > 0               ? "failed, "
                                 : x.num_cases == x.num_refused ? "refused, "
                                                                : "ok, ") +
                                    cases});
      for (const auto& [format, noise] : x.noise)
        report_.notes.push_back(format_text("{} {} {}: SQNR beside a cache without codes {} dB",
                                            grid.id, kernel, format, noise.sqnr()));
    }
  }

 private:
  struct Counts {
    int num_cases = 0, num_refused = 0, num_failed = 0;
    std::map<std::string, Noise> noise;  // by dtype and format
  };

  void run_case(const QuantisedGrid& grid, GuardedCall& guarded, const QuantisedExpected& expected,
                const Target& target, std::map<std::string, Counts>& counts) {
    const QuantisedCase& c = guarded.call.options();
    const std::string kernel(target.kernel->name);
    const std::string replay = format_text(
        "headrace_conformance --suite quantised --only {} --kernel {}", grid.id, kernel);
    set_current_case(0, replay);
    Counts& x = counts[kernel];
    ++x.num_cases;
    std::string refusal, text = guarded.run(target, &refusal);
    if (!refusal.empty()) {
      ++x.num_refused;
      return;
    }
    if (text.empty()) text = grid.judge(*target.kernel, guarded.call, expected);
    if (grid.reports_sqnr)
      add_noise(guarded.call, expected.beside_16_bits,
                x.noise[std::string(dtype_name(c.dtype)) + ' ' + dtype_name(c.k_dtype)]);
    if (text.empty()) return;
    ++x.num_failed;
    report_.failures.push_back({kernel, grid.id, text_of(c) + ": " + text, replay});
  }

  const SuiteOptions& options_;
  Report& report_;
  std::vector<Target> targets_;
};

}  // namespace

Report run_quantised(const SuiteOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  Report report;
  report.suite = "quantised";
  QuantisedSuite suite(options, report);
  for (const QuantisedGrid& grid : kQuantisedGrids)
    if (options.only.empty() || options.only == grid.id) suite.run_grid(grid);
  if (report.checks.empty())
    report.failures.push_back({"all", options.only, "there is no such grid", "--only Q2"});
  set_current_case(0, "");
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace headrace::testing
