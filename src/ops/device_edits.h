// Rows of logits in the memory of a GPU after masks, biases and penalties, with the bits that
// Sampler gives them on the host. The host uploads the words of masks and lists of tokens; rows
// stay on the device. A mask alone changes no row: who reads the row applies it.
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

  // Of the rows of one apply().
  static constexpr std::size_t kMaxListedOfAll = 64 * kMaxListed;

  // Of one upload(): rows with biases or penalties, and masks. The device must outlive it.
  DeviceEdits(Device& device, std::int64_t vocab_size, std::int64_t max_rows,
              std::int64_t max_masks)
      : device_(device), vocab_size_(vocab_size), max_rows_(max_rows), max_masks_(max_masks) {}

  bool allocate();                                           // false: out of memory
  bool is_empty() const { return bytes_ == listed_from(); }  // masks and lists
  bool is_full() const {
    return num_rows_ == max_rows_ || num_masks_ == max_masks_ ||
           num_listed_ + kMaxListed > kMaxListedOfAll;
  }

  void clear();
  // A row of the device and what it still lacks, as LogitQuery has them. Null: left to the host.
  struct Edited {
    const float* row = nullptr;
    const std::uint64_t* mask = nullptr;
  };
  // `row` of the device with the mask, or where apply() will put it after mask, biases and
  // penalties. It is left to the host if Sampler would report an error of its tokens, or the lists
  // are longer than kMaxListed. Not if is_full().
  Edited add(const float* row, const SamplingInput& input, const SamplingOptions& options);
  // Enqueues the copy of masks and lists added since clear(). Those on the host may be overwritten
  // when that work has ended.
  Status upload(Stream stream);
  // Enqueues the rows, behind upload().
  Status apply(Stream stream);

 private:
  std::size_t num_mask_words() const;
  std::size_t listed_from() const {
    return static_cast<std::size_t>(max_rows_) * sizeof(LogitEdits);
  }
  // The memory of `values` on the device. All have 8 bytes.
  template <class T>
  const T* put(std::span<const T> values);

  Device& device_;
  const std::int64_t vocab_size_, max_rows_, max_masks_;
  PenalisedTokens penalised_;
  Buffer rows_;                 // float [max_rows, vocab_size]
  Buffer on_device_, on_host_;  // LogitEdits [max_rows], then what they refer to
  std::size_t bytes_ = 0;       // of them
  std::int64_t num_rows_ = 0, num_masks_ = 0;
  std::size_t num_listed_ = 0;
  std::vector<LogitBias> biases_;  // those of a token side by side
};

}  // namespace headrace
