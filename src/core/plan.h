// A plan: the selected kernel and its schedule. A pure function of (Problem, DeviceInfo) and the
// tuned choices; immutable; explain() prints it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/problem.h"
#include "core/tuning.h"

namespace headrace {

struct Kernel;

// A kernel's own part of a plan: a small value that its plan() computes and only its launch()
// reads, so that a call computes nothing that the problem alone decides.
class KernelPlan {
 public:
  // Leaves the bytes uninitialized: zeroing them costs up to a tenth of planning a CPU kernel.
  KernelPlan() {}
  template <class T>
  void set(const T& value) {
    static_assert(fits<T>);
    std::memcpy(bytes_, &value, sizeof(T));
  }
  // The T that set() was given.
  template <class T>
  const T& get() const {
    static_assert(fits<T>);
    return *std::launder(reinterpret_cast<const T*>(bytes_));
  }

 private:
  static constexpr std::size_t kBytes = 256, kAlignment = 8;
  template <class T>
  static constexpr bool fits = std::is_trivially_copyable_v<T> && sizeof(T) <= kBytes &&
                               alignof(T) <= kAlignment;
  alignas(kAlignment) unsigned char bytes_[kBytes];
};

// A CTA of a GPU kernel, for its occupancy and the work of its tiles. 0: not a GPU kernel.
struct CtaShape {
  int threads = 0;
  int registers = 0;  // of a thread at the launch, at most
  int smem_bytes = 0;
  int head_dim = 0, head_dim_v = 0;  // columns that a tile computes, zero-padded
};
// Registers of a thread that ptxas may use under __launch_bounds__(threads, min_ctas).
constexpr int launch_registers(int threads, int min_ctas) {
  constexpr int kOfMultiprocessor = 64 * 1024, kStep = 8, kMost = 255;
  const int most = kOfMultiprocessor / (threads * min_ctas) / kStep * kStep;
  return most < kMost ? most : kMost;
}

// The result of a kernel's plan(). Fields that do not apply to a kernel are 0.
struct Schedule {
  std::int64_t tile_m = 0;      // query rows (queries x heads of a group) per tile
  std::int64_t tile_n = 0;      // keys per tile
  std::int64_t split_keys = 0;  // keys per split; 0: one split
  std::int64_t max_splits = 1;  // splits of the longest possible sequence
  int num_threads = 1;
  std::int64_t num_ctas = 0;
  int packed_heads = 1;  // query heads of a group whose rows share a tile of tile_m rows
  CtaShape cta{};
  std::size_t workspace_bytes = 0;
  // For error bounds: the dtype that P is rounded to before P V, and the additional error of a
  // product of two floats in units of 2^-24 (3xTF32).
  DType prob_dtype = DType::f32;
  int product_error = 0;
  // Backward: whether dS is computed from the rounded P of dV; and the fractional bits below the
  // bound of |dq| in a fixed-point dq accumulator (0: dq accumulates in floating point).
  bool ds_from_rounded_p = false;
  int sum_bits = 0;
  bool has_fixed_bits = true;  // bit-identical from run to run
  std::string note;            // one line for explain(): the code path and its reason
  KernelPlan kernel_plan{};
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
  TuningConfig config;                 // that the schedule was made with
  std::string tuning;                  // one line for explain() about tuned choices; empty: none
  std::vector<RefusedKernel> refused;  // refused before the selected one, in order
  bool is_fallback = false;  // the slow fallback at the end of the list, which supports everything
};

}  // namespace headrace
