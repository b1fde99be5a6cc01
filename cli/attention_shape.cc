#include "attention_shape.h"

#include <algorithm>
#include <charconv>
#include <sstream>
#include <string_view>

#include "options.h"

namespace headrace::cli {
namespace {

constexpr const char* kDimsOptions[] = {"--batch", "--seqlen",   "--seqlen-q", "--seqlen-k",
                                        "--heads", "--kv-heads", "--head-dim", "--head-dim-v"};

struct Name {
  const char* text;
  std::int32_t value;
};
constexpr Name kDtypes[] = {
    {"f32", HEADRACE_F32}, {"f16", HEADRACE_F16}, {"bf16", HEADRACE_BF16}, {"f64", HEADRACE_F64}};
constexpr Name kCausals[] = {{"none", HEADRACE_CAUSAL_NONE},
                             {"bottom-right", HEADRACE_CAUSAL_BOTTOM_RIGHT},
                             {"top-left", HEADRACE_CAUSAL_TOP_LEFT}};

// The parser has checked that the name is in the list.
template <std::size_t kSize>
std::int32_t value_of(const Name (&names)[kSize], const std::string& text) {
  for (const Name& name : names)
    if (text == name.text) return name.value;
  return -1;
}

template <std::size_t kSize>
std::string text_of(const Name (&names)[kSize], std::int32_t value) {
  for (const Name& name : names)
    if (value == name.value) return name.text;
  return "unknown";
}

template <std::size_t kSize>
CLI::IsMember member_of(const Name (&names)[kSize]) {
  std::vector<std::string> texts;
  for (const Name& name : names) texts.emplace_back(name.text);
  return CLI::IsMember(texts);
}

// One side of "L,R": a number of keys, or "open".
bool parse_window_side(std::string_view text, std::int64_t& side) {
  if (text == "open" || text == "-1") {
    side = -1;
    return true;
  }
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), side);
  return error == std::errc() && end == text.data() + text.size() && side >= 0;
}

bool parse_window(std::string_view text, std::int64_t& left, std::int64_t& right) {
  const auto comma = text.find(',');
  return comma != std::string_view::npos && parse_window_side(text.substr(0, comma), left) &&
         parse_window_side(text.substr(comma + 1), right);
}

std::string check_window(const std::string& text) {
  std::int64_t left = 0, right = 0;
  if (parse_window(text, left, right)) return {};
  return '"' + text +
         "\" is not L,R; pass the number of keys left and right of the diagonal, or open";
}

std::string list_text(const std::vector<std::int64_t>& list) {
  std::string text;
  for (const std::int64_t size : list) text += (text.empty() ? " [" : ",") + std::to_string(size);
  return list.empty() ? "" : text + ']';
}

// The list, or the default as a list of one.
std::vector<std::int64_t> list_or(const std::vector<std::int64_t>& list, std::int64_t otherwise) {
  return list.empty() ? std::vector<std::int64_t>{otherwise} : list;
}

headrace_problem problem_of(const Dims& dims, const ShapeOptions& options) {
  headrace_problem p;
  headrace_problem_init(&p);
  p.batch = dims.batch;
  p.seqlen_q = dims.seqlen_q;
  p.seqlen_k = dims.seqlen_k;
  p.num_heads = dims.num_heads;
  p.num_kv_heads = dims.num_kv_heads;
  p.head_dim = dims.head_dim;
  p.head_dim_v = dims.head_dim_v;
  p.softcap = options.softcap;
  p.dropout_p = options.dropout_p;
  if (!options.window.empty()) parse_window(options.window, p.window_left, p.window_right);
  p.is_ragged = options.is_ragged;
  p.has_alibi = options.has_alibi;
  p.has_mask = options.has_mask;
  p.has_sinks = options.has_sinks;
  p.has_lse = options.has_lse;
  p.deterministic = options.is_deterministic;
  return p;
}

struct KeyRange {
  std::int64_t begin, end;
};
// Keys that causal mask and window leave visible to a query; the rules are those of headrace.h.
KeyRange visible_keys(const headrace_problem& p, std::int64_t q_idx, std::int64_t seqlen_q,
                      std::int64_t seqlen_k) {
  const std::int64_t shift = p.causal == HEADRACE_CAUSAL_TOP_LEFT ? 0 : seqlen_k - seqlen_q;
  const std::int64_t diagonal = q_idx + shift;
  KeyRange keys{0, seqlen_k};
  if (p.causal != HEADRACE_CAUSAL_NONE) keys.end = std::min(keys.end, diagonal + 1);
  if (p.window_right >= 0) keys.end = std::min(keys.end, diagonal + p.window_right + 1);
  if (p.window_left >= 0) keys.begin = std::max<std::int64_t>(0, diagonal - p.window_left);
  keys.end = std::max(keys.end, keys.begin);
  return keys;
}

