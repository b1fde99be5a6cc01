// Checks the options of a cache and allocates its memory.
#include <algorithm>

#include "attention/tensor_checks.h"
#include "attention/validate.h"
#include "kv_cache/kv_cache.h"

namespace headrace {
namespace {

Status check_range(const char* name, std::int64_t value, std::int64_t low, std::int64_t high,
                   const char* remedy) {
  if (value >= low && value <= high) return std::nullopt;
  return invalid_argument("{}={}: must be {} to {}; {}", name, value, low, high, remedy);
}

// The stored form of keys and values, and the pages of the recent ones.
Status check_codes(const KvCacheOptions& o) {
  const KvShape& shape = o.shape;
  const struct {
    const char* name;
    DType dtype;
    std::int64_t dim;
  } sides[] = {{"k_dtype", shape.k_dtype, shape.head_dim},
               {"v_dtype", shape.v_dtype, shape.head_dim_v}};
  for (const auto& [name, dtype, dim] : sides) {
    if (dtype != shape.dtype && !is_code(dtype))
      return invalid_argument("{}={}: must be {} (dtype), {}; pass one of them", name,
                              dtype_name(dtype), dtype_name(shape.dtype), kCodeNames);
    HEADRACE_TRY(check_whole_bytes(name, dtype, dim));
  }
  if (!shape.has_codes()) {
    if (o.num_recent_pages == 0) return std::nullopt;
    return invalid_argument("num_recent_pages={}: must be 0 for a cache without codes; pass 0",
                            o.num_recent_pages);
  }
  if (o.page_size % shape.recent_group() != 0)
    return invalid_argument(
        "page_size={}: must be a multiple of {} with k_dtype={} and v_dtype={}, as tokens count in "
        "groups; pass 32 or 64",
        o.page_size, shape.recent_group(), dtype_name(shape.k_dtype), dtype_name(shape.v_dtype));
  return check_range("num_recent_pages", o.num_recent_pages, 1, INT32_MAX,
                     "pass two for each sequence and one for each group of tokens of a step");
}

Status check_options(const KvCacheOptions& o) {
  const KvShape& shape = o.shape;
  const char* const of_model = "pass that of the model";
  const char* const of_block_table = "page numbers are int32; use larger pages";
  HEADRACE_TRY(check_range("num_layers", shape.num_layers, 1, INT32_MAX, of_model));
  HEADRACE_TRY(check_range("num_kv_heads", shape.num_kv_heads, 1, INT32_MAX, of_model));
  HEADRACE_TRY(check_range("head_dim", shape.head_dim, 1, kMaxHeadDim, of_model));
  HEADRACE_TRY(check_range("head_dim_v", shape.head_dim_v, 1, kMaxHeadDim, of_model));
  HEADRACE_TRY(check_range("page_size", o.page_size, 1, INT32_MAX, "16 suits most models"));
  HEADRACE_TRY(check_range("num_pages", o.num_pages, 1, INT32_MAX, of_block_table));
  HEADRACE_TRY(check_range("num_host_pages", o.num_host_pages, 0, INT32_MAX, of_block_table));
  if (shape.dtype != DType::f32 && shape.dtype != DType::f16 && shape.dtype != DType::bf16)
    return invalid_argument("dtype={}: must be f32, f16 or bf16; pass the one that attention reads",
                            dtype_name(shape.dtype));
  return check_codes(o);
}

KvPageShape page_shape(const KvCacheOptions& o, std::int64_t num_pages) {
  return {o.shape, o.layout, o.page_size, num_pages};
}

// Pages of one group, of which every element has the dtype of queries.
KvPageShape recent_shape(const KvCacheOptions& o, std::int64_t num_pages) {
  KvShape kv = o.shape;
  kv.k_dtype = kv.v_dtype = kv.dtype;
  kv.has_components = kv.has_value_sums = false;
  return {kv, o.layout, o.shape.recent_group(), num_pages};
}

enum class Place { device, host };

// out_of_memory. `name`: the option that the number of pages is.
Result<KvPages> allocate(Device& device, const KvPageShape& shape, Place place, const char* name) {
  const std::int64_t bytes = KvPages::num_bytes(shape);
  Buffer memory;
  const auto size = static_cast<std::size_t>(bytes);
  if (bytes > 0)
    memory = place == Place::device ? device.allocate(size) : device.allocate_host(size);
  if (bytes > 0 && memory.data() == nullptr)
    return Failure{ErrorCode::out_of_memory,
                   format_text("{}={}: no memory for {} bytes of keys and values; pass fewer pages "
                               "or a smaller dtype",
                               name, shape.num_pages, bytes)};
  return KvPages(shape, device.info(), std::move(memory));
}

}  // namespace

std::int64_t KvCache::recent_bytes(const KvCacheOptions& options) {
  return KvPages::num_bytes(recent_shape(options, options.num_recent_pages));
}

Result<KvCache> KvCache::make(Device& device, const KvCacheOptions& options) {
  if (Status bad = check_options(options)) return std::move(*bad);
  const KvCacheOptions& o = options;
  // A swapped sequence has at most one recent page.
  const std::int64_t num_host_recent = o.shape.has_codes() ? o.num_host_pages : 0;
  Result<KvPages> pages = allocate(device, page_shape(o, o.num_pages), Place::device, "num_pages");
  if (!pages.ok()) return std::move(pages.failure());
  Result<KvPages> host =
      allocate(device, page_shape(o, o.num_host_pages), Place::host, "num_host_pages");
  if (!host.ok()) return std::move(host.failure());
  Result<KvPages> recent =
      allocate(device, recent_shape(o, o.num_recent_pages), Place::device, "num_recent_pages");
  if (!recent.ok()) return std::move(recent.failure());
  Result<KvPages> host_recent =
      allocate(device, recent_shape(o, num_host_recent), Place::host, "num_host_pages");
  if (!host_recent.ok()) return std::move(host_recent.failure());
  return KvCache(device, options,
                 {.pages = std::move(pages.value()),
                  .host = std::move(host.value()),
                  .recent = std::move(recent.value()),
                  .host_recent = std::move(host_recent.value())});
}

KvCache::KvCache(Device& device, const KvCacheOptions& options, Memory memory)
    : device_(&device),
      options_(options),
      pages_(std::move(memory.pages)),
      host_pages_(std::move(memory.host)),
      recent_(std::move(memory.recent)),
      host_recent_(std::move(memory.host_recent)),
      allocator_(static_cast<std::int32_t>(options.num_pages)),
      host_allocator_(static_cast<std::int32_t>(options.num_host_pages)),
      recent_allocator_(static_cast<std::int32_t>(options.num_recent_pages)),
      host_recent_allocator_(
          static_cast<std::int32_t>(options.shape.has_codes() ? options.num_host_pages : 0)),
      prefix_cache_(allocator_.num_pages(), options.page_size, options.hash_mask) {}

}  // namespace headrace
