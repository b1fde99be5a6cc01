// Draws tokens from logits in the memory of a GPU: those that Sampler draws from the same logits on
// the host. Without filters the device draws by itself. With filters it computes maxima and sums of
// all logits and picks out the few that the filters may keep; the host finishes with the arithmetic
// of Sampler.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "base/error.h"
#include "core/kernel.h"
#include "ops/sampling.h"
#include "runtime/device.h"

namespace headrace {

class DeviceSampler {
 public:
  struct Draw {
    std::int64_t row;  // of the logits
    const SamplingOptions* options;
    std::uint64_t sequence_id;
    std::int64_t position;
    // Result. Empty without a failure: Sampler draws from the row itself, which has NaN or too many
    // tokens that the filters keep.
    std::optional<std::int32_t> token = {};
    float logprob = 0;    // of the token, with num_logprobs
    Status failure = {};  // of the row
  };
  // No penalties or biases; logprobs of the drawn tokens alone, and without filters.
  static bool takes(const SamplingOptions& options);
  // Of these, draws that need no host: greedy, or without filters.
  bool draws_alone(const SamplingOptions& options) const;

  // max_draws: of one call. All work goes to `stream`. The device and the stream must outlive it.
  // unsupported: not a GPU. out_of_memory.
  static Result<DeviceSampler> make(Device& device, const DeviceInfo& host, std::int64_t max_draws,
                                    std::int64_t vocab_size, Stream stream);
  ~DeviceSampler();
  DeviceSampler(DeviceSampler&&) noexcept;
  DeviceSampler& operator=(DeviceSampler&&) noexcept;

  // logits: [*, vocab_size], in device memory, behind earlier work of the stream. Returns when the
  // tokens are there. device_error.
  Status draw(const float* logits, std::span<Draw> draws);

  // The same of up to max_draws draws that need no host, in two calls: begin() returns when they
  // are enqueued, and the tokens are in memory of the device for later work of the stream.
  Status begin(const float* logits, std::span<const Draw> draws);
  const std::int32_t* tokens_on_device() const;  // [max_draws]
  Status end(std::span<Draw> draws);             // those of begin()
  std::int64_t max_draws() const;

 private:
  class State;
  explicit DeviceSampler(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace headrace
