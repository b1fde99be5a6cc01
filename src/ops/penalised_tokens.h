// The tokens that penalties change, each of them once, for samplers of the host and of GPUs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"
#include "core/sampling_args.h"
#include "ops/sampling.h"

namespace headrace {

bool has_penalties(const SamplingOptions& options);
// By biases or penalties.
bool changes_logits(const SamplingOptions& options);

class PenalisedTokens {
 public:
  // So that collect() does not allocate.
  void reserve(std::size_t vocab_size);
  // invalid_argument: a token of the history outside the vocabulary.
  Status collect(const SamplingInput& input, const SamplingOptions& options,
                 std::size_t vocab_size);

  std::span<const TokenCount> repeated() const { return repeated_; }  // of repetition_penalty
  std::span<const TokenCount> counted() const { return counted_; }    // of presence and frequency

 private:
  using Tokens = std::span<const std::int32_t>;
  Status count(Tokens prompt, Tokens output, std::size_t vocab_size, std::vector<TokenCount>& into);

  std::vector<std::int32_t> counts_;  // [vocab_size] zero between calls
  std::vector<TokenCount> repeated_, counted_;
};

}  // namespace headrace
