// headrace bench decode: one decode step of attention over a paged KV cache, by the type of keys
// and values and by page size, in alternating rounds with the same step over unquantised pages.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "command.h"
#include "decode_step.h"
#include "machine.h"
#include "model_options.h"
#include "options.h"
#include "progress.h"
#include "random_inputs.h"
#include "rounds.h"
#include "times.h"

namespace headrace::cli {
namespace {

struct BenchOptions {
  std::vector<std::int64_t> batch = {1}, seqlens_k = {32768}, page_sizes = {16, 64};
  std::vector<std::string> kv_types;  // empty: all
  std::int64_t num_heads = 32, num_kv_heads = 8, head_dim = 128, seqlen_q = 1;
  std::string dtype = "bf16", layout = "nhd";
  std::string device = "cpu";
  int num_threads = 0;  // 0: all that the library finds
  RoundOptions rounds = {.reps = 15, .min_time = 0.2};
  Format format = Format::text;
  std::string command_line;
};

constexpr std::int64_t kBaselinePageSize = 16;

struct NamedFormat {
  std::string kv_type;
  KvFormat format;
};

// The baseline first.
std::vector<NamedFormat> formats_of(const BenchOptions& o) {
  std::vector<std::string> kv_types = o.kv_types;
  if (kv_types.empty()) {
    kv_types = stored_types();
    kv_types.insert(kv_types.begin(), o.dtype);
  }
  std::vector<NamedFormat> formats = {{o.dtype, {{}, kBaselinePageSize}}};
  std::set<std::pair<std::string, std::int64_t>> known = {{o.dtype, kBaselinePageSize}};
  for (const std::string& kv_type : kv_types)
    for (const std::int64_t page_size : o.page_sizes) {
      if (!known.emplace(kv_type, page_size).second) continue;
      const auto codes = kv_type == o.dtype ? std::nullopt : stored_dtype(kv_type);
      formats.push_back({kv_type, {codes, page_size}});
    }
  return formats;
}

void check_options(const BenchOptions& o) {
  const auto refuse = [](const std::string& text) { throw Error(HEADRACE_INVALID_ARGUMENT, text); };
  if (o.num_heads % o.num_kv_heads != 0)
    refuse("--heads " + std::to_string(o.num_heads) + ": must be a multiple of --kv-heads " +
           std::to_string(o.num_kv_heads) + "; choose another one");
  for (const std::string& kv_type : o.kv_types)
    if ((kv_type == "f16" || kv_type == "bf16") && kv_type != o.dtype)
      refuse("--kv-type " + kv_type + ": must be " + o.dtype +
             ", the --dtype, or a quantised type; pass one of them, or --dtype " + kv_type);
  for (const std::int64_t seqlen_k : o.seqlens_k)
    if (seqlen_k < o.seqlen_q)
      refuse("--seqlen-k " + std::to_string(seqlen_k) + ": must be at least --seqlen-q " +
             std::to_string(o.seqlen_q) + ", whose keys it includes; pass more keys");
}

struct Row {
  NamedFormat format;
  std::unique_ptr<DecodeStep> step;
};

// What was left out, each reason once.
class Skipped {
 public:
  void add(const NamedFormat& format, const std::string& reason) {
    const std::string text = "skipped: " + format.kv_type + " with page size " +
                             std::to_string(format.format.page_size) + ": " + reason;
    if (!texts_.insert(text).second) return;
    show_line("");
    print_note(text);
  }
  bool has_refused_kernel = false;

