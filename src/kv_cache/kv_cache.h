// Keys and values of one sequence in all layers of a model. The model appends rows and attends to
// them; where they lie is the cache's business.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/error.h"
#include "core/args.h"
#include "core/dtype.h"

namespace headrace {

struct KvShape {
  std::int64_t num_layers, num_kv_heads, head_dim, head_dim_v;
  DType dtype;
};

// Rows of consecutive tokens in one layer, to be written: token t and head h of K begin
// t * token_stride_k + h * head_stride_k elements after k; V likewise.
struct KvRun {
  void* k;  // [num_tokens, num_kv_heads, head_dim]
  void* v;  // [num_tokens, num_kv_heads, head_dim_v]
  std::int64_t token_stride_k, head_stride_k, token_stride_v, head_stride_v;
  std::int64_t num_tokens;
};

class KvCache {
 public:
  virtual ~KvCache() = default;

  virtual const KvShape& shape() const = 0;
  virtual std::int64_t length() const = 0;  // tokens that every layer holds

  // Makes room for num_tokens more behind length(). invalid_argument: more than the cache may hold.
  virtual Status reserve(std::int64_t num_tokens) = 0;
  // The rows of the reserved token `first` and of as many of those behind it as lie in one run.
  virtual KvRun run_at(std::int64_t layer, std::int64_t first) = 0;
  // Keys and values of the tokens from 0 on, as attention reads them.
  virtual Operand keys(std::int64_t layer) const = 0;
  virtual Operand values(std::int64_t layer) const = 0;

  // The first `length` tokens are kept: reserved ones after they were written in every layer, or
  // fewer than there were.
  virtual void set_length(std::int64_t length) = 0;
};

}  // namespace headrace
