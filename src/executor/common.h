// What the executors of all devices share.
#pragma once

#include <vector>

#include "core/kv_append_args.h"
#include "core/plan.h"
#include "executor/executor.h"

namespace headrace {

inline std::size_t bytes_of(std::int64_t rows, std::int64_t width, DType dtype) {
  return static_cast<std::size_t>(rows * width) * dtype_bytes(dtype);
}

// Bytes for a buffer that grows to `bytes`: more, if there are as many, so that it rarely grows,
// which waits for a GPU.
std::size_t at_least_half_more(const Buffer& buffer, std::size_t bytes);

// Makes the buffer at least `bytes` large. If it grows, its contents are lost, and the work of
// `stream`, which may use them, ends first. out_of_memory.
Status grow(Device& device, Stream stream, Buffer& buffer, std::size_t bytes);

// The memory of Executor::alloc().
class Activations {
 public:
  void begin_step() { num_allocs_ = 0; }
  Result<Rows> alloc(Device& device, Stream stream, std::int64_t num_rows, std::int64_t width,
                     DType dtype);
  // Counts the buffers that have moved.
  std::uint64_t version() const { return version_; }

 private:
  std::vector<Buffer> buffers_;  // in call order
  std::size_t num_allocs_ = 0;   // in this step
  std::uint64_t version_ = 0;
};

// What launches depend on; the lengths are upper bounds.
struct StepSize {
  std::int64_t num_tokens, num_seqs, max_seqlen_q, max_seqlen_k, max_pages, max_recent;
  std::int64_t max_shared_prefix;  // as in Problem
  bool operator==(const StepSize&) const = default;
};
StepSize size_of(const Batch& batch);

// Keys that sequences from `first_seq` on have in the same pages as the one before them, at most,
// as a power of two; 0 where reading those keys once saves less than looking for them costs.
std::int64_t shared_prefix_of(const Batch& batch, std::int64_t first_seq, const KvView& kv);

// Of a plan for sequences of so many rows (tokens x heads of a group), as in Problem. On a GPU few
// rows are a decode; others are a prefill, whose keys are not split, whatever the sizes: a chunk
// has the bits of the whole.
std::int32_t num_splits_of(const DeviceInfo& device, std::int64_t rows);

// The prefills of a batch; they are its first sequences. Each sequence takes one of two paths by
// its own number of tokens, so its bits do not depend on those beside it.
std::int64_t num_prefills(const Batch& batch, std::int64_t heads_per_group,
                          const DeviceInfo& device);

// What the attention of every layer of a step computes. num_splits: as in Problem.
Problem step_problem(const StepSize& size, std::int32_t num_splits, const KvView& kv,
                     const AttentionSpec& spec);
Status plan_step(const StepSize& size, std::int32_t num_splits, const KvView& kv,
                 const AttentionSpec& spec, const DeviceInfo& device, Plan& plan);

// The operands of a layer's append, but for slots, positions and the tables of angles.
KvAppendArgs append_args(const KvView& kv, const AttentionSpec& spec, std::int64_t layer,
                         const Rows& qkv, const Rows& q);
// The operands of a layer's attention, but for the lengths and tables of the sequences.
AttentionArgs attention_args(const KvView& kv, std::int64_t layer, const Rows& q, void* out,
                             std::int64_t out_width);

std::unique_ptr<Executor> make_cpu_executor(Device& device, MatmulMode mode);
Result<std::unique_ptr<Executor>> make_cuda_executor(Device& device, MatmulMode mode);

}  // namespace headrace
