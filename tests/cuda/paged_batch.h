// A batch of sequences, one at a time in contiguous memory or all over pages, and the bits of each.
#pragma once

#include <algorithm>
#include <string>

#include "cuda/repeat.h"

namespace headrace::testing {

inline constexpr std::int32_t kGarbage = 2147480000;

struct Sizes {
  std::vector<std::int64_t> lengths;  // of the sequences
  std::vector<std::int64_t> queries;  // of the sequences, at most seqlen_q
  std::int64_t seqlen_q, heads, kv_heads, dim;
  DType dtype = DType::bf16;
  std::vector<std::int64_t> shared =
      {};  // first keys that a sequence shares with the one before it

  std::int64_t batch() const { return static_cast<std::int64_t>(lengths.size()); }
  std::int64_t longest() const { return std::ranges::max(lengths); }
};

struct Pages {
  std::int64_t size;
  bool is_hnd;  // [page][head][slot][dim]
  bool has_indptr = false;
};

// Rows of out and of the lse of a sequence, [queries][heads].
struct Bits {
  std::vector<unsigned char> out;
  std::vector<float> lse;
  friend bool operator==(const Bits&, const Bits&) = default;
};

inline TensorView on_device(void* data, DType dtype, std::initializer_list<std::int64_t> shape) {
  TensorView view(data, dtype, shape);
  view.device_type = HEADRACE_CUDA;
  return view;
}

// Waits for the call. What the workspace held before is NaN.
inline void run_alone(const Plan& plan, const AttentionTensors& t) {
  const OnDevice<unsigned char> workspace(
      std::vector<unsigned char>(plan.workspace_bytes() + 1, 0xFF));
  plan.run(t, {workspace.data(), plan.workspace_bytes()}, {});
  HEADRACE_EXPECT_CUDA(cudaDeviceSynchronize());
}

// 16 heads over 4 KV heads and 5000 keys. Needs no GPU.
inline Problem problem_of_5000_keys() {
  Problem p;
  p.dtype = HEADRACE_BF16;
  p.seqlen_k = 5000;
  p.num_heads = 16;
  p.num_kv_heads = 4;
  return p;
}
// Whether the Hopper forward splits them: four times 1024 keys and then 2048, or with strict_rows
// 2048 each.
inline bool are_split(const Problem& p) {
  const Plan plan = plan_attention(p, device_from_text("sm90:132"));
  EXPECT_STREQ(plan.kernel(), "cuda_sm90_fwd");
  const char* splits =
      p.strict_rows != 0 ? "up to 3 splits of 2048 keys" : "up to 5 splits of 2048 keys";
  return std::string(plan.explain()).find(splits) != std::string::npos;
}

// Host numbers of a batch: q [batch][seqlen_q][heads][dim], k and v
// [batch][longest][kv_heads][dim].
class Batch {
 public:
  Batch(const Sizes& s, const char* kernel)
      : s_(s),
        kernel_(kernel),
        row_bytes_(s.dim * static_cast<std::int64_t>(bytes_of(s.dtype))),
        q_(numbers(s.dtype, s.batch() * s.seqlen_q * s.heads * s.dim, 1)),
        k_(numbers(s.dtype, s.batch() * s.longest() * s.kv_heads * s.dim, 2)),
        v_(numbers(s.dtype, s.batch() * s.longest() * s.kv_heads * s.dim, 3)) {
    for (std::size_t b = 1; b < s.shared.size(); ++b)
      for (std::vector<unsigned char>* x : {&k_, &v_}) {
        const std::int64_t sequence = s.longest() * s.kv_heads * row_bytes_;
        const auto own = x->begin() + static_cast<std::int64_t>(b) * sequence;
        std::copy_n(own - sequence, s.shared[b] * s.kv_heads * row_bytes_, own);
      }
  }

