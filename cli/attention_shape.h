// Options that describe attention calls, the problems they stand for, and the work in each.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "headrace/headrace.hpp"
#include "table.h"

namespace headrace::cli {

// One call: its problem, and the lengths of its sequences (all equal unless ragged).
struct AttentionShape {
  headrace_problem problem;
  std::vector<std::int64_t> seqlens_q, seqlens_k;  // [batch]
};

// Sizes before dtype and causal are chosen.
struct Dims {
  std::int64_t batch, seqlen_q, seqlen_k, num_heads, num_kv_heads, head_dim, head_dim_v;
};

// Lists: the calls are all their combinations.
struct ShapeOptions {
  std::vector<std::int64_t> batch{1};
  std::vector<std::int64_t> seqlen{1024};
  std::vector<std::int64_t> seqlen_q{};  // empty: seqlen
  std::vector<std::int64_t> seqlen_k{};  // empty: that of q
  std::vector<std::int64_t> num_heads{8};
  std::vector<std::int64_t> num_kv_heads{};  // empty: num_heads
  std::vector<std::int64_t> head_dim{64};
  std::vector<std::int64_t> head_dim_v{};  // empty: head_dim
  std::vector<std::string> dtype{"f32"};
  std::vector<std::string> causal{"none"};
  std::string window;  // "L,R"; empty: open
  double softcap = 0;
  double dropout_p = 0;
  bool has_alibi = false;
  bool has_bias = false;
  bool has_mask = false;
  bool has_sinks = false;
  bool has_lse = false;
  bool is_ragged = false;
  bool is_backward = false;
  bool is_deterministic = false;
};

void add_shape_options(CLI::App& app, ShapeOptions& options);
// Of them the sizes, dtypes and causal masks alone.
void add_size_options(CLI::App& app, ShapeOptions& options);
// Whether a size (batch, seqlen, heads, head_dim) was given on the command line.
bool has_dims(const CLI::App& app);

std::vector<Dims> dims_of(const ShapeOptions& options);
// Every one of `dims` with every dtype and causal mask of the options.
std::vector<AttentionShape> shapes_of(const std::vector<Dims>& dims, const ShapeOptions& options);

// Turns the problem of a forward into that of its backward, with every gradient that it can have.
void make_backward(headrace_problem& problem);

// Lengths of a ragged batch: from `max_seqlen` down to max_seqlen / batch in even steps.
std::vector<std::int64_t> ragged_seqlens(std::int64_t batch, std::int64_t max_seqlen);

// What a call costs at least.
struct Work {
  std::int64_t visible_pairs;  // (query, key) pairs of one head that causal mask and window leave
  double flops;  // a pair and head: 2 * head_dim + 2 * head_dim_v for the two products of a
                 // forward, 6 * head_dim + 4 * head_dim_v for the five of a backward
  double bytes;  // every input that is needed and every output, once through the memory bus
};
Work work_of(const AttentionShape& shape);

// dtype, sizes, causal mask and phase in a table, and the cells for them.
std::vector<Column> shape_columns();
std::vector<Cell> shape_cells(const headrace_problem& problem);
// "window 256/0, softcap 30, alibi": what those columns do not show; may be empty.
std::string features_text(const headrace_problem& problem);

}  // namespace headrace::cli
