// headrace bench sparq: a decode by SparQ attention beside the dense one, in alternating rounds:
// what it reads, the time, and the error of out that it costs.
#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <vector>

#include "command.h"
#include "gpu.h"
#include "headrace/sparq.hpp"
#include "machine.h"
#include "options.h"
#include "progress.h"
#include "random_inputs.h"
#include "rounds.h"
#include "times.h"

namespace headrace::cli {
namespace {

struct BenchOptions {
  std::vector<std::int64_t> seqlens = {4096, 8192, 16384, 32768, 65536};
  std::vector<std::int64_t> components = {16, 32, 64};
  std::vector<std::int64_t> keys = {128};
  std::int64_t batch = 1, num_heads = 32, num_kv_heads = 8, head_dim = 128, page_size = 0;
  std::string device = "cpu";
  int reps = 15;
  Format format = Format::text;
  std::string command_line;
};

using Bf16s = std::vector<std::uint16_t>;

// A cache of equal sequences on the CPU or on a GPU, in pages if page_size > 0.
class Data {
 public:
  Data(const BenchOptions& options, std::int64_t seqlen) : o_(options), seqlen_(seqlen) {
    Random random;
    const std::int64_t num_keys = seqlen * o_.num_kv_heads;
    q_.resize(count(o_.num_heads));
    k_.resize(count(num_keys)), v_.resize(count(num_keys)), components_.resize(count(num_keys));
    for (std::uint16_t& x : k_) x = bf16_of(random.normal());
    for (std::uint16_t& x : v_) x = bf16_of(random.normal() + 0.5f);
    const auto queries = peaked_queries(random, o_.num_heads, o_.num_kv_heads, o_.head_dim);
    for (std::size_t i = 0; i < queries.size(); ++i) q_[i] = bf16_of(queries[i]);
    for (std::int64_t page = 0; page < num_pages(); ++page)
      for (std::int64_t i = 0; i < num_slots() * o_.num_kv_heads * o_.head_dim; ++i) {
        const std::int64_t c = i % o_.head_dim, head = i / o_.head_dim % o_.num_kv_heads;
        const std::int64_t slot = i / o_.head_dim / o_.num_kv_heads;
        const std::int64_t first = page * num_slots() * o_.num_kv_heads * o_.head_dim;
        components_[static_cast<std::size_t>(first + (head * o_.head_dim + c) * num_slots() +
                                             slot)] = k_[static_cast<std::size_t>(first + i)];
      }
    sums_.resize(static_cast<std::size_t>(o_.num_kv_heads * o_.head_dim));
    for (std::size_t i = 0; i < v_.size(); ++i) sums_[i % sums_.size()] += float_of_bf16(v_[i]);
    for (std::int64_t i = 0; i < num_pages(); ++i) pages_.push_back(static_cast<std::int32_t>(i));
    seqused_k_ = static_cast<std::int32_t>(seqlen);
  }
  Data(const Data&) = delete;

  // One sequence on the CPU; `out` [num_heads, head_dim].
  SparqTensors tensors(void* out) {
    const std::int64_t pages = num_pages(), slots = num_slots();
    const std::int64_t h = o_.num_kv_heads, d = o_.head_dim;
    SparqTensors t{.q = {q_.data(), DType::bf16, {1, o_.num_heads, d}},
                   .k = {k_.data(), DType::bf16, {pages, slots, h, d}},
                   .k_components = {components_.data(), DType::bf16, {pages, h, d, slots}},
                   .v = {v_.data(), DType::bf16, {pages, slots, h, d}},
                   .out = {out, DType::bf16, {1, o_.num_heads, d}}};
    // The paper leaves the mean value out for grouped heads.
    if (o_.num_heads == h) t.v_sum = {sums_.data(), DType::f32, {1, h, d}};
    if (o_.page_size > 0) {
      t.block_table = {pages_.data(), DType::i32, {1, pages}};
      t.seqused_k = {&seqused_k_, DType::i32, {1}};
    }
    return t;
  }

