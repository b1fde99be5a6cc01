// Draws tokens from rows of logits in memory of the host, several at once: the draws of a step
// would otherwise keep all threads but one waiting.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"
#include "ops/row_draw.h"
#include "ops/sampling.h"

namespace headrace {

class HostSampler {
 public:
  // With up to host.num_units threads. unsupported: not a CPU.
  static Result<HostSampler> make(const DeviceInfo& host);

  // logits: [*, vocab_size]. Every draw gets the token or the failure of Sampler. Fails only as
  // cpu::parallel_for() does. Throws std::bad_alloc.
  Status draw(const float* logits, std::int64_t vocab_size, std::span<RowDraw> draws);

 private:
  explicit HostSampler(std::vector<Sampler> samplers) : samplers_(std::move(samplers)) {}
  std::vector<Sampler> samplers_;  // of the workers
};

}  // namespace headrace
