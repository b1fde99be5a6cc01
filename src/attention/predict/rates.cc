#include "attention/predict/rates.h"

#include <string_view>

#include "base/error.h"
#include "core/kernel.h"

namespace headrace::predict {
namespace {

using probes::Ceiling;
using probes::CeilingKind;

struct KnownGpu {
  std::string_view name;  // part of DeviceInfo.name
  double dram;
};
// DRAM reads: measured on an H100; on an H200 the same share of its data sheet's 4.8 TB/s.
constexpr KnownGpu kKnownGpus[] = {{"H100", 3.21e12}, {"H200", 4.60e12}};

// Both chips have the same multiprocessors. Measured on an H100
// (bench/results/roofline-h100.json).
std::vector<Ceiling> ceilings_of(const KnownGpu& gpu, int num_units) {
  const auto one = [&](CeilingKind kind, const char* resource, const char* operation,
                       double value) {
    return Ceiling{.kind = kind,
                   .resource = resource,
                   .operation = operation,
                   .num_units = num_units,
                   .value = value};
  };
  const auto compute = CeilingKind::compute, bandwidth = CeilingKind::bandwidth;
  return {one(compute, "tensor core", "bf16", 911e12), one(compute, "tensor core", "f16", 877e12),
          one(compute, "tensor core", "tf32", 480e12), one(compute, "MUFU", "exp2", 4.20e12),
          one(bandwidth, "shared", "read", 33.4e12),   one(bandwidth, "L2", "write", 3.82e12),
          one(bandwidth, "DRAM", "read", gpu.dram)};
}

// The ceiling measured on most units, up to those of the plan's device; compute is scaled to them.
const Ceiling* find(std::span<const Ceiling> ceilings, CeilingKind kind, std::string_view resource,
                    std::string_view operation, int num_units) {
  const Ceiling* best = nullptr;
  for (const Ceiling& c : ceilings)
    if (c.kind == kind && c.resource == resource && c.operation == operation &&
        c.num_units <= num_units && (best == nullptr || c.num_units > best->num_units))
      best = &c;
  return best;
}

class Finder {
 public:
  Finder(std::span<const Ceiling> ceilings, int num_units)
      : ceilings_(ceilings), num_units_(num_units) {}
  double compute(std::string_view resource, std::string_view operation) const {
    const Ceiling* c = find(ceilings_, CeilingKind::compute, resource, operation, num_units_);
    return c == nullptr ? 0 : c->value * num_units_ / c->num_units;
  }
  const Ceiling* bandwidth(std::string_view resource, std::string_view operation) const {
    return find(ceilings_, CeilingKind::bandwidth, resource, operation, num_units_);
  }
  double bandwidth_value(std::string_view resource, std::string_view operation) const {
    const Ceiling* c = bandwidth(resource, operation);
    return c == nullptr ? 0 : c->value;
  }

 private:
  std::span<const Ceiling> ceilings_;
  int num_units_;
};

void read_gpu(const Plan& plan, const Finder& find, Rates& rates) {
  const DType dtype = dtype_of(plan.problem);
  constexpr double kTf32Products = 3;  // of a product of floats
  rates.products = dtype == DType::f32 ? find.compute("tensor core", "tf32") / kTf32Products
                                       : find.compute("tensor core", dtype_name(dtype));
  rates.exp2 = find.compute("MUFU", "exp2");
  rates.l2_write = find.bandwidth_value("L2", "write");
  rates.shared = find.bandwidth_value("shared", "read");
}

void read_cpu(const Plan& plan, const Finder& find, Rates& rates) {
  const std::string_view kernel = plan.kernel->name;
  const bool is_avx512 = kernel.starts_with("cpu_avx512");
  rates.f32 = find.compute(is_avx512 ? "avx512" : "avx2", "f32");
  rates.products =
      kernel.starts_with("cpu_avx512bf16") ? find.compute("avx512_bf16", "bf16") : rates.f32;
  if (const Ceiling* cache = find.bandwidth("L3", "read")) {
    constexpr double kSharesOfCache = 4;  // the probe's working set is a quarter of the cache
    rates.last_cache = cache->value;
    rates.last_cache_bytes = kSharesOfCache * static_cast<double>(cache->bytes);
  }
}

}  // namespace

Rates rates_of(const Plan& plan, std::span<const Ceiling> measured) {
  Rates rates;
  std::vector<Ceiling> known;
  const std::string_view name = plan.device.name;
  if (measured.empty() && plan.device.device_type == HEADRACE_CUDA)
    for (const KnownGpu& gpu : kKnownGpus)
      if (name.find(gpu.name) != name.npos) {
        known = ceilings_of(gpu, plan.device.num_units);
        rates.source = format_text("a table for {}", gpu.name);
      }
  if (!measured.empty()) rates.source = "measured";
  const std::span<const Ceiling> ceilings = measured.empty() ? known : measured;
  if (ceilings.empty()) return rates;
  const Finder find(ceilings, plan.device.num_units);
  rates.dram = find.bandwidth_value("DRAM", "read");
  if (plan.device.device_type == HEADRACE_CUDA)
    read_gpu(plan, find, rates);
  else
    read_cpu(plan, find, rates);
  return rates;
}

}  // namespace headrace::predict
