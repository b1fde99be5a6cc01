#include "backends/cpu/elementwise/elementwise.h"

namespace headrace::cpu {

namespace scalar {
extern const ElementwiseOps kElementwiseOps;
}
namespace avx2 {
extern const ElementwiseOps kElementwiseOps;
}
namespace avx512 {
extern const ElementwiseOps kElementwiseOps;
}
namespace neon {
extern const ElementwiseOps kElementwiseOps;
}

std::span<const ElementwiseOps* const> all_elementwise_ops() {
  static constexpr const ElementwiseOps* kAll[] = {
#if defined(__x86_64__)
    &avx512::kElementwiseOps,
    &avx2::kElementwiseOps,
#elif defined(__aarch64__)
    &neon::kElementwiseOps,
#endif
    &scalar::kElementwiseOps,
  };
  return kAll;
}

const ElementwiseOps& elementwise_ops(const DeviceInfo& device) {
  for (const ElementwiseOps* ops : all_elementwise_ops())
    if ((device.cpu_isa & ops->cpu_isa) == ops->cpu_isa) return *ops;
  return scalar::kElementwiseOps;
}

}  // namespace headrace::cpu
