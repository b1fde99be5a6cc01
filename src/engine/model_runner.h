// Runs steps of sequences: an executor, a KV cache and the arrays of the current step.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/math.h"
#include "engine/language_model.h"
#include "kv_cache/kv_cache.h"

namespace headrace::engine {

struct RunnerOptions {
  std::int64_t max_batch_tokens = 512;  // tokens of all sequences in a step
  std::int64_t page_size = 16;
  std::int64_t num_pages = 0;
  // With num_pages = 0, on a GPU: as many pages as sequences of so many tokens need, or as fit
  // (cache_pages.h); max_sequences run at once. 0: num_pages counts.
  std::int64_t max_tokens_to_fit = 0;
  std::int64_t num_host_pages = 0;
  DType cache_dtype = DType::f16;  // of queries, and of keys and values that are no codes
  std::optional<DType> k_dtype = {}, v_dtype = {};  // of codes; empty: cache_dtype
  std::int64_t max_sequences = 1;                   // of the cache, at once
  std::int64_t max_logits = 0;  // rows of a step, for which a GPU has memory from the beginning
  SparqSizes sparq = {};        // of steps of generated tokens; CPU
  // Without a prefix cache freed pages are reused at once, while they are in the CPU's caches.
  bool has_prefix_cache = false;
};

// Pages hold whole groups of tokens if keys or values are codes: page_size, rounded up.
constexpr std::int64_t whole_page_size(std::int64_t page_size, std::optional<DType> k_dtype,
                                       std::optional<DType> v_dtype) {
  if (!k_dtype && !v_dtype) return page_size;
  return round_up(page_size, recent_group_of(k_dtype.value_or(DType::f16)));
}

// The model must have weights and outlive the runner.
class ModelRunner {
 public:
  // invalid_argument: page_size, num_pages. out_of_memory.
  static Result<ModelRunner> make(const LanguageModel& model, const RunnerOptions& options);

  // The tokens that a step appends to a sequence of the cache, and how many of the last ones want
  // logits.
  struct Part {
    std::int64_t sequence;
    std::span<const std::int32_t> tokens;
    std::int64_t num_logits = 1;
    // The last of the tokens, each of which attention computes alone, as if it were the only one in
    // a step: with the bits of a decode.
    std::int64_t num_generated = 0;
  };
  // Memory of the host that logits are written to. A GPU writes those of one token to page-locked
  // memory itself: a copy behind the step would take as long as a layer.
  enum class HostMemory { pageable, page_locked };
  // One step. Writes logits [sum of num_logits, vocab_size], the parts in their order, to memory of
  // the host; null, on a GPU: leaves them on the device. On an error nothing is appended.
  Status step(std::span<const Part> parts, float* logits, HostMemory memory = HostMemory::pageable);
  // The same for a caller that has reserved the slots and commits the tokens itself. The parts are
  // of different sequences. A token below 0: as in Batch.
  Status forward(std::span<const Part> parts, float* logits,
                 const std::int32_t* drawn_tokens = nullptr) {
    return forward_on(*executor_, parts, logits, HostMemory::pageable, drawn_tokens);
  }
  // The same on an executor that passes operators on to executor().
  Status forward_on(Executor& executor, std::span<const Part> parts, float* logits,
                    HostMemory memory = HostMemory::pageable,
                    const std::int32_t* drawn_tokens = nullptr);
  Executor& executor() { return *executor_; }

  bool has_sparq() const { return sparq_.num_keys > 0; }
  // Of the last step that left its logits on the device.
  const float* logits_on_device() const { return device_logits_.as<const float>(); }
  const model::Decoder& decoder() const { return *decoder_; }
  Device& device() { return executor_->device(); }
  // Of the steps. Copies of the cache's pages have to be work of this stream too.
  Stream stream() const { return executor_->stream(); }
  KvCache& cache() { return cache_; }
  const KvCache& cache() const { return cache_; }

 private:
  ModelRunner(const LanguageModel& model, std::unique_ptr<Executor> executor, KvCache cache,
              const SparqSizes& sparq)
      : decoder_(&*model.decoder),
        cache_(std::move(cache)),
        sparq_(sparq),
        executor_(std::move(executor)) {}
  Status fill(std::span<const Part> parts);
  SparqSizes sparq_of(std::span<const Part> parts) const;
  // The groups of a sequence from the one that holds the token behind `begin` to that of the last.
  std::int64_t groups_between(std::int64_t begin, std::int64_t end) const;
  std::int64_t max_recent_of(std::span<const Part> parts) const;
  void fill_recent(std::int64_t max_recent);
  void order_rows(std::span<const Part> parts);
  // Where a step writes its logits: to `logits`, else to memory of the device.
  Result<float*> where_to_write(float* logits, HostMemory memory);
  std::int64_t num_logits() const { return static_cast<std::int64_t>(logits_rows_.size()); }
  Status run(std::span<const Part> parts, float* logits, HostMemory memory);

  const model::Decoder* decoder_;
  KvCache cache_;
  SparqSizes sparq_;

  Buffer device_logits_;  // float [logits_rows of the largest step, vocab_size]; empty on the host
  // Behind the memory that its steps use: it is destroyed first, and waits for them.
  std::unique_ptr<Executor> executor_;

  // Consecutive tokens of a part, which attention computes together: a sequence of the batch.
  struct Run {
    std::size_t part;
    std::int64_t first_token;  // of the step, part by part
    std::int32_t num_tokens;
    std::int32_t length;  // of the sequence, with these tokens
  };
  // Below 0 where the pages of a's first keys come before those of b's; 0 where neither does.
  int compare_prefixes(const Run& a, const Run& b) const;
  std::vector<Run> runs_;           // in the order of the batch
  std::vector<std::int32_t> rows_;  // of the batch: of each token, part by part

  // Of the current step, as in Batch.
  std::vector<std::int32_t> tokens_, positions_, cu_seqlens_q_, seqused_k_, block_table_,
      logits_rows_;
  std::vector<std::int64_t> slot_mapping_, recent_slots_;
  std::vector<std::int32_t> recent_table_;
  std::int64_t max_seqlen_q_ = 0, max_seqlen_k_ = 0;
  // Arguments of KvCache::fill_batch: of the parts.
  std::vector<std::int64_t> sequences_, part_slots_, part_recent_slots_;
  std::vector<std::int32_t> num_tokens_, lengths_, part_tables_, part_recent_;
};

}  // namespace headrace::engine