 private:
  std::set<std::string> texts_;
};

// A format that the cache cannot have, or that every kernel refuses, is skipped with a note, so
// that the others are still measured. The baseline is needed.
std::vector<Row> rows_of(const std::vector<NamedFormat>& formats, const DecodeShape& shape,
                         Machine& machine, Skipped& skipped) {
  std::vector<Row> rows;
  for (const NamedFormat& format : formats) {
    if (format.format.codes && format.format.page_size == 0) {
      skipped.add(format, "quantised keys lie in pages; pass a --page-size above 0");
      continue;
    }
    try {
      rows.push_back({format, std::make_unique<DecodeStep>(shape, format.format, machine)});
    } catch (const Error& error) {
      const bool is_refused_kernel = error.code() == HEADRACE_UNSUPPORTED;
      if (rows.empty() || !(is_refused_kernel || error.code() == HEADRACE_INVALID_ARGUMENT)) throw;
      skipped.has_refused_kernel = skipped.has_refused_kernel || is_refused_kernel;
      skipped.add(format, error.what());
    }
  }
  return rows;
}

std::vector<float> normals(Random& random, std::int64_t count, float mean) {
  std::vector<float> all(static_cast<std::size_t>(count));
  for (float& x : all) x = random.normal() + mean;
  return all;
}

// Every cache receives the same tokens, a few at a time, so that they need little memory.
void fill(const std::vector<Row>& rows, const DecodeShape& shape, Machine& machine) {
  Random random;
  MachineMemory memory(machine);
  const auto in_memory = [&](const std::vector<float>& x, std::int64_t num_tokens,
                             std::int64_t num_heads) {
    TensorView view = memory.allocate(DType::f32, {num_tokens, num_heads, shape.head_dim});
    memory.write(view, x.data(), x.size() * sizeof x[0]);
    return view;
  };
  std::vector<float> q;
  for (std::int64_t i = 0; i < shape.seqlen_q; ++i) {
    const auto token = peaked_queries(random, shape.num_heads, shape.num_kv_heads, shape.head_dim);
    q.insert(q.end(), token.begin(), token.end());
  }
  const TensorView queries = in_memory(q, shape.seqlen_q, shape.num_heads);
  for (const Row& row : rows) row.step->set_queries(queries);
  TensorView k, v;
  for (std::int64_t first = 0; first < shape.seqlen_k; first += DecodeStep::kMaxAppended) {
    show_line("keys " + std::to_string(first) + '/' + std::to_string(shape.seqlen_k));
    const std::int64_t num_tokens = std::min(DecodeStep::kMaxAppended, shape.seqlen_k - first);
    const std::int64_t count = num_tokens * shape.num_kv_heads * shape.head_dim;
    const std::vector<float> new_k = normals(random, count, 0), new_v = normals(random, count, 0.5);
    if (first == 0) {
      k = in_memory(new_k, num_tokens, shape.num_kv_heads);
      v = in_memory(new_v, num_tokens, shape.num_kv_heads);
    } else {
      memory.write(k, new_k.data(), new_k.size() * sizeof new_k[0]);
      memory.write(v, new_v.data(), new_v.size() * sizeof new_v[0]);
    }
    k.shape[0] = v.shape[0] = num_tokens;
    for (const Row& row : rows) row.step->append(k, v);
  }
}

double relative_error(const std::vector<float>& got, const std::vector<float>& want) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    difference += std::pow(double{got[i]} - double{want[i]}, 2);
    norm += std::pow(double{want[i]}, 2);
  }
  return std::sqrt(difference / norm);
}

Table make_table() {
  return {.key = "rows",
          .columns = {{.key = "batch", .title = "batch", .is_key = true},
                      {.key = "seqlen_k", .title = "keys", .is_key = true},
                      {.key = "kv_type", .title = "type", .is_key = true},
                      {.key = "page_size", .title = "page", .is_key = true},
                      {"us_median", "us"},
                      {"us_min", "min"},
                      {"bytes", "MiB", 1, 1024 * 1024},
                      {"gbytes", "GB/s"},
                      {"ratio", "ratio", 2},
                      {"error", "error", 4},
                      {"kernel", "kernel"}},
          .rows = {}};
}

void add_rows(const DecodeShape& shape, const std::vector<Row>& rows,
              const std::vector<std::vector<double>>& seconds, Table& table) {
  const double baseline = times_of(seconds[0]).median;
  const std::vector<float> out16 = rows[0].step->out_of_first_sequence();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto& [format, step] = rows[i];
    const Times times = times_of(seconds[i]);
    table.rows.push_back({shape.batch, shape.seqlen_k, format.kv_type, format.format.page_size,
                          times.median * 1e6, times.min * 1e6, step->bytes(),
                          step->bytes() / times.median * 1e-9, times.median / baseline,
                          relative_error(step->out_of_first_sequence(), out16), step->kernel()});
  }
}

// Whether keys may still be in a cache when the next round reads them. round_bytes: the least that
// the calls of a round read.
std::string caches_text(const Machine& machine, double round_bytes) {
  if (machine.gpu) return "cold: the L2 is flushed before each call";
  const std::size_t cache = probes::last_level_cache_bytes();
  const std::string sizes = " (last level: " + bytes_text(static_cast<std::int64_t>(cache)) +
                            ", a round of calls reads " +
                            bytes_text(static_cast<std::int64_t>(round_bytes)) + " or more)";
  return (round_bytes >= 2 * static_cast<double>(cache)
              ? "cold: the other calls of a round evict the keys"
              : "may be warm: pass more --batch, --seqlen-k or types to evict the keys") +
         sizes;
}

std::vector<Note> notes_of(const BenchOptions& o, const Machine& machine, double round_bytes) {
  const auto text = [](std::int64_t number) { return std::to_string(number); };
  return joined<Note>(
      {run_notes("decode", o.command_line, machine.device),
       {units_note(machine.device),
        {"caches", caches_text(machine, round_bytes)},
        {"shape", "heads " + text(o.num_heads) + '/' + text(o.num_kv_heads) + ", head_dim " +
                      text(o.head_dim) + ", " + o.dtype + ", seqlen_q " + text(o.seqlen_q) + ", " +
                      o.layout + " pages in random order (page 0: contiguous keys)"},
        {"data", std::string(kPeakedDataText)},
        {"columns",
         "MiB: keys, values and scales that a step reads; ratio: us over that of " + o.dtype +
             " in pages of " + text(kBaselinePageSize) +
             "; error: |out - out16| / |out16| of one sequence, out16 of those pages"}}});
}

