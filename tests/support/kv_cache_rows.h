// For tests of the paged cache: keys and values that are a function of all tokens up to a position,
// as those of a model are, and access to them in pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "kv_cache/kv_cache.h"
#include "support/random.h"

namespace headrace::testing {

using Bytes = std::vector<std::byte>;

// What the keys and values of a token depend on.
inline std::uint64_t history_of(std::uint64_t salt, std::span<const std::int32_t> tokens) {
  std::uint64_t history = Random(salt).next();
  for (const std::int32_t token : tokens)
    history = Random(history ^ static_cast<std::uint32_t>(token)).next();
  return history;
}

// The rows of one token in all layers of pages, with the scales of codes, or of one group of
// tokens.
class TokenRows {
 public:
  explicit TokenRows(const KvCache& cache) : TokenRows(cache.pages(), cache.num_layers()) {}
  // `tokens`: of a row. Slots count rows.
  TokenRows(const KvPages& pages, std::int64_t num_layers, std::int64_t tokens = 1) {
    for (std::int64_t layer = 0; layer < num_layers; ++layer)
      for (const TensorView& view :
           {pages.k(layer), pages.v(layer), pages.k_scale(layer), pages.v_scale(layer)})
        if (view.data != nullptr && view.shape[1] * tokens == pages.k(layer).shape[1])
          views_.push_back(view);
  }

  // Keys and values after `history`, of all layers and heads.
  Bytes made(std::uint64_t history) const {
    Random random(history);
    Bytes bytes(num_bytes());
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.next());
    return bytes;
  }
  Bytes read(std::int64_t slot) const {
    Bytes bytes(num_bytes());
    std::byte* to = bytes.data();
    for_each_row(slot, [&](std::byte* row, std::size_t size) {
      std::memcpy(to, row, size);
      to += size;
    });
    return bytes;
  }
  void write(std::int64_t slot, const Bytes& bytes) const {
    const std::byte* from = bytes.data();
    for_each_row(slot, [&](std::byte* row, std::size_t size) {
      std::memcpy(row, from, size);
      from += size;
    });
  }

 private:
  // Of a head.
  static std::size_t row_bytes(const TensorView& view) {
    return static_cast<std::size_t>(view.rank == 4 ? view.shape[3] : 1) * dtype_bytes(view.type());
  }
  std::size_t num_bytes() const {
    std::size_t bytes = 0;
    for (const TensorView& view : views_)
      bytes += static_cast<std::size_t>(view.shape[2]) * row_bytes(view);
    return bytes;
  }
  template <class Visit>
  void for_each_row(std::int64_t slot, Visit visit) const {
    for (const TensorView& view : views_) {
      const std::int64_t page = slot / view.shape[1], idx = slot % view.shape[1];
      const auto element = static_cast<std::int64_t>(dtype_bytes(view.type()));
      for (std::int64_t head = 0; head < view.shape[2]; ++head)
        visit(
            static_cast<std::byte*>(view.data) +
                element * (page * view.strides[0] + idx * view.strides[1] + head * view.strides[2]),
            row_bytes(view));
    }
  }

  std::vector<TensorView> views_;
};

}  // namespace headrace::testing
