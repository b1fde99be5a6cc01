// The steps of SparQ attention, compiled for every instruction set (Vec). Sums run over components,
// keys and tiles in a fixed order, so that the bits depend neither on the threads nor on the batch.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "backends/cpu/simd/element.h"
#include "backends/cpu/simd/exp-inl.h"
#include "backends/cpu/simd/prefetch.h"
#include "backends/cpu/sparq/load_row-inl.h"
#include "backends/cpu/sparq/select.h"
#include "backends/cpu/sparq/sparq.h"

namespace headrace::cpu {

template <class Vec>
struct SparqKernels {
  using F = typename Vec::F;
  static constexpr int kWidth = Vec::kWidth;
  static constexpr int kHeads = 4;       // queries that share a load of a key or value
  static constexpr int kComponents = 4;  // components per pass over the scores of a tile
  static constexpr int kAhead = 16;      // rows between a prefetch and its use
  // Columns of V per pass over the keys, in vectors: kHeads * kVectors accumulators.
  static constexpr int kVectors = kWidth >= 16 ? 4 : 2;

  template <class E>
  static F load(const E* p, std::int64_t n) {  // the first min(n, kWidth) elements, then zeros
    return n >= kWidth ? Vec::load(p) : Vec::load_partial(p, static_cast<int>(n));
  }
  template <class E>
  static void store(E* p, F x, std::int64_t n) {
    if (n >= kWidth) {
      Vec::store(p, x);
    } else {
      Vec::store_partial(p, x, static_cast<int>(n));
    }
  }

  static void prefetch(const void* row, std::int64_t bytes) {
    constexpr std::int64_t kLine = 64;
    for (std::int64_t i = 0; i < bytes; i += kLine)
      prefetch_line(static_cast<const char*>(row) + i);
  }

  // body.template operator()<E>() with the element type of the call.
  template <class Body>
  static void with_elements(DType dtype, Body body) {
    switch (dtype) {
      case DType::f16:
        return body.template operator()<F16>();
      case DType::bf16:
        return body.template operator()<Bf16>();
      default:
        return body.template operator()<float>();
    }
  }
  // body.template operator()<n>(first) for blocks of at most kHeads heads.
  template <class Body>
  static void for_heads(std::int64_t num_heads, Body body) {
    std::int64_t head = 0;
    for (; head + kHeads <= num_heads; head += kHeads) body.template operator()<kHeads>(head);
    for (; head < num_heads; ++head) body.template operator()<1>(head);
  }

  // ---- prepare ----

  static void prepare(const SparqArgs& args, const SparqUnit& unit, const SparqScratch& scratch) {
    const std::int64_t g = group_size(args), dim = args.head_dim;
    float magnitudes[kMaxSparqDim] = {};
    std::int32_t candidates[kMaxSparqDim];
    for (std::int64_t h = 0; h < g; ++h) {
      float* q = scratch.q + h * scratch.dim_stride;
      with_elements(args.dtype, [&]<class E>() {
        const E* from = static_cast<const E*>(args.q.data) + unit.batch_idx * args.q.stride_batch +
                        (unit.kv_head * g + h) * args.q.stride_head;
        for (std::int64_t c = 0; c < dim; ++c) q[c] = to_float(from[c]);
      });
      std::fill(q + dim, q + scratch.dim_stride, 0.0f);
      for (std::int64_t c = 0; c < dim; ++c) magnitudes[c] += std::fabs(q[c]);
    }
    select_largest(magnitudes, dim, args.num_components, candidates, scratch.components);
    for (std::int64_t h = 0; h < g; ++h) scale_components(args, scratch, h);
  }

  // The scale of the estimated scores lies between those of components chosen at random and of the
  // only ones that are not 0.
  static void scale_components(const SparqArgs& args, const SparqScratch& scratch, std::int64_t h) {
    const float* q = scratch.q + h * scratch.dim_stride;
    float* to = scratch.q_components + h * args.num_components;
    float chosen = 0, all = 0;
    for (std::int64_t c = 0; c < args.head_dim; ++c) all += std::fabs(q[c]);
    for (std::int64_t i = 0; i < args.num_components; ++i)
      chosen += std::fabs(q[scratch.components[i]]);
    const float share = chosen == 0.0f ? 1.0f : chosen / all;
    const float scale = args.softmax_scale / std::sqrt(share);
    for (std::int64_t i = 0; i < args.num_components; ++i) to[i] = q[scratch.components[i]] * scale;
  }

