// The rules for correct results. All limits are derived from the arithmetic, none from observed
// results.
//
//   R1  16-bit dtypes: not worse than the straightforward implementation in that dtype
//   R2  normalized mean squared error of the case
//   R3  every element within an error bound derived from the inputs
//   R4  exact answers for constructed inputs (needle, uniform, integers): see the catalogue
//   R5  empty rows are exactly 0 with lse -inf; NaN and infinities where they belong
//   R6  the data can distinguish correct from wrong results
#pragma once

#include <string>
#include <vector>

#include "support/low_precision.h"

namespace headrace::testing {

// The properties of a kernel that the rules need.
struct Arithmetic {
  std::int64_t tile_keys = 64;  // keys between two rescalings of the accumulators
  std::int64_t num_splits = 1;
  DType prob_dtype = DType::f32;  // dtype that P is rounded to before P V
  int product_error = 0;          // of a product of two elements, in units of 2^-24
};

double unit_roundoff(DType dtype);      // 2^-24, 2^-11, 2^-8
double smallest_denormal(DType dtype);  // 2^-149, 2^-24, 2^-133
double ulp_at(DType dtype, double value);
// Whether the float error of such scores, or lse, is below the dtype's: else rounding them to the
// dtype may by chance be more accurate.
bool is_score_below_format(double largest_score, DType dtype);

// Error bounds of one row, derived at their definition.
struct RowBound {
  double score = 0;      // of one score, absolute
  double weight = 0;     // of the output, relative to sum p|v|
  double lse = 0;        // absolute
  double underflow = 0;  // of the output, absolute: flushed products and exponentials below 2^-126
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
  double calculation = 0;          // the same without the rounding of the output
  double lse_utilisation = 0;      // the same for lse
  double nmse = 0;
  double max_error = 0, mean_error = 0;        // of R1, 16-bit dtypes only
  double pt_max_error = 0, pt_mean_error = 0;  // of the straightforward implementation
  double zero_share = 0;                       // fraction of expected elements that are exactly 0
  double one_hot_share = 0;                    // fraction of rows where one key has all the weight
  bool judged_nmse = false, judged_mean = false;
};

// Collects the rows of one case, then judges them.
class Judge {
 public:
  Judge(const Problem& problem, const Arithmetic& arithmetic, double largest_v)
      : problem_(problem), arithmetic_(arithmetic), largest_v_(largest_v) {}
  // `low_precision`: null if R1 does not apply.
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
  double num_weights_ = 0;  // effective number of weights: per row (sum of P)^2 / sum of P^2
  bool is_pt_finite_ = true;
};

}  // namespace headrace::testing
