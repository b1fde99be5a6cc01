#include "attention/predict/occupancy.h"

namespace headrace::predict {
namespace {

// Of a multiprocessor, by the CUDA programming guide.
constexpr int kRegisters = 64 * 1024;
constexpr int kReservedSmem = 1024;  // of each CTA
constexpr int max_threads(int sm) {
  return sm == 86 || sm == 87 || sm == 89 || sm >= 120 ? 1536 : 2048;
}

}  // namespace

Occupancy occupancy_of(const CtaShape& cta, const DeviceInfo& device) {
  if (cta.threads <= 0 || cta.registers <= 0) return {};
  Occupancy best{max_threads(device.sm) / cta.threads, "threads"};
  const auto limit = [&best](int ctas, const char* name) {
    if (ctas < best.ctas)
      best = {ctas, name};
    else if (ctas == best.ctas)
      best.limit += std::string(" and ") + name;
  };
  limit(kRegisters / (cta.threads * cta.registers), "registers");
  // A multiprocessor has what one CTA may take and reserve.
  limit((static_cast<int>(device.smem_bytes) + kReservedSmem) / (cta.smem_bytes + kReservedSmem),
        "shared memory");
  return best;
}

}  // namespace headrace::predict