  // ---- score ----

  // Keys [first, first + n) of one page: k is that of component 0.
  template <class E>
  struct Run {
    const E* k;
    std::int64_t first, n;
  };
  template <class E>
  static Run<E> run_at(const SparqArgs& args, const SparqUnit& unit, std::int64_t key,
                       std::int64_t last) {
    const std::int64_t slot = key % args.page_size;
    const std::int64_t page = page_of(args, unit.batch_idx, key / args.page_size);
    return {static_cast<const E*>(args.components.data) + page * args.components.stride_page +
                unit.kv_head * args.components.stride_head + slot,
            key, std::min(last - key, args.page_size - slot)};
  }

  // scores[h][0, n) of kN heads += sums over kC components at rows, n keys each. The same keys of
  // the next run, `next` elements away, are prefetched: rows lie apart, so that the prefetchers of
  // the CPU find them late.
  template <int kN, int kC, bool kIsFirst, class E>
  static void add_components(const E* const* rows, std::int64_t next, const float* q,
                             std::int64_t q_stride, std::int64_t n, float* scores,
                             std::int64_t score_stride) {
    for (std::int64_t i = 0; i < n; i += kWidth) {
      F x[kC], sum[kN];
      for (int c = 0; c < kC; ++c) __builtin_prefetch(rows[c] + next + i);
      for (int c = 0; c < kC; ++c) x[c] = load(rows[c] + i, n - i);
      for (int h = 0; h < kN; ++h)
        sum[h] = kIsFirst ? Vec::zero() : load(scores + h * score_stride + i, n - i);
      for (int c = 0; c < kC; ++c)
        for (int h = 0; h < kN; ++h)
          sum[h] = Vec::fma(x[c], Vec::set1(q[h * q_stride + c]), sum[h]);
      for (int h = 0; h < kN; ++h) store(scores + h * score_stride + i, sum[h], n - i);
    }
  }

  template <int kN, class E>
  static void score_run(const SparqArgs& args, const SparqScratch& scratch, const Run<E>& run,
                        std::int64_t next, std::int64_t head) {
    const std::int64_t r = args.num_components;
    const float* q = scratch.q_components + head * r;
    float* scores = scratch.scores + head * scratch.key_stride + run.first;
    const auto pass = [&]<int kC, bool kIsFirst>(std::int64_t i) {
      const E* rows[kC];
      for (int c = 0; c < kC; ++c)
        rows[c] = run.k + scratch.components[i + c] * args.components.stride_component;
      add_components<kN, kC, kIsFirst>(rows, next, q + i, r, run.n, scores, scratch.key_stride);
    };
    std::int64_t i = 0;
    if (r >= kComponents) {
      pass.template operator()<kComponents, true>(0);
      for (i = kComponents; i + kComponents <= r; i += kComponents)
        pass.template operator()<kComponents, false>(i);
    } else {
      pass.template operator()<1, true>(0);
      i = 1;
    }
    for (; i < r; ++i) pass.template operator()<1, false>(i);
  }

  // Scores -> exponentials relative to their maximum; returns their sum.
  static float exponentials(float* x, std::int64_t n, float* maximum) {
    F top = Vec::set1(-std::numeric_limits<float>::infinity());
    std::int64_t i = 0;
    for (; i + kWidth <= n; i += kWidth) top = Vec::max(Vec::load(x + i), top);
    float most = Vec::max_lane(top);
    for (; i < n; ++i) most = std::max(most, x[i]);
    *maximum = most;
    F sums = Vec::zero();
    float tail[kWidth] = {};
    for (i = 0; i < n; i += kWidth) {
      const F e = exp_softmax<Vec>(Vec::sub(load(x + i, n - i), Vec::set1(most)));
      store(x + i, e, n - i);
      if (i + kWidth <= n) sums = Vec::add(sums, e);
      if (i + kWidth > n) Vec::store(tail, e);
    }
    float sum = Vec::sum(sums);
    for (std::int64_t j = n / kWidth * kWidth; j < n; ++j) sum += tail[j % kWidth];
    return sum;
  }

