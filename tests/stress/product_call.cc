#include "stress/product_call.h"

#include <cmath>
#include <numeric>

#include "backends/cuda/elementwise/decoder_ops.h"
#include "core/dtype.h"
#include "headrace/tensor.hpp"

namespace headrace::testing {
namespace {

constexpr float kEps = 1e-5f;
enum ProductSeed : std::uint64_t {
  kSeedX = 1,
  kSeedWeights,
  kSeedOld,
  kSeedBias,
  kSeedNorm,
  kSeedCos,
  kSeedSin
};

// 0, 1, ...
template <class T>
DeviceMemory indices(std::int64_t count) {
  std::vector<T> all(static_cast<std::size_t>(count));
  std::iota(all.begin(), all.end(), T{0});
  DeviceMemory memory = allocate(all.size() * sizeof(T));
  require(cudaMemcpy(memory.get(), all.data(), all.size() * sizeof(T), cudaMemcpyHostToDevice),
          "cudaMemcpy");
  return memory;
}

}  // namespace

ProductCall::ProductCall(const ProductCase& c, const DeviceInfo& device)
    : case_(c), device_(device) {
  const ProductCell& cell = c.cell;
  if (cell.kernel == cuda::ProductKernel::portable) device_.sm = 80;
  const std::int64_t count = c.num_tokens * c.columns;
  const std::int64_t rows = std::accumulate(c.rows.begin(), c.rows.end(), std::int64_t{0});
  const auto seed = [&](ProductSeed which) { return c.seed * 8 + which; };
  const auto draw = [&](DeviceMemory& memory, DType dtype, std::int64_t n, ProductSeed which,
                        float size) {
    memory = allocate(bytes_of(dtype, n));
    fill_uniform(memory.get(), dtype, n, seed(which), size, nullptr);
  };
  // Results have a standard deviation of about 1.
  draw(x_source_, cell.dtype, count, kSeedX, 1);
  draw(weights_, cell.dtype, rows * c.columns, kSeedWeights,
       3 / std::sqrt(static_cast<float>(c.columns)));
  x_ = allocate(bytes_of(cell.dtype, count));
  if (c.has_bias) draw(bias_, DType::f32, rows, kSeedBias, 1);
  if (cell.epilogue == Epilogue::norm) draw(norm_, DType::f32, c.columns, kSeedNorm, 2);
  if (cell.epilogue == Epilogue::append) {
    draw(cos_, DType::f32, c.num_tokens * c.head_dim / 2, kSeedCos, 1);
    draw(sin_, DType::f32, c.num_tokens * c.head_dim / 2, kSeedSin, 1);
    slots_ = indices<std::int64_t>(c.num_tokens);
  }
  order_ = indices<std::int32_t>(c.num_tokens);
  auto* at = static_cast<std::byte*>(weights_.get());
  for (const std::int64_t r : c.rows) {
    matrices_.push_back({at, r});
    at += bytes_of(cell.dtype, r * c.columns);
  }
  const DType out_dtype = cell.epilogue == Epilogue::logits ? DType::f32 : cell.dtype;
  const headrace_tensor out =
      on_device(TensorView(nullptr, out_dtype, {c.num_tokens, c.out_rows()}));
  outputs_.push_back(make_output("out", out, static_cast<int>(c.out_rows()), true));
  if (cell.epilogue == Epilogue::residual)
    draw(old_, out_dtype, c.num_tokens * c.out_rows(), kSeedOld, 1);
  product_ = {.dtype = cell.dtype,
              .matrices = matrices_,
              .columns = c.columns,
              .num_tokens = c.num_tokens,
              .x = x_.get(),
              .x_stride = c.columns,
              .bias = static_cast<const float*>(bias_.get()),
              .out = outputs_[0].got.get(),
              .out_dtype = out_dtype,
              .out_stride = c.out_rows(),
              .adds_to_out = old_ != nullptr,
              .has_swiglu = cell.epilogue == Epilogue::swiglu,
              .norm = {static_cast<const float*>(norm_.get()), norm_ ? kEps : 0}};
  if (cell.epilogue == Epilogue::append) {
    append_ = append_args();
    product_.append = &append_;
  }
  poison(outputs_[0]);
  run(nullptr);
  keep_as_expected(outputs_[0]);
  require(cudaDeviceSynchronize(), "the first call");
}

// Of a token a page of K, and one of V, behind its heads of Q.
KvAppendArgs ProductCall::append_args() const {
  const std::int64_t dim = case_.head_dim, stride = case_.out_rows();
  auto* out = static_cast<std::byte*>(outputs_[0].got.get());
  const auto* order = static_cast<const std::int32_t*>(order_.get());
  const DType dtype = product_.dtype;
  const auto heads = [&](std::int64_t first) {
    return HeadRows{
        .data = out + 2 * first, .dtype = dtype, .stride_token = stride, .stride_head = dim};
  };
  const auto pages = [&](std::int64_t first) {
    return PageRows{.data = out + 2 * first,
                    .dtype = dtype,
                    .stride_page = stride,
                    .stride_slot = stride,
                    .stride_head = dim};
  };
  KvAppendArgs args;
  args.num_tokens = args.num_pages = case_.num_tokens;
  args.num_heads = case_.rows[0] / dim;
  args.num_kv_heads = case_.rows[1] / dim;
  args.head_dim = args.head_dim_v = args.rot_dim = dim;
  args.page_size = args.slot_stride = args.position_stride = 1;
  args.q = args.q_out = heads(0);
  args.k = heads(case_.rows[0]);
  args.v = heads(case_.rows[0] + case_.rows[1]);
  args.k_pages = pages(case_.rows[0]);
  args.v_pages = pages(case_.rows[0] + case_.rows[1]);
  args.slot_mapping = static_cast<const std::int64_t*>(slots_.get());
  args.positions = order;
  args.layout = case_.layout;
  args.tables = {.cos = cos_.get(),
                 .sin = sin_.get(),
                 .cos_stride = dim / 2,
                 .sin_stride = dim / 2,
                 .max_positions = case_.num_tokens};
  return args;
}

void ProductCall::run(cudaStream_t stream) {
  const Output& out = outputs_[0];
  if (old_ != nullptr)
    require(cudaMemcpyAsync(out.got.get(), old_.get(), static_cast<std::size_t>(out.bytes),
                            cudaMemcpyDeviceToDevice, stream),
            "cudaMemcpyAsync");
  require(cuda::gather_rows({.x = x_source_.get(),
                             .rows = static_cast<const std::int32_t*>(order_.get()),
                             .out = x_.get(),
                             .num_rows = case_.num_tokens,
                             .width = case_.columns},
                            device_.device_id, stream),
          "writing x");
  require(cuda::multiply(product_, device_, stream), "the product");
}

void ProductCall::compare(Difference* differences, bool poisons_all, cudaStream_t stream) {
  const Output& out = outputs_[0];
  compare_and_poison(out.got.get(), out.expected.get(), out.bytes, differences, stream);
  if (poisons_all)
    require(cudaMemsetAsync(x_.get(), 0xFF,
                            static_cast<std::size_t>(
                                bytes_of(product_.dtype, case_.num_tokens * case_.columns)),
                            stream),
            "cudaMemsetAsync");
}

std::string ProductCall::compare_with_definition() const {
  const std::int64_t count = case_.num_tokens * case_.out_rows();
  const DeviceMemory normed = allocate(bytes_of(product_.dtype, case_.num_tokens * case_.columns));
  if (norm_ != nullptr)
    require(cuda::rms_norm({.x = x_source_.get(),
                            .weight = product_.norm.weight,
                            .eps = kEps,
                            .out = normed.get(),
                            .num_rows = case_.num_tokens,
                            .width = case_.columns},
                           device_.device_id, nullptr),
            "rms_norm");
  const DeviceMemory old = allocate(bytes_of(DType::f64, count));
  if (old_ != nullptr)
    convert_to_f64(old_.get(), product_.out_dtype, count, static_cast<double*>(old.get()), nullptr);
  const DeviceMemory exact = allocate(bytes_of(DType::f64, count));
  multiply_in_double({.x = norm_ != nullptr ? normed.get() : x_source_.get(),
                      .weights = weights_.get(),
                      .dtype = product_.dtype,
                      .bias = product_.bias,
                      .old = old_ != nullptr ? static_cast<const double*>(old.get()) : nullptr,
                      .has_swiglu = product_.has_swiglu,
                      .out = static_cast<double*>(exact.get()),
                      .num_tokens = case_.num_tokens,
                      .rows = case_.out_rows(),
                      .columns = case_.columns},
                     nullptr);
  if (product_.append != nullptr)
    rotate_in_double({.x = static_cast<double*>(exact.get()),
                      .cos = static_cast<const float*>(cos_.get()),
                      .sin = static_cast<const float*>(sin_.get()),
                      .num_tokens = case_.num_tokens,
                      .stride = case_.out_rows(),
                      .num_heads = append_.num_heads + append_.num_kv_heads,
                      .head_dim = case_.head_dim,
                      .is_halves = case_.layout == RopeLayout::halves},
                     nullptr);
  return compare_with_exact(outputs_[0], exact.get(), product_.out_dtype);
}

}  // namespace headrace::testing