struct Visible {
  std::int64_t pairs = 0;
  std::int64_t keys = 0;  // seen by at least one query
};
Visible visible_of(const headrace_problem& p, std::int64_t seqlen_q, std::int64_t seqlen_k) {
  Visible visible;
  std::int64_t seen_end = 0;  // the ranges only move right as q_idx grows
  for (std::int64_t q_idx = 0; q_idx < seqlen_q; ++q_idx) {
    const KeyRange keys = visible_keys(p, q_idx, seqlen_q, seqlen_k);
    visible.pairs += keys.end - keys.begin;
    const std::int64_t unseen_begin = std::max(keys.begin, seen_end);
    visible.keys += std::max<std::int64_t>(keys.end - unseen_begin, 0);
    seen_end = std::max(seen_end, keys.end);
  }
  return visible;
}

// Bytes of bias, dbias and mask, each one matrix for all heads.
double scores_bytes(const headrace_problem& p) {
  const std::int64_t rows = p.is_ragged ? p.total_q : p.seqlen_q;
  const auto elements = static_cast<double>(rows * p.seqlen_k);
  double bytes = 0;
  if (p.bias_dtype >= 0)
    bytes += elements * static_cast<double>(dtype_bytes(static_cast<DType>(p.bias_dtype))) *
             (p.has_dbias ? 2 : 1);
  if (p.has_mask) bytes += elements;
  return bytes;
}

void add_feature_options(CLI::App& app, ShapeOptions& o) {
  constexpr const char* kFeatures = "Features";
  app.add_option("--window", o.window, "keys visible left and right of the diagonal (default: all)")
      ->check(check_window)
      ->option_text("L,R")
      ->group(kFeatures);
  app.add_option("--softcap", o.softcap, "C of C * tanh(score / C); 0: none")
      ->transform(real_number({0, 1e30}))
      ->option_text("C [0]")
      ->group(kFeatures);
  app.add_option("--dropout", o.dropout_p, "dropout probability")
      ->transform(real_number({.low = 0, .high = 1, .is_below_high = true}))
      ->option_text("P [0]")
      ->group(kFeatures);
  app.add_flag("--alibi", o.has_alibi, "ALiBi slopes, one per head")->group(kFeatures);
  app.add_flag("--bias", o.has_bias, "additive bias, one matrix for all heads")->group(kFeatures);
  app.add_flag("--mask", o.has_mask, "boolean mask, one matrix for all heads")->group(kFeatures);
  app.add_flag("--sinks", o.has_sinks, "sink logits, one per head")->group(kFeatures);
  app.add_flag("--lse", o.has_lse, "also write the log-sum-exp")->group(kFeatures);
  app.add_flag("--ragged", o.is_ragged,
               "ragged batch: lengths decrease evenly from seqlen to seqlen / batch")
      ->group(kFeatures);
  CLI::Option* backward =
      app.add_flag("--backward", o.is_backward,
                   "the backward pass, with dbias and dsinks if bias and sinks are given")
          ->group(kFeatures);
  app.add_flag("--deterministic", o.is_deterministic,
               "bit-identical gradients from run to run (always the case on a CPU)")
      ->needs(backward)
      ->group(kFeatures);
}

}  // namespace

void add_size_options(CLI::App& app, ShapeOptions& o) {
  constexpr const char* kGroup = "Shape (comma lists: all combinations)";
  const auto add_sizes = [&](const char* name, std::vector<std::int64_t>& list, const char* text) {
    add_numbers(app, name, list, {1, INT64_MAX}, text)
        ->option_text("N,..." + list_text(list))
        ->group(kGroup);
  };
  add_sizes("--batch", o.batch, "sequences");
  add_sizes("--seqlen", o.seqlen, "queries and keys per sequence");
  add_sizes("--seqlen-q", o.seqlen_q, "queries (default: --seqlen)");
  add_sizes("--seqlen-k", o.seqlen_k, "keys (default: --seqlen-q)");
  add_sizes("--heads", o.num_heads, "query heads");
  add_sizes("--kv-heads", o.num_kv_heads, "KV heads (default: --heads)");
  add_sizes("--head-dim", o.head_dim, "head_dim of q and k");
  add_sizes("--head-dim-v", o.head_dim_v, "head_dim of v (default: --head-dim)");
  const auto add_names = [&](const char* name, std::vector<std::string>& list, const auto& names,
                             const char* text) {
    app.add_option(name, list, text)
        ->delimiter(',')
        ->allow_extra_args(false)
        ->check(member_of(names))
        ->option_text("NAME,... [" + list[0] + ']')
        ->group(kGroup);
  };
  add_names("--dtype", o.dtype, kDtypes, "f32, f16, bf16, f64");
  add_names("--causal", o.causal, kCausals, "none, bottom-right, top-left");
}

