// The GPU oracle: cuda_simple in double, compared with the CPU's reference over random cases,
// including probs. It then judges problems that are too large for the CPU.
#include <chrono>
#include <cmath>

#include "conformance/suites.h"
#include "core/dtype.h"

namespace headrace::testing {
namespace {

constexpr int kCases = 500, kSmallCases = 60;
// Both sides compute in double; the rules' bounds are for float.
constexpr double kDoubleToFloat = 0x1p-29, kBothSides = 2;

bool is_close(double got, double exact, double limit) {
  if (std::isnan(exact)) return std::isnan(got);
  if (std::isinf(exact)) return got == exact;
  return std::abs(got - exact) <= limit + kBothSides * 0x1p-53 * std::abs(exact);
}

// A case of the grid with f64 inputs, and with probs if the batch is dense.
class OracleCase {
 public:
  explicit OracleCase(const CaseName& name) : test_case_(name, in_double(name)) {
    const Shape& s = test_case_.shape();
    const std::int64_t count = s.batch * s.num_heads * s.seqlen_q * s.seqlen_k;
    if (s.is_ragged || count == 0 || count > 1 << 20) return;
    probs_ = GuardedBuffer(static_cast<std::size_t>(count) * sizeof(double), Guard::after,
                           kSentinelByte);
    test_case_.mutable_tensors().probs =
        TensorView(probs_.data(), DType::f64, {s.batch, s.num_heads, s.seqlen_q, s.seqlen_k});
  }

  // The first difference; empty: none.
  std::string compare(const Target& target) {
    Result<Call> call = make_call(test_case_);
    if (!call.ok()) return "invalid: " + call.failure().message;
    const RunOutput output = run_kernel(target, test_case_, 4);
    if (!output.refusal.empty()) return "refused: " + output.refusal;
    if (!output.failures.empty()) return output.failures.front();
    const Expected expected = expect(test_case_, call.value(), false);
    for (const ExpectedRow& row : expected.rows) {
      RowRef ref = row.ref;
      ref.problem = &expected.call.problem;
      ref.args = &expected.call.args;
      if (std::string text = compare_row(ref, row.exact, output); !text.empty())
        return format_text("{} (batch {}, head {}, query {})", text, ref.batch_idx, ref.head,
                           ref.q_idx);
    }
    num_rows += static_cast<std::int64_t>(expected.rows.size());
    return {};
  }

  std::int64_t num_rows = 0;

 private:
  static Shape in_double(const CaseName& name) {
    Shape s = shape_of(name);
    s.dtype = DType::f64;
    return s;
  }

  std::string compare_row(const RowRef& ref, const cpu::reference::Row& exact,
                          const RunOutput& output) const {
    const RowBound bound = row_bound(ref, exact, {}, test_case_.largest_v());
    const double share = kBothSides * kDoubleToFloat;
    const RowResult got = row_result(test_case_, output, ref);
    for (std::size_t d = 0; d < got.out.size(); ++d)
      if (!is_close(got.out[d], exact.out[d], share * bound.weight * exact.abs_out[d]))
        return format_text("out[{}] is {} instead of {}", d, got.out[d], exact.out[d]);
    if (ref.problem->has_lse && !is_close(got.lse, exact.lse, share * bound.lse))
      return format_text("lse is {} instead of {}", got.lse, exact.lse);
    const headrace_tensor& probs = test_case_.tensors().probs;
    if (probs.rank == 0) return {};
    const double* row = static_cast<const double*>(probs.data) + ref.batch_idx * probs.strides[0] +
                        ref.head * probs.strides[1] + ref.q_idx * probs.strides[2];
    for (std::size_t j = 0; j < exact.probs.size(); ++j)
      if (!is_close(row[j], exact.probs[j], share * bound.weight * std::abs(exact.probs[j])))
        return format_text("probs[{}] is {} instead of {}", j, row[j], exact.probs[j]);
    return {};
  }

  Case test_case_;
  GuardedBuffer probs_;
};

}  // namespace

Report run_oracle(const SuiteOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  Report report;
  report.suite = "oracle";
  SuiteOptions simple = options;
  simple.kernel = "cuda_simple";
  std::int64_t num_rows = 0;
  for (const Target& target : chosen_targets(simple)) {
    Random random(options.seed * 7919u);
    const int count = options.tier == Tier::small ? kSmallCases : kCases;
    for (int i = 0; i < count; ++i) {
      const CaseName name = random_case(random);
      set_current_case(0, replay_line("cuda_simple", name));
      OracleCase oracle(name);
      if (std::string text = oracle.compare(target); !text.empty())
        report.failures.push_back(
            {"cuda_simple", describe(name.values), text, "headrace_conformance --suite oracle"});
      num_rows += oracle.num_rows;
    }
    report.notes.push_back(
        format_text("cuda_simple in double: {} cases, {} rows compared with the "
                    "CPU reference",
                    count, num_rows));
  }
  if (report.notes.empty()) report.notes.push_back("no GPU: nothing was compared");
  set_current_case(0, "");
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace headrace::testing
