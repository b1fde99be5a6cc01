// Oracle-free checks of gradients: equal bits and identities.
#pragma once

#include "conformance/backward.h"
#include "conformance/catalogue.h"

namespace headrace::testing {

// One check on one kernel: collects failures.
class GradientCheck {
 public:
  GradientCheck(const Target& on, Tier of_tier) : target(on), tier(of_tier) {}

  // False if the kernel refuses the call or the call failed.
  bool run(Case& test_case, const BackwardCall& call, GradientOutput& output, int num_threads = 2);
  void fail(const std::string& text) { failures.push_back(text); }
  void expect_bits(const GradientOutput& one, const GradientOutput& other, const std::string& what);
  void expect_near(double got, double exact, double limit, const std::string& what);

  const Target& target;
  Tier tier;
  std::int64_t num_compared = 0, num_refused = 0;
  std::uint64_t fingerprint = 0;  // hash of the gradients' bits, if the check computes one
  std::vector<std::string> failures;
};

// Calls body(lab) for contiguous shapes with partial tiles, one with empty rows, for each dtype,
// before make_gradients(). `has_dlse`: with a dlse.
void for_each_plain_lab(bool has_dlse, const std::function<void(Lab&)>& body);

// backward_identities.cc
void score_gradients_sum_to_dlse(GradientCheck& check);
void equal_values_give_no_score_gradient(GradientCheck& check);
void value_gradients_sum_to_dout(GradientCheck& check);
void scaling_q_is_scaling_k(GradientCheck& check);
void twice_dout_twice_the_gradient(GradientCheck& check);
void sinks_see_rowsums(GradientCheck& check);
void zero_columns_of_k_give_zeros(GradientCheck& check);

void run_backward_checks(const SuiteOptions& options, const std::vector<Target>& targets,
                         Report& report);

}  // namespace headrace::testing
