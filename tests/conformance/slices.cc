#include "conformance/slices.h"

#include <algorithm>

#include "headrace/tensor.hpp"

namespace headrace::testing {

headrace_tensor sliced(const headrace_tensor& x, int axis, std::int64_t begin, std::int64_t count) {
  if (x.rank == 0 || x.shape[axis] == 1) return x;
  return *TensorView(x).slice(axis, begin, begin + count);
}

headrace_tensor alone(const headrace_tensor& x, int axis, std::int64_t begin, std::int64_t count,
                      bool may_broadcast) {
  if (x.rank == 0) return x;
  headrace_tensor y = may_broadcast ? sliced(x, axis, begin, count)
                                    : *TensorView(x).slice(axis, begin, begin + count);
  std::copy_backward(y.shape, y.shape + y.rank, y.shape + y.rank + 1);
  std::copy_backward(y.strides, y.strides + y.rank, y.strides + y.rank + 1);
  y.shape[0] = 1;
  y.strides[0] = 0;
  ++y.rank;
  return y;
}

headrace_attention_tensors batch_entry(const headrace_attention_tensors& t, std::int64_t b) {
  headrace_attention_tensors one = t;
  for (auto member : {&headrace_attention_tensors::q, &headrace_attention_tensors::k,
                      &headrace_attention_tensors::v, &headrace_attention_tensors::out,
                      &headrace_attention_tensors::lse, &headrace_attention_tensors::bias,
                      &headrace_attention_tensors::mask, &headrace_attention_tensors::tree_mask})
    one.*member = sliced(t.*member, 0, b, 1);
  if (t.alibi_slopes.rank == 2) one.alibi_slopes = sliced(t.alibi_slopes, 0, b, 1);
  return one;
}

PackedRows rows_before(const Shape& s, std::size_t b) {
  PackedRows rows;
  for (std::size_t i = 0; i < b; ++i) {
    rows.q += s.lengths_q[i];
    rows.k += s.lengths_k[i];
  }
  return rows;
}

headrace_attention_tensors sequence_alone(const headrace_attention_tensors& t, const Shape& s,
                                          std::size_t b) {
  const auto [q, k] = rows_before(s, b);
  headrace_attention_tensors one = t;
  one.cu_seqlens_q = one.cu_seqlens_k = headrace_tensor{};
  one.q = alone(t.q, 0, q, s.lengths_q[b]);
  one.out = alone(t.out, 0, q, s.lengths_q[b]);
  one.k = alone(t.k, 0, k, s.lengths_k[b]);
  one.v = alone(t.v, 0, k, s.lengths_k[b]);
  one.lse = alone(t.lse, 1, q, s.lengths_q[b]);
  one.bias = alone(sliced(t.bias, 2, 0, s.lengths_k[b]), 1, q, s.lengths_q[b], true);
  one.mask = alone(sliced(t.mask, 2, 0, s.lengths_k[b]), 1, q, s.lengths_q[b], true);
  one.tree_mask = alone(t.tree_mask, 0, q, s.lengths_q[b]);
  if (t.alibi_slopes.rank == 2)
    one.alibi_slopes = sliced(t.alibi_slopes, 0, static_cast<std::int64_t>(b), 1);
  return one;
}

std::vector<unsigned char> part_of(const headrace_tensor& whole,
                                   const std::vector<unsigned char>& bytes,
                                   const headrace_tensor& part) {
  if (part.rank == 0) return {};
  const auto size = static_cast<std::int64_t>(dtype_bytes(static_cast<DType>(whole.dtype)));
  std::vector<std::pair<const unsigned char*, std::int64_t>>
      where;  // address of each element, and its position in `bytes`
  for_each_element(whole, [&](std::int64_t idx) {
    where.emplace_back(static_cast<unsigned char*>(whole.data) + idx * size,
                       static_cast<std::int64_t>(where.size()));
  });
  std::sort(where.begin(), where.end());
  std::vector<unsigned char> found;
  for_each_element(part, [&](std::int64_t idx) {
    const unsigned char* address = static_cast<unsigned char*>(part.data) + idx * size;
    const auto at =
        std::lower_bound(where.begin(), where.end(), std::make_pair(address, std::int64_t{0}));
    const unsigned char* from = bytes.data() + at->second * size;
    found.insert(found.end(), from, from + size);
  });
  return found;
}

void EqualBits::compare(Report& report, const Target& target, const CaseName& name,
                        const std::string& difference) {
  ++num_compared;
  if (difference.empty()) return;
  ++num_failed;
  const std::string kernel(target.kernel->name);
  report.failures.push_back({kernel, std::string(id) + " " + describe(name.values), difference,
                             replay_line(kernel, name) + " --suite " + suite});
}

void EqualBits::add_to(Report& report, const Target& target) const {
  const bool ok = num_failed == 0 && num_compared > 0;
  const std::string kernel(target.kernel->name);
  report.checks.push_back(
      {id, format_text("{}, {} comparisons", title, num_compared), kernel, ok ? "ok" : "failed"});
  if (num_compared == 0) report.failures.push_back({kernel, id, "nothing was compared", ""});
}

}  // namespace headrace::testing
