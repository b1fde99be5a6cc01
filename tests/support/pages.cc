#include "support/pages.h"

#include <algorithm>
#include <cstring>

#include "base/math.h"
#include "core/dtype.h"
#include "support/case.h"
#include "support/page_tables.h"

namespace headrace::testing {
namespace {

constexpr std::int64_t kSpareColumns = 2;  // of block_table, never read

struct Table : PageRows {
  std::int64_t num_pages = 0;
};

// No length exceeds `longest`.
Table shuffled_table(const std::vector<std::int32_t>& lengths, std::int64_t longest,
                     std::int64_t page_size, Random& random) {
  Table table;
  table.columns = longest == 0 ? 0 : ceil_div(longest, page_size) + kSpareColumns;
  for (const std::int64_t keys : lengths) table.num_pages += ceil_div(keys, page_size);
  table.num_pages += 2;  // of no sequence
  std::vector<std::int32_t> order(static_cast<std::size_t>(table.num_pages));
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int32_t>(i);
  for (std::size_t i = order.size(); i > 1; --i)
    std::swap(order[i - 1],
              order[static_cast<std::size_t>(random.between(0, static_cast<std::int64_t>(i) - 1))]);
  for (const std::int64_t keys : lengths) {
    for (std::int64_t j = 0; j < table.columns; ++j) {
      const bool is_used = j < ceil_div(keys, page_size);
      table.pages.push_back(is_used ? order.back() : kNoPage);
      if (is_used) order.pop_back();
    }
  }
  return table;
}

headrace_tensor add(PagedCall& call, std::int32_t dtype, std::initializer_list<std::int64_t> shape,
                    Guard guard) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  const std::size_t bytes =
      static_cast<std::size_t>(count) * dtype_bytes(static_cast<DType>(dtype));
  GuardedBuffer memory(bytes, guard, kNanByte);
  const TensorView view(memory.data(), static_cast<DType>(dtype), shape);
  call.memory.push_back(std::move(memory));
  return view;
}

headrace_tensor add_list(PagedCall& call, const std::vector<std::int32_t>& list,
                         std::initializer_list<std::int64_t> shape, Guard guard) {
  const headrace_tensor view = add(call, static_cast<std::int32_t>(DType::i32), shape, guard);
  if (!list.empty()) std::memcpy(view.data, list.data(), list.size() * sizeof list[0]);
  return view;
}

// The elements of key `key` of a sequence; ragged rows count from `first_row`.
char* row_of(const headrace_tensor& x, std::int64_t batch_idx, std::int64_t first_row,
             std::int64_t key, std::int64_t head) {
  const std::int64_t offset =
      x.rank == 4 ? batch_idx * x.strides[0] + key * x.strides[1] + head * x.strides[2]
                  : (first_row + key) * x.strides[0] + head * x.strides[1];
  return static_cast<char*>(x.data) +
         offset * static_cast<std::int64_t>(dtype_bytes(static_cast<DType>(x.dtype)));
}

headrace_tensor pages_of(PagedCall& call, const headrace_tensor& x, const Table& table,
                         const std::vector<std::int32_t>& lengths,
                         const std::vector<std::int64_t>& first_rows, PageLayout layout,
                         Guard guard) {
  const std::int64_t heads = x.shape[x.rank - 2], dim = x.shape[x.rank - 1];
  const std::int64_t size = layout.page_size;
  headrace_tensor pages = layout.is_head_major
                              ? add(call, x.dtype, {table.num_pages, heads, size, dim}, guard)
                              : add(call, x.dtype, {table.num_pages, size, heads, dim}, guard);
  if (layout.is_head_major) {
    std::swap(pages.shape[1], pages.shape[2]);
    std::swap(pages.strides[1], pages.strides[2]);
  }
  const std::size_t bytes =
      static_cast<std::size_t>(dim) * dtype_bytes(static_cast<DType>(x.dtype));
  for (std::size_t b = 0; b < lengths.size(); ++b) {
    const std::int32_t* row = table.pages.data() + static_cast<std::int64_t>(b) * table.columns;
    for (std::int64_t key = 0; key < lengths[b]; ++key)
      for (std::int64_t head = 0; head < heads; ++head)
        std::memcpy(row_of(pages, row[key / size], 0, key % size, head),
                    row_of(x, static_cast<std::int64_t>(b), first_rows[b], key, head), bytes);
  }
  return pages;
}

}  // namespace

