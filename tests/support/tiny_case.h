// Small problems in double with every feature, for tests of the reference backend. The arguments
// are filled directly rather than by validate(), to test the reference independently of it.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "core/args.h"

namespace headrace::testing {

struct TinyCase {
  Problem p{};
  AttentionArgs args;
  std::vector<double> q, k, v, out, lse, bias, dout, dlse;
  std::vector<float> slopes, sinks;
  std::vector<std::uint8_t> mask;
  std::vector<std::uint32_t> tree;
  std::vector<std::int32_t> cu_q, cu_k;

  TinyCase(std::int64_t batch, std::int64_t seqlen_q, std::int64_t seqlen_k, std::int64_t num_heads,
           std::int64_t num_kv_heads, std::int64_t head_dim, std::int64_t head_dim_v) {
    p.struct_size = sizeof(p);
    p.batch = batch;
    p.seqlen_q = seqlen_q;
    p.seqlen_k = seqlen_k;
    p.num_heads = num_heads;
    p.num_kv_heads = num_kv_heads;
    p.head_dim = head_dim;
    p.head_dim_v = head_dim_v;
    p.window_left = p.window_right = -1;
    p.softmax_scale = 1.0;
    p.dtype = p.k_dtype = p.v_dtype = HEADRACE_F64;
    p.bias_dtype = -1;
  }

  TinyCase(const TinyCase&) = delete;
  TinyCase& operator=(const TinyCase&) = delete;

  std::int64_t rows_q() const { return p.is_ragged ? p.total_q : p.batch * p.seqlen_q; }
  std::int64_t rows_k() const { return p.is_ragged ? p.total_k : p.batch * p.seqlen_k; }

  // Call after setting the features of `p` (and cu_q, cu_k for ragged batches).
  void allocate(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<double> normal;
    const auto fill = [&](std::vector<double>& x, std::int64_t n) {
      x.resize(static_cast<std::size_t>(n));
      for (double& value : x) value = normal(random);
    };
    fill(q, rows_q() * p.num_heads * p.head_dim);
    fill(k, rows_k() * p.num_kv_heads * p.head_dim);
    fill(v, rows_k() * p.num_kv_heads * p.head_dim_v);
    out.assign(static_cast<std::size_t>(rows_q() * p.num_heads * p.head_dim_v), -7.0);
    lse.assign(static_cast<std::size_t>(rows_q() * p.num_heads), -7.0);
    args.q = operand(q, p.seqlen_q, p.num_heads, p.head_dim);
    args.k = operand(k, p.seqlen_k, p.num_kv_heads, p.head_dim);
    args.v = operand(v, p.seqlen_k, p.num_kv_heads, p.head_dim_v);
    args.out = operand(out, p.seqlen_q, p.num_heads, p.head_dim_v);
    const std::int64_t lse_rows = p.is_ragged ? p.total_q : p.seqlen_q;
    args.lse = {lse.data(), p.is_ragged ? 0 : p.num_heads * lse_rows, lse_rows, 1};
    if (p.is_ragged) args.ragged = {cu_q.data(), cu_k.data()};
    if (p.has_alibi) {
      for (std::int64_t h = 0; h < p.num_heads; ++h)
        slopes.push_back(0.1f * static_cast<float>(h + 1));
      args.alibi_slopes = slopes.data();
      args.alibi_stride_head = 1;
    }
    if (p.has_sinks) {
      for (std::int64_t h = 0; h < p.num_heads; ++h)
        sinks.push_back(static_cast<float>(normal(random)));
      args.sinks = sinks.data();
      args.sinks_stride = 1;
    }
    if (p.has_tree_mask) {
      for (std::int64_t i = 0; i < rows_q(); ++i)
        tree.push_back(static_cast<std::uint32_t>(random()) | 1u << (i % p.seqlen_q));
      args.tree_mask = tree.data();
      args.tree_stride_q = 1;
      args.tree_stride_batch = p.is_ragged ? 0 : p.seqlen_q;
    }
    if (p.has_mask) {
      mask.resize(static_cast<std::size_t>(score_rows() * p.seqlen_k));
      for (auto& keep : mask) keep = random() % 4 != 0;
      args.mask = score_operand(mask.data(), DType::boolean, true, true);
    }
    if (has_bias(p)) fill(bias, score_rows() * p.seqlen_k);
  }

  // [batch, head, query, key] with some axes broadcast. Call after allocate() if p has a bias.
  void use_bias(bool batch_varies, bool query_varies) {
    args.bias = score_operand(bias.data(), DType::f64, batch_varies, query_varies);
    args.gradients.dbias = args.bias;
    p.has_dbias = 1;
  }

  // Sets dout and dlse. Call after allocate().
  void use_gradients(std::vector<double> of_out, std::vector<double> of_lse) {
    dout = std::move(of_out);
    dlse = std::move(of_lse);
    p.phase = HEADRACE_BACKWARD;
    p.has_dlse = 1;
    args.gradients.dout = operand(dout, p.seqlen_q, p.num_heads, p.head_dim_v);
    args.gradients.dlse = args.lse;
    args.gradients.dlse.data = dlse.data();
  }

  double& at(std::vector<double>& x, std::int64_t row, std::int64_t head, std::int64_t heads,
             std::int64_t dim, std::int64_t c) {
    return x[static_cast<std::size_t>((row * heads + head) * dim + c)];
  }

 private:
  std::int64_t score_rows() const { return rows_q() * p.num_heads; }
  Operand operand(std::vector<double>& x, std::int64_t seqlen, std::int64_t heads,
                  std::int64_t dim) {
    return {x.data(), p.is_ragged ? 0 : seqlen * heads * dim, heads * dim, dim};
  }
  ScoreOperand score_operand(const void* data, DType dtype, bool batch_varies,
                             bool query_varies) const {
    const std::int64_t rows = p.is_ragged ? p.total_q : p.seqlen_q;
    return {data,
            dtype,
            batch_varies && !p.is_ragged ? p.num_heads * rows * p.seqlen_k : 0,
            rows * p.seqlen_k,
            query_varies ? p.seqlen_k : 0,
            1};
  }
};

}  // namespace headrace::testing