 private:
  std::size_t count(std::int64_t rows) const {
    return static_cast<std::size_t>(rows * o_.head_dim);
  }
  std::int64_t num_slots() const { return o_.page_size > 0 ? o_.page_size : seqlen_; }
  std::int64_t num_pages() const { return o_.page_size > 0 ? seqlen_ / o_.page_size : 1; }

  const BenchOptions& o_;
  std::int64_t seqlen_;
  Bf16s q_, k_, v_, components_;
  std::vector<float> sums_;
  std::vector<std::int32_t> pages_;
  std::int32_t seqused_k_ = 0;
};

// `batch` copies of a sequence, each in memory of its own.
class Batch {
 public:
  Batch(const SparqTensors& one, std::int64_t batch, Gpu* gpu, int device_id) : gpu_(gpu) {
    if (gpu != nullptr) gpu->release();
    tensors = one;
    const std::int64_t num_pages = one.k.shape[0];
    for (TensorView* x : {&tensors.q, &tensors.k, &tensors.k_components, &tensors.v, &tensors.out,
                          &tensors.v_sum, &tensors.block_table, &tensors.seqused_k})
      if (x->is_given()) repeat(*x, batch, device_id);
    if (!one.block_table.is_given() || batch == 1) return;
    pages_.clear();
    for (std::int64_t i = 0; i < batch * num_pages; ++i)
      pages_.push_back(static_cast<std::int32_t>(i));
    const std::size_t bytes = pages_.size() * sizeof(std::int32_t);
    tensors.block_table.data = gpu != nullptr ? gpu->copy_of(pages_.data(), bytes) : pages_.data();
  }
  Batch(const Batch&) = delete;
  void* allocate(std::size_t bytes) {
    if (gpu_ != nullptr) return gpu_->allocate(bytes);
    memory_.push_back(std::make_unique_for_overwrite<std::byte[]>(bytes));
    return memory_.back().get();
  }

  SparqTensors tensors;

 private:
  void repeat(TensorView& x, std::int64_t batch, int device_id) {
    const std::size_t bytes = static_cast<std::size_t>(x.num_elements()) * dtype_bytes(x.type());
    auto* to = static_cast<std::byte*>(allocate(bytes * static_cast<std::size_t>(batch)));
    const void* from = gpu_ != nullptr ? gpu_->copy_of(x.data, bytes) : x.data;
    for (std::int64_t b = 0; b < batch; ++b, to += bytes) {
      if (gpu_ != nullptr) {
        gpu_->copy(to, from, bytes, nullptr);
      } else {
        std::copy_n(static_cast<const std::byte*>(from), bytes, to);
      }
    }
    x.data = to - bytes * static_cast<std::size_t>(batch);
    x.shape[0] *= batch;
    x.device_type = gpu_ != nullptr ? HEADRACE_CUDA : HEADRACE_CPU;
    x.device_id = device_id;
  }

