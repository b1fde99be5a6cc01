#include "executor/cpu_sparq.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "backends/cpu/sparq/sparq.h"
#include "base/math.h"
#include "executor/common.h"

namespace headrace {
namespace {

// A page has one sum of each KV head, which follow each other.
std::int64_t sum_width(const KvView& kv) { return kv.shape.num_kv_heads * kv.shape.head_dim_v; }

float* sum_before(const KvView& kv, std::int64_t layer, std::int64_t page) {
  auto* first = static_cast<std::byte*>(kv.value_sums.data) + layer * kv.layer_bytes;
  return reinterpret_cast<float*>(first) + page * kv.value_sums.stride_batch;
}

KeyComponents components_of(const KvView& kv, std::int64_t layer) {
  KeyComponents components = kv.components;
  components.data = static_cast<std::byte*>(kv.components.data) + layer * kv.layer_bytes;
  return components;
}

// Keys of codes come from the recent pages, which have all of the step; values are those of the
// codes, also of earlier steps.
SparqAppendArgs append_args(const KvView& kv, std::int64_t layer) {
  SparqAppendArgs args;
  args.num_kv_heads = kv.shape.num_kv_heads;
  args.head_dim = kv.shape.head_dim;
  args.head_dim_v = kv.shape.head_dim_v;
  args.page_size = kv.page_size;
  args.num_pages = kv.num_pages;
  args.dtype = kv.shape.dtype;
  const bool has_codes = kv.shape.has_codes();
  args.k =
      has_codes ? layer_of(kv.recent.k, kv.recent.layer_bytes, layer) : layer_of(kv, kv.k, layer);
  args.k_page_size = has_codes ? kv.recent.page_size : kv.page_size;
  args.k_num_pages = has_codes ? kv.recent.num_pages : kv.num_pages;
  args.v = layer_of(kv, kv.v, layer);
  args.v_dtype = kv.shape.v_dtype;
  args.v_scale = layer_of(kv.v_scale, kv.layer_bytes, layer);
  args.components = components_of(kv, layer);
  args.slot_stride = args.k_slot_stride = 1;
  return args;
}

}  // namespace

Status CpuSparq::begin_step(const Batch& batch, const KvView& kv, const AttentionSpec& spec) {
  // Tiles of keys: the workspace grows once for many tokens.
  constexpr std::int64_t kKeys = cpu::kSparqTileKeys;
  SparqArgs args;
  args.batch = batch.num_seqs();
  args.num_heads = spec.num_heads;
  args.num_kv_heads = kv.shape.num_kv_heads;
  args.head_dim = kv.shape.head_dim;
  args.head_dim_v = kv.shape.head_dim_v;
  args.seqlen_k = round_up(batch.max_seqlen_k, kKeys);
  args.page_size = kv.page_size;
  args.num_pages = kv.num_pages;
  args.num_components = batch.sparq.num_components;
  args.num_keys = batch.sparq.num_keys;
  args.local_window = args.num_keys / 4;  // as in the paper
  args.softmax_scale = static_cast<float>(1 / std::sqrt(static_cast<double>(args.head_dim)));
  args.dtype = kv.shape.dtype;
  args.paged = {.block_table = batch.block_table.data(),
                .stride_batch = batch.max_pages(),
                .seqused_k = batch.seqused_k.data(),
                .seqused_stride = 1};
  args.has_codes = kv.shape.has_codes();
  if (args.has_codes) args.problem = step_problem(size_of(batch), 0, kv, spec);
  args_ = args;
  HEADRACE_TRY(
      grow(device_, nullptr, workspace_, cpu::sparq_workspace_bytes(args, device_.info())));
  if (!kv.shape.has_value_sums) return std::nullopt;
  return grow(device_, nullptr, sums_, bytes_of(args.batch, sum_width(kv), DType::f32));
}

Status CpuSparq::append(const Batch& batch, const KvView& kv, std::int64_t layer) {
  SparqAppendArgs args = append_args(kv, layer);
  args.num_tokens = batch.num_tokens();
  args.slot_mapping = batch.slot_mapping.data();
  if (kv.shape.has_codes()) args.k_slots = batch.recent_slots.data();
  HEADRACE_TRY(cpu::sparq_append(args, device_.info()));
  if (!kv.shape.has_value_sums) return std::nullopt;
  for (std::int64_t s = 0; s < batch.num_seqs(); ++s) {
    const auto i = static_cast<std::size_t>(s);
    const std::int64_t end = batch.seqused_k[i],
                       begin = end - (batch.cu_seqlens_q[i + 1] - batch.cu_seqlens_q[i]);
    const std::int32_t* pages = batch.block_table.data() + s * batch.max_pages();
    for (auto page = ceil_div(begin, kv.page_size); page * kv.page_size < end; ++page)
      HEADRACE_TRY(begin_page(kv, layer, pages, page));
  }
  return std::nullopt;
}

// A sum depends on earlier pages alone: truncation and forks leave it right, and it has the bits of
// one sum over all tokens.
Status CpuSparq::begin_page(const KvView& kv, std::int64_t layer, const std::int32_t* pages,
                            std::int64_t page_idx) {
  float* sum = sum_before(kv, layer, pages[page_idx]);
  if (page_idx == 0) {
    std::fill_n(sum, sum_width(kv), 0.0f);
    return std::nullopt;
  }
  const std::int64_t before = pages[page_idx - 1];
  std::copy_n(sum_before(kv, layer, before), sum_width(kv), sum);
  return add_values(kv, layer, before, kv.page_size, sum);
}

Status CpuSparq::add_values(const KvView& kv, std::int64_t layer, std::int64_t page,
                            std::int64_t num_tokens, float* sum) {
  slots_.resize(static_cast<std::size_t>(num_tokens));
  std::iota(slots_.begin(), slots_.end(), page * kv.page_size);
  const std::int32_t tokens[] = {0, static_cast<std::int32_t>(num_tokens)};
  SparqAppendArgs args = append_args(kv, layer);
  args.batch = 1;
  args.slot_mapping = slots_.data();
  args.cu_seqlens = tokens;
  args.v_sum = {.data = sum, .stride_batch = 0, .stride_head = kv.shape.head_dim_v};
  return cpu::sparq_append(args, device_.info());
}

Status CpuSparq::sum_values(const Batch& batch, const KvView& kv, std::int64_t layer) {
  for (std::int64_t s = 0; s < batch.num_seqs(); ++s) {
    const std::int64_t last = batch.seqused_k[static_cast<std::size_t>(s)] - 1;
    const std::int64_t page =
        batch.block_table[static_cast<std::size_t>(s * batch.max_pages() + last / kv.page_size)];
    float* sum = sums_.as<float>() + s * sum_width(kv);
    std::copy_n(sum_before(kv, layer, page), sum_width(kv), sum);
    HEADRACE_TRY(add_values(kv, layer, page, last % kv.page_size + 1, sum));
  }
  return std::nullopt;
}

Status CpuSparq::attention(const Batch& batch, const KvView& kv, std::int64_t layer, const Rows& q,
                           void* out) {
  SparqArgs args = args_;
  args.q = {.data = q.data, .stride_batch = q.width, .stride_head = args.head_dim};
  args.out = {.data = out,
              .stride_batch = args.num_heads * args.head_dim_v,
              .stride_head = args.head_dim_v};
  args.k = layer_of(kv, kv.k, layer);
  args.v = layer_of(kv, kv.v, layer);
  args.components = components_of(kv, layer);
  if (args.has_codes) {
    args.dense = attention_args(kv, layer, q, out, args.num_heads * args.head_dim_v);
    args.dense.paged = args.paged;
    args.dense.recent.table = batch.recent_table.data();
    args.dense.recent.stride_table = batch.max_recent();
  }
  if (kv.shape.has_value_sums) {
    HEADRACE_TRY(sum_values(batch, kv, layer));
    args.v_sum = {
        .data = sums_.data(), .stride_batch = sum_width(kv), .stride_head = args.head_dim_v};
  }
  return cpu::sparq_attention(args, device_.info(), workspace_.data());
}

}  // namespace headrace