  template <class E>
  static void score_tile(const SparqArgs& args, const SparqUnit& unit, const SparqScratch& scratch,
                         KeySpan keys) {
    const std::int64_t g = group_size(args);
    Run<E> run = run_at<E>(args, unit, keys.first, keys.last);
    for (std::int64_t key = keys.first; key < keys.last;) {
      key += run.n;
      const Run<E> next = key < unit.seqlen_k ? run_at<E>(args, unit, key, keys.last) : run;
      for_heads(g, [&]<int kN>(std::int64_t head) {
        score_run<kN>(args, scratch, run, head == 0 ? next.k - run.k : 0, head);
      });
      run = next;
    }
    const std::int64_t tile = keys.first / kSparqTileKeys;
    for (std::int64_t h = 0; h < g; ++h) {
      const std::int64_t at = h * scratch.num_tiles + tile;
      scratch.tile_sum[at] = exponentials(scratch.scores + h * scratch.key_stride + keys.first,
                                          keys.last - keys.first, scratch.tile_max + at);
    }
  }

  static void score(const SparqArgs& args, const SparqUnit& unit, const SparqScratch& scratch,
                    KeySpan keys) {
    with_elements(args.dtype, [&]<class E>() {
      for (std::int64_t key = keys.first; key < keys.last; key += kSparqTileKeys)
        score_tile<E>(args, unit, scratch, {key, std::min(key + kSparqTileKeys, keys.last)});
    });
  }

  // ---- attend ----

  // tile_max becomes the factor from exponentials of the tile to a head's softmax.
  static void normalise_tiles(std::int64_t num_tiles, float* tile_max, const float* tile_sum) {
    float most = tile_max[0];
    for (std::int64_t t = 1; t < num_tiles; ++t) most = std::max(most, tile_max[t]);
    double sum = 0;
    for (std::int64_t t = 0; t < num_tiles; ++t)
      sum += double{tile_sum[t]} * std::exp(double{tile_max[t]} - double{most});
    for (std::int64_t t = 0; t < num_tiles; ++t)
      tile_max[t] = static_cast<float>(std::exp(double{tile_max[t]} - double{most}) / sum);
  }

  static void sum_over_group(const SparqArgs& args, const SparqUnit& unit,
                             const SparqScratch& scratch) {
    const std::int64_t g = group_size(args);
    const std::int64_t num_tiles = (unit.seqlen_k + kSparqTileKeys - 1) / kSparqTileKeys;
    for (std::int64_t h = 0; h < g; ++h)
      normalise_tiles(num_tiles, scratch.tile_max + h * scratch.num_tiles,
                      scratch.tile_sum + h * scratch.num_tiles);
    for (std::int64_t t = 0; t < num_tiles; ++t) {
      const std::int64_t last = std::min((t + 1) * kSparqTileKeys, unit.seqlen_k);
      for (std::int64_t i = t * kSparqTileKeys; i < last; i += kWidth) {
        F sum = Vec::zero();
        for (std::int64_t h = 0; h < g; ++h)
          sum = Vec::fma(load(scratch.scores + h * scratch.key_stride + i, last - i),
                         Vec::set1(scratch.tile_max[h * scratch.num_tiles + t]), sum);
        store(scratch.p + i, sum, last - i);
      }
    }
  }

  // The keys of step 2, ascending; returns their number.
  static std::int64_t choose_keys(const SparqArgs& args, const SparqUnit& unit,
                                  const SparqScratch& scratch) {
    const std::int64_t seqlen = unit.seqlen_k;
    if (seqlen <= args.num_keys) {
      for (std::int64_t j = 0; j < seqlen; ++j) scratch.keys[j] = static_cast<std::int32_t>(j);
      return seqlen;
    }
    sum_over_group(args, unit, scratch);
    const std::int64_t num_local = args.local_window, num_chosen = args.num_keys - num_local;
    select_largest(scratch.p, seqlen - num_local, num_chosen, scratch.candidates, scratch.keys);
    for (std::int64_t i = 0; i < num_local; ++i)
      scratch.keys[num_chosen + i] = static_cast<std::int32_t>(seqlen - num_local + i);
    return args.num_keys;
  }

  // The estimated share of the softmax that the keys have; 1 if they are all.
  static float share_of_keys(const SparqUnit& unit, const SparqScratch& scratch,
                             std::int64_t num_keys, std::int64_t h) {
    if (num_keys == unit.seqlen_k) return 1.0f;
    double sum = 0;
    for (std::int64_t i = 0; i < num_keys; ++i) {
      const std::int64_t j = scratch.keys[i];
      sum += double{scratch.scores[h * scratch.key_stride + j]} *
             double{scratch.tile_max[h * scratch.num_tiles + j / kSparqTileKeys]};
    }
    return static_cast<float>(std::min(sum, 1.0));
  }

