// Identities that gradients satisfy. Element bounds are those of R3.
#include "conformance/backward_checks.h"

namespace headrace::testing {
namespace {

// The gradients of a case as doubles, with R3's bounds.
struct Computed {
  explicit Computed(Case& test_case)
      : call(backward_call(test_case)),
        problem(backward_problem(test_case).value()),
        expected(expected_gradients_of(test_case, problem, true)) {}

  bool run(GradientCheck& check, Case& test_case) { return check.run(test_case, call, output); }
  std::vector<double> values(std::size_t i) const {
    return doubles_of(call.gradients.*kGradients[i].tensor, output.bytes[i]);
  }
  std::vector<double> limits(std::size_t i) const {
    const headrace_tensor& view = call.gradients.*kGradients[i].tensor;
    const std::vector<double> got = values(i);
    const GradientResult result{kGradients[i].name,
                                static_cast<DType>(view.dtype),
                                got,
                                expected,
                                kGradients[i].values,
                                false,
                                gradient_arithmetic(problem, output.schedule)};
    std::vector<double> limits(got.size());
    for (std::size_t n = 0; n < limits.size(); ++n) limits[n] = gradient_limit(result, n);
    return limits;
  }

  BackwardCall call;
  Problem problem;
  ExpectedGradients expected;
  GradientOutput output;
};

constexpr std::size_t kDq = 0, kDk = 1, kDv = 2, kDsinks = 4;

std::vector<double> elements(const headrace_tensor& x) {
  std::vector<double> values;
  for_each_element(x, [&](std::int64_t i) {
    values.push_back(load_as_double(static_cast<DType>(x.dtype), x.data, i));
  });
  return values;
}

double wave(const Index& i) {
  return std::sin(static_cast<double>(3 * i[0] + 31 * i[1] + 17 * i[2] + 7 * i[3]));
}

// [batch, heads, seqlen_q] of a row-major [batch, seqlen_q, heads, ..] row.
std::size_t lse_index(const Problem& p, std::size_t row) {
  const auto h = static_cast<std::size_t>(p.num_heads), n = static_cast<std::size_t>(p.seqlen_q);
  return (row / h / n * h + row % h) * n + row / h % n;
}

}  // namespace

// If K has a column of ones, that column of dq is scale * sum of dS.
void score_gradients_sum_to_dlse(GradientCheck& check) {
  for_each_plain_lab(true, [&](Lab& lab) {
    lab.fill(lab.tensors().k, [](const Index& i) { return i[3] == 0 ? 1 : wave(i); });
    lab.test_case.make_gradients();
    Computed x(lab.test_case);
    if (!x.run(check, lab.test_case)) return;
    const std::vector<double> dq = x.values(kDq), limits = x.limits(kDq);
    const std::vector<double> dlse = elements(x.call.gradients.dlse),
                              lse = elements(x.call.tensors.lse);
    const auto dim = static_cast<std::size_t>(x.problem.head_dim);
    for (std::size_t row = 0; row < lse.size(); ++row) {
      const std::size_t at = lse_index(x.problem, row);
      const double sum = lse[at] == -kInfinity ? 0 : dlse[at];
      check.expect_near(dq[row * dim], x.problem.softmax_scale * sum, limits[row * dim],
                        format_text("row {}: scale * sum of dS", row));
    }
  });
}

// If all rows of V are equal, O is that row and dP - D is zero.
void equal_values_give_no_score_gradient(GradientCheck& check) {
  for_each_plain_lab(false, [&](Lab& lab) {
    lab.fill(lab.tensors().v, [](const Index& i) { return wave({0, 0, i[2], i[3]}); });
    lab.test_case.make_gradients();
    Computed x(lab.test_case);
    if (!x.run(check, lab.test_case)) return;
    for (const std::size_t which : {kDq, kDk}) {
      const std::vector<double> got = x.values(which), limits = x.limits(which);
      for (std::size_t i = 0; i < got.size(); ++i)
        check.expect_near(got[i], 0, limits[i], format_text("{}[{}]", kGradients[which].name, i));
    }
  });
}

// P's rows sum to 1: the sum of dv over keys is the sum of dout over the rows that see a key.
void value_gradients_sum_to_dout(GradientCheck& check) {
  for_each_plain_lab(false, [&](Lab& lab) {
    lab.test_case.make_gradients();
    Computed x(lab.test_case);
    if (!x.run(check, lab.test_case)) return;
    const Problem& p = x.problem;
    const auto dim = static_cast<std::size_t>(p.head_dim_v),
               heads = static_cast<std::size_t>(p.num_heads),
               kv_heads = static_cast<std::size_t>(p.num_kv_heads),
               rows = static_cast<std::size_t>(p.seqlen_q),
               keys = static_cast<std::size_t>(p.seqlen_k);
    const std::size_t count = static_cast<std::size_t>(p.batch) * kv_heads * dim;
    std::vector<double> sums(count), expected(count), limits(count);
    const std::vector<double> dv = x.values(kDv), off = x.limits(kDv);
    const std::vector<double> dout = elements(x.call.gradients.dout),
                              lse = elements(x.call.tensors.lse);
    for (std::size_t i = 0; i < dv.size(); ++i) {
      const std::size_t at = i / (keys * kv_heads * dim) * kv_heads * dim + i % (kv_heads * dim);
      sums[at] += dv[i];
      limits[at] += off[i];
    }
    for (std::size_t i = 0; i < dout.size(); ++i) {
      const std::size_t row = i / dim, head = row % heads, b = row / heads / rows;
      if (lse[lse_index(p, row)] == -kInfinity) continue;
      expected[(b * kv_heads + head / (heads / kv_heads)) * dim + i % dim] += dout[i];
    }
    for (std::size_t i = 0; i < count; ++i)
      check.expect_near(sums[i], expected[i], limits[i], format_text("sum {} of dv", i));
  });
}

// Scores are unchanged if q is multiplied and k divided by the same factor.
void scaling_q_is_scaling_k(GradientCheck& check) {
  for_each_plain_lab(true, [&](Lab& lab) {
    lab.test_case.make_gradients();
    Computed x(lab.test_case);
    if (!x.run(check, lab.test_case)) return;
    double sums[2] = {}, limit = 0;
    for (const std::size_t which : {kDq, kDk}) {
      const std::vector<double> gradient = x.values(which), off = x.limits(which);
      const std::vector<double> value =
          elements(which == kDq ? x.call.tensors.q : x.call.tensors.k);
      for (std::size_t i = 0; i < value.size(); ++i) {
        sums[which] += value[i] * gradient[i];
        limit += std::abs(value[i]) * off[i];
      }
    }
    check.expect_near(sums[0], sums[1], limit, "sum of q * dq, compared with that of k * dk,");
  });
}

// Gradients are linear in dout, and a factor of 2 is exact; f16 may reach denormals.
void twice_dout_twice_the_gradient(GradientCheck& check) {
  for_each_plain_lab(false, [&](Lab& lab) {
    if (lab.test_case.shape().dtype == DType::f16) return;
    lab.test_case.make_gradients();
    const BackwardCall call = backward_call(lab.test_case);
    GradientOutput once, twice;
    if (!check.run(lab.test_case, call, once)) return;
    lab.test_case.unlock_inputs();
    const std::vector<double> dout = elements(call.gradients.dout);
    std::size_t n = 0;
    for_each_element(call.gradients.dout, [&](std::int64_t i) {
      store_from_double(lab.test_case.shape().dtype, call.gradients.dout.data, i, 2 * dout[n++]);
    });
    if (!check.run(lab.test_case, call, twice)) return;
    for (const std::size_t which : {kDq, kDk, kDv}) {
      const headrace_tensor& view = call.gradients.*kGradients[which].tensor;
      const std::vector<double> one = doubles_of(view, once.bytes[which]),
                                two = doubles_of(view, twice.bytes[which]);
      for (std::size_t i = 0; i < one.size(); ++i)
        check.expect_near(two[i], 2 * one[i], 0, format_text("{}[{}]", kGradients[which].name, i));
    }
  });
}

// If a column of K is zero, so is that column of dq: its sums share words or vectors with others,
// which must not leak into them.
void zero_columns_of_k_give_zeros(GradientCheck& check) {
  const auto is_zero = [](std::int64_t column) { return column % 3 == 1; };
  for_each_plain_lab(false, [&](Lab& lab) {
    lab.fill(lab.tensors().k, [&](const Index& i) { return is_zero(i[3]) ? 0 : wave(i); });
    lab.test_case.make_gradients();
    Computed x(lab.test_case);
    if (!x.run(check, lab.test_case)) return;
    const std::vector<double> dq = x.values(kDq);
    for (std::size_t i = 0; i < dq.size(); ++i)
      if (is_zero(static_cast<std::int64_t>(i) % x.problem.head_dim))
        check.expect_near(dq[i], 0, 0, format_text("dq[{}]", i));
  });
}

// Computed from the stored out and lse; the oracle only provides the bound.
void sinks_see_rowsums(GradientCheck& check) {
  for_each_plain_lab(true, [&](Lab& plain) {
    CaseName name = plain.test_case.name();
    name.values.value[static_cast<std::size_t>(Axis::sinks)] = 1;
    Lab lab(name, plain.test_case.shape());
    lab.test_case.mutable_options().deterministic = 1;
    lab.test_case.make_gradients();
    Computed x(lab.test_case);
    if (!x.run(check, lab.test_case)) return;
    const Problem& p = x.problem;
    const std::vector<double> dout = elements(x.call.gradients.dout),
                              out = elements(x.call.tensors.out),
                              dlse = elements(x.call.gradients.dlse),
                              lse = elements(x.call.tensors.lse),
                              sinks = elements(x.call.tensors.sinks);
    const auto dim = static_cast<std::size_t>(p.head_dim_v),
               heads = static_cast<std::size_t>(p.num_heads);
    std::vector<double> expected(heads);
    for (std::size_t row = 0; row < lse.size(); ++row) {
      const std::size_t at = lse_index(p, row), head = row % heads;
      double d = 0;
      for (std::size_t c = 0; c < dim; ++c) d += dout[row * dim + c] * out[row * dim + c];
      if (lse[at] != -kInfinity) expected[head] += std::exp(sinks[head] - lse[at]) * (dlse[at] - d);
    }
    const std::vector<double> got = x.values(kDsinks), limits = x.limits(kDsinks);
    for (std::size_t head = 0; head < heads; ++head)
      check.expect_near(got[head], expected[head], limits[head], format_text("dsinks[{}]", head));
  });
}

}  // namespace headrace::testing
