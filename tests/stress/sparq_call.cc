#include "stress/sparq_call.h"

#include <algorithm>
#include <numeric>

#include "headrace/tensor.hpp"
#include "ops/sparq.h"
#include "support/random.h"

namespace headrace::testing {
namespace {

enum SparqSeed : std::uint64_t { kSeedQ = 1, kSeedK, kSeedV, kSeedComponents, kSeedSum };

template <class T>
DeviceMemory copy_of(const std::vector<T>& host) {
  DeviceMemory memory = allocate(static_cast<std::int64_t>(host.size() * sizeof(T)));
  require(cudaMemcpy(memory.get(), host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice),
          "cudaMemcpy");
  return memory;
}

// Codes from -127 to 127, and scales.
DeviceMemory random_codes(Random& random, std::int64_t count) {
  std::vector<std::int8_t> codes;
  for (std::int64_t i = 0; i < count; ++i)
    codes.push_back(static_cast<std::int8_t>(random.between(-127, 127)));
  return copy_of(codes);
}
DeviceMemory random_scales(Random& random, std::int64_t count) {
  std::vector<float> scales;
  for (std::int64_t i = 0; i < count; ++i)
    scales.push_back(static_cast<float>(0.01 + 0.01 * random.uniform()));
  return copy_of(scales);
}

// Every page once, in random order.
std::vector<std::int32_t> shuffled_pages(Random& random, std::int64_t count) {
  std::vector<std::int32_t> pages(static_cast<std::size_t>(count));
  std::iota(pages.begin(), pages.end(), 0);
  for (std::size_t i = pages.size(); i > 1; --i)
    std::swap(pages[i - 1],
              pages[static_cast<std::size_t>(random.between(0, static_cast<std::int64_t>(i) - 1))]);
  return pages;
}

}  // namespace

std::vector<SparqCell> sparq_cells() {
  std::vector<SparqCell> cells;
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32})
    for (const bool has_codes : {false, true}) cells.push_back({dtype, has_codes});
  return cells;
}
std::string row_name(const SparqCell& cell) {
  return format_text("cuda_sparq {}{}", dtype_name(cell.dtype), cell.has_codes ? " codes" : "");
}

SparqStressCase draw_case(const SparqCell& cell, std::uint64_t seed) {
  constexpr std::int64_t kMostElements = 3'000'000;  // of K
  constexpr std::int64_t kKvHeads[] = {1, 2, 8}, kGroups[] = {1, 3, 4, 9}, kDims[] = {64, 96, 128};
  constexpr std::int64_t kPages[] = {16, 24, 64, 256}, kBatch[] = {1, 3, 40};
  constexpr std::int64_t kKeys[] = {8, 128, 500, 600, 1500};
  Random random(seed * 0x9E3779B97F4A7C15u + 1);
  SparqStressCase c{.cell = cell, .seed = seed};
  c.num_kv_heads = random.pick(kKvHeads);
  c.group = random.pick(kGroups);
  c.head_dim = random.pick(kDims);
  c.page_size = random.pick(kPages);
  c.num_components = random.between(1, c.head_dim / 2);
  c.num_keys = random.pick(kKeys);
  c.local_window = random.between(0, c.num_keys / 2);
  c.has_mean = random.chance(30);
  const std::int64_t batch = random.pick(kBatch);
  const std::int64_t most = kMostElements / (c.num_kv_heads * c.head_dim * batch);
  for (std::int64_t b = 0; b < batch; ++b)
    c.lengths.push_back(
        static_cast<std::int32_t>(random.between(random.chance(10) ? 0 : most / 2, most)));
  c.max_pages = (most + c.page_size - 1) / c.page_size;
  return c;
}

std::string describe(const SparqStressCase& c) {
  return format_text("{}, {} x {}, {} over {} heads, dim {}, r {}, k {}, pages of {}, seed {}",
                     row_name(c.cell), c.lengths.size(), *std::ranges::max_element(c.lengths),
                     c.num_kv_heads * c.group, c.num_kv_heads, c.head_dim, c.num_components,
                     c.num_keys, c.page_size, c.seed);
}