  // Codes become floats. Their rows lie apart: those of later keys are asked for early.
  static void load_rows(const SparqArgs& args, const SparqUnit& unit, const SparqScratch& scratch,
                        std::int64_t num_keys, bool is_of_k) {
    const std::int64_t dim = is_of_k ? args.head_dim : args.head_dim_v;
    const auto row_of = [&](std::int64_t i) {
      return code_row(args, unit.batch_idx, unit.seqlen_k, unit.kv_head, scratch.keys[i], is_of_k);
    };
    for (std::int64_t i = 0; i < num_keys; ++i) {
      if (i + kAhead < num_keys) {
        const KeyRow later = row_of(i + kAhead);
        const auto element = static_cast<std::int64_t>(dtype_bytes(later.dtype));
        prefetch(
            static_cast<const char*>(later.data) + stored_size(later.dtype, later.offset) * element,
            stored_size(later.dtype, dim) * element);
      }
      float* to = scratch.elements + i * scratch.element_stride;
      LoadRow<Vec>::load(row_of(i), dim, to);
      scratch.rows[i] = to;
    }
  }

  static void find_rows(const SparqArgs& args, const SparqUnit& unit, const SparqScratch& scratch,
                        std::int64_t num_keys, bool is_of_k) {
    if (args.has_codes) return load_rows(args, unit, scratch, num_keys, is_of_k);
    const Operand& x = is_of_k ? args.k : args.v;
    const auto bytes = static_cast<std::int64_t>(dtype_bytes(args.dtype));
    for (std::int64_t i = 0; i < num_keys; ++i) {
      const std::int64_t j = scratch.keys[i];
      const std::int64_t page = page_of(args, unit.batch_idx, j / args.page_size);
      scratch.rows[i] = static_cast<const char*>(x.data) +
                        row_offset(x, page, j % args.page_size, unit.kv_head) * bytes;
    }
  }

  template <int kN, class E>
  static void exact_scores(const SparqArgs& args, const SparqScratch& scratch,
                           std::int64_t num_keys, std::int64_t head) {
    const float* q = scratch.q + head * scratch.dim_stride;
    const std::int64_t row_bytes = args.head_dim * static_cast<std::int64_t>(sizeof(E));
    for (std::int64_t i = 0; i < num_keys; ++i) {
      if (i + kAhead < num_keys) prefetch(scratch.rows[i + kAhead], row_bytes);
      const E* k = static_cast<const E*>(scratch.rows[i]);
      F sum[kN];
      for (int h = 0; h < kN; ++h) sum[h] = Vec::zero();
      for (std::int64_t c = 0; c < args.head_dim; c += kWidth) {
        const F x = load(k + c, args.head_dim - c);
        for (int h = 0; h < kN; ++h)
          sum[h] = Vec::fma(x, Vec::load(q + h * scratch.dim_stride + c), sum[h]);
      }
      for (int h = 0; h < kN; ++h)
        scratch.weights[(head + h) * args.num_keys + i] = Vec::sum(sum[h]) * args.softmax_scale;
    }
  }

  // How a head's sum of values becomes its out.
  struct Epilogue {
    float scale;         // alpha / sum of the weights
    float mean_scale;    // (1 - alpha) / seqlen_k
    const float* v_sum;  // null: no mean value
  };

