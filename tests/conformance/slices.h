// Parts of a case's memory as calls of their own, for the suites that compare bits.
#pragma once

#include <string>
#include <vector>

#include "conformance/suites.h"

namespace headrace::testing {

inline constexpr int kThreadCounts[] = {1, 2, 3, 5, 16};

// Rows [begin, begin + count) of an axis, where there is such an axis to speak of: absent and
// broadcast operands stay.
headrace_tensor sliced(const headrace_tensor& x, int axis, std::int64_t begin, std::int64_t count);

// A ragged operand's rows of one sequence, with a batch axis of one entry in front. Bias and mask
// may broadcast: an axis of one element stays then, also where the sequence has no rows.
headrace_tensor alone(const headrace_tensor& x, int axis, std::int64_t begin, std::int64_t count,
                      bool may_broadcast = false);

// Entry `b` of a dense batch as a batch of one.
headrace_attention_tensors batch_entry(const headrace_attention_tensors& t, std::int64_t b);

// Sequence `b` of a ragged batch as a dense batch of one.
headrace_attention_tensors sequence_alone(const headrace_attention_tensors& t, const Shape& s,
                                          std::size_t b);
// Where it begins in the packed rows of q and of k.
struct PackedRows {
  std::int64_t q = 0, k = 0;
};
PackedRows rows_before(const Shape& s, std::size_t b);

// The same elements out of a whole result: what `part` (a view into `whole`'s memory) would hold.
std::vector<unsigned char> part_of(const headrace_tensor& whole,
                                   const std::vector<unsigned char>& bytes,
                                   const headrace_tensor& part);

// One class of equality on one kernel: counts, and a line of the report.
struct EqualBits {
  const char* id;
  const char* title;
  const char* suite;  // that replays a case
  std::int64_t num_compared = 0, num_failed = 0;

  // `difference`: empty where there is none.
  void compare(Report& report, const Target& target, const CaseName& name,
               const std::string& difference);
  // A class in which nothing was compared has failed.
  void add_to(Report& report, const Target& target) const;
};

}  // namespace headrace::testing