SparqStressCall::SparqStressCall(const SparqStressCase& c) {
  const auto batch = static_cast<std::int64_t>(c.lengths.size());
  const std::int64_t num_heads = c.num_kv_heads * c.group;
  const std::int64_t num_queries = batch * num_heads * c.head_dim;
  tensors_.struct_size = sizeof tensors_;
  q_ = allocate(bytes_of(c.cell.dtype, num_queries));
  fill_uniform(q_.get(), c.cell.dtype, num_queries, c.seed * 8 + kSeedQ, 2, nullptr);
  tensors_.q = on_device(TensorView(q_.get(), c.cell.dtype, {batch, num_heads, c.head_dim}));
  make_keys(c);
  if (c.has_mean) {
    const std::int64_t count = batch * c.num_kv_heads * c.head_dim;
    v_sum_ = allocate(bytes_of(DType::f32, count));
    fill_uniform(v_sum_.get(), DType::f32, count, c.seed * 8 + kSeedSum, 9, nullptr);
    tensors_.v_sum =
        on_device(TensorView(v_sum_.get(), DType::f32, {batch, c.num_kv_heads, c.head_dim}));
  }
  const auto add_output = [&](const char* name, DType dtype, std::initializer_list<std::int64_t> s,
                              headrace_tensor& view) {
    outputs_.push_back(make_output(name, on_device(TensorView(nullptr, dtype, s)),
                                   static_cast<int>(*(s.end() - 1)), true));
    view = outputs_.back().view;
  };
  add_output("out", c.cell.dtype, {batch, num_heads, c.head_dim}, tensors_.out);
  add_output("indices", DType::i32, {batch, c.num_kv_heads, c.num_keys}, tensors_.indices);
  add_output("alpha", DType::f32, {batch, num_heads}, tensors_.alpha);
  options_ = default_sparq_options();
  options_.num_components = c.num_components;
  options_.num_keys = c.num_keys;
  options_.local_window = c.local_window;
  Result<std::size_t> bytes = sparq_workspace_bytes(tensors_, options_);
  if (!bytes.ok()) require(Status(std::move(bytes.failure())), "the workspace");
  workspace_bytes_ = bytes.value();
  workspace_ = allocate(static_cast<std::int64_t>(workspace_bytes_));
  for (const Output& x : outputs_) poison(x);
  run(nullptr);
  for (Output& x : outputs_) keep_as_expected(x);
  require(cudaDeviceSynchronize(), "the first call");
}

// Components are numbers of their own: what is chosen need not be what is close.
void SparqStressCall::make_keys(const SparqStressCase& c) {
  Random random(c.seed + 77);
  const auto batch = static_cast<std::int64_t>(c.lengths.size());
  const std::int64_t num_pages = batch * c.max_pages;
  const std::int64_t num_rows = num_pages * c.page_size * c.num_kv_heads;
  const std::int64_t count = num_rows * c.head_dim;
  table_ = copy_of(shuffled_pages(random, num_pages));
  lengths_ = copy_of(c.lengths);
  tensors_.block_table = on_device(TensorView(table_.get(), DType::i32, {batch, c.max_pages}));
  tensors_.seqused_k = on_device(TensorView(lengths_.get(), DType::i32, {batch}));
  components_ = allocate(bytes_of(c.cell.dtype, count));
  fill_uniform(components_.get(), c.cell.dtype, count, c.seed * 8 + kSeedComponents, 2, nullptr);
  tensors_.k_components = on_device(TensorView(
      components_.get(), c.cell.dtype, {num_pages, c.num_kv_heads, c.head_dim, c.page_size}));
  const auto pages = [&](DeviceMemory& memory, DType dtype) {
    return on_device(
        TensorView(memory.get(), dtype, {num_pages, c.page_size, c.num_kv_heads, c.head_dim}));
  };
  if (!c.cell.has_codes) {
    for (DeviceMemory* x : {&k_, &v_}) *x = allocate(bytes_of(c.cell.dtype, count));
    fill_uniform(k_.get(), c.cell.dtype, count, c.seed * 8 + kSeedK, 2, nullptr);
    fill_uniform(v_.get(), c.cell.dtype, count, c.seed * 8 + kSeedV, 2, nullptr);
    tensors_.k = pages(k_, c.cell.dtype);
    tensors_.v = pages(v_, c.cell.dtype);
    return;
  }
  for (DeviceMemory* x : {&k_, &v_}) *x = random_codes(random, count);
  for (DeviceMemory* x : {&k_scale_, &v_scale_}) *x = random_scales(random, num_rows);
  tensors_.k = pages(k_, DType::i8);
  tensors_.v = pages(v_, DType::i8);
  codes_.struct_size = sizeof codes_;
  const auto scales = [&](DeviceMemory& memory) {
    return on_device(
        TensorView(memory.get(), DType::f32, {num_pages, c.page_size, c.num_kv_heads}));
  };
  codes_.k_scale = scales(k_scale_);
  codes_.v_scale = scales(v_scale_);
  tensors_.quantised = &codes_;
}

void SparqStressCall::run(cudaStream_t stream) {
  require(sparq_attention(tensors_, options_, {workspace_.get(), workspace_bytes_}, stream),
          "SparQ attention");
}

void SparqStressCall::compare(Difference* differences, bool poisons_all, cudaStream_t stream) {
  for (std::size_t i = 0; i < outputs_.size(); ++i)
    compare_and_poison(outputs_[i].got.get(), outputs_[i].expected.get(), outputs_[i].bytes,
                       differences + i, stream);
  if (poisons_all)
    require(cudaMemsetAsync(workspace_.get(), 0xFF, workspace_bytes_, stream), "cudaMemsetAsync");
}

}  // namespace headrace::testing
