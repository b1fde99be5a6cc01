#include "backends/cpu/elementwise/elementwise.h"

namespace headrace::cpu {

namespace scalar {
extern const RowOps kRowOps;
}
namespace avx2 {
extern const RowOps kRowOps;
}
namespace avx512 {
extern const RowOps kRowOps;
}
namespace neon {
extern const RowOps kRowOps;
}

std::span<const RowOps* const> all_row_ops() {
  static constexpr const RowOps* kAll[] = {
#if defined(__x86_64__)
    &avx512::kRowOps,
    &avx2::kRowOps,
#elif defined(__aarch64__)
    &neon::kRowOps,
#endif
    &scalar::kRowOps,
  };
  return kAll;
}

const RowOps& row_ops(const DeviceInfo& device) {
  for (const RowOps* ops : all_row_ops())
    if ((device.cpu_isa & ops->cpu_isa) == ops->cpu_isa) return *ops;
  return scalar::kRowOps;
}

}  // namespace headrace::cpu