void add_shape_options(CLI::App& app, ShapeOptions& options) {
  add_size_options(app, options);
  add_feature_options(app, options);
}

bool has_dims(const CLI::App& app) {
  return std::any_of(std::begin(kDimsOptions), std::end(kDimsOptions),
                     [&](const char* name) { return app.count(name) > 0; });
}

std::vector<AttentionShape> shapes_of_call(const std::string& text) {
  constexpr std::string_view kOperator = "attention";
  const std::size_t end = std::min(text.find(' '), text.size());
  if (std::string_view(text).substr(0, end) != kOperator)
    throw CLI::ValidationError("--call", "\"" + text.substr(0, end) +
                                             "\" is no operator; write \"attention\" and the "
                                             "options of headrace explain attention");
  CLI::App app;
  app.set_help_flag();
  ShapeOptions options;
  add_shape_options(app, options);
  app.parse(text.substr(end), false);
  return shapes_of(dims_of(options), options);
}

std::string check_call(const std::string& text) {
  try {
    (void)shapes_of_call(text);
    return {};
  } catch (const CLI::ParseError& error) {
    return "\"" + text + "\": " + error.what();
  }
}

std::vector<Dims> dims_of(const ShapeOptions& o) {
  std::vector<Dims> all;
  const auto& seqlens_q = o.seqlen_q.empty() ? o.seqlen : o.seqlen_q;
  for (const std::int64_t batch : o.batch)
    for (const std::int64_t num_heads : o.num_heads)
      for (const std::int64_t num_kv_heads : list_or(o.num_kv_heads, num_heads))
        for (const std::int64_t head_dim : o.head_dim)
          for (const std::int64_t head_dim_v : list_or(o.head_dim_v, head_dim))
            for (const std::int64_t seqlen_q : seqlens_q)
              for (const std::int64_t seqlen_k : list_or(o.seqlen_k, seqlen_q))
                all.push_back(
                    {batch, seqlen_q, seqlen_k, num_heads, num_kv_heads, head_dim, head_dim_v});
  return all;
}

std::vector<AttentionShape> shapes_of(const std::vector<Dims>& dims, const ShapeOptions& options) {
  std::vector<AttentionShape> shapes;
  for (const Dims& one : dims) {
    for (const std::string& dtype : options.dtype) {
      for (const std::string& causal : options.causal) {
        AttentionShape shape{problem_of(one, options), {}, {}};
        headrace_problem& p = shape.problem;
        p.dtype = value_of(kDtypes, dtype);
        p.causal = value_of(kCausals, causal);
        if (options.has_bias) p.bias_dtype = p.dtype;
        if (options.is_backward) make_backward(p);
        const auto batch = static_cast<std::size_t>(p.batch);
        shape.seqlens_q = p.is_ragged ? ragged_seqlens(p.batch, p.seqlen_q)
                                      : std::vector<std::int64_t>(batch, p.seqlen_q);
        shape.seqlens_k = p.is_ragged ? ragged_seqlens(p.batch, p.seqlen_k)
                                      : std::vector<std::int64_t>(batch, p.seqlen_k);
        if (p.is_ragged) {
          for (const std::int64_t seqlen : shape.seqlens_q) p.total_q += seqlen;
          for (const std::int64_t seqlen : shape.seqlens_k) p.total_k += seqlen;
        }
        shapes.push_back(std::move(shape));
      }
    }
  }
  return shapes;
}

void make_backward(headrace_problem& problem) {
  problem.phase = HEADRACE_BACKWARD;
  problem.has_lse = 1;
  problem.has_dbias = problem.bias_dtype >= 0;
  problem.has_dsinks = problem.has_sinks;
}