  // One sequence, contiguous.
  Bits alone(std::int64_t b, const AttentionOptions& options) const {
    const std::int64_t queries = s_.queries[idx(b)], keys = s_.lengths[idx(b)];
    const OnDevice<unsigned char> q(rows(q_, b * s_.seqlen_q * s_.heads, queries * s_.heads));
    const OnDevice<unsigned char> k(rows(k_, b * s_.longest() * s_.kv_heads, keys * s_.kv_heads));
    const OnDevice<unsigned char> v(rows(v_, b * s_.longest() * s_.kv_heads, keys * s_.kv_heads));
    AttentionTensors t{.q = on_device(q.data(), s_.dtype, {1, queries, s_.heads, s_.dim}),
                       .k = on_device(k.data(), s_.dtype, {1, keys, s_.kv_heads, s_.dim}),
                       .v = on_device(v.data(), s_.dtype, {1, keys, s_.kv_heads, s_.dim})};
    return run(t, options, queries).front();
  }

  // All sequences over pages in a mixed order; unused slots and pages are NaN, the table has
  // garbage behind the used entries. Ragged: the queries are packed.
  std::vector<Bits> paged(const Pages& pages, bool is_ragged, const AttentionOptions& options,
                          std::uint32_t num_units = 0) const {
    const Layout layout = lay_out(pages);
    const OnDevice<unsigned char> k(fill(k_, pages, layout)), v(fill(v_, pages, layout));
    const OnDevice<std::int32_t> table(pages.has_indptr ? layout.entries : layout.table),
        indptr(layout.indptr), used(layout.used);
    std::vector<unsigned char> q;
    std::vector<std::int32_t> cu = {0};
    for (std::int64_t b = 0; b < s_.batch(); ++b) {
      const std::int64_t queries = is_ragged ? s_.queries[idx(b)] : s_.seqlen_q;
      const auto own = rows(q_, b * s_.seqlen_q * s_.heads, queries * s_.heads);
      q.insert(q.end(), own.begin(), own.end());
      cu.push_back(cu.back() + static_cast<std::int32_t>(queries));
    }
    const OnDevice<unsigned char> q_device(q);
    const OnDevice<std::int32_t> cu_device(cu);
    const auto view_of = [&](void* data) {
      if (!pages.is_hnd)
        return on_device(data, s_.dtype, {layout.num_pages, pages.size, s_.kv_heads, s_.dim});
      return *on_device(data, s_.dtype, {layout.num_pages, s_.kv_heads, pages.size, s_.dim})
                  .permute({0, 2, 1, 3});
    };
    AttentionTensors t{.k = view_of(k.data()), .v = view_of(v.data())};
    t.block_table = on_device(table.data(), DType::i32, {s_.batch(), layout.columns});
    t.seqused_k = on_device(used.data(), DType::i32, {s_.batch()});
    AttentionOptions with_bounds = options;
    if (pages.has_indptr) {
      const auto num_entries = static_cast<std::int64_t>(layout.entries.size());
      t.block_table = on_device(table.data(), DType::i32, {num_entries});
      t.page_indptr = on_device(indptr.data(), DType::i32, {s_.batch() + 1});
      with_bounds.max_seqlen_k = s_.longest();
    }
    if (is_ragged) {
      t.q = on_device(q_device.data(), s_.dtype, {cu.back(), s_.heads, s_.dim});
      t.cu_seqlens_q = on_device(cu_device.data(), DType::i32, {s_.batch() + 1});
      with_bounds.max_seqlen_q = s_.seqlen_q;
    } else {
      t.q = on_device(q_device.data(), s_.dtype, {s_.batch(), s_.seqlen_q, s_.heads, s_.dim});
    }
    return run(t, with_bounds, 0, num_units);
  }

  const Sizes& sizes() const { return s_; }

 private:
  struct Layout {
    std::int64_t num_pages, columns;
    std::vector<std::int32_t> table, used;
    std::vector<std::int32_t> entries, indptr;  // the same table with rows of any length
  };

  static std::size_t idx(std::int64_t i) { return static_cast<std::size_t>(i); }
  std::vector<unsigned char> rows(const std::vector<unsigned char>& x, std::int64_t first,
                                  std::int64_t count) const {
    return {x.begin() + first * row_bytes_, x.begin() + (first + count) * row_bytes_};
  }