  Gpu* gpu_;
  std::vector<std::unique_ptr<std::byte[]>> memory_;
  std::vector<std::int32_t> pages_;
};

AttentionTensors dense_tensors(const SparqTensors& t) {
  const auto with_query_axis = [](const TensorView& x) {
    TensorView rows(x.data, x.type(), {x.shape[0], 1, x.shape[1], x.shape[2]});
    rows.device_type = x.device_type;
    rows.device_id = x.device_id;
    return rows;
  };
  AttentionTensors dense{
      .q = with_query_axis(t.q), .k = t.k, .v = t.v, .out = with_query_axis(t.out)};
  dense.block_table = t.block_table;
  dense.seqused_k = t.seqused_k;
  return dense;
}

// A call to time.
struct Candidate {
  SparqOptions options;
  TimedCall run;
};

std::vector<std::vector<double>> time_candidates(const std::vector<Candidate>& candidates, int reps,
                                                 std::optional<Gpu>& gpu) {
  std::vector<TimedCall> calls;
  for (const Candidate& candidate : candidates) calls.push_back(candidate.run);
  return time_in_rounds(calls, {.reps = reps}, gpu ? &*gpu : nullptr);
}

// |out - dense| / |dense| of one sequence, and the mean of alpha.
struct Quality {
  double error, share;
};
Quality quality_of(Data& data, const SparqOptions& options) {
  const SparqTensors shape = data.tensors(nullptr);
  const auto num = static_cast<std::size_t>(shape.out.num_elements());
  Bf16s dense(num), out(num);
  std::vector<float> alpha(static_cast<std::size_t>(shape.q.shape[1]));
  const AttentionTensors dense_call = dense_tensors(data.tensors(dense.data()));
  attention_forward(dense_call, {});
  SparqTensors call = data.tensors(out.data());
  call.alpha = {alpha.data(), DType::f32, {1, shape.q.shape[1]}};
  sparq_attention(call, options);
  double difference = 0, norm = 0, share = 0;
  for (std::size_t i = 0; i < num; ++i) {
    const double want = double{float_of_bf16(dense[i])}, got = double{float_of_bf16(out[i])};
    difference += (got - want) * (got - want);
    norm += want * want;
  }
  for (const float x : alpha) share += double{x};
  return {std::sqrt(difference / norm), share / static_cast<double>(alpha.size())};
}

Table make_table() {
  return {.key = "rows",
          .columns = {{.key = "seqlen_k", .title = "keys", .is_key = true},
                      {.key = "num_components", .title = "r", .is_key = true},
                      {.key = "num_keys", .title = "k", .is_key = true},
                      {"transfer", "transfer", 3},
                      {"dense_us", "dense us"},
                      {"sparq_us", "sparq us"},
                      {"speedup", "speed-up", 2},
                      {"error", "error", 4},
                      {"share", "share", 3}},
          .rows = {}};
}

std::vector<Candidate> candidates_of(const BenchOptions& o, std::int64_t seqlen, Batch& batch) {
  const SparqTensors& t = batch.tensors;
  std::vector<Candidate> all;
  const AttentionTensors dense = dense_tensors(t);
  const DeviceInfo device = device_from_text(o.device.c_str());
  const auto plan = std::make_shared<Plan>(plan_attention(Problem(dense), device));
  const std::size_t dense_bytes = plan->workspace_bytes();
  const Workspace dense_workspace{dense_bytes > 0 ? batch.allocate(dense_bytes) : nullptr,
                                  dense_bytes};
  all.push_back({{}, [=](void* stream) { plan->run(dense, dense_workspace, {}, stream); }});
  for (const std::int64_t r : o.components)
    for (const std::int64_t k : o.keys) {
      if (r > o.head_dim || k >= seqlen) continue;
      const SparqOptions options{.num_components = r, .num_keys = k, .local_window = k / 4};
      const std::size_t bytes = sparq_workspace_bytes(t, options);
      const Workspace workspace{batch.allocate(bytes), bytes};
      all.push_back(
          {options, [=](void* stream) { sparq_attention(t, options, workspace, stream); }});
    }
  return all;
}

void add_rows(const BenchOptions& o, std::int64_t seqlen, const std::vector<Candidate>& candidates,
              const std::vector<std::vector<double>>& seconds, Data& data, Table& table) {
  const auto bytes = [&](std::int64_t r, std::int64_t k) {
    return static_cast<double>(headrace_sparq_bytes(seqlen, o.head_dim, o.head_dim, r, k, 2));
  };
  const double dense = times_of(seconds[0]).median;
  for (std::size_t i = 1; i < candidates.size(); ++i) {
    const SparqOptions& options = candidates[i].options;
    const double sparq = times_of(seconds[i]).median;
    const Quality quality = quality_of(data, options);
    table.rows.push_back({seqlen, options.num_components, options.num_keys,
                          bytes(options.num_components, options.num_keys) / bytes(0, seqlen),
                          dense * 1e6, sparq * 1e6, dense / sparq, quality.error, quality.share});
  }
}

int run_bench(const BenchOptions& options) {
  if (options.num_heads % options.num_kv_heads != 0)
    throw Error(HEADRACE_INVALID_ARGUMENT, "--heads " + std::to_string(options.num_heads) +
                                               ": must be a multiple of --kv-heads " +
                                               std::to_string(options.num_kv_heads) +
                                               "; choose another one");
  const DeviceInfo device = device_from_text(options.device.c_str());
  std::optional<Gpu> gpu;
  if (device.device_type == HEADRACE_CUDA) gpu.emplace(device.device_id);
  Report report;
  report.notes = joined<Note>(
      {run_notes("sparq", options.command_line, device),
       {{"shape", "batch " + std::to_string(options.batch) + ", heads " +
                      std::to_string(options.num_heads) + "/" +
                      std::to_string(options.num_kv_heads) + ", head_dim " +
                      std::to_string(options.head_dim) + ", bf16, " +
                      (options.page_size > 0 ? "pages of " + std::to_string(options.page_size)
                                             : std::string("no pages"))},
        {"data", std::string(kPeakedDataText)},
        {"columns", std::string("transfer: bytes of keys and values over dense; error: |out - "
                                "dense| / |dense| of one sequence on the CPU; share: mean alpha; "
                                "local window: k / 4")}}});
  report.tables.push_back(make_table());
  for (const std::int64_t seqlen : options.seqlens) {
    if (options.page_size > 0 && seqlen % options.page_size != 0)
      throw Error(HEADRACE_INVALID_ARGUMENT,
                  "--seqlen " + std::to_string(seqlen) + ": must be a multiple of --page-size " +
                      std::to_string(options.page_size) + "; choose another one");
    show_line("keys " + std::to_string(seqlen));
    Data data(options, seqlen);
    Bf16s out(static_cast<std::size_t>(options.num_heads * options.head_dim));
    Batch batch(data.tensors(out.data()), options.batch, gpu ? &*gpu : nullptr, device.device_id);
    const auto candidates = candidates_of(options, seqlen, batch);
    const auto seconds = time_candidates(candidates, options.reps, gpu);
    add_rows(options, seqlen, candidates, seconds, data, report.tables[0]);
  }
  show_line("");
  print_report(report, options.format);
  return kExitOk;
}

}  // namespace

void add_bench_sparq(CLI::App& bench, Action& action, const std::string& command_line) {
  CLI::App* app =
      bench.add_subcommand("sparq", "SparQ attention beside the dense decode: bytes, time, error");
  auto options = std::make_shared<BenchOptions>();
  options->command_line = command_line;
  add_numbers(*app, "--seqlen", options->seqlens, {2, std::int64_t{1} << 24}, "keys of a sequence")
      ->option_text("N,... [4096,8192,16384,32768,65536]");
  add_numbers(*app, "--components", options->components, {1, 576},
              "components that step 1 reads (r)")
      ->option_text("N,... [16,32,64]");
  add_numbers(*app, "--keys", options->keys, {1, std::int64_t{1} << 24},
              "keys that step 2 reads (k)")
      ->option_text("N,... [128]");
  const auto add = [&](const char* name, std::int64_t& number, std::int64_t low, std::int64_t high,
                       const char* text) {
    app->add_option(name, number, text)
        ->transform(whole_number({low, high}))
        ->option_text("N [" + std::to_string(number) + "]");
  };
  add("--batch", options->batch, 1, 4096, "sequences");
  add("--heads", options->num_heads, 1, 1024, "query heads");
  add("--kv-heads", options->num_kv_heads, 1, 1024, "KV heads");
  add("--head-dim", options->head_dim, 1, 576, "of keys and values");
  add("--page-size", options->page_size, 0, 65536, "keys of a page; 0: no pages");
  app->add_option("--device", options->device, "cpu, cuda or cuda:NUMBER")
      ->option_text("DEVICE [cpu]");
  app->add_option("--reps", options->reps, "timed rounds")
      ->transform(whole_number({1, 100000}))
      ->option_text("N [15]");
  add_format_option(*app, options->format);
  app->callback([&action, options] { action = [options] { return run_bench(*options); }; });
}

}  // namespace headrace::cli
