/// @file
/// A paged KV cache for C++20: a header-only wrapper of kv_cache.h.
///
///   headrace::KvCache cache({.num_layers = 32, .num_kv_heads = 8, .head_dim = 128,
///                            .num_pages = 4096});
///   const auto [sequence, num_cached] = cache.add(prompt);
///   cache.reserve(sequence, prompt.size() - num_cached);
///   ...  // fill_batch(), kernels that write keys and values and read pages
///   cache.commit(sequence, prompt.subspan(num_cached));
#pragma once

#if __cplusplus < 202002L
#error \
    "Headrace's C++ headers need C++20: compile with -std=c++20 (or later), in CMake link \
headrace::headrace or set CMAKE_CXX_STANDARD to 20; C programs include headrace/headrace.h"
#endif

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "headrace/headrace.hpp"
#include "headrace/kv_cache.h"

namespace headrace {
inline namespace v0 {

/// Memory order of a page.
enum class KvLayout : std::int32_t {
  nhd = HEADRACE_KV_NHD,  ///< [page_size, num_kv_heads, head_dim]
  hnd = HEADRACE_KV_HND,  ///< [num_kv_heads, page_size, head_dim]
};

/// Options of a cache.
struct KvCacheOptions {
  std::int64_t num_layers = 0;              ///< layers that have keys and values
  std::int64_t num_kv_heads = 0;            ///< KV heads of a layer
  std::int64_t head_dim = 0;                ///< of keys
  std::int64_t head_dim_v = 0;              ///< of values; 0: head_dim
  std::int64_t num_pages = 0;               ///< in the pool
  std::int64_t num_host_pages = 0;          ///< in host memory, for swapped sequences
  std::int64_t page_size = 16;              ///< tokens per page
  DType dtype = DType::f16;                 ///< f16, bf16 or f32
  KvLayout layout = KvLayout::nhd;          ///< memory order of a page
  std::int32_t device_type = HEADRACE_CPU;  ///< headrace_device_type of the pages
  std::int32_t device_id = 0;               ///< CUDA: device number; CPU: 0
  std::optional<DType> k_dtype = {};        ///< of stored keys: codes; empty: dtype
  std::optional<DType> v_dtype = {};        ///< the same of stored values
  std::int64_t num_recent_pages = 0;  ///< with codes, of a group each: two for each sequence and
                                      ///< one for each group of tokens reserved at once

  /// Converts to the C struct.
  headrace_kv_cache_options to_c() const {
    headrace_kv_cache_options c;
    check(headrace_kv_cache_options_init(&c));
    c.num_layers = num_layers;
    c.num_kv_heads = num_kv_heads;
    c.head_dim = head_dim;
    c.head_dim_v = head_dim_v;
    c.num_pages = num_pages;
    c.num_host_pages = num_host_pages;
    c.page_size = page_size;
    c.dtype = static_cast<std::int32_t>(dtype);
    c.layout = static_cast<std::int32_t>(layout);
    c.device_type = device_type;
    c.device_id = device_id;
    if (k_dtype) c.k_dtype = static_cast<std::int32_t>(*k_dtype);
    if (v_dtype) c.v_dtype = static_cast<std::int32_t>(*v_dtype);
    c.num_recent_pages = num_recent_pages;
    return c;
  }
};

/// Sequences of a step, and the arrays to fill, in host memory. Empty arrays are not wanted.
struct KvBatch {
  std::span<const std::int64_t> sequences = {};   ///< [n]
  std::span<const std::int32_t> num_tokens = {};  ///< [n]: reserved slots that the step writes
  std::int64_t max_pages = 0;                     ///< row length of block_table
  std::span<std::int32_t> block_table = {};       ///< written: [n, max_pages], 0 past the last page
  std::span<std::int32_t> seqused_k = {};         ///< written: [n], length + num_tokens
  std::span<std::int64_t> slot_mapping =
      {};                       ///< written: [sum of num_tokens], page * page_size + slot
  std::int64_t max_recent = 0;  ///< of a cache of codes: row length of recent_table
  std::span<std::int32_t> recent_table = {};  ///< written: [n, max_recent], 0 past the last page
  std::span<std::int64_t> recent_slots =
      {};  ///< written: [sum of num_tokens], recent page * group + index in it
};

/// Keys and values of many sequences in pages of one pool. Use it on one thread at a time.
class KvCache {
 public:
  /// Allocates all pages. Throws Error.
  explicit KvCache(const KvCacheOptions& options) {
    const headrace_kv_cache_options c = options.to_c();
    headrace_kv_cache* cache = nullptr;
    check(headrace_kv_cache_create(&c, &cache));
    cache_.reset(cache);
  }

  /// Key pages of a layer: [num_pages, page_size, num_kv_heads, head_dim].
  TensorView k_pages(std::int64_t layer) const {
    TensorView pages;
    check(headrace_kv_cache_k_pages(cache_.get(), layer, &pages));
    return pages;
  }
  /// Value pages of a layer: [num_pages, page_size, num_kv_heads, head_dim_v].
  TensorView v_pages(std::int64_t layer) const {
    TensorView pages;
    check(headrace_kv_cache_v_pages(cache_.get(), layer, &pages));
    return pages;
  }

  /// Scales and recent pages of a layer of codes, without recent_table.
  headrace_quantised_kv quantised(std::int64_t layer) const {
    headrace_quantised_kv quantised;
    check(headrace_quantised_kv_init(&quantised));
    check(headrace_kv_cache_quantised(cache_.get(), layer, &quantised));
    return quantised;
  }

  /// A new sequence and the number of its tokens that were found in the prefix cache.
  struct Added {
    std::int64_t sequence;    ///< id, never used twice
    std::int64_t num_cached;  ///< tokens that the sequence holds already
  };
  /// Adds a sequence that begins with the longest cached prefix of the prompt, at most all but one
  /// of its tokens. Only sequences with equal salt share pages.
  Added add(std::span<const std::int32_t> prompt, std::uint64_t salt = 0) {
    Added added{};
    check(headrace_kv_cache_add(cache_.get(), prompt.data(), prompt.size(), salt, &added.sequence,
                                &added.num_cached));
    return added;
  }
  /// A new sequence with the same tokens, in the same pages until one of the two writes.
  std::int64_t fork(std::int64_t sequence) {
    std::int64_t fork = 0;
    check(headrace_kv_cache_fork(cache_.get(), sequence, &fork));
    return fork;
  }
  /// Removes a sequence.
  void free(std::int64_t sequence) { check(headrace_kv_cache_free(cache_.get(), sequence)); }

  /// Makes at least num_tokens slots after the sequence's tokens writable. Throws
  /// Error(HEADRACE_OUT_OF_MEMORY) if pages are missing.
  void reserve(std::int64_t sequence, std::int64_t num_tokens, void* stream = nullptr) {
    check(headrace_kv_cache_reserve(cache_.get(), sequence, num_tokens, stream));
  }
  /// Appends tokens whose keys and values are in the first reserved slots.
  void commit(std::int64_t sequence, std::span<const std::int32_t> tokens) {
    check(headrace_kv_cache_commit(cache_.get(), sequence, tokens.data(), tokens.size()));
  }
  /// Keeps the first `length` tokens and no reserved slots. Of codes: `length` is in the newest
  /// group of tokens, or whole groups.
  void truncate(std::int64_t sequence, std::int64_t length) {
    check(headrace_kv_cache_truncate(cache_.get(), sequence, length));
  }
  /// Copies the keys and values at `positions`, ascending and all reserved, to the first reserved
  /// slots, and gives up the other reserved slots.
  void move(std::int64_t sequence, std::span<const std::int64_t> positions,
            void* stream = nullptr) {
    check(
        headrace_kv_cache_move(cache_.get(), sequence, positions.data(), positions.size(), stream));
  }

  /// Copies a sequence to host pages and frees its pages. Throws Error(HEADRACE_OUT_OF_MEMORY) if
  /// host pages are missing.
  void swap_out(std::int64_t sequence, void* stream = nullptr) {
    check(headrace_kv_cache_swap_out(cache_.get(), sequence, stream));
  }
  /// Copies it back. Throws Error(HEADRACE_OUT_OF_MEMORY) if pages are missing.
  void swap_in(std::int64_t sequence, void* stream = nullptr) {
    check(headrace_kv_cache_swap_in(cache_.get(), sequence, stream));
  }

  /// Fills the arrays of a step.
  void fill_batch(const KvBatch& batch) const {
    const std::size_t n = batch.sequences.size();
    const auto max_pages = static_cast<std::size_t>(batch.max_pages);
    check_size(batch.num_tokens.size() == n,
               "num_tokens: must have one entry per sequence; resize it");
    check_size(batch.block_table.empty() || batch.block_table.size() == n * max_pages,
               "block_table: must have max_pages entries per sequence; resize it or pass none");
    check_size(batch.seqused_k.empty() || batch.seqused_k.size() == n,
               "seqused_k: must have one entry per sequence; resize it or pass none");
    const auto max_recent = static_cast<std::size_t>(batch.max_recent);
    check_size(batch.recent_table.empty() || batch.recent_table.size() == n * max_recent,
               "recent_table: must have max_recent entries per sequence; resize it or pass none");
    const std::size_t num_slots = std::max(batch.slot_mapping.size(), batch.recent_slots.size());
    check_size(batch.recent_slots.empty() || batch.slot_mapping.empty() ||
                   batch.recent_slots.size() == batch.slot_mapping.size(),
               "recent_slots: must have the size of slot_mapping; resize it or pass none");
    headrace_kv_batch c;
    check(headrace_kv_batch_init(&c));
    c.sequences = batch.sequences.data();
    c.num_tokens = batch.num_tokens.data();
    c.num_sequences = static_cast<std::int64_t>(n);
    c.max_pages = batch.max_pages;
    c.block_table = batch.block_table.empty() ? nullptr : batch.block_table.data();
    c.seqused_k = batch.seqused_k.empty() ? nullptr : batch.seqused_k.data();
    c.slot_mapping = batch.slot_mapping.empty() ? nullptr : batch.slot_mapping.data();
    c.num_slots = static_cast<std::int64_t>(num_slots);
    c.max_recent = batch.max_recent;
    c.recent_table = batch.recent_table.empty() ? nullptr : batch.recent_table.data();
    c.recent_slots = batch.recent_slots.empty() ? nullptr : batch.recent_slots.data();
    check(headrace_kv_cache_fill_batch(cache_.get(), &c));
  }

  /// State of a sequence.
  headrace_kv_sequence_info info(std::int64_t sequence) const {
    headrace_kv_sequence_info info{};
    info.struct_size = sizeof info;
    check(headrace_kv_cache_get_sequence_info(cache_.get(), sequence, &info));
    return info;
  }
  /// Statistics.
  headrace_kv_cache_stats stats() const {
    headrace_kv_cache_stats stats{};
    stats.struct_size = sizeof stats;
    check(headrace_kv_cache_get_stats(cache_.get(), &stats));
    return stats;
  }

  /// For functions of the C ABI.
  headrace_kv_cache* get() const { return cache_.get(); }

 private:
  static void check_size(bool is_right, const char* text) {
    if (!is_right) throw Error(HEADRACE_INVALID_ARGUMENT, text);
  }
  struct Destroy {
    void operator()(headrace_kv_cache* cache) const noexcept { headrace_kv_cache_destroy(cache); }
  };
  std::unique_ptr<headrace_kv_cache, Destroy> cache_;
};

/// Which elements of a head form a pair i that RoPE rotates.
enum class RopeLayout : std::int32_t {
  interleaved = HEADRACE_ROPE_INTERLEAVED,  ///< (2i, 2i + 1): GPT-J, GGUF files of llama
  halves = HEADRACE_ROPE_HALVES,            ///< (i, i + rot_dim / 2): GPT-NeoX, Hugging Face
};

/// How a model that was trained on few positions reaches more.
enum class RopeScaling : std::int32_t {
  none = HEADRACE_ROPE_SCALING_NONE,                ///< frequency(i) = base^(-2i / rot_dim)
  linear = HEADRACE_ROPE_SCALING_LINEAR,            ///< positions / factor
  ntk = HEADRACE_ROPE_SCALING_NTK,                  ///< a larger base
  dynamic_ntk = HEADRACE_ROPE_SCALING_DYNAMIC_NTK,  ///< a base for `seqlen` positions
  yarn = HEADRACE_ROPE_SCALING_YARN,                ///< by the turns of a pair; attention factor
  llama3 = HEADRACE_ROPE_SCALING_LLAMA3,            ///< by the wavelength of a pair
};

/// Angles of RoPE: pair i of a token turns by position * frequency(i).
struct RopeOptions {
  RopeLayout layout = RopeLayout::interleaved;  ///< pairs of elements
  RopeScaling scaling = RopeScaling::none;      ///< reads the fields that name it
  std::int64_t rot_dim = 0;                     ///< even; 0: the whole head
  double base = 10000;                          ///< "theta"
  double factor = 1;                            ///< of every scaling but none
  std::int64_t original_context_length = 0;     ///< dynamic_ntk, yarn, llama3
  std::int64_t seqlen = 0;                      ///< dynamic_ntk: positions in use
  double beta_fast = 32;                        ///< yarn
  double beta_slow = 1;                         ///< yarn
  double mscale = 0;                            ///< yarn; 0: none
  double mscale_all_dim = 0;                    ///< yarn; 0: none
  double low_freq_factor = 1;                   ///< llama3
  double high_freq_factor = 4;                  ///< llama3
  std::optional<double> attention_factor = {};  ///< of cosines and sines; unset: by the scaling
  std::span<const double> frequencies = {};     ///< the caller's own: [rot_dim / 2], or empty
  bool truncate = true;                         ///< yarn: the ramp begins at a whole pair

  /// Converts to the C struct, which refers to `frequencies`. Throws Error if their number is not
  /// rot_dim / 2; with rot_dim 0 it becomes that number of pairs.
  headrace_rope_options to_c() const {
    headrace_rope_options c;
    check(headrace_rope_options_init(&c));
    c.layout = static_cast<std::int32_t>(layout);
    c.scaling = static_cast<std::int32_t>(scaling);
    c.rot_dim = rot_dim;
    c.base = base;
    c.factor = factor;
    c.original_context_length = original_context_length;
    c.seqlen = seqlen;
    c.beta_fast = beta_fast;
    c.beta_slow = beta_slow;
    c.mscale = mscale;
    c.mscale_all_dim = mscale_all_dim;
    c.low_freq_factor = low_freq_factor;
    c.high_freq_factor = high_freq_factor;
    if (attention_factor) c.attention_factor = *attention_factor;
    c.truncate = truncate;
    if (frequencies.empty()) return c;
    const auto num_dims = static_cast<std::int64_t>(2 * frequencies.size());
    if (rot_dim != 0 && rot_dim != num_dims)
      throw Error(HEADRACE_INVALID_ARGUMENT,
                  "frequencies: must have rot_dim / 2 entries; resize them or set rot_dim to 0");
    c.rot_dim = num_dims;
    c.frequencies = frequencies.data();
    return c;
  }
};

/// Frequencies after all scaling, and the factor of cosines and sines.
struct RopeFrequencies {
  std::vector<double> frequencies;  ///< [rot_dim / 2], radians per position
  double attention_factor = 1;      ///< 1 but for YaRN
};

/// The frequencies of `options`, whose rot_dim must not be 0. Throws Error.
inline RopeFrequencies rope_frequencies(const RopeOptions& options) {
  const headrace_rope_options c = options.to_c();
  RopeFrequencies rope;
  if (c.rot_dim > 0) rope.frequencies.resize(static_cast<std::size_t>(c.rot_dim / 2));
  check(headrace_rope_frequencies(&c, rope.frequencies.data(), rope.frequencies.size(),
                                  &rope.attention_factor));
  return rope;
}

/// Options of an append.
struct KvAppendOptions {
  std::optional<RopeOptions> rope = {};  ///< unset: no rotation; with cos and sin: interleaved
  double norm_eps = 1e-6;                ///< of the norms of q and k
  bool hadamard = false;  ///< q and k times a Hadamard matrix: for quantised keys of 4 bits
};

/// The tensors of an append; unset ones are absent: q with q_out, or k and v with their pages and
/// slot_mapping, or both. Strides are free except the innermost, which is 1.
struct KvAppendTensors {
  TensorView k{};        ///< [num_tokens, num_kv_heads, head_dim]; f32, f16 or bf16
  TensorView v{};        ///< [num_tokens, num_kv_heads, head_dim_v], dtype of k
  TensorView k_pages{};  ///< written: [num_pages, page_size, num_kv_heads, head_dim]; any of these
                         ///< dtypes
  TensorView v_pages{};  ///< written: [num_pages, page_size, num_kv_heads, head_dim_v]
  TensorView slot_mapping{};   ///< i64 [num_tokens], page * page_size + slot; negative: not stored
  TensorView q{};              ///< [num_tokens, num_heads, head_dim], dtype of k
  TensorView q_out{};          ///< written: shape of q, any of these dtypes; may be the view q
  TensorView positions{};      ///< i32 [num_tokens]; with rotations
  TensorView cos{};            ///< [max_positions, rot_dim / 2]: replace the angles of the options
  TensorView sin{};            ///< shape of cos
  TensorView q_norm_weight{};  ///< [head_dim]: RMS norm of each head of q
  TensorView k_norm_weight{};  ///< the same of k
  /// With pages of codes, borrowed: k_scale and v_scale are written, and k_recent and v_recent.
  const headrace_quantised_kv* quantised = nullptr;
  TensorView recent_slots{};  ///< i64 [num_tokens], with k_recent; negative: not stored
  /// f32 [num_kv_heads, head_dim], powers of two: q times, k over them, for int8 or int4 keys.
  TensorView channel_factors{};

  /// Converts to the C struct.
  headrace_kv_append_tensors to_c() const {
    headrace_kv_append_tensors c;
    check(headrace_kv_append_tensors_init(&c));
    c.k = k;
    c.v = v;
    c.k_pages = k_pages;
    c.v_pages = v_pages;
    c.slot_mapping = slot_mapping;
    c.q = q;
    c.q_out = q_out;
    c.positions = positions;
    c.cos = cos;
    c.sin = sin;
    c.q_norm_weight = q_norm_weight;
    c.k_norm_weight = k_norm_weight;
    c.quantised = quantised;
    c.recent_slots = recent_slots;
    c.channel_factors = channel_factors;
    return c;
  }
};

/// Writes new keys and values to their slots, and q to q_out, in one pass: RMS norm of each head of
/// q and k (with a weight), rotation of its first rot_dim elements, one rounding. On CUDA enqueued
/// on `stream`. Sources: Su et al., "RoFormer", 2021; Kwon et al., "PagedAttention", 2023.
/// Throws Error(HEADRACE_INVALID_ARGUMENT or HEADRACE_UNSUPPORTED); then nothing was written.
inline void kv_append(const KvAppendTensors& tensors, const KvAppendOptions& options = {},
                      void* stream = nullptr) {
  const headrace_kv_append_tensors c_tensors = tensors.to_c();
  headrace_kv_append_options c_options;
  check(headrace_kv_append_options_init(&c_options));
  headrace_rope_options rope;
  if (options.rope) {
    rope = options.rope->to_c();
    c_options.rope = &rope;
  }
  c_options.norm_eps = options.norm_eps;
  c_options.hadamard = options.hadamard;
  check(headrace_kv_append(&c_tensors, &c_options, stream));
}

}  // namespace v0
}  // namespace headrace
