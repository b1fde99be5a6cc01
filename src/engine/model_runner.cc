#include "engine/model_runner.h"

#include <algorithm>
#include <mutex>

#include "base/math.h"
#include "engine/cache_pages.h"

namespace headrace::engine {
namespace {

// On a CPU the rows of a head follow each other; side by side they share few sets of the caches.
// SmolLM2's attention over 65536 tokens in pages of 16, one thread of a Zen 5: 2.3 ms in hnd and
// 2.6 in nhd with f16, 2.1 and 2.7 with int8. On a GPU 16-bit prefills of 2048 tokens behind 6000
// take 1.5 % longer in hnd, and decodes 0.4 %; decodes of codes up to 18 % longer in nhd.
KvLayout layout_of(const Device& device, const KvShape& shape) {
  const bool is_cpu = device.info().device_type == HEADRACE_CPU;
  return is_cpu || shape.has_codes() ? KvLayout::hnd : KvLayout::nhd;
}

std::size_t logits_bytes(const model::Decoder& decoder, std::int64_t num_rows) {
  return static_cast<std::size_t>(num_rows * decoder.config.vocab_size) * sizeof(float);
}

// A step writes whole groups, and two groups of each sequence in part; other sequences have one.
std::int64_t num_recent_pages(const KvShape& shape, const RunnerOptions& options) {
  if (!shape.has_codes()) return 0;
  return ceil_div(options.max_batch_tokens, shape.recent_group()) + 2 * options.max_sequences;
}

// Of float rows [num_rows, vocab_size]. out_of_memory.
Status allocate_logits(Device& device, const model::Decoder& decoder, std::int64_t num_rows,
                       Buffer& logits) {
  logits = {};  // free the old memory first
  logits = device.allocate(logits_bytes(decoder, num_rows));
  if (logits.data() != nullptr) return std::nullopt;
  return Failure{ErrorCode::out_of_memory,
                 format_text("no memory for the logits of {} tokens; pass a smaller max_num_seqs "
                             "or batch_tokens, or ask for fewer logits",
                             num_rows)};
}

// Engines that are made in two threads do not both take what is free now.
std::mutex& mutex_of_free_memory() {
  static std::mutex mutex;
  return mutex;
}

Result<KvCache> make_cache(Device& device, KvCacheOptions o, const RunnerOptions& options) {
  std::unique_lock<std::mutex> lock;
  if (o.num_pages == 0 && options.max_tokens_to_fit > 0 && o.page_size > 0) {
    lock = std::unique_lock(mutex_of_free_memory());
    Result<std::int64_t> fit = pages_that_fit({.shape = {o.shape, o.layout, o.page_size, 0},
                                               .other_bytes = KvCache::recent_bytes(o),
                                               .max_tokens = options.max_tokens_to_fit,
                                               .max_num_seqs = options.max_sequences},
                                              device.free_bytes());
    if (!fit.ok()) return std::move(fit.failure());
    o.num_pages = fit.value();
  }
  Result<KvCache> cache = KvCache::make(device, o);
  if (cache.ok() || cache.failure().code != ErrorCode::out_of_memory) return cache;
  return Failure{ErrorCode::out_of_memory,
                 format_text("no memory for keys and values of {} pages of page_size={} tokens; "
                             "pass a smaller max_tokens or page_size, or a 16-bit cache_dtype",
                             o.num_pages, o.page_size)};
}

}  // namespace

Result<ModelRunner> ModelRunner::make(const LanguageModel& model, const RunnerOptions& options) {
  const model::Decoder& decoder = *model.decoder;
  KvShape shape = decoder.kv_shape(options.cache_dtype);
  if (options.k_dtype) shape.k_dtype = *options.k_dtype;
  if (options.v_dtype) shape.v_dtype = *options.v_dtype;
  // Windows hide what SparQ attention would leave out.
  const bool has_sparq = options.sparq.num_keys > 0 && decoder.config.window == 0;
  shape.has_components = has_sparq;
  // The paper leaves the mean value out for grouped heads.
  shape.has_value_sums = has_sparq && decoder.config.num_heads == decoder.config.num_kv_heads;
  const KvCacheOptions of_cache{.shape = shape,
                                .layout = layout_of(*model.device, shape),
                                .page_size = options.page_size,
                                .num_pages = options.num_pages,
                                .num_host_pages = options.num_host_pages,
                                .num_recent_pages = num_recent_pages(shape, options),
                                .has_prefix_cache = options.has_prefix_cache};
  auto executor = make_executor(*model.device, model.mode);
  if (!executor.ok()) return std::move(executor.failure());
  // Before the pages, which may take what is free.
  Buffer logits;
  const auto memory_of_steps = [&]() -> Status {
    HEADRACE_TRY(decoder.reserve(*executor.value(), options.max_batch_tokens, options.cache_dtype));
    if (is_on_gpu(model) && options.max_logits > 0)
      return allocate_logits(*model.device, decoder, options.max_logits, logits);
    return std::nullopt;
  };
  if (Status bad = memory_of_steps()) return std::move(*bad);
  Result<KvCache> cache = make_cache(*model.device, of_cache, options);
  if (!cache.ok()) return std::move(cache.failure());
  ModelRunner runner(model, std::move(executor.value()), std::move(cache.value()),
                     has_sparq ? options.sparq : SparqSizes());
  runner.device_logits_ = std::move(logits);
  return runner;
}

Status ModelRunner::step(std::span<const Part> parts, float* logits, HostMemory memory) {
  if (auto failure = run(parts, logits, memory)) {
    // Gives up the reserved slots.
    for (const Part& part : parts)
      HEADRACE_TRY(cache_.truncate(part.sequence, cache_.info(part.sequence).value().length));
    return failure;
  }
  for (const Part& part : parts) HEADRACE_TRY(cache_.commit(part.sequence, part.tokens));
  return std::nullopt;
}

Status ModelRunner::run(std::span<const Part> parts, float* logits, HostMemory memory) {
  for (const Part& part : parts)
    HEADRACE_TRY(
        cache_.reserve(part.sequence, static_cast<std::int64_t>(part.tokens.size()), stream()));
  return forward_on(*executor_, parts, logits, memory);
}

Status ModelRunner::forward_on(Executor& executor, std::span<const Part> parts, float* logits,
                               HostMemory memory, const std::int32_t* drawn_tokens) {
  HEADRACE_TRY(fill(parts));
  Result<float*> to = where_to_write(logits, memory);
  if (!to.ok()) return std::move(to.failure());
  HEADRACE_TRY(decoder_->forward(executor,
                                 {.tokens = tokens_,
                                  .positions = positions_,
                                  .slot_mapping = slot_mapping_,
                                  .cu_seqlens_q = cu_seqlens_q_,
                                  .seqused_k = seqused_k_,
                                  .block_table = block_table_,
                                  .recent_slots = recent_slots_,
                                  .recent_table = recent_table_,
                                  .logits_rows = logits_rows_,
                                  .drawn_tokens = drawn_tokens,
                                  .max_seqlen_q = max_seqlen_q_,
                                  .max_seqlen_k = max_seqlen_k_,
                                  .sparq = sparq_of(parts)},
                                 cache_.view(), to.value()));
  if (logits == nullptr) return std::nullopt;
  if (to.value() == logits) return executor.wait();
  return device().download(to.value(), logits, logits_bytes(*decoder_, num_logits()), stream());
}

// Dense where a sequence has no more keys than would be read: the sequences that a session decodes
// together are equally long.
SparqSizes ModelRunner::sparq_of(std::span<const Part> parts) const {
  const auto is_generated = [](const Part& part) {
    return part.num_generated == std::ssize(part.tokens);
  };
  const bool has_sparq =
      sparq_.num_keys > 0 && std::ranges::all_of(parts, is_generated) &&
      std::ranges::all_of(runs_, [&](const Run& run) { return run.length > sparq_.num_keys; });
  return has_sparq ? sparq_ : SparqSizes();
}

Result<float*> ModelRunner::where_to_write(float* logits, HostMemory memory) {
  if (device().info().device_type == HEADRACE_CPU) return logits;
  if (logits != nullptr && memory == HostMemory::page_locked && logits_rows_.size() == 1)
    return logits;
  if (logits_bytes(*decoder_, num_logits()) > device_logits_.bytes() ||
      device_logits_.data() == nullptr) {
    // The token of an earlier step may still be drawn from the old memory.
    if (Status bad = device().synchronise(stream())) return std::move(*bad);
    if (Status bad = allocate_logits(device(), *decoder_, num_logits(), device_logits_))
      return std::move(*bad);
  }
  return device_logits_.as<float>();
}

// Fills the arrays of a step.
Status ModelRunner::fill(std::span<const Part> parts) {
  sequences_.clear();
  num_tokens_.clear();
  max_seqlen_k_ = 0;
  std::size_t num_tokens = 0;
  for (const Part& part : parts) {
    sequences_.push_back(part.sequence);
    num_tokens_.push_back(static_cast<std::int32_t>(part.tokens.size()));
    num_tokens += part.tokens.size();
    max_seqlen_k_ = std::max(max_seqlen_k_,
                             cache_.info(part.sequence).value().length + std::ssize(part.tokens));
  }
  const std::int64_t max_pages = ceil_div(max_seqlen_k_, cache_.options().page_size);
  const auto row = static_cast<std::size_t>(max_pages);
  lengths_.resize(parts.size());
  part_slots_.resize(num_tokens);
  part_tables_.resize(parts.size() * row);
  const std::int64_t max_recent = max_recent_of(parts);
  part_recent_slots_.resize(cache_.has_codes() ? num_tokens : 0);
  part_recent_.resize(parts.size() * static_cast<std::size_t>(max_recent));
  HEADRACE_TRY(cache_.fill_batch({.sequences = sequences_,
                                  .num_tokens = num_tokens_,
                                  .max_pages = max_pages,
                                  .block_table = part_tables_,
                                  .seqused_k = lengths_,
                                  .slot_mapping = part_slots_,
                                  .max_recent = max_recent,
                                  .recent_table = part_recent_,
                                  .recent_slots = part_recent_slots_}));
  order_rows(parts);

  tokens_.resize(num_tokens);
  positions_.resize(num_tokens);
  slot_mapping_.resize(num_tokens);
  logits_rows_.clear();
  std::size_t token = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::int32_t first_position = lengths_[i] - num_tokens_[i];
    for (std::int32_t t = 0; t < num_tokens_[i]; ++t, ++token) {
      const auto to = static_cast<std::size_t>(rows_[token]);
      tokens_[to] = parts[i].tokens[static_cast<std::size_t>(t)];
      positions_[to] = first_position + t;
      slot_mapping_[to] = part_slots_[token];
      if (num_tokens_[i] - t <= parts[i].num_logits) logits_rows_.push_back(rows_[token]);
    }
  }
  cu_seqlens_q_.assign(1, 0);
  seqused_k_.clear();
  block_table_.resize(runs_.size() * row);
  auto table = block_table_.begin();
  for (const Run& run : runs_) {
    cu_seqlens_q_.push_back(cu_seqlens_q_.back() + run.num_tokens);
    seqused_k_.push_back(run.length);
    table = std::copy_n(part_tables_.begin() + static_cast<std::ptrdiff_t>(run.part * row),
                        max_pages, table);
  }
  max_seqlen_q_ = runs_.front().num_tokens;
  fill_recent(max_recent);
  return std::nullopt;
}

