// The catalogue: scores, NaN and infinity, limits of the dtypes, exact answers.
#include "conformance/catalogue.h"

namespace headrace::testing {

// ---- A1 to A3: scores of every magnitude
// --------------------------------------------------------------

void very_negative_scores(Check& check) {
  for (const DType dtype : kDtypes) {
    for (const double level : {-1e4, -5e4, -5.5e4, -6e4, -1e5, -2e5, -2.45e5}) {
      Lab lab(named(dtype, {}), shape(dtype, 3, 150, 16));
      // 256 * k: every score is `level`, up to the rounding of the dtype; the winner is 1024 above.
      const double k = level / 256;
      lab.test_case.mutable_options().softmax_scale = 1;
      lab.fill(lab.tensors().q, [](const Index& i) { return i[3] == 0 ? 256 : 0; });
      lab.fill(lab.tensors().k, [&](const Index& i) {
        return i[3] != 0 ? 0 : i[1] == 77 ? k + 4 : k;
      });
      lab.fill(lab.tensors().v, [&](const Index& i) { return i[1] == 77 ? 3 : -1; });
      check.judge_all(lab);
      const RunOutput output = check.run(lab);
      check.expect_equal(load_as_double(dtype, output.out_bytes.data(), 0), 3,
                         format_text("out at level {}", level));
    }
  }
}

// Every key tile outweighs the previous one, in either direction: by less than the rescale
// threshold, by more, and by more than the dtype's range.
void sloping_scores(Check& check) {
  constexpr std::int64_t kKeys = 600;
  for (const DType dtype : kDtypes) {
    for (const double rise : {6., 24., 60., 240.}) {
      for (const double sign : {-1., 1.}) {
        // Rows with different slopes: the roundings of a row's P are one sample of the mean error.
        Lab lab(named(dtype, {}), shape(dtype, 24, kKeys, 16));
        lab.test_case.mutable_options().softmax_scale = 1;
        lab.fill(lab.tensors().q,
                 [](const Index& i) { return i[3] == 0 ? 4 + static_cast<double>(i[1]) / 16 : 0; });
        lab.fill(lab.tensors().k, [&](const Index& i) {
          const auto along = static_cast<double>(i[1]) / kKeys - 0.5;
          return i[3] == 0 ? sign * rise * along / 4 : 0;
        });
        check.judge_all(lab);
      }
    }
  }
}

void masked_key_with_huge_score(Check& check) {
  for (const DType dtype : kDtypes) {
    Lab lab(named(dtype, {{Axis::mask, static_cast<int>(Mask::full)}}), shape(dtype, 4, 140, 32));
    lab.fill(lab.tensors().k, [](const Index& i) { return i[1] == 70 ? 300 : 0.5; });
    lab.fill(lab.tensors().q, [](const Index&) { return 2; });
    lab.fill(lab.tensors().mask, [](const Index& i) { return i[3] != 70; });
    check.judge_all(lab);
  }
}

void large_inputs_at_short_lengths(Check& check) {
  for (const DType dtype : kDtypes) {
    for (const std::int64_t dim : {16, 32, 64}) {
      for (const std::int64_t n : {1, 2, 5, 17, 128}) {
        Lab lab(named(dtype, {{Axis::causal, 1}, {Axis::data, static_cast<int>(Data::scaled)}}),
                shape(dtype, n, n, dim));
        check.judge_all(lab);
      }
    }
  }
}

// ---- A4 to A8: empty rows, NaN, infinity, limits of the dtype
// -----------------------------------

void empty_rows(Check& check) {
  for (const DType dtype : kDtypes) {
    Lab causal(named(dtype, {{Axis::causal, 1}}), shape(dtype, 150, 20, 24));
    check.judge_all(causal);
    Lab masked(named(dtype, {{Axis::mask, 1}, {Axis::sinks, 1}}), shape(dtype, 5, 130, 24));
    masked.fill(masked.tensors().mask, [](const Index& i) { return i[2] % 2; });
    check.judge_all(masked);
    Lab window(named(dtype, {}), shape(dtype, 40, 9, 24));
    window.test_case.mutable_options().window_left = 3;
    window.test_case.mutable_options().window_right = 0;
    check.judge_all(window);
    Lab biased(named(dtype, {{Axis::bias, static_cast<int>(Bias::f32_full)}}),
               shape(dtype, 3, 130, 24));
    biased.fill(biased.tensors().bias, [](const Index& i) { return i[2] == 1 ? -kInfinity : 0; });
    check.judge_all(biased);
  }
}

// Models hide keys by a bias of the least number of its format. A row whose keys are all hidden so
// is the mean of their V. The bound of R3 is infinite there, so two columns of V show what a row
// sees: column 0 is 2; column 1 is 2 behind the keys that rows 2, 5, 8 ... do not see.
void least_bias(Check& check) {
  constexpr std::int64_t kQueries = 24, kHidden = 70;
  const std::pair<Axis, int> features[] = {
      {Axis::guard, 0}, {Axis::softcap, 1}, {Axis::alibi, 1},    {Axis::dropout, 1},
      {Axis::mask, 1},  {Axis::causal, 1},  {Axis::tree_mask, 1}};
  const auto check_one = [&](DType dtype, Bias kind, Axis axis, int value, std::int64_t dim,
                             std::int64_t num_keys) {
    const double least = kind == Bias::f32_full || dtype == DType::f32 ? -0x1.FFFFFEp127
                         : dtype == DType::f16                         ? -65504
                                                                       : -0x1.FEp127;
    Lab lab(named(dtype, {{Axis::bias, static_cast<int>(kind)}, {axis, value}}),
            shape(dtype, kQueries, num_keys, dim));
    lab.fill(lab.tensors().bias, [&](const Index& i) {
      return i[2] % 3 == 1 || (i[2] % 3 == 2 && i[3] < kHidden) ? least : 0.25;
    });
    lab.fill(lab.tensors().v, [&](const Index& i) {
      if (i[3] < 2) return i[3] == 1 && i[1] < kHidden ? 100.0 : 2.0;
      return std::sin(static_cast<double>(i[1] * 17 + i[3]));
    });
    if (axis == Axis::mask)
      lab.fill(lab.tensors().mask, [](const Index& i) { return (i[2] + i[3]) % 5 != 0; });
    check.judge_all(lab);
    const RunOutput output = check.run(lab);
    const double allowed = axis == Axis::dropout ? 1 : 0x1p-6;  // of 60 keys some are dropped
    const std::int64_t num_heads = lab.test_case.shape().num_heads;
    for (std::int64_t row = 0; row < kQueries * num_heads; ++row) {
      const std::int64_t kind_of_row = row / num_heads % 3;
      if (kind_of_row == 0) continue;
      const double got =
          load_as_double(dtype, output.out_bytes.data(), row * dim + (kind_of_row == 1 ? 0 : 1));
      if (!(std::abs(got - 2) <= allowed))
        return check.fail(
            format_text("{} with {} {}, head_dim {}: row {} is {}, not 2", dtype_name(dtype),
                        axes()[static_cast<std::size_t>(axis)].name, value, dim, row, got));
    }
  };
  for (const DType dtype : kDtypes)
    for (const Bias kind : {Bias::full, Bias::f32_full})
      for (const auto& [axis, value] : features) {
        for (const std::int64_t dim : {64, 128, 256}) check_one(dtype, kind, axis, value, dim, 136);
        for (const std::int64_t num_keys : {600, 1500})  // which some kernels split
          check_one(dtype, kind, axis, value, 64, num_keys);
      }
}

void infinite_sinks(Check& check) {
  for (const DType dtype : kDtypes) {
    for (const double sink : {-kInfinity, kInfinity, 1e30, -1e30, 1.}) {
      Lab lab(named(dtype, {{Axis::sinks, 1}, {Axis::causal, 1}}), shape(dtype, 6, 4, 16));
      lab.fill(lab.tensors().sinks, [&](const Index&) { return sink; });
      check.judge_all(lab);
    }
  }
}

void nan_in_a_live_key(Check& check) {
  check.allow_nan = true;
  for (const DType dtype : kDtypes) {
    for (const double poison : {kNan, kInfinity}) {
      Lab lab(named(dtype, {{Axis::causal, 1}}), shape(dtype, 200, 200, 32, 4, 2, 2));
      lab.fill(lab.tensors().k, [&](const Index& i) {
        const bool is_it = i[0] == 1 && i[1] == 137 && i[2] == 1 && i[3] == 5;
        return is_it ? poison : std::sin(static_cast<double>(i[1] * 31 + i[3]));
      });
      check.judge_all(lab);
      Lab query(named(dtype, {}), shape(dtype, 20, 140, 32));
      query.fill(query.tensors().q, [&](const Index& i) {
        return i[1] == 7 && i[2] == 1 && i[3] == 0 ? poison : 0.1;
      });
      check.judge_all(query);
    }
  }
}

// NaN in V reaches every row that sees it, but no other head or sequence.
void nan_in_a_live_value(Check& check) {
  for (const DType dtype : kDtypes) {
    Lab lab(named(dtype, {{Axis::causal, 1}}), shape(dtype, 200, 200, 32, 4, 2, 2));
    lab.fill(lab.tensors().v,
             [&](const Index& i) { return i[0] == 1 && i[1] == 137 && i[2] == 1 ? kNan : 1; });
    const RunOutput output = check.run(lab);
    for (std::int64_t row = 0; row < 2 * 200 * 4; ++row) {
      const std::int64_t b = row / 800, i = row / 4 % 200, head = row % 4;
      const bool is_nan = std::isnan(load_as_double(dtype, output.out_bytes.data(), row * 32));
      const bool sees = b == 1 && head >= 2 && i >= 137;
      const bool may = b == 1 && head >= 2;
      if ((sees && !is_nan) || (!may && is_nan))
        check.fail(format_text("row ({}, {}, {}): NaN is {}", b, head, i, is_nan));
    }
  }
}

void infinite_scores(Check& check) {
  check.allow_nan = true;
  for (const double bias : {kInfinity, -kInfinity}) {
    Lab lab(named(DType::f32, {{Axis::bias, static_cast<int>(Bias::f32_full)}}),
            shape(DType::f32, 4, 300, 16));
    lab.fill(lab.tensors().bias,
             [&](const Index& i) { return i[2] == 2 && i[3] == 200 ? bias : 0; });
    check.judge_all(lab);
  }
}

void ends_of_the_format(Check& check) {
  for (const DType dtype : kDtypes) {
    const double largest = dtype == DType::f16    ? 65504
                           : dtype == DType::bf16 ? 0x1.FEp127
                                                  : 0x1.FFFFFEp127;
    const double normal = dtype == DType::f16 ? 0x1p-14 : 0x1p-126;
    for (const double size : {largest, normal, normal / 4, normal / 64}) {
      Lab values(named(dtype, {}), shape(dtype, 3, 300, 16));
      values.fill(values.tensors().v,
                  [&](const Index& i) { return (i[1] + i[3]) % 3 == 0 ? size / 2 : size; });
      check.judge_all(values);
      if (size == largest && dtype != DType::f16) continue;  // scores must fit in a float
      Lab queries(named(dtype, {}), shape(dtype, 3, 300, 16));
      queries.fill(queries.tensors().q,
                   [&](const Index& i) { return i[3] % 2 == 0 ? size : -size / 2; });
      check.judge_all(queries);
    }
  }
}

// Shapes of PyTorch's own tests: a row's V or its scores are a few numbers, so that the rounding of
// the weights is all of the error.
void few_keys_and_columns(Check& check) {
  for (const DType dtype : kDtypes) {
    Lab keys(named(dtype, {}), shape(dtype, 1024, 8, 128));
    check.judge_all(keys);
    Lab columns(named(dtype, {{Axis::bias, static_cast<int>(Bias::full)}}),
                shape(dtype, 128, 2048, 8));
    check.judge_all(columns);
  }
}

// All scores equal: the lse counts the visible keys, the output is the mean of their V.
void window_edges(Check& check) {
  for (const std::int64_t left : {0, 3, 13, 23, 37, 43, 233, 1000}) {
    for (const std::int64_t n : {1, 3, 19, 99, 199, 300}) {
      for (const std::int64_t causal : {0, 1, 2}) {
        Lab lab(named(DType::f32, {}), shape(DType::f32, n, n + 5, 8, 1, 1));
        lab.test_case.mutable_options().causal = static_cast<std::int32_t>(causal);
        lab.test_case.mutable_options().window_left = left;
        lab.test_case.mutable_options().window_right = causal == 0 ? 2 : -1;
        lab.fill(lab.tensors().q, [](const Index&) { return 0; });
        lab.fill(lab.tensors().v, [&](const Index& i) { return static_cast<double>(i[1]); });
        check.judge_all(lab);
        const RunOutput output = check.run(lab);
        const Problem p = make_call(lab.test_case).value().problem;
        for (std::int64_t i = 0; i < n; ++i) {
          const KeyRange keys = visible_keys(p, i, n, n + 5);
          const double count = std::exp(load_as_double(DType::f32, output.lse_bytes.data(), i));
          check.expect_equal(std::round(count), static_cast<double>(keys.end - keys.begin),
                             format_text("visible keys of query {}", i));
        }
      }
    }
  }
}

// One key has all the weight: the output is its V, bit for bit. 3xTF32 products lose the last bit
// of some floats.
void needles(Check& check) {
  constexpr std::int64_t kKeys = 1100;
  for (const DType dtype : kDtypes) {
    for (const std::int64_t seqlen_q : {1, 40}) {
      for (const std::int64_t needle :
           {0, 1, 63, 64, 65, 127, 128, 129, 511, 512, 513, 639, 640, 1023, 1024, 1099}) {
        Lab lab(named(dtype, {}), shape(dtype, seqlen_q, kKeys, 16, 2, 1));
        lab.test_case.mutable_options().softmax_scale = 1;
        lab.fill(lab.tensors().q, [](const Index& i) { return i[3] == 0 ? 16 : 0; });
        lab.fill(lab.tensors().k,
                 [&](const Index& i) { return i[3] == 0 && i[1] == needle ? 16 : 0; });
        lab.fill(lab.tensors().v,
                 [](const Index& i) { return std::sin(static_cast<double>(i[1] * 17 + i[3])); });
        const RunOutput output = check.run(lab);
        for (std::int64_t n = 0; n < seqlen_q * 2 * 16; ++n) {
          std::uint64_t bits = 0;
          store_from_double(dtype, &bits, 0, std::sin(static_cast<double>(needle * 17 + n % 16)));
          const double expected = load_as_double(dtype, &bits, 0);
          const double lost = output.schedule.product_error * 0x1p-24 * std::abs(expected);
          const double got = load_as_double(dtype, output.out_bytes.data(), n);
          if (!(std::abs(got - expected) <= lost))
            return check.fail(format_text("needle {}: element {} is not its V", needle, n));
        }
      }
    }
  }
}

// Small integers and a power of two of equally weighted keys: every product and sum is exact.
void integers(Check& check) {
  for (const DType dtype : kDtypes) {
    for (const std::int64_t n : {1, 2, 64, 256, 1024}) {
      Lab lab(named(dtype, {}), shape(dtype, 3, n, 16, 1, 1));
      lab.fill(lab.tensors().q, [](const Index&) { return 0; });
      lab.fill(lab.tensors().v,
               [](const Index& i) { return static_cast<double>((i[1] * 7 + i[3]) % 16 - 8); });
      const RunOutput output = check.run(lab);
      for (std::int64_t c = 0; c < 16; ++c) {
        double sum = 0;
        for (std::int64_t j = 0; j < n; ++j) sum += static_cast<double>((j * 7 + c) % 16 - 8);
        std::uint64_t bits = 0;
        store_from_double(dtype, &bits, 0, sum / static_cast<double>(n));
        check.expect_equal(load_as_double(dtype, output.out_bytes.data(), c),
                           load_as_double(dtype, &bits, 0), "the mean");
      }
    }
  }
}

}  // namespace headrace::testing
