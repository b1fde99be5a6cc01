// headrace bench softmax: both algorithms and the backward, next to a copy of the same memory, in
// alternating rounds.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "command.h"
#include "gpu.h"
#include "headrace/headrace.hpp"
#include "machine.h"
#include "options.h"
#include "probes/team.h"
#include "progress.h"
#include "times.h"

namespace headrace::cli {
namespace {

struct BenchOptions {
  std::vector<std::string> dtypes = {"f32", "bf16"};
  std::vector<std::int64_t> lengths = {128, 1024, 4096, 32768, 131072};
  std::int64_t num_elements = 0;  // 0: the device's default
  std::string axis = "last";
  std::string device = "cpu";
  int reps = 15;
  Format format = Format::text;
  std::string command_line;
};

struct Shape {
  DType dtype;
  std::int64_t num_rows, length;
  bool is_last_axis;
  std::int64_t num_bytes() const {
    return num_rows * length * static_cast<std::int64_t>(dtype_bytes(dtype));
  }
};

// The parser has checked the name.
DType dtype_of(const std::string& name) {
  return name == "f32" ? DType::f32 : name == "f16" ? DType::f16 : DType::bf16;
}

// Random values of either sign with a magnitude between 0.5 and 2, built from bits.
void fill(const Shape& shape, unsigned seed, std::vector<std::uint32_t>& words) {
  words.resize(static_cast<std::size_t>(shape.num_bytes() + 3) / 4);
  for (std::uint32_t& word : words) {
    seed = seed * 1664525u + 1013904223u;
    if (shape.dtype == DType::f32) {
      word = (seed & 0x80000000u) | (0x3f000000u + (seed >> 7 & 0xffffffu));
    } else if (shape.dtype == DType::f16) {
      word = (seed & 0x80008000u) | (0x38003800u + (seed >> 3 & 0x07ff07ffu));
    } else {
      word = (seed & 0x80008000u) | (0x3f003f00u + (seed >> 3 & 0x00ff00ffu));
    }
  }
}

// Two inputs and an output, on the CPU or on a GPU.
class Data {
 public:
  Data(const Shape& shape, Gpu* gpu, int device_id) : shape_(shape), gpu_(gpu), id_(device_id) {
    if (gpu != nullptr) gpu->release();
    for (int i = 0; i < 3; ++i) {
      fill(shape, static_cast<unsigned>(i + 1), memory_[i]);
      data_[i] = memory_[i].data();
      if (gpu == nullptr) continue;
      data_[i] = gpu->copy_of(data_[i], static_cast<std::size_t>(shape.num_bytes()));
      memory_[i] = {};
    }
  }
  TensorView first() const { return view(0); }
  TensorView second() const { return view(1); }
  TensorView out() const { return view(2); }

  // Copies the first input to the output, on a CPU with as many threads as a call uses. Returns
  // the seconds on a CPU (without the start of the threads), 0 on a GPU.
  double copy(int num_threads, void* stream) const {
    const auto bytes = static_cast<std::size_t>(shape_.num_bytes());
    if (gpu_ != nullptr) {
      gpu_->copy(data_[2], data_[0], bytes, stream);
      return 0;
    }
    const std::size_t part = (bytes / static_cast<std::size_t>(num_threads) + 63) / 64 * 64;
    const auto copy_part = [&](int index) {
      const std::size_t begin = std::min(bytes, static_cast<std::size_t>(index) * part);
      std::memcpy(static_cast<char*>(data_[2]) + begin, static_cast<char*>(data_[0]) + begin,
                  std::min(part, bytes - begin));
    };
    return probes::time_team(num_threads, copy_part).seconds;
  }

 private:
  TensorView view(int i) const {
    TensorView x = shape_.is_last_axis
                       ? TensorView(data_[i], shape_.dtype, {shape_.num_rows, shape_.length})
                       : TensorView(data_[i], shape_.dtype, {shape_.length, shape_.num_rows});
    x.device_type = gpu_ != nullptr ? HEADRACE_CUDA : HEADRACE_CPU;
    x.device_id = id_;
    return x;
  }