std::vector<std::int64_t> ragged_seqlens(std::int64_t batch, std::int64_t max_seqlen) {
  std::vector<std::int64_t> seqlens;
  for (std::int64_t i = 0; i < batch; ++i)
    seqlens.push_back((max_seqlen * (batch - i) + batch - 1) / batch);
  return seqlens;
}

Work work_of(const AttentionShape& shape) {
  const headrace_problem& p = shape.problem;
  Visible all;
  std::int64_t queries = 0, keys = 0;
  Visible visible;
  for (std::size_t i = 0; i < shape.seqlens_q.size(); ++i) {
    const bool is_same = i > 0 && shape.seqlens_q[i] == shape.seqlens_q[i - 1] &&
                         shape.seqlens_k[i] == shape.seqlens_k[i - 1];
    if (!is_same) visible = visible_of(p, shape.seqlens_q[i], shape.seqlens_k[i]);
    all.pairs += visible.pairs;
    all.keys += visible.keys;
    queries += shape.seqlens_q[i];
    keys += shape.seqlens_k[i];
  }
  const bool is_backward = p.phase == HEADRACE_BACKWARD;
  const auto heads = static_cast<double>(p.num_heads);
  const auto element_bytes = static_cast<double>(dtype_bytes(static_cast<DType>(p.dtype)));
  const double lse_bytes = p.has_lse ? std::max(element_bytes, 4.) : 0;
  // Forward: S and out. Backward: S, dq and dk; dP and dv.
  const std::int64_t product_dims =
      is_backward ? 3 * p.head_dim + 2 * p.head_dim_v : p.head_dim + p.head_dim_v;
  // q and out, k and v; dq and dout, dk and dv. dk and dv are written for unseen keys, too.
  const double token_bytes = static_cast<double>(p.head_dim + p.head_dim_v) * element_bytes;
  const double row_bytes = (is_backward ? 2 : 1) * token_bytes + lse_bytes;
  const std::int64_t kv_rows = all.keys + (is_backward ? keys : 0);
  return {.visible_pairs = all.pairs,
          .flops = 2 * static_cast<double>(product_dims) * heads * static_cast<double>(all.pairs),
          .bytes = static_cast<double>(queries) * heads * row_bytes +
                   static_cast<double>(kv_rows * p.num_kv_heads) * token_bytes + scores_bytes(p)};
}

std::vector<Column> shape_columns() {
  std::vector<Column> columns = {{"dtype", "dtype"},       {"batch", "batch"},
                                 {"seqlen_q", "seqlen_q"}, {"seqlen_k", "seqlen_k"},
                                 {"num_heads", "heads"},   {"num_kv_heads", "kv"},
                                 {"head_dim", "dim"},      {"head_dim_v", "dim_v"},
                                 {"causal", "causal"},     {"phase", "phase"}};
  for (Column& column : columns) column.is_key = true;
  return columns;
}

std::vector<Cell> shape_cells(const headrace_problem& p) {
  return {std::string(dtype_name(static_cast<DType>(p.dtype))),
          p.batch,
          p.seqlen_q,
          p.seqlen_k,
          p.num_heads,
          p.num_kv_heads,
          p.head_dim,
          p.head_dim_v,
          text_of(kCausals, p.causal),
          std::string(p.phase == HEADRACE_BACKWARD ? "backward" : "forward")};
}

std::string features_text(const headrace_problem& p) {
  std::ostringstream text;
  const char* separator = "";
  const auto add = [&]() -> std::ostream& {
    text << separator;
    separator = ", ";
    return text;
  };
  const auto side = [](std::int64_t keys) { return keys < 0 ? "open" : std::to_string(keys); };
  if (p.is_ragged) add() << "ragged";
  if (p.window_left >= 0 || p.window_right >= 0)
    add() << "window " << side(p.window_left) << '/' << side(p.window_right);
  if (p.softcap > 0) add() << "softcap " << p.softcap;
  if (p.dropout_p > 0) add() << "dropout " << p.dropout_p;
  if (p.has_alibi) add() << "alibi";
  if (p.bias_dtype >= 0) add() << "bias";
  if (p.has_mask) add() << "mask";
  if (p.has_sinks) add() << "sinks";
  if (p.has_lse && p.phase == HEADRACE_FORWARD) add() << "lse";  // a backward always has it
  if (p.deterministic) add() << "deterministic";
  return std::move(text).str();
}

}  // namespace headrace::cli
