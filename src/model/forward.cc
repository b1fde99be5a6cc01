// One pass of tokens through a decoder.
#include "attention/forward.h"

#include <algorithm>
#include <numeric>

#include "attention/select.h"
#include "attention/validate.h"
#include "backends/cpu/elementwise/elementwise.h"
#include "backends/cpu/thread_pool.h"
#include "model/decoder.h"

namespace headrace::model {
namespace {

std::size_t count(std::int64_t a, std::int64_t b) { return static_cast<std::size_t>(a * b); }

// Elements of one token in the rows that the products write and read.
struct Widths {
  std::int64_t q, k, v, qkv, attn;
  explicit Widths(const Config& c)
      : q(c.num_heads * c.head_dim),
        k(c.num_kv_heads * c.head_dim),
        v(c.num_kv_heads * c.head_dim_v),
        qkv(q + k + v),
        attn(c.num_heads * c.head_dim_v) {}
};

// body(rows) for chunks of rows on all threads. The chunk is small enough for both of two
// threads to get some of a short prompt, and a single token stays on the caller's.
template <class Body>
[[nodiscard]] Status for_rows(std::int64_t num_rows, int num_threads, Body body) {
  constexpr std::int64_t kChunk = 16;
  struct Context {
    Body* body;
    std::int64_t num_rows;
  } context{&body, num_rows};
  return cpu::parallel_for(
      ceil_div(num_rows, kChunk), num_threads,
      [](void* opaque, std::int64_t task, int) {
        const auto* c = static_cast<const Context*>(opaque);
        (*c->body)(cpu::RowRange{task * kChunk, std::min(c->num_rows, (task + 1) * kChunk)});
      },
      &context);
}

Result<Plan> plan_step(const Decoder& decoder, std::int64_t num_tokens, std::int64_t seqlen_k,
                       DType dtype) {
  const Config& c = decoder.config;
  Problem problem = default_problem();
  problem.seqlen_q = num_tokens;
  problem.seqlen_k = seqlen_k;
  problem.num_heads = c.num_heads;
  problem.num_kv_heads = c.num_kv_heads;
  problem.head_dim = c.head_dim;
  problem.head_dim_v = c.head_dim_v;
  problem.dtype = static_cast<std::int32_t>(dtype);
  problem.causal = HEADRACE_CAUSAL_BOTTOM_RIGHT;
  if (c.window > 0) problem.window_left = c.window - 1;
  Result<Problem> checked = check_problem(problem);
  if (!checked.ok()) return std::move(checked.failure());
  return plan_attention(checked.value(), decoder.device);
}

// What is the same in all layers of one step.
struct Step {
  const Decoder& decoder;
  const cpu::ElementwiseOps& ops;
  const Plan& plan;
  KvCache& cache;
  DecoderScratch& scratch;
  std::int64_t first;       // position of the first token
  std::int64_t num_tokens;  // of this step

