#include "probes/measure.h"

#include <cmath>

#include "probes/probes.h"

namespace headrace::probes {
namespace {

// Beyond any machine: what a loop without work shows.
Status check_value(const Ceiling& c) {
  const bool is_rate = c.kind != CeilingKind::latency;
  const double most = is_rate ? 1e18 : 1.0;
  const double least = is_rate ? 1e3 : 1e-12;
  if (std::isfinite(c.value) && least <= c.value && c.value <= most) return std::nullopt;
  return Failure{ErrorCode::internal,
                 format_text("ceiling {} {}: measured {}, must be {} to {}: the compiler has "
                             "deleted the measured loop; report it with headrace_build_info()",
                             c.resource, c.operation, c.value, least, most)};
}

}  // namespace

Result<std::vector<Ceiling>> measure(const DeviceInfo& device, const MeasureOptions& options) {
  Result<std::vector<Ceiling>> ceilings =
      device.device_type == HEADRACE_CUDA
          ? gpu::measure(device.device_id, options)
          : Result<std::vector<Ceiling>>(measure_cpu(device.num_units, options));
  if (!ceilings.ok()) return ceilings;
  for (const Ceiling& ceiling : ceilings.value())
    if (auto bad = check_value(ceiling)) return *bad;
  return ceilings;
}

}  // namespace headrace::probes
