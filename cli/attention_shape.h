// Options that describe attention calls, the problems they stand for, and each call's work.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "headrace/headrace.hpp"
#include "table.h"

namespace headrace::cli {

// One call: its problem and its sequence lengths (all equal unless ragged).
struct AttentionShape {
  headrace_problem problem;
  std::vector<std::int64_t> seqlens_q, seqlens_k;  // [batch]
};

// Sizes before dtype and causal are chosen.
struct Dims {
  std::int64_t batch, seqlen_q, seqlen_k, num_heads, num_kv_heads, head_dim, head_dim_v;
};

// The calls are all combinations of the lists.
struct ShapeOptions {
  std::vector<std::int64_t> batch{1};
  std::vector<std::int64_t> seqlen{1024};
  std::vector<std::int64_t> seqlen_q{};  // empty: seqlen
  std::vector<std::int64_t> seqlen_k{};  // empty: seqlen_q
  std::vector<std::int64_t> num_heads{8};
  std::vector<std::int64_t> num_kv_heads{};  // empty: num_heads
  std::vector<std::int64_t> head_dim{64};
  std::vector<std::int64_t> head_dim_v{};  // empty: head_dim
  std::vector<std::string> dtype{"f32"};
  std::vector<std::string> causal{"none"};
  std::string window;  // "L,R"; empty: unlimited
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
// Only sizes, dtypes and causal masks.
void add_size_options(CLI::App& app, ShapeOptions& options);
// Whether a size (batch, seqlen, heads, head_dim) was given on the command line.
bool has_dims(const CLI::App& app);

std::vector<Dims> dims_of(const ShapeOptions& options);
// All combinations of `dims` with the options' dtypes and causal masks.
std::vector<AttentionShape> shapes_of(const std::vector<Dims>& dims, const ShapeOptions& options);

// The calls of a text "attention --seqlen 1024 --dtype bf16,f16", with the options of headrace
// explain attention. Throws CLI::ParseError.
std::vector<AttentionShape> shapes_of_call(const std::string& text);
// For Option::check(): why the text is no call; "" if it is one.
std::string check_call(const std::string& text);

// Turns a forward problem into its backward problem, with every gradient it can have.
void make_backward(headrace_problem& problem);

// Lengths of a ragged batch: from max_seqlen down to max_seqlen / batch in even steps.
std::vector<std::int64_t> ragged_seqlens(std::int64_t batch, std::int64_t max_seqlen);

// The least work that a call needs.
struct Work {
  std::int64_t visible_pairs;  // (query, key) pairs of one head within causal mask and window
  double flops;  // per pair and head: 2 * head_dim + 2 * head_dim_v for the two matmuls of a
                 // forward, 6 * head_dim + 4 * head_dim_v for the five of a backward
  double bytes;  // every input needed and every output, read or written once
};
Work work_of(const AttentionShape& shape);

// Table columns for dtype, sizes, causal mask and phase, and their cells.
std::vector<Column> shape_columns();
std::vector<Cell> shape_cells(const headrace_problem& problem);
// Features that have no column: "window 256/0, softcap 30, alibi"; may be empty.
std::string features_text(const headrace_problem& problem);

}  // namespace headrace::cli
