#include "ops/device_edits.h"

#include <algorithm>
#include <cstring>

#include "backends/cuda/backend.h"
#include "base/math.h"

namespace headrace {

std::size_t DeviceEdits::num_mask_words() const {
  return static_cast<std::size_t>(ceil_div(vocab_size_, kLogitBlock));
}

bool DeviceEdits::allocate() {
  const std::size_t bytes =
      listed_from() +
      static_cast<std::size_t>(max_masks_) * num_mask_words() * sizeof(std::uint64_t) +
      kMaxListedOfAll * sizeof(TokenCount);
  rows_ = device_.allocate(static_cast<std::size_t>(max_rows_ * vocab_size_) * sizeof(float));
  on_device_ = device_.allocate(bytes);
  on_host_ = device_.allocate_host(bytes);
  return rows_.data() != nullptr && on_device_.data() != nullptr && on_host_.data() != nullptr;
}

void DeviceEdits::clear() {
  num_rows_ = num_masks_ = 0;
  num_listed_ = 0;
  bytes_ = listed_from();
}

template <class T>
const T* DeviceEdits::put(std::span<const T> values) {
  static_assert(sizeof(T) == 8 && sizeof(LogitEdits) % 8 == 0);
  if (values.empty()) return nullptr;
  std::memcpy(on_host_.data() + bytes_, values.data(), values.size_bytes());
  const auto* const there = reinterpret_cast<const T*>(on_device_.data() + bytes_);
  bytes_ += values.size_bytes();
  return there;
}

DeviceEdits::Edited DeviceEdits::add(const float* row, const SamplingInput& input,
                                     const SamplingOptions& o) {
  const auto is_of_vocabulary = [&](const LogitBias& bias) {
    return bias.token >= 0 && bias.token < vocab_size_;
  };
  if (!std::ranges::all_of(o.logit_bias, is_of_vocabulary) ||
      penalised_.collect(input, o, static_cast<std::size_t>(vocab_size_)))
    return {};
  const std::span<const TokenCount> repeated = penalised_.repeated(),
                                    counted = penalised_.counted();
  const std::size_t num_listed = o.logit_bias.size() + repeated.size() + counted.size();
  if (num_listed > kMaxListed) return {};
  const std::uint64_t* mask = nullptr;
  if (!input.mask.empty()) {
    mask = put(input.mask.first(num_mask_words()));
    ++num_masks_;
  }
  if (num_listed == 0) return {row, mask};
  num_listed_ += num_listed;
  biases_ = o.logit_bias;
  std::ranges::stable_sort(biases_, {}, &LogitBias::token);
  float* const edited = rows_.as<float>() + num_rows_ * vocab_size_;
  const LogitEdits edits{.from = row,
                         .to = edited,
                         .mask = mask,
                         .biases = put(std::span<const LogitBias>(biases_)),
                         .repeated = put(repeated),
                         .counted = put(counted),
                         .num_biases = static_cast<std::int32_t>(biases_.size()),
                         .num_repeated = static_cast<std::int32_t>(repeated.size()),
                         .num_counted = static_cast<std::int32_t>(counted.size()),
                         .repetition_penalty = o.repetition_penalty,
                         .presence_penalty = o.presence_penalty,
                         .frequency_penalty = o.frequency_penalty};
  on_host_.as<LogitEdits>()[num_rows_++] = edits;
  return {edited};
}

Status DeviceEdits::upload(Stream stream) {
  const std::size_t begin = num_rows_ == 0 ? listed_from() : 0;
  const ByteCopy edits{on_host_.data() + begin, on_device_.data() + begin, bytes_ - begin};
  return device_.copy({&edits, 1}, stream);
}

Status DeviceEdits::apply(Stream stream) {
  if (num_rows_ == 0) return std::nullopt;
  return cuda::edit_logits(
      {.vocab_size = vocab_size_, .rows = on_device_.as<const LogitEdits>(), .num_rows = num_rows_},
      device_.info().device_id, stream);
}

}  // namespace headrace
