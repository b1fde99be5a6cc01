#include "call_bound.h"

#include <algorithm>

namespace headrace::cli {
namespace {

// The fastest ceiling of an operation that all units reach together; null: none.
const Ceiling* fastest(const std::vector<Ceiling>& ceilings, CeilingKind kind,
                       std::string_view resource, std::string_view operation) {
  const Ceiling* best = nullptr;
  for (const Ceiling& c : ceilings) {
    if (c.kind != kind || c.operation != operation) continue;
    if (!resource.empty() && c.resource != resource) continue;
    if (best == nullptr || c.num_units > best->num_units ||
        (c.num_units == best->num_units && c.value > best->value))
      best = &c;
  }
  return best;
}

// The ceiling that an amount of work needs most of its time for, so far.
struct Least {
  const std::vector<Ceiling>& ceilings;
  double seconds = 0;
  std::string bound = {};

  void raise(CeilingKind kind, std::string_view resource, std::string_view operation,
             double amount) {
    const Ceiling* c = fastest(ceilings, kind, resource, operation);
    if (c == nullptr || amount / c->value <= seconds) return;
    seconds = amount / c->value;
    bound = c->resource + ' ' + c->operation;
  }
};

// Products of a call: the operation of the ceiling, and how many of it stand for one.
struct Products {
  std::string_view resource, operation;
  double each = 1;
};

// CPU kernels compute in f32, but for those with bf16 dot products; none uses AMX.
Products products_of_cpu(std::string_view kernel) {
  if (kernel.find("bf16") != kernel.npos) return {"avx512_bf16", "bf16"};
  return {"", "f32"};
}

// GPU kernels multiply on tensor cores, f32 as three products of tf32; the fallback uses f32 FMAs.
Products products_of(const headrace_problem& p, std::string_view kernel) {
  if (p.dtype == HEADRACE_F64) return {"", "f64"};
  if (kernel.starts_with("cpu"))
    return p.dtype == HEADRACE_BF16 ? products_of_cpu(kernel) : Products{"", "f32"};
  if (kernel == "cuda_simple") return {"FMA", "f32"};
  if (p.dtype == HEADRACE_F32) return {"tensor core", "tf32", 3};
  return {"tensor core", p.dtype == HEADRACE_BF16 ? "bf16" : "f16"};
}

// Those of all units together, in the order of `ceilings`.
std::vector<Roof> roofs_of(const std::vector<Ceiling>& ceilings, CeilingKind kind) {
  const bool is_compute = kind == CeilingKind::compute;
  std::vector<Roof> roofs;
  for (const Ceiling& c : ceilings) {
    const bool is_roof =
        is_compute ? c.operation != "exp2" : c.operation == "read" && c.resource != "PCIe";
    if (c.kind == kind && is_roof && fastest(ceilings, kind, c.resource, c.operation) == &c)
      roofs.push_back({is_compute ? c.operation + ' ' + c.resource : c.resource, c.value});
  }
  return roofs;
}

}  // namespace

std::vector<Roof> memory_roofs(const std::vector<Ceiling>& ceilings) {
  return roofs_of(ceilings, CeilingKind::bandwidth);
}

std::vector<Roof> compute_roofs(const std::vector<Ceiling>& ceilings) {
  constexpr double kSame = 0.97;
  std::vector<Roof> all = roofs_of(ceilings, CeilingKind::compute);
  std::stable_sort(all.begin(), all.end(),
                   [](const Roof& a, const Roof& b) { return a.rate > b.rate; });
  std::vector<Roof> roofs;
  for (const Roof& roof : all) {
    if (!roofs.empty() && roof.rate > kSame * roofs.back().rate)
      roofs.back().name += ", " + roof.name;
    else
      roofs.push_back(roof);
  }
  return roofs;
}

CallBound bound_of(const AttentionShape& shape, std::string_view kernel,
                   const std::vector<Ceiling>& ceilings) {
  const headrace_problem& p = shape.problem;
  CallBound bound{.work = work_of(shape), .bound = {}};
  bound.exps = static_cast<double>(bound.work.visible_pairs) * static_cast<double>(p.num_heads);
  const Products products = products_of(p, kernel);
  Least least{ceilings};
  least.raise(CeilingKind::bandwidth, "DRAM", "read", bound.work.bytes);
  least.raise(CeilingKind::compute, products.resource, products.operation,
              products.each * bound.work.flops);
  least.raise(CeilingKind::compute, "MUFU", "exp2", bound.exps);
  bound.seconds = least.seconds;
  bound.bound = least.bound;
  return bound;
}

// Products are bf16 on a GPU. Those of a CPU with quantised weights multiply 8-bit integers, for
// which no ceiling is measured: their bytes bound them alone.
double bound_seconds(const OperatorCost& cost, const DeviceInfo& device,
                     const std::vector<Ceiling>& ceilings) {
  Least least{ceilings};
  least.raise(CeilingKind::bandwidth, "DRAM", "read", cost.bytes);
  const bool is_gpu = device.device_type == HEADRACE_CUDA;
  const Products products = is_gpu ? Products{"tensor core", "bf16"} : products_of_cpu(cost.kernel);
  if (is_gpu || cost.name == "attention")
    least.raise(CeilingKind::compute, products.resource, products.operation, cost.flops);
  return least.seconds;
}

}  // namespace headrace::cli
