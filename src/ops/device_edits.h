// Rows of logits in the memory of a GPU after masks, biases and penalties, with the bits that
// Sampler gives them on the host. The host uploads the words of masks and lists of tokens; rows
// stay on the device.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"
#include "core/kernel.h"
#include "core/sampling_args.h"
#include "ops/penalised_tokens.h"
#include "ops/sampling.h"
#include "runtime/device.h"

namespace headrace {

class DeviceEdits {
 public:
  // Of a row: biases, tokens of the repetition penalty, tokens of presence and frequency.
  static constexpr std::size_t kMaxListed = 8192;

  // max_rows: of one apply(). The device must outlive it.
  DeviceEdits(Device& device, std::int64_t vocab_size, std::int64_t max_rows)
      : device_(device), vocab_size_(vocab_size), max_rows_(max_rows) {}

  bool allocate();  // false: out of memory
  std::int64_t max_rows() const { return max_rows_; }
  bool is_full() const { return num_rows_ == max_rows_; }

  void clear();
  // Where apply() will put a row of the device after the mask, biases and penalties; the row itself
  // if they change nothing. Null: the row is left to the host, as Sampler would report an error of
  // its tokens, or the lists are longer than kMaxListed. Not if is_full().
  const float* add(const float* row, const SamplingInput& input, const SamplingOptions& options);
  // Enqueues the rows added since clear(), if any. What the device reads on the host may be
  // overwritten when that work has ended.
  Status apply(Stream stream);

 private:
  std::size_t num_mask_words() const;
  // The memory of `values` on the device. All have 8 bytes.
  template <class T>
  const T* put(std::span<const T> values);

  Device& device_;
  const std::int64_t vocab_size_, max_rows_;
  PenalisedTokens penalised_;
  Buffer rows_;                 // float [max_rows, vocab_size]
  Buffer on_device_, on_host_;  // LogitEdits [max_rows], then what they refer to
  std::size_t bytes_ = 0;       // of them
  std::int64_t num_rows_ = 0;
  std::vector<LogitBias> biases_;  // those of a token side by side
};

}  // namespace headrace