  Layout lay_out(const Pages& pages) const {
    Layout x;
    std::int64_t used = 0;
    x.columns = (s_.longest() + pages.size - 1) / pages.size + 2;
    x.table.assign(idx(s_.batch() * x.columns), kGarbage);
    for (std::int64_t b = 0; b < s_.batch(); ++b)
      used += (s_.lengths[idx(b)] + pages.size - 1) / pages.size;
    x.num_pages = used + 3;
    std::int64_t next = 0;
    const std::int64_t step = 1000003;  // a prime beyond every number of pages here
    for (std::int64_t b = 0; b < s_.batch(); ++b) {
      x.used.push_back(static_cast<std::int32_t>(s_.lengths[idx(b)]));
      const std::int64_t shared = s_.shared.empty() ? 0 : s_.shared[idx(b)] / pages.size;
      for (std::int64_t i = 0; i * pages.size < s_.lengths[idx(b)]; ++i)
        x.table[idx(b * x.columns + i)] =
            i < shared ? x.table[idx((b - 1) * x.columns + i)]
                       : static_cast<std::int32_t>(next++ * step % x.num_pages);
    }
    // Entries of no sequence, and some that their sequence does not use.
    x.entries.assign(2, kGarbage);
    for (std::int64_t b = 0; b < s_.batch(); ++b) {
      x.indptr.push_back(static_cast<std::int32_t>(x.entries.size()));
      const std::int64_t used_pages = (s_.lengths[idx(b)] + pages.size - 1) / pages.size;
      for (std::int64_t i = 0; i < used_pages + b % 2; ++i)
        x.entries.push_back(x.table[idx(b * x.columns + i)]);
    }
    x.indptr.push_back(static_cast<std::int32_t>(x.entries.size()));
    x.entries.push_back(kGarbage);
    return x;
  }

  std::vector<unsigned char> fill(const std::vector<unsigned char>& x, const Pages& pages,
                                  const Layout& layout) const {
    std::vector<unsigned char> bytes(idx(layout.num_pages * pages.size * s_.kv_heads * row_bytes_),
                                     0xFF);  // NaN
    for (std::int64_t b = 0; b < s_.batch(); ++b)
      for (std::int64_t key = 0; key < s_.lengths[idx(b)]; ++key)
        for (std::int64_t head = 0; head < s_.kv_heads; ++head) {
          const std::int64_t page = layout.table[idx(b * layout.columns + key / pages.size)];
          const std::int64_t slot = key % pages.size;
          const std::int64_t to = pages.is_hnd ? (page * s_.kv_heads + head) * pages.size + slot
                                               : (page * pages.size + slot) * s_.kv_heads + head;
          const std::int64_t from = (b * s_.longest() + key) * s_.kv_heads + head;
          std::copy_n(x.begin() + from * row_bytes_, row_bytes_, bytes.begin() + to * row_bytes_);
        }
    return bytes;
  }

  // `queries`: of the only sequence; 0: those of the batch, ragged or dense.
  std::vector<Bits> run(AttentionTensors t, const AttentionOptions& options, std::int64_t queries,
                        std::uint32_t num_units = 0) const {
    const bool is_ragged = t.q.rank == 3;
    const std::int64_t num_rows = is_ragged ? t.q.shape[0] : t.q.shape[0] * t.q.shape[1];
    const OnDevice<unsigned char> out(
        std::vector<unsigned char>(idx(num_rows * s_.heads * row_bytes_), 0xFF));
    const OnDevice<float> lse(std::vector<float>(idx(num_rows * s_.heads), -1));
    if (is_ragged) {
      t.out = on_device(out.data(), s_.dtype, {num_rows, s_.heads, s_.dim});
      t.lse = *on_device(lse.data(), DType::f32, {num_rows, s_.heads}).permute({1, 0});
    } else {
      t.out = on_device(out.data(), s_.dtype, {t.q.shape[0], t.q.shape[1], s_.heads, s_.dim});
      t.lse = *on_device(lse.data(), DType::f32, {t.q.shape[0], t.q.shape[1], s_.heads})
                   .permute({0, 2, 1});
    }
    DeviceInfo device = cuda_info(0);
    if (num_units > 0) device.num_units = static_cast<std::int32_t>(num_units);
    const Plan plan = plan_attention(Problem(t, options), device);
    EXPECT_STREQ(plan.kernel(), kernel_) << plan.explain();
    run_alone(plan, t);
    const auto all_out = out.read();
    const auto all_lse = lse.read();
    EXPECT_EQ(headrace_check(HEADRACE_CUDA, 0, nullptr), HEADRACE_OK) << headrace_last_error();
    std::vector<Bits> bits;
    std::int64_t row = 0;
    for (std::int64_t b = 0; b < (queries > 0 ? 1 : s_.batch()); ++b) {
      const std::int64_t count = (queries > 0 ? queries
                                  : is_ragged ? s_.queries[idx(b)]
                                              : s_.seqlen_q) *
                                 s_.heads;
      bits.push_back(
          {rows(all_out, row, count), {all_lse.begin() + row, all_lse.begin() + row + count}});
      row += count;
    }
    return bits;
  }

