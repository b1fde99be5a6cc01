// One decode step of attention over a paged KV cache, on a CPU or a GPU. The sequences have equal
// contents, each in pages of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "attention_timing.h"
#include "headrace/headrace.hpp"
#include "headrace/kv_cache.hpp"
#include "rounds.h"

namespace headrace::cli {

struct DecodeShape {
  std::int64_t batch, seqlen_q, seqlen_k, num_heads, num_kv_heads, head_dim;
  DType dtype;  // f16 or bf16: of queries and of keys and values without codes
  KvLayout layout;
};

struct KvFormat {
  std::optional<DType> codes;  // of keys and values; empty: unquantised
  std::int64_t page_size;      // 0: the keys of a sequence are contiguous
};

// Tensors in the memory of a machine, which must outlive them.
class MachineMemory {
 public:
  explicit MachineMemory(Machine& machine) : machine_(&machine) {}
  TensorView allocate(DType dtype, std::initializer_list<std::int64_t> shape);
  // The first `bytes` bytes of a contiguous tensor.
  void write(const TensorView& to, const void* from, std::size_t bytes);
  void read(void* to, const TensorView& from, std::size_t bytes) const;

 private:
  Machine* machine_;
  std::vector<std::unique_ptr<std::byte[]>> blocks_;  // of a CPU; a GPU frees its blocks itself
};

class DecodeStep {
 public:
  // Most tokens of an append; whole groups of tokens.
  static constexpr std::int64_t kMaxAppended = 1024;

  // Throws Error(HEADRACE_INVALID_ARGUMENT) if the cache cannot have the format, and
  // Error(HEADRACE_UNSUPPORTED) if no kernel reads it.
  DecodeStep(const DecodeShape& shape, const KvFormat& format, Machine& machine);
  DecodeStep(const DecodeStep&) = delete;

  // The queries of each sequence: f32 [seqlen_q, num_heads, head_dim], in the machine's memory.
  void set_queries(const TensorView& q);
  // The next tokens of each sequence: f32 [num_tokens, num_kv_heads, head_dim]. All appends but the
  // last have kMaxAppended tokens.
  void append(const TensorView& k, const TensorView& v);

  void run(void* stream) const;
  std::vector<float> out_of_first_sequence() const;
  // Of keys, values and scales that a run reads.
  double bytes() const;
  std::string kernel() const { return std::string(plan_->kernel()); }

 private:
  void lay_out_pages();
  std::int64_t slot_of(std::int64_t sequence, std::int64_t token) const;
  std::int64_t recent_slot_of(std::int64_t sequence, std::int64_t token) const;
  // The group of the first query.
  std::int64_t first_recent() const { return (shape_.seqlen_k - shape_.seqlen_q) / group_; }
  // Groups from that of the first to that of the last query.
  std::int64_t num_recent() const { return (shape_.seqlen_k - 1) / group_ - first_recent() + 1; }
  KvAppendOptions append_options() const;

  DecodeShape shape_;
  std::int64_t page_size_, max_pages_;
  bool has_pages_, has_codes_, has_hadamard_;
  Machine& machine_;
  MachineMemory memory_;
  KvCache cache_;
  headrace_quantised_kv quantised_{};
  std::int64_t group_ = 1;  // of tokens that are quantised together
  AttentionTensors tensors_;
  std::vector<std::int32_t> pages_, recent_pages_;  // [batch, max_pages], [batch, num_recent]
  TensorView slots_, recent_slots_;                 // i64, of an append to all sequences
  std::int64_t num_appended_ = 0;
  std::optional<Plan> plan_;
  Workspace workspace_;
};

}  // namespace headrace::cli