PageLayout random_page_layout(Random& random) {
  constexpr std::int64_t kSizes[] = {1, 2, 3, 4, 8, 16, 32, 64, 100, 128, 256, 1000};
  return {random.pick(kSizes), random.chance(50), random.chance(30)};
}

PagedCall in_pages(const headrace_attention_tensors& tensors,
                   const headrace_attention_options& options,
                   const std::vector<std::int32_t>& lengths, PageLayout layout, Guard guard,
                   Random& random) {
  PagedCall call{tensors, options, {}};
  const auto batch = static_cast<std::int64_t>(lengths.size());
  std::vector<std::int64_t> first_rows(lengths.size(), 0);
  if (tensors.cu_seqlens_k.rank != 0) {
    const auto* sums = static_cast<const std::int32_t*>(tensors.cu_seqlens_k.data);
    first_rows.assign(sums, sums + batch);
  } else {
    call.options.max_seqlen_k = tensors.k.shape[1];
  }
  const Table table = shuffled_table(lengths, call.options.max_seqlen_k, layout.page_size, random);
  call.tensors.k = pages_of(call, tensors.k, table, lengths, first_rows, layout, guard);
  call.tensors.v = pages_of(call, tensors.v, table, lengths, first_rows, layout, guard);
  call.tensors.cu_seqlens_k = headrace_tensor{};
  if (layout.has_indptr) {
    const PageList x = page_list_of(table, lengths, layout.page_size);
    const auto num_entries = static_cast<std::int64_t>(x.pages.size());
    call.tensors.block_table = add_list(call, x.pages, {num_entries}, guard);
    call.tensors.page_indptr = add_list(call, x.offsets, {batch + 1}, guard);
  } else {
    call.tensors.block_table = add_list(call, table.pages, {batch, table.columns}, guard);
  }
  call.tensors.seqused_k = add_list(call, lengths, {batch}, guard);
  for (GuardedBuffer& memory : call.memory) memory.make_read_only();
  return call;
}

void Case::store_keys(KeyStorage storage) {
  if (storage == KeyStorage::whole) return;
  Random random(case_id(name_.values, name_.seed) ^ 0xA9u);
  const Shape& s = shape_;
  std::vector<std::int32_t> lengths = s.lengths_k;
  if (!s.is_ragged)
    lengths.assign(static_cast<std::size_t>(s.batch), static_cast<std::int32_t>(s.seqlen_k));
  for (std::size_t b = 0; b < lengths.size() && storage != KeyStorage::pages; ++b) {
    // A tree mask needs a key for each query.
    const std::int64_t queries = s.is_ragged ? s.lengths_q[b] : s.seqlen_q;
    const std::int64_t least = name_.values[Axis::tree_mask] != 0 ? queries : 0;
    if (random.chance(70))
      lengths[b] = static_cast<std::int32_t>(random.between(least, lengths[b]));
  }
  if (storage == KeyStorage::used) {
    use_fewer_keys(lengths);
    return;
  }
  PagedCall call =
      in_pages(tensors_, options_, lengths, random_page_layout(random), guard_, random);
  tensors_ = call.tensors;
  options_ = call.options;
  for (GuardedBuffer& memory : call.memory) inputs_.push_back(std::move(memory));
}

void Case::use_fewer_keys(const std::vector<std::int32_t>& lengths) {
  unlock_inputs();
  tensors_.seqused_k = add_contiguous(DType::i32, {static_cast<std::int64_t>(lengths.size())});
  std::memcpy(tensors_.seqused_k.data, lengths.data(), lengths.size() * 4);
  // Entries of an expanded batch share their keys.
  const bool is_shared = !shape_.is_ragged && tensors_.k.strides[0] == 0;
  std::int64_t first_row = 0;
  for (std::size_t b = 0; b < lengths.size() && !is_shared; ++b) {
    const std::int64_t all = shape_.is_ragged ? shape_.lengths_k[b] : shape_.seqlen_k;
    for (const headrace_tensor& x : {tensors_.k, tensors_.v}) {
      const std::size_t bytes =
          static_cast<std::size_t>(x.shape[x.rank - 1]) * dtype_bytes(static_cast<DType>(x.dtype));
      for (std::int64_t key = lengths[b]; key < all; ++key)
        for (std::int64_t head = 0; head < x.shape[x.rank - 2]; ++head)
          std::memset(row_of(x, static_cast<std::int64_t>(b), first_row, key, head), kNanByte,
                      bytes);
    }
    first_row += all;
  }
  lock_inputs();
}

}  // namespace headrace::testing