  Shape shape_;
  Gpu* gpu_;
  int id_;
  std::vector<std::uint32_t> memory_[3];
  void* data_[3];
};

// Host time. On a GPU the call only enqueues; Gpu::time() measures the work.
template <class Body>
double seconds_of(Body body) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  body();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// One timed operation and its minimum memory traffic.
struct Candidate {
  const char* direction;
  const char* algorithm;
  std::int64_t passes;                      // over a row, by the algorithm's definition
  std::int64_t tensors;                     // each read or written once
  std::function<double(void* stream)> run;  // returns the seconds on a CPU
  std::vector<double> seconds = {};
};

std::vector<Candidate> candidates_of(const Shape& shape, const Data& data, int num_threads) {
  const std::int32_t axis = shape.is_last_axis ? -1 : 0;
  const auto forward = [&data, axis](SoftmaxAlgorithm algorithm) {
    return [&data, options = SoftmaxOptions{.axis = axis, .algorithm = algorithm}](void* stream) {
      return seconds_of([&] { softmax_forward(data.first(), data.out(), {}, options, stream); });
    };
  };
  const auto backward = [&data, options = SoftmaxOptions{.axis = axis}](void* stream) {
    return seconds_of(
        [&] { softmax_backward(data.first(), data.second(), data.out(), options, stream); });
  };
  return {{"copy", "", 1, 2, [&data, num_threads](void* s) { return data.copy(num_threads, s); }},
          {"forward", "safe", 3, 2, forward(SoftmaxAlgorithm::safe)},
          {"forward", "online", 2, 2, forward(SoftmaxAlgorithm::online)},
          {"backward", "", 2, 3, backward}};
}

// Alternating rounds: all candidates see the same clock frequencies.
void time_rounds(std::vector<Candidate>& candidates, int reps, std::optional<Gpu>& gpu) {
  for (int round = -1; round < reps; ++round)
    for (Candidate& candidate : candidates) {
      const double seconds = gpu ? gpu->time(candidate.run, false) : candidate.run(nullptr);
      if (round >= 0) candidate.seconds.push_back(seconds);  // the first round is warm-up
    }
}

Table make_table() {
  return {.key = "rows",
          .columns = joined<Column>({{{.key = "dtype", .title = "dtype", .is_key = true},
                                      {.key = "num_rows", .title = "rows", .is_key = true},
                                      {.key = "length", .title = "length", .is_key = true},
                                      {.key = "axis", .title = "axis", .is_key = true},
                                      {.key = "direction", .title = "pass", .is_key = true},
                                      {.key = "algorithm", .title = "algorithm", .is_key = true}},
                                     time_columns(),
                                     {{"passes", "passes"},
                                      {"bytes", "bytes"},
                                      {"gbytes", "GB/s"},
                                      {"percent_of_copy", "% copy"}}}),
          .rows = {}};
}

void add_rows(const Shape& shape, const std::vector<Candidate>& candidates, Table& table) {
  double copied = 0;
  for (const Candidate& c : candidates) {
    const Times times = times_of(c.seconds);
    const std::int64_t bytes = c.tensors * shape.num_bytes();
    const double gbytes = static_cast<double>(bytes) / times.median * 1e-9;
    if (copied == 0) copied = gbytes;  // the first candidate is the copy
    table.rows.push_back(
        joined<Cell>({{std::string(dtype_name(shape.dtype)), shape.num_rows, shape.length,
                       std::string(shape.is_last_axis ? "last" : "first"), std::string(c.direction),
                       std::string(c.algorithm)},
                      time_cells(times),
                      {c.passes, bytes, gbytes, gbytes / copied * 100}}));
  }
}

int run_bench(const BenchOptions& options) {
  const DeviceInfo device = device_from_text(options.device.c_str());
  std::optional<Gpu> gpu;
  if (device.device_type == HEADRACE_CUDA) gpu.emplace(device.device_id);
  // Larger than the caches: 512 MiB of f32 on a GPU, 64 MiB on a CPU.
  const std::int64_t usual = std::int64_t{1} << (gpu ? 27 : 24);
  const std::int64_t num_elements = options.num_elements > 0 ? options.num_elements : usual;
  Report report;
  report.notes =
      joined<Note>({run_notes("softmax", options.command_line, device), {units_note(device)}});
  report.tables.push_back(make_table());
  for (const std::string& name : options.dtypes)
    for (const std::int64_t length : options.lengths) {
      show_line(name + ", length " + std::to_string(length));
      const Shape shape{dtype_of(name), std::max<std::int64_t>(1, num_elements / length), length,
                        options.axis == "last"};
      const Data data(shape, gpu ? &*gpu : nullptr, device.device_id);
      auto candidates = candidates_of(shape, data, device.num_units);
      time_rounds(candidates, options.reps, gpu);
      add_rows(shape, candidates, report.tables[0]);
    }
  show_line("");
  print_report(report, options.format);
  return kExitOk;
}

}  // namespace

void add_bench_softmax(CLI::App& bench, Action& action, const std::string& command_line) {
  CLI::App* app = bench.add_subcommand(
      "softmax", "Softmax and its backward, next to a copy of the same memory");
  auto options = std::make_shared<BenchOptions>();
  options->command_line = command_line;
  add_list(*app, "--dtype", options->dtypes, "element types")
      ->delimiter(',')
      ->check(CLI::IsMember({"f32", "f16", "bf16"}))
      ->option_text("f32|f16|bf16,... [f32,bf16]");
  add_numbers(*app, "--length", options->lengths, {1, std::int64_t{1} << 32},
              "elements per softmax row")
      ->option_text("N,... [128,1024,4096,32768,131072]");
  app->add_option("--elements", options->num_elements,
                  "elements per tensor; rows = elements / length")
      ->transform(whole_number({1, std::int64_t{1} << 34}))
      ->option_text("N [2^24, on a GPU 2^27]");
  app->add_option("--axis", options->axis, "axis of the softmax: last (contiguous) or first")
      ->check(CLI::IsMember({"last", "first"}))
      ->option_text("last|first [last]");
  app->add_option("--device", options->device, "cpu, cuda or cuda:NUMBER")
      ->option_text("DEVICE [cpu]");
  app->add_option("--reps", options->reps, "timed rounds")
      ->transform(whole_number({1, 100000}))
      ->option_text("N [15]");
  add_format_option(*app, options->format);
  app->callback([&action, options] { action = [options] { return run_bench(*options); }; });
}

}  // namespace headrace::cli