  int num_threads() const { return decoder.device.num_units; }
};

[[nodiscard]] Status product(const Step& step, std::span<const cpu::PackedMatrix* const> matrices,
                             const float* bias, const float* x, float* out, std::int64_t out_stride,
                             bool add) {
  return cpu::multiply({.matrices = matrices,
                        .bias = bias,
                        .num_tokens = step.num_tokens,
                        .x = x,
                        .x_stride = matrices[0]->columns,
                        .out = out,
                        .out_stride = out_stride,
                        .add_to_out = add},
                       step.num_threads(), step.scratch.products.get());
}

[[nodiscard]] Status normalise(const Step& step, const std::vector<float>& weight) {
  const Config& c = step.decoder.config;
  const cpu::RmsNorm norm{.x = step.scratch.x.get(),
                          .x_stride = c.hidden_size,
                          .weight = weight.data(),
                          .width = c.hidden_size,
                          .eps = static_cast<float>(c.rms_eps),
                          .out = step.scratch.normed.get(),
                          .out_stride = c.hidden_size};
  return for_rows(step.num_tokens, step.num_threads(),
                  [&](cpu::RowRange rows) { step.ops.rms_norm(norm, rows); });
}

// Q turned to its positions, in the cache's dtype.
void rope_queries(const Step& step, cpu::RowRange rows) {
  const Config& c = step.decoder.config;
  const Widths width(c);
  step.ops.rope({.x = step.scratch.qkv.get(),
                 .x_stride = width.qkv,
                 .x_head_stride = c.head_dim,
                 .out = step.scratch.q.get(),
                 .out_dtype = step.cache.shape().dtype,
                 .out_stride = width.q,
                 .out_head_stride = c.head_dim,
                 .num_heads = c.num_heads,
                 .head_dim = c.head_dim,
                 .rot_dim = c.rope_dim,
                 .layout = c.rope_layout,
                 .table = &step.scratch.rope,
                 .positions = step.scratch.positions.data()},
                rows);
}

// K turned, and V, into rows of the cache that lie in one run.
void append_run(const Step& step, const KvRun& run, std::int64_t token, std::int64_t num_tokens) {
  const Config& c = step.decoder.config;
  const Widths width(c);
  const float* k = step.scratch.qkv.get() + token * width.qkv + width.q;
  cpu::Rope rope{.x = k,
                 .x_stride = width.qkv,
                 .x_head_stride = c.head_dim,
                 .out = run.k,
                 .out_dtype = step.cache.shape().dtype,
                 .out_stride = run.token_stride_k,
                 .out_head_stride = run.head_stride_k,
                 .num_heads = c.num_kv_heads,
                 .head_dim = c.head_dim,
                 .rot_dim = c.rope_dim,
                 .layout = c.rope_layout,
                 .table = &step.scratch.rope,
                 .positions = step.scratch.positions.data() + token};
  step.ops.rope(rope, {0, num_tokens});
  rope.x = k + width.k;
  rope.x_head_stride = rope.head_dim = c.head_dim_v;
  rope.out = run.v;
  rope.out_stride = run.token_stride_v;
  rope.out_head_stride = run.head_stride_v;
  rope.rot_dim = 0;  // a copy
  step.ops.rope(rope, {0, num_tokens});
}

[[nodiscard]] Status rope_and_append(const Step& step, std::int64_t layer) {
  return for_rows(step.num_tokens, step.num_threads(), [&](cpu::RowRange rows) {
    rope_queries(step, rows);
    for (std::int64_t token = rows.first; token < rows.last;) {
      const KvRun run = step.cache.run_at(layer, step.first + token);
      const std::int64_t num_tokens = std::min(run.num_tokens, rows.last - token);
      append_run(step, run, token, num_tokens);
      token += num_tokens;
    }
  });
}

Status attend(const Step& step, std::int64_t layer) {
  const Config& c = step.decoder.config;
  const Widths width(c);
  DecoderScratch& s = step.scratch;
  AttentionArgs args;
  args.q = {.data = s.q.get(), .stride_seq = width.q, .stride_head = c.head_dim};
  args.k = step.cache.keys(layer);
  args.v = step.cache.values(layer);
  args.out = {.data = s.attn_out.get(), .stride_seq = width.attn, .stride_head = c.head_dim_v};
  Workspace workspace{s.attention.get(), s.attention_bytes};
  if (auto bad = run(step.plan, args, workspace, nullptr)) return bad;
  return for_rows(step.num_tokens, step.num_threads(), [&](cpu::RowRange rows) {
    step.ops.widen({.x = s.attn_out.get(),
                    .x_dtype = step.cache.shape().dtype,
                    .x_stride = width.attn,
                    .width = width.attn,
                    .out = s.attn.get(),
                    .out_stride = width.attn},
                   rows);
  });
}

Status run_layer(const Step& step, std::int64_t index) {
  const LayerWeights& layer = step.decoder.layers[static_cast<std::size_t>(index)];
  const Config& c = step.decoder.config;
  DecoderScratch& s = step.scratch;
  const cpu::PackedMatrix* qkv[] = {&layer.q, &layer.k, &layer.v};
  const cpu::PackedMatrix* attn_output[] = {&layer.attn_output};
  const cpu::PackedMatrix* gate_up[] = {&layer.gate, &layer.up};
  const cpu::PackedMatrix* down[] = {&layer.down};

  HEADRACE_TRY(normalise(step, layer.attn_norm));
  HEADRACE_TRY(product(step, qkv, layer.qkv_bias.empty() ? nullptr : layer.qkv_bias.data(),
                       s.normed.get(), s.qkv.get(), Widths(c).qkv, false));
  HEADRACE_TRY(rope_and_append(step, index));
  HEADRACE_TRY(attend(step, index));
  HEADRACE_TRY(product(step, attn_output, nullptr, s.attn.get(), s.x.get(), c.hidden_size, true));

  HEADRACE_TRY(normalise(step, layer.ffn_norm));
  HEADRACE_TRY(
      product(step, gate_up, nullptr, s.normed.get(), s.gate_up.get(), 2 * c.ffn_size, false));
  HEADRACE_TRY(for_rows(step.num_tokens, step.num_threads(), [&](cpu::RowRange rows) {
    step.ops.swiglu({.gate = s.gate_up.get(),
                     .gate_stride = 2 * c.ffn_size,
                     .up = s.gate_up.get() + c.ffn_size,
                     .up_stride = 2 * c.ffn_size,
                     .width = c.ffn_size,
                     .out = s.ffn.get(),
                     .out_stride = c.ffn_size},
                    rows);
  }));
  return product(step, down, nullptr, s.ffn.get(), s.x.get(), c.hidden_size, true);
}

Failure no_memory(std::int64_t num_tokens) {
  return {ErrorCode::out_of_memory,
          format_text("no memory for {} tokens at once; use smaller batches", num_tokens)};
}

// The workspace of attention depends on the plan of the step; it keeps the largest it had.
Status grow_workspace(const Plan& plan, DecoderScratch& scratch) {
  const std::size_t bytes = plan.schedule.workspace_bytes;
  if (bytes <= scratch.attention_bytes) return std::nullopt;
  scratch.attention = Aligned<std::byte>(bytes);
  scratch.attention_bytes = scratch.attention.get() == nullptr ? 0 : bytes;
  if (scratch.attention_bytes == 0) return no_memory(plan.problem.seqlen_q);
  return std::nullopt;
}

}  // namespace

Result<DecoderScratch> DecoderScratch::make(const Decoder& decoder, std::int64_t max_tokens,
                                            std::int64_t max_seqlen, DType cache_dtype) {
  const Config& c = decoder.config;
  const Widths width(c);
  DecoderScratch s;
  s.max_tokens = max_tokens;
  Result<RopeTable> rope = make_rope_table({.rot_dim = c.rope_dim,
                                            .num_positions = max_seqlen,
                                            .base = c.rope_base,
                                            .linear_factor = c.rope_linear_factor,
                                            .llama3 = {},
                                            .freq_factors = decoder.rope_factors});
  if (!rope.ok()) return std::move(rope.failure());
  s.rope = std::move(rope.value());
  s.positions.resize(static_cast<std::size_t>(max_tokens));
  const std::int64_t widest = std::max({c.hidden_size, width.attn, c.ffn_size});
  s.x = Aligned<float>(count(max_tokens, c.hidden_size));
  s.normed = Aligned<float>(count(max_tokens, c.hidden_size));
  s.qkv = Aligned<float>(count(max_tokens, width.qkv));
  s.gate_up = Aligned<float>(count(max_tokens, 2 * c.ffn_size));
  s.ffn = Aligned<float>(count(max_tokens, c.ffn_size));
  s.attn = Aligned<float>(count(max_tokens, width.attn));
  s.q = Aligned<std::byte>(count(max_tokens, width.q) * dtype_bytes(cache_dtype));
  s.attn_out = Aligned<std::byte>(count(max_tokens, width.attn) * dtype_bytes(cache_dtype));
  s.products = Aligned<std::byte>(cpu::multiply_scratch_bytes(widest, max_tokens));
  for (const void* part : std::initializer_list<const void*>{
           s.x.get(), s.normed.get(), s.qkv.get(), s.gate_up.get(), s.ffn.get(), s.attn.get(),
           s.q.get(), s.attn_out.get(), s.products.get()})
    if (part == nullptr) return no_memory(max_tokens);
  return s;
}

Status forward(const Decoder& decoder, std::span<const std::int32_t> tokens, KvCache& cache,
               DecoderScratch& scratch) {
  const Config& c = decoder.config;
  const auto num_tokens = static_cast<std::int64_t>(tokens.size());
  const std::int64_t first = cache.length();
  if (auto bad = cache.reserve(num_tokens)) return bad;
  Result<Plan> plan = plan_step(decoder, num_tokens, first + num_tokens, cache.shape().dtype);
  if (!plan.ok()) return std::move(plan.failure());
  if (auto bad = grow_workspace(plan.value(), scratch)) return bad;
  const Step step{.decoder = decoder,
                  .ops = cpu::elementwise_ops(decoder.device),
                  .plan = plan.value(),
                  .cache = cache,
                  .scratch = scratch,
                  .first = first,
                  .num_tokens = num_tokens};
  std::iota(scratch.positions.begin(), scratch.positions.end(), static_cast<std::int32_t>(first));
  HEADRACE_TRY(for_rows(num_tokens, step.num_threads(), [&](cpu::RowRange rows) {
    for (std::int64_t t = rows.first; t < rows.last; ++t)
      cpu::unpack_row(decoder.embedding, tokens[static_cast<std::size_t>(t)],
                      scratch.x.get() + t * c.hidden_size);
  }));
  for (std::int64_t layer = 0; layer < c.num_layers; ++layer) HEADRACE_TRY(run_layer(step, layer));
  HEADRACE_TRY(normalise(step, decoder.output_norm));
  cache.set_length(first + num_tokens);
  return std::nullopt;
}

Status logits_of(const Decoder& decoder, const float* normed, std::int64_t num_rows, float* out,
                 DecoderScratch& scratch) {
  const cpu::PackedMatrix* matrix[] = {&decoder.output_matrix()};
  return cpu::multiply({.matrices = matrix,
                        .num_tokens = num_rows,
                        .x = normed,
                        .x_stride = decoder.config.hidden_size,
                        .out = out,
                        .out_stride = decoder.config.vocab_size},
                       decoder.device.num_units, scratch.products.get());
}

}  // namespace headrace::model
