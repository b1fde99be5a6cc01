#include "kv_cache/contiguous_cache.h"

#include "core/aligned.h"

namespace headrace {
namespace {

using Memory = Aligned<std::byte>;

class ContiguousCache final : public KvCache {
 public:
  ContiguousCache(const KvShape& shape, std::int64_t capacity, Memory memory)
      : shape_(shape), capacity_(capacity), memory_(std::move(memory)) {}

  static std::int64_t layer_elements(const KvShape& shape, std::int64_t capacity) {
    return shape.num_kv_heads * capacity * (shape.head_dim + shape.head_dim_v);
  }

  const KvShape& shape() const override { return shape_; }
  std::int64_t length() const override { return length_; }

  Status reserve(std::int64_t num_tokens) override {
    if (num_tokens <= capacity_ - length_) return std::nullopt;
    return invalid_argument(
        "{} tokens more: the cache holds {} of at most {}; make the session with a larger context "
        "or shorten the text",
        num_tokens, length_, capacity_);
  }

  KvRun run_at(std::int64_t layer, std::int64_t first) override {
    return {.k = at(layer, first * shape_.head_dim),
            .v = at(layer, values_offset() + first * shape_.head_dim_v),
            .token_stride_k = shape_.head_dim,
            .head_stride_k = capacity_ * shape_.head_dim,
            .token_stride_v = shape_.head_dim_v,
            .head_stride_v = capacity_ * shape_.head_dim_v,
            .num_tokens = capacity_ - first};
  }

  Operand keys(std::int64_t layer) const override {
    return {.data = at(layer, 0),
            .stride_batch = 0,
            .stride_seq = shape_.head_dim,
            .stride_head = capacity_ * shape_.head_dim};
  }
  Operand values(std::int64_t layer) const override {
    return {.data = at(layer, values_offset()),
            .stride_batch = 0,
            .stride_seq = shape_.head_dim_v,
            .stride_head = capacity_ * shape_.head_dim_v};
  }

  void set_length(std::int64_t length) override { length_ = length; }

 private:
  std::int64_t values_offset() const { return shape_.num_kv_heads * capacity_ * shape_.head_dim; }
  void* at(std::int64_t layer, std::int64_t element) const {
    element += layer * layer_elements(shape_, capacity_);
    return memory_.get() + static_cast<std::size_t>(element) * dtype_bytes(shape_.dtype);
  }

  KvShape shape_;
  std::int64_t capacity_, length_ = 0;
  Memory memory_;
};

}  // namespace

Result<std::unique_ptr<KvCache>> make_contiguous_cache(const KvShape& shape,
                                                       std::int64_t capacity) {
  const auto elements = static_cast<std::size_t>(shape.num_layers) *
                        static_cast<std::size_t>(ContiguousCache::layer_elements(shape, capacity));
  const std::size_t bytes = elements * dtype_bytes(shape.dtype);
  Memory memory(bytes);
  if (memory.get() == nullptr)
    return Failure{ErrorCode::out_of_memory,
                   format_text("{} bytes for keys and values of {} tokens could not be had; ask "
                               "for a shorter context or a 16-bit cache",
                               bytes, capacity)};
  return std::unique_ptr<KvCache>(
      std::make_unique<ContiguousCache>(shape, capacity, std::move(memory)));
}

}  // namespace headrace