// Of any part, with codes.
std::int64_t ModelRunner::max_recent_of(std::span<const Part> parts) const {
  std::int64_t most = 0;
  for (std::size_t i = 0; cache_.has_codes() && i < parts.size(); ++i) {
    const std::int64_t length = cache_.info(parts[i].sequence).value().length;
    most = std::max(most, groups_between(length, length + num_tokens_[i]));
  }
  return most;
}

std::int64_t ModelRunner::groups_between(std::int64_t begin, std::int64_t end) const {
  return ceil_div(end, cache_.recent_group()) - begin / cache_.recent_group();
}

// A run of a part may begin in a later group than the part.
void ModelRunner::fill_recent(std::int64_t max_recent) {
  recent_table_.clear();
  recent_slots_.clear();
  if (!cache_.has_codes()) return;
  recent_slots_.resize(part_recent_slots_.size());
  for (std::size_t i = 0; i < part_recent_slots_.size(); ++i)
    recent_slots_[static_cast<std::size_t>(rows_[i])] = part_recent_slots_[i];
  std::int64_t width = 0;
  for (const Run& run : runs_)
    width = std::max(width, groups_between(run.length - run.num_tokens, run.length));
  const std::int64_t group = cache_.recent_group();
  for (const Run& run : runs_) {
    const std::int64_t part_begin = lengths_[run.part] - num_tokens_[run.part];
    const std::int64_t run_begin = run.length - run.num_tokens;
    const std::int64_t skipped = run_begin / group - part_begin / group;
    const auto pages =
        part_recent_.begin() + static_cast<std::ptrdiff_t>(run.part) * max_recent + skipped;
    for (std::int64_t j = 0; j < width; ++j)
      recent_table_.push_back(skipped + j < max_recent ? pages[j] : 0);
  }
}

