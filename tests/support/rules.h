// The rules that tell a right result from a wrong one. All limits come from the arithmetic, none
// from what a kernel happened to return.
//
//   R1  16-bit formats: not worse than the straightforward implementation in that format
//   R2  normalised mean squared error of the case
//   R3  every element within an error bound derived from the inputs
//   R4  exact answers for constructed inputs (needle, uniform, integers): see the catalogue
//   R5  empty rows are exactly 0 with lse -inf; NaN and infinities where they belong
//   R6  the data can tell right from wrong at all
#pragma once

#include <string>
#include <vector>

#include "support/low_precision.h"

namespace headrace::testing {

// What the rules must know of a kernel.
struct Arithmetic {
  std::int64_t tile_keys = 64;  // keys between two rescalings of the accumulators
  std::int64_t num_splits = 1;
  DType prob_dtype = DType::f32;  // P is rounded to it before P V
  int product_error = 0;          // of a product of two elements, in units of 2^-24
};

double unit_roundoff(DType dtype);      // 2^-24, 2^-11, 2^-8
double smallest_denormal(DType dtype);  // 2^-149, 2^-24, 2^-133
double ulp_at(DType dtype, double value);
// Whether the error of such scores, or lse, in float is below the format's own: else rounding them
// to the format may by chance do better.
bool is_score_below_format(double largest_score, DType dtype);

// Error bounds of one row, derived at their definition.
struct RowBound {
  double score = 0;   // of one score, absolute
  double weight = 0;  // of the output, relative to sum p|v|
  double lse = 0;     // absolute
  double underflow =
      0;  // of the output, absolute: what products and exponentials lose below 2^-126
  DType dtype = DType::f32;
  double before_rounding(double abs_out) const { return weight * abs_out + underflow; }
  double rounding(double exact) const;
  double out(double exact, double abs_out) const {
    return before_rounding(abs_out) + rounding(exact);
  }
};
RowBound row_bound(const RowRef& ref, const cpu::reference::Row& exact,
                   const Arithmetic& arithmetic, double largest_v);

// Results of one row as doubles.
struct RowResult {
  std::vector<double> out;
  double lse = 0;
};

struct Verdict {
  std::vector<std::string> failures;  // "R3 row (0, 1, 17) element 3: ..."
  std::int64_t num_rows = 0, num_elements = 0;
  std::int64_t num_full_rows = 0;  // rows that see a key
  double utilisation = 0;          // largest error / bound of R3
  double calculation = 0;          // the same without the rounding of the output on both sides
  double lse_utilisation = 0;      // the same of lse
  double nmse = 0;
  double max_error = 0, mean_error = 0;        // of R1, 16-bit formats only
  double pt_max_error = 0, pt_mean_error = 0;  // of the straightforward implementation
  double zero_share = 0;                       // expected elements that are exactly 0
  double one_hot_share = 0;                    // rows where one key has all the weight
  bool judged_nmse = false, judged_mean = false;
};

// Collects the rows of one case, then judges them.
class Judge {
 public:
  Judge(const Problem& problem, const Arithmetic& arithmetic, double largest_v)
      : problem_(problem), arithmetic_(arithmetic), largest_v_(largest_v) {}
  // `low_precision`: null where R1 does not apply.
  void add_row(const RowRef& ref, const cpu::reference::Row& exact, const RowResult& got,
               const std::vector<double>* low_precision);
  Verdict finish();

 private:
  void fail(const RowRef& ref, const std::string& text);
  bool check_class(const RowRef& ref, const cpu::reference::Row& exact, const RowResult& got);
  void check_bounds(const RowRef& ref, const cpu::reference::Row& exact, const RowResult& got);
  void add_errors(const cpu::reference::Row& exact, const RowResult& got,
                  const std::vector<double>& low_precision);
  void judge_relative();
  void judge_nmse();

  Problem problem_;
  Arithmetic arithmetic_;
  double largest_v_;
  Verdict verdict_;
  double sum_error2_ = 0, sum_exact2_ = 0, sum_expected_error2_ = 0;
  double sum_error_ = 0, sum_pt_error_ = 0, sum_rounding_ = 0;
  double max_beyond_ulp_ = 0, max_ulp_ = 0;
  std::int64_t num_errors_ = 0, num_zero_ = 0, num_one_hot_ = 0;
  double num_weights_ = 0;  // of P that count: of each row (sum of them)^2 / sum of squares
  bool is_pt_finite_ = true;
};

}  // namespace headrace::testing
