// Draws tokens from logits in the memory of a GPU: those that Sampler draws from the same logits on
// the host, with the same logprobs. Masks, biases, penalties and filters are applied there too. For
// the most likely tokens the device picks out the few logits that may be among the largest; the
// host finishes with the arithmetic of Sampler.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/error.h"
#include "core/kernel.h"
#include "ops/row_draw.h"
#include "ops/sampling.h"
#include "runtime/device.h"

namespace headrace {

class DeviceSampler {
 public:
  // Without a token and a failure: Sampler draws from the row itself. Too many logits may be among
  // the largest, its history is not of the vocabulary, or its biases and penalties change too many.
  // draw() and begin() read the input.
  using Draw = RowDraw;

  // max_draws: of one call of begin(). The device must outlive it. unsupported: not a GPU.
  // out_of_memory.
  static Result<DeviceSampler> make(Device& device, std::int64_t max_draws,
                                    std::int64_t vocab_size);
  ~DeviceSampler();
  DeviceSampler(DeviceSampler&&) noexcept;
  DeviceSampler& operator=(DeviceSampler&&) noexcept;

  // logits: [*, vocab_size], in device memory, behind earlier work of the stream, which takes all
  // work and must outlive the sampler. Returns when the tokens are there. device_error.
  Status draw(const float* logits, std::span<Draw> draws, Stream stream);

  // The same in two calls: begin() returns when draws are enqueued, and the tokens are in memory
  // of the device for later work of the stream. False: it has enqueued nothing. It takes up to
  // max_draws that need no host: with logprobs of the drawn tokens alone, and masks, biases and
  // penalties for which the device has memory.
  Result<bool> begin(const float* logits, std::span<const Draw> draws, Stream stream);
  const std::int32_t* tokens_on_device() const;  // [max_draws]
  Status end(std::span<Draw> draws);             // those of begin()

 private:
  class State;
  explicit DeviceSampler(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace headrace
