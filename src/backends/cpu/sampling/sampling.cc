// Selects the instruction set.
#include "backends/cpu/sampling/sampling.h"

namespace headrace::cpu {

namespace scalar {
extern const SamplingOps kSamplingOps;
}
namespace avx2 {
extern const SamplingOps kSamplingOps;
}
namespace avx512 {
extern const SamplingOps kSamplingOps;
}
namespace neon {
extern const SamplingOps kSamplingOps;
}

std::span<const SamplingOps* const> all_sampling_ops() {
  static constexpr const SamplingOps* kAll[] = {
#if defined(__x86_64__)
    &avx512::kSamplingOps,
    &avx2::kSamplingOps,
#elif defined(__aarch64__)
    &neon::kSamplingOps,
#endif
    &scalar::kSamplingOps,
  };
  return kAll;
}

namespace {

const SamplingOps& sampling_ops(const DeviceInfo& device) {
  for (const SamplingOps* ops : all_sampling_ops())
    if ((device.cpu_isa & ops->cpu_isa) == ops->cpu_isa) return *ops;
  return scalar::kSamplingOps;
}

}  // namespace

bool block_maxima(const BlockMaximaArgs& args, const DeviceInfo& device) {
  return sampling_ops(device).block_maxima(args);
}

double exp_weights(const ExpWeightsArgs& args, const DeviceInfo& device) {
  return sampling_ops(device).exp_weights(args);
}

}  // namespace headrace::cpu
