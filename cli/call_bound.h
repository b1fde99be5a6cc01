// The least time that an attention call needs on a device with given ceilings.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "attention_shape.h"
#include "headrace/roofline.hpp"
#include "headrace/step.hpp"

namespace headrace::cli {

// A ceiling of all units together, and how tables and plots name it.
struct Roof {
  std::string name;  // "DRAM", "bf16 tensor core"
  double rate;       // bytes or operations per second
};

// Read bandwidth of each memory level that caches or holds tensors, the one nearest to the units
// first.
std::vector<Roof> memory_roofs(const std::vector<Ceiling>& ceilings);
// Peaks of multiply-adds, fastest first. Those within 3 % of each other are one roof.
std::vector<Roof> compute_roofs(const std::vector<Ceiling>& ceilings);

// What a call needs at least, and the ceiling that bounds it.
struct CallBound {
  Work work;
  double exps = 0;     // one per visible pair and head
  double seconds = 0;  // 0: no ceiling is known
  std::string bound;   // "DRAM read", "avx512 f32", "MUFU exp2"; "": no ceiling is known

  double intensity() const { return work.flops / work.bytes; }
};
// `kernel`: the one that the plan selected; it decides which units multiply.
CallBound bound_of(const AttentionShape& shape, std::string_view kernel,
                   const std::vector<Ceiling>& ceilings);

// The least seconds of an operator of a model's step; 0: no ceiling is known.
double bound_seconds(const OperatorCost& cost, const DeviceInfo& device,
                     const std::vector<Ceiling>& ceilings);

}  // namespace headrace::cli
