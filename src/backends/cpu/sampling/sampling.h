// Passes over logits for sampling. Every instruction set gives the same bits. They run on the
// calling thread, allocate nothing and check no argument.
#pragma once

#include <cstdint>
#include <span>

#include "core/device.h"
#include "core/sampling_args.h"

namespace headrace::cpu {

// False if a logit is NaN or +infinity.
bool block_maxima(const BlockMaximaArgs& args, const DeviceInfo& device);

// Returns the sum of the block sums.
double exp_weights(const ExpWeightsArgs& args, const DeviceInfo& device);

// The passes, compiled for one instruction set.
struct SamplingOps {
  const char* name;
  std::uint32_t cpu_isa;  // required headrace_cpu_isa bits
  bool (*block_maxima)(const BlockMaximaArgs& args);
  double (*exp_weights)(const ExpWeightsArgs& args);
};

// All of this build, the fastest first; the last one runs on any CPU.
std::span<const SamplingOps* const> all_sampling_ops();

}  // namespace headrace::cpu
