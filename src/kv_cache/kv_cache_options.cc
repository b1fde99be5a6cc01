// Checks the options of a cache and allocates its memory.
#include <algorithm>

#include "attention/validate.h"
#include "kv_cache/kv_cache.h"

namespace headrace {
namespace {

Status check_range(const char* name, std::int64_t value, std::int64_t low, std::int64_t high,
                   const char* remedy) {
  if (value >= low && value <= high) return std::nullopt;
  return invalid_argument("{}={}: must be {} to {}; {}", name, value, low, high, remedy);
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
  return std::nullopt;
}

KvPageShape page_shape(const KvCacheOptions& o, std::int64_t num_pages) {
  return {o.shape, o.layout, o.page_size, num_pages};
}

Failure no_memory(const char* name, std::int64_t num_pages, std::int64_t bytes) {
  return {ErrorCode::out_of_memory,
          format_text("{}={}: no memory for {} bytes of keys and values; pass fewer pages or a "
                      "16-bit dtype",
                      name, num_pages, bytes)};
}

}  // namespace

Result<KvCache> KvCache::make(Device& device, const KvCacheOptions& options) {
  if (Status bad = check_options(options)) return std::move(*bad);
  const KvPageShape shape = page_shape(options, options.num_pages);
  const std::int64_t bytes = KvPages::num_bytes(shape);
  Buffer memory = device.allocate(static_cast<std::size_t>(bytes));
  if (memory.data() == nullptr) return no_memory("num_pages", options.num_pages, bytes);

  const KvPageShape host_shape = page_shape(options, options.num_host_pages);
  const std::int64_t host_bytes = KvPages::num_bytes(host_shape);
  Buffer host_memory;
  if (host_bytes > 0) host_memory = device.allocate_host(static_cast<std::size_t>(host_bytes));
  if (host_bytes > 0 && host_memory.data() == nullptr)
    return no_memory("num_host_pages", options.num_host_pages, host_bytes);
  return KvCache(device, options, KvPages(shape, device.info(), std::move(memory)),
                 KvPages(host_shape, device.info(), std::move(host_memory)));
}

KvCache::KvCache(Device& device, const KvCacheOptions& options, KvPages pages, KvPages host_pages)
    : device_(&device),
      options_(options),
      pages_(std::move(pages)),
      host_pages_(std::move(host_pages)),
      allocator_(static_cast<std::int32_t>(options.num_pages)),
      host_allocator_(static_cast<std::int32_t>(options.num_host_pages)),
      prefix_cache_(allocator_.num_pages(), options.page_size, options.hash_mask) {}

}  // namespace headrace