  // Columns [c, c + kV vectors) of kN heads; only the last vector may be partial.
  template <int kN, int kV, class Row, class E>
  static void sum_values(const SparqArgs& args, const SparqUnit& unit, const SparqScratch& scratch,
                         std::int64_t num_keys, std::int64_t head, std::int64_t column,
                         const Epilogue* epilogues) {
    const std::int64_t n = args.head_dim_v - column;
    F sum[kN][kV];
    for (int h = 0; h < kN; ++h)
      for (int v = 0; v < kV; ++v) sum[h][v] = Vec::zero();
    for (std::int64_t i = 0; i < num_keys; ++i) {
      if (i + kAhead < num_keys)
        prefetch(static_cast<const Row*>(scratch.rows[i + kAhead]) + column,
                 kV * kWidth * static_cast<std::int64_t>(sizeof(Row)));
      const Row* row = static_cast<const Row*>(scratch.rows[i]) + column;
      F x[kV];
      for (int v = 0; v < kV; ++v) x[v] = load(row + v * kWidth, n - v * kWidth);
      for (int h = 0; h < kN; ++h) {
        const F w = Vec::set1(scratch.weights[(head + h) * args.num_keys + i]);
        for (int v = 0; v < kV; ++v) sum[h][v] = Vec::fma(w, x[v], sum[h][v]);
      }
    }
    for (int h = 0; h < kN; ++h) {
      const Epilogue& e = epilogues[h];
      E* out = static_cast<E*>(args.out.data) + unit.batch_idx * args.out.stride_batch +
               (unit.kv_head * group_size(args) + head + h) * args.out.stride_head + column;
      for (int v = 0; v < kV; ++v) {
        const std::int64_t rest = n - v * kWidth;
        F y = Vec::mul(sum[h][v], Vec::set1(e.scale));
        if (e.v_sum != nullptr)
          y = Vec::fma(load(e.v_sum + column + v * kWidth, rest), Vec::set1(e.mean_scale), y);
        store(out + v * kWidth, y, rest);
      }
    }
  }

  // Weights -> exponentials, alpha, and what both make of the sum of values.
  static Epilogue finish_weights(const SparqArgs& args, const SparqUnit& unit,
                                 const SparqScratch& scratch, std::int64_t num_keys,
                                 std::int64_t h) {
    float maximum = 0;
    const float sum = exponentials(scratch.weights + h * args.num_keys, num_keys, &maximum);
    const float alpha = share_of_keys(unit, scratch, num_keys, h);
    if (args.alpha != nullptr)
      args.alpha[unit.batch_idx * args.alpha_stride_batch +
                 (unit.kv_head * group_size(args) + h) * args.alpha_stride_head] = alpha;
    if (num_keys == 0) return {0.0f, 0.0f, nullptr};
    if (args.v_sum.data == nullptr || num_keys == unit.seqlen_k) return {1.0f / sum, 0.0f, nullptr};
    return {alpha / sum, (1.0f - alpha) / static_cast<float>(unit.seqlen_k),
            static_cast<const float*>(args.v_sum.data) + unit.batch_idx * args.v_sum.stride_batch +
                unit.kv_head * args.v_sum.stride_head};
  }

  // Row: the elements of K and V where they are read.
  template <class Row, class E>
  static void attend_to_keys(const SparqArgs& args, const SparqUnit& unit,
                             const SparqScratch& scratch, std::int64_t num_keys) {
    const std::int64_t g = group_size(args);
    find_rows(args, unit, scratch, num_keys, true);
    for_heads(g, [&]<int kN>(std::int64_t head) {
      exact_scores<kN, Row>(args, scratch, num_keys, head);
    });
    find_rows(args, unit, scratch, num_keys, false);
    for_heads(g, [&]<int kN>(std::int64_t head) {
      Epilogue epilogues[kN];
      for (int h = 0; h < kN; ++h)
        epilogues[h] = finish_weights(args, unit, scratch, num_keys, head + h);
      std::int64_t column = 0;
      for (; column + kVectors * kWidth <= args.head_dim_v; column += kVectors * kWidth)
        sum_values<kN, kVectors, Row, E>(args, unit, scratch, num_keys, head, column, epilogues);
      for (; column < args.head_dim_v; column += kWidth)
        sum_values<kN, 1, Row, E>(args, unit, scratch, num_keys, head, column, epilogues);
    });
  }

  static void attend(const SparqArgs& args, const SparqUnit& unit, const SparqScratch& scratch) {
    const std::int64_t num_keys = choose_keys(args, unit, scratch);
    with_elements(args.dtype, [&]<class E>() {
      if (args.has_codes)
        attend_to_keys<float, E>(args, unit, scratch, num_keys);
      else
        attend_to_keys<E, E>(args, unit, scratch, num_keys);
    });
    if (args.indices == nullptr) return;
    std::int32_t* to = args.indices + unit.batch_idx * args.indices_stride_batch +
                       unit.kv_head * args.indices_stride_head;
    for (std::int64_t i = 0; i < args.num_indices; ++i)
      to[i * args.indices_stride_key] = i < num_keys ? scratch.keys[i] : -1;
  }

  static constexpr SparqOps make(const char* name, std::uint32_t cpu_isa) {
    return {name, cpu_isa, prepare, score, attend, LoadRow<Vec>::load};
  }
};

}  // namespace headrace::cpu