// Lexicographic, of the pages that hold every kPrefixStep-th key: sequences with a page in common
// have all pages before it in common.
int ModelRunner::compare_prefixes(const Run& a, const Run& b) const {
  const std::int64_t page_size = cache_.options().page_size;
  const std::size_t row = part_tables_.size() / lengths_.size();
  const std::int32_t *of_a = part_tables_.data() + a.part * row,
                     *of_b = part_tables_.data() + b.part * row;
  const std::int64_t steps_a = a.length / kPrefixStep, steps_b = b.length / kPrefixStep;
  for (std::int64_t i = 1; i <= std::min(steps_a, steps_b); ++i) {
    const std::int64_t page = (i * kPrefixStep - 1) / page_size;
    if (of_a[page] != of_b[page]) return of_a[page] < of_b[page] ? -1 : 1;
  }
  return steps_a < steps_b ? -1 : steps_a > steps_b ? 1 : 0;
}

// The sequences of the batch. A generated token is one of its own, which ends with that token; it
// finds the keys of the tokens before it in the pages, as all keys of a layer are written first.
void ModelRunner::order_rows(std::span<const Part> parts) {
  runs_.clear();
  std::int64_t token = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto num_generated = static_cast<std::int32_t>(parts[i].num_generated);
    std::int32_t length = lengths_[i] - num_generated;
    const auto add = [&](std::int32_t num_tokens) {
      runs_.push_back({i, token, num_tokens, length});
      token += num_tokens;
    };
    if (num_tokens_[i] > num_generated) add(num_tokens_[i] - num_generated);
    while (length < lengths_[i]) {
      ++length;
      add(1);
    }
  }
  const auto is_before = [&](const Run& a, const Run& b) {
    if (a.num_tokens != b.num_tokens) return a.num_tokens > b.num_tokens;
    if (const int order = compare_prefixes(a, b); order != 0) return order < 0;
    return a.first_token < b.first_token;
  };
  if (!std::ranges::is_sorted(runs_, is_before)) std::ranges::sort(runs_, is_before);
  rows_.resize(static_cast<std::size_t>(token));
  std::int32_t batch_row = 0;
  for (const Run& run : runs_)
    for (std::int64_t i = 0; i < run.num_tokens; ++i)
      rows_[static_cast<std::size_t>(run.first_token + i)] = batch_row++;
}

}  // namespace headrace::engine