int run_bench(const BenchOptions& options) {
  check_options(options);
  Machine machine = machine_of(options.device, options.num_threads, false);
  const std::vector<NamedFormat> formats = formats_of(options);
  Report report;
  report.tables.push_back(make_table());
  Skipped skipped;
  double round_bytes = std::numeric_limits<double>::infinity();
  for (const std::int64_t batch : options.batch)
    for (const std::int64_t seqlen_k : options.seqlens_k) {
      const DecodeShape shape{.batch = batch,
                              .seqlen_q = options.seqlen_q,
                              .seqlen_k = seqlen_k,
                              .num_heads = options.num_heads,
                              .num_kv_heads = options.num_kv_heads,
                              .head_dim = options.head_dim,
                              .dtype = dtype_of_cache(options.dtype),
                              .layout = options.layout == "hnd" ? KvLayout::hnd : KvLayout::nhd};
      if (machine.gpu) machine.gpu->release();
      const std::vector<Row> rows = rows_of(formats, shape, machine, skipped);
      fill(rows, shape, machine);
      show_line("batch " + std::to_string(batch) + ", keys " + std::to_string(seqlen_k));
      std::vector<TimedCall> calls;
      double bytes = 0;
      for (const Row& row : rows) {
        calls.push_back([step = row.step.get()](void* stream) { step->run(stream); });
        bytes += row.step->bytes();
      }
      round_bytes = std::min(round_bytes, bytes);
      const auto seconds =
          time_in_rounds(calls, options.rounds, machine.gpu ? &*machine.gpu : nullptr);
      add_rows(shape, rows, seconds, report.tables[0]);
    }
  show_line("");
  report.notes = notes_of(options, machine, round_bytes);
  print_report(report, options.format);
  return skipped.has_refused_kernel ? kExitFailure : kExitOk;
}

void add_shape(CLI::App& app, BenchOptions& options) {
  constexpr const char* kGroup = "Shape (comma lists: all combinations)";
  add_numbers(app, "--batch", options.batch, {1, 4096}, "sequences")
      ->option_text("N,... [1]")
      ->group(kGroup);
  add_numbers(app, "--seqlen-k,--seqlen", options.seqlens_k, {1, std::int64_t{1} << 24},
              "keys of a sequence, those of the step included")
      ->option_text("N,... [32768]")
      ->group(kGroup);
  std::vector<std::string> kv_types = stored_types();
  kv_types.insert(kv_types.begin(), {"f16", "bf16"});
  app.add_option("--kv-type", options.kv_types,
                 "types of keys and values: the --dtype, int8, fp8, int4, kivi4, kivi2")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::IsMember(kv_types))
      ->option_text("TYPE,... [all of them]")
      ->group(kGroup);
  add_numbers(app, "--page-size", options.page_sizes, {0, 65536},
              "keys of a page; 0: contiguous keys, of the --dtype alone")
      ->option_text("N,... [16,64]")
      ->group(kGroup);
  const auto add = [&](const char* name, std::int64_t& number, std::int64_t high,
                       const char* text) {
    app.add_option(name, number, text)
        ->transform(whole_number({1, high}))
        ->option_text("N [" + std::to_string(number) + "]")
        ->group(kGroup);
  };
  add("--seqlen-q", options.seqlen_q, 1024, "queries of a sequence, the last ones of its keys");
  add("--heads", options.num_heads, 1024, "query heads");
  add("--kv-heads", options.num_kv_heads, 1024, "KV heads");
  add("--head-dim", options.head_dim, 576, "head_dim of q, k and v");
  app.add_option("--dtype", options.dtype, "of queries and unquantised keys and values")
      ->check(CLI::IsMember({"f16", "bf16"}))
      ->option_text("f16|bf16 [bf16]")
      ->group(kGroup);
  app.add_option("--layout", options.layout,
                 "memory order of a page: its tokens (n), heads (h) and dim (d)")
      ->check(CLI::IsMember({"nhd", "hnd"}))
      ->option_text("nhd|hnd [nhd]")
      ->group(kGroup);
}

}  // namespace

void add_bench_decode(CLI::App& bench, Action& action, const std::string& command_line) {
  CLI::App* app = bench.add_subcommand(
      "decode", "A decode step over a paged KV cache, by KV type and page size");
  auto options = std::make_shared<BenchOptions>();
  options->command_line = command_line;
  add_shape(*app, *options);
  constexpr const char* kGroup = "Measurement";
  app->add_option("--device", options->device, "cpu, cuda or cuda:NUMBER")
      ->option_text("DEVICE [cpu]")
      ->group(kGroup);
  app->add_option("--threads", options->num_threads, "threads per call (default: all allowed)")
      ->transform(whole_number({1, 1024}))
      ->option_text("N")
      ->group(kGroup);
  app->add_option("--reps", options->rounds.reps, "minimum number of timed rounds")
      ->transform(whole_number({1, 100000}))
      ->option_text("N [15]")
      ->group(kGroup);
  app->add_option("--min-time", options->rounds.min_time, "minimum time per row in seconds")
      ->transform(real_number({0, 3600}))
      ->option_text("SECONDS [0.2]")
      ->group(kGroup);
  add_format_option(*app, options->format);
  app->callback([&action, options] { action = [options] { return run_bench(*options); }; });
}

}  // namespace headrace::cli
