// The catalogue: memory layouts, and splits of ragged batches.
#include "conformance/catalogue.h"

namespace headrace::testing {
namespace {

// Copies the elements.
void copy_elements(const headrace_tensor& from, const headrace_tensor& to) {
  std::vector<double> values;
  for_each_element(from, [&](std::int64_t i) {
    values.push_back(load_as_double(static_cast<DType>(from.dtype), from.data, i));
  });
  std::size_t n = 0;
  for_each_element(to, [&](std::int64_t i) {
    store_from_double(static_cast<DType>(to.dtype), to.data, i, values[n++]);
  });
}

Shape ragged_shape(const std::vector<std::int32_t>& lengths_k, std::int32_t seqlen_q,
                   DType dtype = DType::f32, std::int64_t head_dim = 8) {
  const auto batch = static_cast<std::int64_t>(lengths_k.size());
  Shape s = shape(dtype, seqlen_q, 0, head_dim, 1, 1, batch);
  s.is_ragged = true;
  s.lengths_q.assign(lengths_k.size(), seqlen_q);
  s.lengths_k = lengths_k;
  s.total_q = seqlen_q * s.batch;
  for (const std::int32_t length : lengths_k) {
    s.seqlen_k = std::max<std::int64_t>(s.seqlen_k, length);
    s.total_k += length;
  }
  return s;
}

}  // namespace

void same_bits_in_every_layout(Check& check) {
  for (const DType dtype : kDtypes) {
    for (const std::int64_t rows : {2, 33}) {
      const Shape s = shape(dtype, rows, 140, 24, 4, 2, 2);
      Lab plain(named(dtype, {}), s);
      const RunOutput expected = check.run(plain);
      for (const Layout layout :
           {Layout::bhsd, Layout::packed, Layout::padded, Layout::negative, Layout::misaligned}) {
        Lab other(named(dtype, {{Axis::layout, static_cast<int>(layout)}}), s);
        if (check.takes(other) != check.takes(plain))
          continue;  // a different kernel has different bits
        copy_elements(plain.tensors().q, other.tensors().q);
        copy_elements(plain.tensors().k, other.tensors().k);
        copy_elements(plain.tensors().v, other.tensors().v);
        const RunOutput got = check.run(other);
        if (got.out_bytes != expected.out_bytes || got.lse_bytes != expected.lse_bytes)
          check.fail(format_text("{} layout {} with {} queries: different bits", dtype_name(dtype),
                                 static_cast<int>(layout), rows));
      }
    }
  }
}

// The number of splits is not monotonic in the length: with 7 splits, 896 keys give 7 of 128, but
// 1000 keys give 4 of 256.
void ragged_splits(Check& check) {
  const struct {
    std::vector<std::int32_t> lengths;
    std::int32_t num_splits;
  } batches[] = {{{1000, 896}, 7},
                 {{3000, 2688, 5, 640}, 7},
                 {{600, 500, 512}, 3},
                 {{16385, 16384}, 0},
                 {{20000, 16384, 700}, 0}};
  for (const auto& [lengths, num_splits] : batches) {
    for (const std::int32_t rows : {1, 9}) {
      Lab lab(named(DType::f32, {{Axis::ragged, 1}}), ragged_shape(lengths, rows));
      lab.test_case.mutable_options().num_splits = num_splits;
      check.judge_all(lab);
    }
  }
}

// Splits of 256 to 2048 keys, some of which a window hides.
void few_rows_over_many_keys(Check& check) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const std::int64_t head_dim : {64, 128, 256})
      for (const std::int32_t rows : {1, 20})
        for (const std::int64_t window : {-1, 2500}) {
          Lab lab(named(dtype, {{Axis::ragged, 1}}),
                  ragged_shape({5000, 2049, 64}, rows, dtype, head_dim));
          lab.test_case.mutable_options().causal = HEADRACE_CAUSAL_BOTTOM_RIGHT;
          lab.test_case.mutable_options().window_left = window;
          check.judge_all(lab);
        }
}

}  // namespace headrace::testing