  const Sizes s_;
  const char* const kernel_;  // that must be selected
  const std::int64_t row_bytes_;
  const std::vector<unsigned char> q_;
  std::vector<unsigned char> k_, v_;
};

// Without ragged queries, of the sequences that have all of them.
inline void expect_bits_alone(const Batch& batch, bool is_ragged, const AttentionOptions& options,
                              const std::vector<Bits>& got) {
  const Sizes& s = batch.sizes();
  for (std::int64_t b = 0; b<s.batch(); b += s.batch()> 100 ? 83 : 1) {
    const auto i = static_cast<std::size_t>(b);
    if (!is_ragged && s.queries[i] != s.seqlen_q) continue;  // alone() has queries[b] of them
    if (s.queries[i] == 0) continue;
    if (s.lengths[i] == 0) {
      for (const unsigned char byte : got[i].out) ASSERT_EQ(byte, 0) << "sequence " << b;
      continue;
    }
    ASSERT_EQ(got[i], batch.alone(b, options)) << "sequence " << b;
  }
}

// A length beyond the table and a page that does not exist: nothing outside of the tensors is
// touched, and headrace_check() names the sequence.
inline void expect_reported_errors(const char* kernel, std::int64_t seqlen_q,
                                   const AttentionOptions& options = {}) {
  const std::int64_t pages = 4, size = 16, dim = 128;
  const OnDevice<unsigned char> kv(numbers(DType::bf16, pages * size * dim, 1));
  const OnDevice<unsigned char> q(numbers(DType::bf16, 2 * seqlen_q * dim, 2)),
      out(numbers(DType::bf16, 2 * seqlen_q * dim, 3));
  const struct {
    std::vector<std::int32_t> table, used;
    const char* text;
  } cases[] = {{{0, 1, 2, 3}, {32, 32}, ""},
               {{0, 1, 2, kGarbage}, {32, 16}, ""},  // not used
               {{0, 1, 2, 4}, {32, 32}, "block_table on cuda:0: a used entry of sequence 1"},
               {{-1, 1, 2, 3}, {1, 32}, "block_table on cuda:0: a used entry of sequence 0"},
               {{0, 1, 2, 3}, {32, 33}, "seqused_k on cuda:0: entry 1"},
               {{0, 1, 2, 3}, {-1, 32}, "seqused_k on cuda:0: entry 0"}};
  for (const auto& [table, used, text] : cases) {
    const OnDevice<std::int32_t> table_device(table), used_device(used);
    AttentionTensors t{.q = on_device(q.data(), DType::bf16, {2, seqlen_q, 1, dim}),
                       .k = on_device(kv.data(), DType::bf16, {pages, size, 1, dim}),
                       .v = on_device(kv.data(), DType::bf16, {pages, size, 1, dim}),
                       .out = on_device(out.data(), DType::bf16, {2, seqlen_q, 1, dim})};
    t.block_table = on_device(table_device.data(), DType::i32, {2, 2});
    t.seqused_k = on_device(used_device.data(), DType::i32, {2});
    EXPECT_STREQ(plan_attention(Problem(t, options), cuda_info(0)).kernel(), kernel);
    attention_forward(t, options);
    const headrace_status status = headrace_check(HEADRACE_CUDA, 0, nullptr);
    EXPECT_EQ(status, *text == 0 ? HEADRACE_OK : HEADRACE_INVALID_ARGUMENT) << text;
    if (*text == 0) continue;
    EXPECT_EQ(std::string(headrace_last_error()).find(text), 0u) << headrace_last_error();
    AttentionOptions checked = options;  // validated on the host: the same is an error of the call
    checked.checked = true;
    EXPECT_THROW(attention_forward(t, checked), Error);
  }
}

}  // namespace headrace::testing
