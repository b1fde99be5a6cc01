// The paged KV cache.
#include <memory>

#include "backends/cuda/backend.h"
#include "capi/capi_common.h"
#include "capi/session_common.h"
#include "core/device.h"
#include "headrace/kv_cache.h"
#include "kv_cache/kv_cache.h"

struct headrace_kv_cache {
  std::unique_ptr<headrace::Device> device;
  headrace::KvCache cache;
};

namespace headrace::capi {
namespace {

headrace_kv_cache_options default_kv_cache_options() {
  headrace_kv_cache_options options{};
  options.page_size = KvCacheOptions{}.page_size;
  options.dtype = HEADRACE_F16;
  options.k_dtype = options.v_dtype = -1;
  return options;
}

Result<KvCacheOptions> kv_cache_options(const headrace_kv_cache_options& c) {
  if (c.dtype < HEADRACE_F32 || c.dtype > HEADRACE_BOOL)
    return invalid_argument("dtype={}: must be HEADRACE_F16, HEADRACE_BF16 or HEADRACE_F32",
                            c.dtype);
  if (c.layout != HEADRACE_KV_NHD && c.layout != HEADRACE_KV_HND)
    return invalid_argument("layout={}: must be 0 (nhd) or 1 (hnd); pass a headrace_kv_layout",
                            c.layout);
  const DType dtype = static_cast<DType>(c.dtype);
  Result<std::optional<DType>> k_dtype = stored_dtype_of("k_dtype", c.k_dtype, "dtype");
  if (!k_dtype.ok()) return std::move(k_dtype.failure());
  Result<std::optional<DType>> v_dtype = stored_dtype_of("v_dtype", c.v_dtype, "dtype");
  if (!v_dtype.ok()) return std::move(v_dtype.failure());
  KvCacheOptions options;
  options.shape = {.num_layers = c.num_layers,
                   .num_kv_heads = c.num_kv_heads,
                   .head_dim = c.head_dim,
                   .head_dim_v = c.head_dim_v == 0 ? c.head_dim : c.head_dim_v,
                   .dtype = dtype,
                   .k_dtype = k_dtype.value().value_or(dtype),
                   .v_dtype = v_dtype.value().value_or(dtype)};
  options.layout = c.layout == HEADRACE_KV_NHD ? KvLayout::nhd : KvLayout::hnd;
  options.page_size = c.page_size;
  options.num_pages = c.num_pages;
  options.num_host_pages = c.num_host_pages;
  options.num_recent_pages = c.num_recent_pages;
  return options;
}

Result<std::unique_ptr<Device>> device_of(const headrace_kv_cache_options& c) {
  if (c.device_type == HEADRACE_CUDA) return cuda::make_device(c.device_id);
  if (c.device_type != HEADRACE_CPU)
    return invalid_argument(
        "device_type={}: must be 0 (cpu) or 1 (cuda); pass a headrace_device_type", c.device_type);
  if (c.device_id != 0)
    return invalid_argument("device_id={}: must be 0 on the CPU; pass 0", c.device_id);
  Result<DeviceInfo> info = cpu_info();
  if (!info.ok()) return std::move(info.failure());
  return make_host_device(info.value());
}

Result<headrace_kv_cache*> create(const headrace_kv_cache_options* theirs) {
  headrace_kv_cache_options c = default_kv_cache_options();
  // The oldest accepted struct ends before the codes.
  if (auto bad = copy_versioned("options", theirs, offsetof(headrace_kv_cache_options, k_dtype), &c,
                                sizeof c))
    return std::move(*bad);
  Result<KvCacheOptions> options = kv_cache_options(c);
  if (!options.ok()) return std::move(options.failure());
  Result<std::unique_ptr<Device>> device = device_of(c);
  if (!device.ok()) return std::move(device.failure());
  Result<KvCache> cache = KvCache::make(*device.value(), options.value());
  if (!cache.ok()) return std::move(cache.failure());
  return new headrace_kv_cache{std::move(device.value()), std::move(cache.value())};
}

Failure null_cache() { return null_argument("cache", "create one first"); }

// Runs call(KvCache&), which returns a Status.
template <class Cache, class Call>
headrace_status with_cache(Cache* cache, Call call) {
  return guarded([&] {
    if (cache == nullptr) return fail(null_cache());
    return status_of(call(cache->cache));
  });
}

Status check_layer(const KvCache& kv, int64_t layer) {
  if (layer >= 0 && layer < kv.num_layers()) return std::nullopt;
  return invalid_argument("layer={}: must be 0 to {}; pass the index of a layer of the cache",
                          layer, kv.num_layers() - 1);
}

enum class KeysOrValues { keys, values };

headrace_status give_pages(const headrace_kv_cache* cache, int64_t layer, KeysOrValues which,
                           headrace_tensor* pages) {
  return with_cache(cache, [&](const KvCache& kv) -> Status {
    if (pages == nullptr) return null_argument("pages", "pass a tensor to fill");
    HEADRACE_TRY(check_layer(kv, layer));
    *pages = which == KeysOrValues::keys ? kv.k_pages(layer) : kv.v_pages(layer);
    return std::nullopt;
  });
}

// An optional array of a batch.
template <class T>
std::span<T> array_of(T* data, std::int64_t size) {
  return {data, data == nullptr ? 0 : static_cast<std::size_t>(size)};
}

Result<KvBatch> kv_batch(const headrace_kv_batch* theirs) {
  headrace_kv_batch c{};
  // The oldest accepted struct ends before the recent pages.
  if (auto bad =
          copy_versioned("batch", theirs, offsetof(headrace_kv_batch, max_recent), &c, sizeof c))
    return std::move(*bad);
  const struct {
    const char* name;
    std::int64_t size;
  } sizes[] = {{"num_sequences", c.num_sequences},
               {"max_pages", c.max_pages},
               {"num_slots", c.num_slots},
               {"max_recent", c.max_recent}};
  for (const auto& [name, size] : sizes)
    if (size < 0 || size > INT32_MAX)
      return invalid_argument("{}={}: must be 0 to {}; pass the size of the array", name, size,
                              INT32_MAX);
  if (c.num_sequences > 0 && c.sequences == nullptr)
    return null_argument("sequences", "pass num_sequences ids");
  if (c.num_sequences > 0 && c.num_tokens == nullptr)
    return null_argument("num_tokens", "pass num_sequences numbers");
  const auto num_sequences = static_cast<std::size_t>(c.num_sequences);
  return KvBatch{.sequences = {c.sequences, num_sequences},
                 .num_tokens = {c.num_tokens, num_sequences},
                 .max_pages = c.max_pages,
                 .block_table = array_of(c.block_table, c.num_sequences * c.max_pages),
                 .seqused_k = array_of(c.seqused_k, c.num_sequences),
                 .slot_mapping = array_of(c.slot_mapping, c.num_slots),
                 .max_recent = c.max_recent,
                 .recent_table = array_of(c.recent_table, c.num_sequences * c.max_recent),
                 .recent_slots = array_of(c.recent_slots, c.num_slots)};
}

}  // namespace
}  // namespace headrace::capi

