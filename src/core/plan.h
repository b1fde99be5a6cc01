// A plan: the chosen kernel and its schedule, a pure function of (Problem, DeviceInfo). Printable,
// immutable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/problem.h"

namespace headrace {

struct Kernel;

// What a kernel's plan() decides. Zero where a kernel has no such notion.
struct Schedule {
  std::int64_t tile_m = 0;      // query rows (queries x heads of a group) per tile
  std::int64_t tile_n = 0;      // keys per tile
  std::int64_t split_keys = 0;  // keys per split; 0: one split
  std::int64_t max_splits = 1;  // splits of the longest possible sequence
  int num_threads = 1;
  std::int64_t num_ctas = 0;
  std::size_t workspace_bytes = 0;
  // For bounds of the error: what P is rounded to before P V, and by how many units of 2^-24 a
  // product of two floats may be off besides (3 x tf32).
  DType prob_dtype = DType::f32;
  int product_error = 0;
  // The backward: whether dS is made from P as rounded for dV; and where dq is summed as integers,
  // so many bits below the most that it can be (0: as floats).
  bool ds_from_rounded_p = false;
  int sum_bits = 0;
  bool has_fixed_bits = true;  // the same from run to run
  std::string note;            // one line for explain: the path and the reason for it
};

struct RefusedKernel {
  std::string_view name;
  std::string reason;
};

struct Plan {
  Problem problem;
  DeviceInfo device;
  const Kernel* kernel = nullptr;
  Schedule schedule;
  std::vector<RefusedKernel> refused;  // asked before the chosen one, in order
  bool is_fallback = false;            // the last kernel of the list, which refuses nothing
};

}  // namespace headrace
