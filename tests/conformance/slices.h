// Slices of a case as calls of their own, for the suites that compare bits.
#pragma once

#include <string>
#include <vector>

#include "conformance/suites.h"

namespace headrace::testing {

inline constexpr int kThreadCounts[] = {1, 2, 3, 5, 16};

// Rows [begin, begin + count) of an axis; absent and broadcast operands are unchanged.
headrace_tensor sliced(const headrace_tensor& x, int axis, std::int64_t begin, std::int64_t count);

// A ragged operand's rows of one sequence, with a leading batch axis of size 1. Broadcast axes of
// bias and mask are kept, even if the sequence has no rows.
headrace_tensor alone(const headrace_tensor& x, int axis, std::int64_t begin, std::int64_t count,
                      bool may_broadcast = false);

// Entry `b` of a dense batch as a batch of one.
headrace_attention_tensors batch_entry(const headrace_attention_tensors& t, std::int64_t b);

// Sequence `b` of a ragged batch as a dense batch of one.
headrace_attention_tensors sequence_alone(const headrace_attention_tensors& t, const Shape& s,
                                          std::size_t b);
// The sequence's first rows in q and k.
struct PackedRows {
  std::int64_t q = 0, k = 0;
};
PackedRows rows_before(const Shape& s, std::size_t b);

// The elements of a whole result at the positions of `part`, a view into `whole`'s memory.
std::vector<unsigned char> part_of(const headrace_tensor& whole,
                                   const std::vector<unsigned char>& bytes,
                                   const headrace_tensor& part);

// One class of bit equality on one kernel: counts, and a line of the report.
struct EqualBits {
  const char* id;
  const char* title;
  const char* suite;  // suite that replays a case
  std::int64_t num_compared = 0, num_failed = 0;

  // `difference`: empty if there is none.
  void compare(Report& report, const Target& target, const CaseName& name,
               const std::string& difference);
  // A class without any comparison fails.
  void add_to(Report& report, const Target& target) const;
};

}  // namespace headrace::testing