using namespace headrace::capi;  // the functions below are the C face of this namespace

extern "C" {

headrace_status headrace_kv_cache_options_init_sized(headrace_kv_cache_options* options,
                                                     size_t struct_size) {
  return init("options", default_kv_cache_options(), options, struct_size);
}

headrace_status headrace_kv_batch_init_sized(headrace_kv_batch* batch, size_t struct_size) {
  return init("batch", {}, batch, struct_size);
}

headrace_status headrace_kv_cache_create(const headrace_kv_cache_options* options,
                                         headrace_kv_cache** cache) {
  return guarded([&] {
    if (cache == nullptr)
      return fail(null_argument("cache", "pass the address of a cache pointer"));
    *cache = nullptr;
    auto created = create(options);
    if (!created.ok()) return fail(std::move(created.failure()));
    *cache = created.value();
    return HEADRACE_OK;
  });
}

void headrace_kv_cache_destroy(headrace_kv_cache* cache) { delete cache; }

headrace_status headrace_kv_cache_k_pages(const headrace_kv_cache* cache, int64_t layer,
                                          headrace_tensor* pages) {
  return give_pages(cache, layer, KeysOrValues::keys, pages);
}

headrace_status headrace_kv_cache_v_pages(const headrace_kv_cache* cache, int64_t layer,
                                          headrace_tensor* pages) {
  return give_pages(cache, layer, KeysOrValues::values, pages);
}

headrace_status headrace_kv_cache_quantised(const headrace_kv_cache* cache, int64_t layer,
                                            headrace_quantised_kv* quantised) {
  headrace_quantised_kv ours{};
  const headrace_status status =
      with_cache(cache, [&](const headrace::KvCache& kv) -> headrace::Status {
        HEADRACE_TRY(check_layer(kv, layer));
        if (!kv.has_codes())
          return headrace::invalid_argument(
              "cache: has no codes, so no scales; create it with k_dtype or v_dtype");
        ours.k_scale = kv.pages().k_scale(layer);
        ours.v_scale = kv.pages().v_scale(layer);
        ours.k_recent = kv.recent_pages().k(layer);
        ours.v_recent = kv.recent_pages().v(layer);
        return std::nullopt;
      });
  return status != HEADRACE_OK ? status : give("quantised", ours, quantised);
}

headrace_status headrace_kv_cache_add(headrace_kv_cache* cache, const int32_t* tokens,
                                      size_t num_tokens, uint64_t salt, int64_t* sequence,
                                      int64_t* num_cached) {
  return with_cache(cache, [&](headrace::KvCache& kv) -> headrace::Status {
    if (tokens == nullptr && num_tokens > 0)
      return null_argument("tokens", "pass an array of num_tokens ids");
    if (sequence == nullptr) return null_argument("sequence", "pass the address of an id");
    auto added = kv.add({tokens, num_tokens}, salt);
    if (!added.ok()) return std::move(added.failure());
    *sequence = added.value().sequence;
    if (num_cached != nullptr) *num_cached = added.value().num_cached;
    return std::nullopt;
  });
}

headrace_status headrace_kv_cache_fork(headrace_kv_cache* cache, int64_t sequence, int64_t* fork) {
  return with_cache(cache, [&](headrace::KvCache& kv) -> headrace::Status {
    if (fork == nullptr) return null_argument("fork", "pass the address of an id");
    auto id = kv.fork(sequence);
    if (!id.ok()) return std::move(id.failure());
    *fork = id.value();
    return std::nullopt;
  });
}

headrace_status headrace_kv_cache_free(headrace_kv_cache* cache, int64_t sequence) {
  return with_cache(cache, [&](headrace::KvCache& kv) { return kv.free(sequence); });
}

headrace_status headrace_kv_cache_reserve(headrace_kv_cache* cache, int64_t sequence,
                                          int64_t num_tokens, void* stream) {
  return with_cache(
      cache, [&](headrace::KvCache& kv) { return kv.reserve(sequence, num_tokens, stream); });
}

headrace_status headrace_kv_cache_commit(headrace_kv_cache* cache, int64_t sequence,
                                         const int32_t* tokens, size_t num_tokens) {
  return with_cache(cache, [&](headrace::KvCache& kv) -> headrace::Status {
    if (tokens == nullptr && num_tokens > 0)
      return null_argument("tokens", "pass an array of num_tokens ids");
    return kv.commit(sequence, {tokens, num_tokens});
  });
}

headrace_status headrace_kv_cache_truncate(headrace_kv_cache* cache, int64_t sequence,
                                           int64_t length) {
  return with_cache(cache, [&](headrace::KvCache& kv) { return kv.truncate(sequence, length); });
}

headrace_status headrace_kv_cache_move(headrace_kv_cache* cache, int64_t sequence,
                                       const int64_t* positions, size_t num_positions,
                                       void* stream) {
  return with_cache(cache, [&](headrace::KvCache& kv) -> headrace::Status {
    if (positions == nullptr && num_positions > 0)
      return null_argument("positions", "pass an array of num_positions positions");
    return kv.move(sequence, {positions, num_positions}, stream);
  });
}

headrace_status headrace_kv_cache_swap_out(headrace_kv_cache* cache, int64_t sequence,
                                           void* stream) {
  return with_cache(cache, [&](headrace::KvCache& kv) { return kv.swap_out(sequence, stream); });
}

headrace_status headrace_kv_cache_swap_in(headrace_kv_cache* cache, int64_t sequence,
                                          void* stream) {
  return with_cache(cache, [&](headrace::KvCache& kv) { return kv.swap_in(sequence, stream); });
}

headrace_status headrace_kv_cache_get_sequence_info(const headrace_kv_cache* cache,
                                                    int64_t sequence,
                                                    headrace_kv_sequence_info* info) {
  return guarded([&] {
    if (cache == nullptr) return fail(null_cache());
    auto found = cache->cache.info(sequence);
    if (!found.ok()) return fail(std::move(found.failure()));
    const headrace::KvSequenceInfo& i = found.value();
    const headrace_kv_sequence_info ours = {.struct_size = sizeof ours,
                                            .length = i.length,
                                            .num_reserved = i.num_reserved,
                                            .num_pages = i.num_pages,
                                            .is_swapped = i.is_swapped,
                                            .reserved = 0};
    return give("info", ours, info);
  });
}

headrace_status headrace_kv_cache_fill_batch(const headrace_kv_cache* cache,
                                             const headrace_kv_batch* batch) {
  return with_cache(cache, [&](const headrace::KvCache& kv) -> headrace::Status {
    auto ours = kv_batch(batch);
    if (!ours.ok()) return std::move(ours.failure());
    return kv.fill_batch(ours.value());
  });
}

headrace_status headrace_kv_cache_get_stats(const headrace_kv_cache* cache,
                                            headrace_kv_cache_stats* stats) {
  return guarded([&] {
    if (cache == nullptr) return fail(null_cache());
    const headrace::KvCacheStats s = cache->cache.stats();
    const headrace_kv_cache_stats ours = {.struct_size = sizeof ours,
                                          .num_pages = s.num_pages,
                                          .num_free_pages = s.num_free_pages,
                                          .num_used_pages = s.num_used_pages,
                                          .num_cached_pages = s.num_cached_pages,
                                          .num_shared_pages = s.num_shared_pages,
                                          .num_host_pages = s.num_host_pages,
                                          .num_free_host_pages = s.num_free_host_pages,
                                          .num_sequences = s.num_sequences,
                                          .num_swapped_sequences = s.num_swapped_sequences,
                                          .num_tokens = s.num_tokens,
                                          .num_unused_slots = s.num_unused_slots,
                                          .num_queried_tokens = s.num_queried_tokens,
                                          .num_hit_tokens = s.num_hit_tokens,
                                          .num_evictions = s.num_evictions,
                                          .num_page_copies = s.num_page_copies,
                                          .num_moved_tokens = s.num_moved_tokens,
                                          .num_pages_swapped_out = s.num_pages_swapped_out,
                                          .num_pages_swapped_in = s.num_pages_swapped_in};
    return give("stats", ours, stats);
  });
}

}  // extern "C"
