// Benchmark of matmuls with packed weights: GOP/s and GB/s at the shapes of a small language model
// (SmolLM2-135M), next to the machine's read bandwidth.
//
//   headrace_bench_gemm [--tokens 1,512] [--threads 1,2] [--types Q4_1,Q8_0] [--shapes down,head]
//                       [--mode normal|exact] [--seconds 1] [--mib 192]
//
// Each shape cycles through copies of its weights of --mib MiB in total, like the layers of a
// model, so that weights are not cached; --mib 0: one copy.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "backends/cpu/gemm/gemm.h"
#include "core/dtype.h"
#include "probes/probes.h"

namespace {

using namespace headrace;
using Clock = std::chrono::steady_clock;

struct Shape {
  const char* name;
  std::int64_t columns;
  std::vector<std::int64_t> rows;  // of the matrices that share an input
};
const std::vector<Shape> kShapes = {
    {"qkv", 576, {576, 192, 192}}, {"attn_out", 576, {576}}, {"gate_up", 576, {1536, 1536}},
    {"down", 1536, {576}},         {"head", 576, {49152}},
};

struct Options {
  std::vector<std::string> tokens{"1", "512"}, threads{"1", "2"}, types{"Q4_0", "Q4_1", "Q8_0"},
      shapes{"qkv", "attn_out", "gate_up", "down", "head"};
  std::string mode = "normal";
  double seconds = 1;
  std::int64_t mib = 192;
};

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const auto comma = std::min(text.find(','), text.size());
    parts.emplace_back(text.substr(0, comma));
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return parts;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--tokens") options.tokens = split(value);
    if (name == "--threads") options.threads = split(value);
    if (name == "--types") options.types = split(value);
    if (name == "--shapes") options.shapes = split(value);
    if (name == "--mode") options.mode = value;
    if (name == "--mib") options.mib = std::stoll(value);
    if (name == "--seconds") options.seconds = std::stod(value);
  }
  return options;
}

// Random bytes; the f16 scales are finite.
std::vector<std::byte> random_blocks(const WeightTypeInfo& info, std::int64_t elements) {
  std::mt19937_64 random(1);
  std::vector<std::byte> data(
      static_cast<std::size_t>(elements / info.block_elements * info.block_bytes));
  for (std::byte& b : data) b = static_cast<std::byte>(random());
  for (std::size_t at = 0; at + 4 <= data.size();
       at += static_cast<std::size_t>(info.block_bytes)) {
    const std::uint16_t half = f16_from_float(0.01f);
    const float value = 0.01f;
    const std::size_t scale_at = info.type == WeightType::q6_k ? at + 208 : at;
    if (info.type == WeightType::f32)
      std::memcpy(&data[at], &value, 4);
    else
      std::memcpy(&data[scale_at], &half, 2);
    if (info.type == WeightType::q4_1 || info.type == WeightType::q5_1 ||
        info.type == WeightType::q4_k || info.type == WeightType::q5_k)
      std::memcpy(&data[at + 2], &half, 2);
  }
  return data;
}

struct Case {
  std::vector<std::vector<Weight>> copies;
  std::int64_t rows = 0, columns = 0, bytes = 0;  // per copy
};

Case make_case(const Shape& shape, const WeightTypeInfo& info, MatmulMode mode,
               std::int64_t bytes) {
  Case result;
  result.columns = shape.columns / info.block_elements * info.block_elements;
  const DeviceInfo device = cpu_info().value();
  do {
    auto& copy = result.copies.emplace_back();
    result.rows = result.bytes = 0;
    for (const std::int64_t rows : shape.rows) {
      const auto blocks = random_blocks(info, rows * result.columns);
      copy.push_back(
          cpu::pack_matrix(info.type, rows, result.columns, blocks.data(), mode, device).value());
      result.rows += rows;
      result.bytes += static_cast<std::int64_t>(copy.back().data.bytes());
    }
  } while (static_cast<std::int64_t>(result.copies.size()) * result.bytes < bytes);
  return result;
}

struct Seconds {
  double best, median;
};

Seconds time_case(const Case& c, std::int64_t tokens, int threads, double seconds) {
  std::vector<float> x(static_cast<std::size_t>(tokens * c.columns));
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  for (float& v : x) v = normal(random);
  std::vector<float> out(static_cast<std::size_t>(tokens * c.rows));
  std::vector<std::byte> scratch(cpu::multiply_scratch_bytes(c.columns, tokens));
  std::vector<double> times;
  const auto begin = Clock::now();
  // Times several short calls together, so that the clock's cost does not count; few enough that
  // some measurements are free of other programs.
  const std::size_t calls =
      tokens < 8 ? static_cast<std::size_t>(std::max<std::int64_t>(1, (4 << 20) / c.bytes)) : 1;
  for (std::size_t next = 0;;) {
    const auto start = Clock::now();
    for (std::size_t i = 0; i < calls; ++i) {
      const auto& copy = c.copies[next++ % c.copies.size()];
      static_cast<void>(cpu::multiply(
          {.matrices = copy,
           .num_tokens = tokens,
           .x = x.data(),
           .x_stride = c.columns,
           .out = out.data(),
           .out_stride = c.rows},
          threads, scratch.data()));  // fails only with a custom executor; none is set
    }
    const auto end = Clock::now();
    times.push_back(std::chrono::duration<double>(end - start).count() /
                    static_cast<double>(calls));
    if (std::chrono::duration<double>(end - begin).count() > seconds && times.size() > 3) break;
  }
  std::sort(times.begin(), times.end());
  return {times.front(), times[times.size() / 2]};
}

void run(const Options& options) {
  std::vector<double> read;
  for (const std::string& threads : options.threads) {
    read.push_back(probes::measure_read_bandwidth(std::stoi(threads)));
    std::printf("read bandwidth, %s threads: %.1f GB/s\n", threads.c_str(), read.back());
  }
  std::printf("%-6s %-9s %6s %7s %10s %10s %10s %10s %7s\n", "type", "shape", "tokens", "threads",
              "GOP/s best", "median", "GB/s best", "median", "% read");
  const auto mode = options.mode == "exact" ? MatmulMode::exact : MatmulMode::normal;
  for (const std::string& type : options.types)
    for (const WeightTypeInfo& info : weight_types())
      for (const Shape& shape : kShapes) {
        if (info.name != type || std::find(options.shapes.begin(), options.shapes.end(),
                                           shape.name) == options.shapes.end())
          continue;
        const Case c = make_case(shape, info, mode, options.mib << 20);
        for (const std::string& tokens : options.tokens)
          for (std::size_t i = 0; i < options.threads.size(); ++i) {
            const std::int64_t n = std::stoll(tokens);
            const Seconds s = time_case(c, n, std::stoi(options.threads[i]), options.seconds);
            const double gop = 2e-9 * static_cast<double>(n * c.rows * c.columns);
            const double gb = static_cast<double>(c.bytes) * 1e-9;
            std::printf("%-6s %-9s %6s %7s %10.1f %10.1f %10.1f %10.1f %6.0f%%\n", info.name,
                        shape.name, tokens.c_str(), options.threads[i].c_str(), gop / s.best,
                        gop / s.median, gb / s.best, gb / s.median, 100 * gb / s.best / read[i]);
            std::fflush(stdout);
          }
      }
}

}  // namespace

int main(int argc, char** argv) {
  run(parse(argc, argv));
  return 0;
}
