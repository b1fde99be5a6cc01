// Problems too large for the CPU's reference: every CUDA kernel against cuda_simple in double,
// which the suite "oracle" compares with the CPU. Inputs are generated and results compared on the
// device.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "attention/validate.h"
#include "backends/cuda/backend.h"
#include "backends/cuda/common/element.cuh"
#include "cuda/gpu.h"
#include "lab/kernels.h"

namespace headrace::cuda {
namespace {

// Approximately normal, a function of the index: the sum of four uniform numbers.
__device__ float number_of(std::uint64_t idx, std::uint64_t seed) {
  float sum = -2;
  std::uint64_t z = idx * 4 + seed * 0x9E3779B97F4A7C15u;
  for (int i = 0; i < 4; ++i) {
    z += 0x9E3779B97F4A7C15u;
    std::uint64_t x = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    sum += static_cast<float>((x ^ x >> 31) >> 40) * 0x1p-24f;
  }
  return sum * 1.7320508f;
}

// Writes the number rounded to T as T and as double, and its magnitude.
template <class T>
__global__ void make_numbers(T* x, double* exact, double* magnitude, std::int64_t count,
                             std::uint64_t seed) {
  const std::int64_t step = std::int64_t{blockDim.x} * gridDim.x;
  for (std::int64_t i = std::int64_t{blockDim.x} * blockIdx.x + threadIdx.x; i < count; i += step) {
    store_real(x, i, number_of(static_cast<std::uint64_t>(i), seed));
    exact[i] = load_real(x, i);
    if (magnitude != nullptr) magnitude[i] = fabs(exact[i]);
  }
}

struct Sums {
  double error2, exact2;
  unsigned long long num_outside;  // outside of the bound, or NaN
};

// |got - exact| <= rounding * |exact| + weight * abs_out, where abs_out = sum of p |v|.
template <class T>
__global__ void compare(const T* got, const double* exact, const double* abs_out,
                        std::int64_t count, double rounding, double weight, Sums* sums) {
  double error2 = 0, exact2 = 0;
  unsigned long long num_outside = 0;
  const std::int64_t step = std::int64_t{blockDim.x} * gridDim.x;
  for (std::int64_t i = std::int64_t{blockDim.x} * blockIdx.x + threadIdx.x; i < count; i += step) {
    const double error = fabs(static_cast<double>(load_real(got, i)) - exact[i]);
    error2 += error * error;
    exact2 += exact[i] * exact[i];
    if (!(error <= rounding * fabs(exact[i]) + weight * abs_out[i])) ++num_outside;
  }
  atomicAdd(&sums->error2, error2);
  atomicAdd(&sums->exact2, exact2);
  atomicAdd(&sums->num_outside, num_outside);
}

struct Large {
  std::int64_t batch, seqlen_q, seqlen_k, num_heads, num_kv_heads, dim;
  std::int32_t causal;
};

template <class T>
struct TypeOf;
template <>
struct TypeOf<float> {
  static constexpr DType dtype = DType::f32;
  static constexpr double roundoff = 0x1p-24, nmse = 1e-12;
};
template <>
struct TypeOf<__half> {
  static constexpr DType dtype = DType::f16;
  static constexpr double roundoff = 0x1p-11, nmse = 2e-7;
};
template <>
struct TypeOf<__nv_bfloat16> {
  static constexpr DType dtype = DType::bf16;
  static constexpr double roundoff = 0x1p-8, nmse = 1e-5;
};

template <class T>
class Memory {
 public:
  explicit Memory(std::int64_t count) {
    HEADRACE_EXPECT_CUDA(cudaMalloc(&data_, static_cast<std::size_t>(count) * sizeof(T)));
  }
  Memory(const Memory&) = delete;
  ~Memory() { cudaFree(data_); }
  T* data() const { return static_cast<T*>(data_); }

 private:
  void* data_ = nullptr;
};

TensorView on_gpu(const void* data, DType dtype, std::int64_t batch, std::int64_t seqlen,
                  std::int64_t heads, std::int64_t dim) {
  TensorView x(data, dtype, {batch, seqlen, heads, dim});
  x.device_type = HEADRACE_CUDA;
  return x;
}

// A backward if `gradients` is given.
Status run_kernel(const Kernel& kernel, const headrace_attention_tensors& tensors,
                  headrace_attention_options options,
                  const headrace_attention_gradients* gradients = nullptr) {
  Result<Problem> problem = gradients == nullptr ? validate(tensors, options)
                                                 : validate_backward(tensors, *gradients, options);
  if (!problem.ok()) return std::move(problem.failure());
  Plan plan;
  plan.problem = problem.value();
  plan.device = device_info(0).value();
  plan.kernel = &kernel;
  if (std::string text = kernel.refuses(plan.problem, plan.device); !text.empty())
    return unsupported("{}", text);
  plan.schedule = kernel.plan(plan.problem, plan.device, {});
  const Memory<char> workspace(static_cast<std::int64_t>(plan.schedule.workspace_bytes) + 1);
  HEADRACE_EXPECT_CUDA(cudaMemset(workspace.data(), 0xFF, plan.schedule.workspace_bytes));
  const AttentionArgs args = gradients == nullptr
                                 ? make_args(plan.problem, tensors, options)
                                 : make_backward_args(plan.problem, tensors, *gradients, options);
  Status status = run(plan, args, {workspace.data(), plan.schedule.workspace_bytes}, nullptr);
  HEADRACE_EXPECT_CUDA(cudaDeviceSynchronize());
  return status;
}

// Number of key tiles of the kernel.
double num_tiles(const Kernel& kernel, const Large& x, DType dtype) {
  Problem p = default_problem();
  p.dtype = static_cast<std::int32_t>(dtype);
  p.batch = x.batch;
  p.seqlen_q = x.seqlen_q;
  p.seqlen_k = x.seqlen_k;
  p.num_heads = x.num_heads;
  p.num_kv_heads = x.num_kv_heads;
  p.head_dim = p.head_dim_v = x.dim;
  const std::int64_t tile = kernel.plan(p, device_info(0).value(), {}).tile_n;
  return static_cast<double>(x.seqlen_k) / static_cast<double>(tile > 0 ? tile : 1);
}

template <class T>
void check_large(const Large& x) {
  const std::int64_t num_q = x.batch * x.seqlen_q * x.num_heads * x.dim;
  const std::int64_t num_k = x.batch * x.seqlen_k * x.num_kv_heads * x.dim;
  const Memory<T> q(num_q), k(num_k), v(num_k), out(num_q);
  const Memory<double> exact_q(num_q), exact_k(num_k), exact_v(num_k), abs_v(num_k);
  const Memory<double> exact(num_q), abs_out(num_q);
  make_numbers<<<1024, 256>>>(q.data(), exact_q.data(), nullptr, num_q, 1);
  make_numbers<<<1024, 256>>>(k.data(), exact_k.data(), nullptr, num_k, 2);
  make_numbers<<<1024, 256>>>(v.data(), exact_v.data(), abs_v.data(), num_k, 3);
  headrace_attention_options options = default_options();
  options.causal = x.causal;
  const auto tensors = [&](const void* a, const void* b, const void* c, void* d, DType dtype) {
    headrace_attention_tensors t{};
    t.struct_size = sizeof t;
    t.q = on_gpu(a, dtype, x.batch, x.seqlen_q, x.num_heads, x.dim);
    t.k = on_gpu(b, dtype, x.batch, x.seqlen_k, x.num_kv_heads, x.dim);
    t.v = on_gpu(c, dtype, x.batch, x.seqlen_k, x.num_kv_heads, x.dim);
    t.out = on_gpu(d, dtype, x.batch, x.seqlen_q, x.num_heads, x.dim);
    return t;
  };
  const Kernel& oracle = forward_kernels().back();
  for (const auto& [from, to] :
       {std::pair(exact_v.data(), exact.data()), std::pair(abs_v.data(), abs_out.data())}) {
    const Status bad =
        run_kernel(oracle, tensors(exact_q.data(), exact_k.data(), from, to, DType::f64), options);
    ASSERT_FALSE(bad) << bad->message;
  }
  std::vector<const Kernel*> kernels;
  for (const Kernel& kernel : forward_kernels()) kernels.push_back(&kernel);
  for (const Kernel& kernel : lab::kernels()) kernels.push_back(&kernel);
  for (const Kernel* kernel : kernels) {
    HEADRACE_EXPECT_CUDA(cudaMemset(out.data(), 0xFF, static_cast<std::size_t>(num_q) * sizeof(T)));
    const Status status = run_kernel(
        *kernel, tensors(q.data(), k.data(), v.data(), out.data(), TypeOf<T>::dtype), options);
    if (status && status->code == ErrorCode::unsupported) continue;
    ASSERT_FALSE(status) << status->message;
    // Scores: |scale| |q| |k| is below 4 sqrt(dim) here and each of dim products rounds once; P may
    // be rounded to T; sums over keys are blocked.
    const auto dim = static_cast<double>(x.dim);
    const double weight = std::expm1(2 * (dim + 3) * 4 * std::sqrt(dim) * 0x1p-24) +
                          static_cast<double>(x.seqlen_k) * 0x1p-24 +
                          (TypeOf<T>::dtype == DType::f32 ? 0 : TypeOf<T>::roundoff);
    const headrace::testing::OnDevice<Sums> sums(std::vector<Sums>(1));
    compare<<<1024, 256>>>(out.data(), exact.data(), abs_out.data(), num_q, TypeOf<T>::roundoff,
                           weight, sums.data());
    const Sums got = sums.read()[0];
    const std::string what = std::string(kernel->name) + " " + dtype_name(TypeOf<T>::dtype);
    EXPECT_EQ(got.num_outside, 0u) << what;
    // Adding each key tile's sum to the row's rounds by at most 2^-24 of it.
    const double tiles = num_tiles(*kernel, x, TypeOf<T>::dtype);
    EXPECT_LT(got.error2 / got.exact2, TypeOf<T>::nmse + tiles * 0x1p-48) << what;
    std::printf("%s, %lld x %lld keys, %lld elements: nmse %.3g\n", what.c_str(),
                static_cast<long long>(x.seqlen_q), static_cast<long long>(x.seqlen_k),
                static_cast<long long>(num_q), got.error2 / got.exact2);
  }
}

constexpr Large kLarge[] = {
    {1, 4096, 4096, 8, 8, 64, HEADRACE_CAUSAL_NONE},
    {2, 3001, 4111, 8, 2, 128, HEADRACE_CAUSAL_BOTTOM_RIGHT},
    {1, 2048, 2048, 4, 4, 256, HEADRACE_CAUSAL_TOP_LEFT},
    {1, 1100, 1200, 4, 2, 80, HEADRACE_CAUSAL_NONE},  // Hopper's tiles for long sequences
    {2, 2100, 2100, 2, 2, 80, HEADRACE_CAUSAL_BOTTOM_RIGHT},
    {2, 1100, 1100, 3, 3, 96, HEADRACE_CAUSAL_NONE},
    {1, 2200, 2500, 4, 1, 96, HEADRACE_CAUSAL_BOTTOM_RIGHT},
    {16, 1, 32768, 32, 8, 128, HEADRACE_CAUSAL_NONE},
    {1, 517, 20001, 6, 3, 192, HEADRACE_CAUSAL_BOTTOM_RIGHT},
};

TEST(LargeProblems, F32) {
  HEADRACE_NEEDS_GPU(80);
  for (const Large& x : kLarge) check_large<float>(x);
}
TEST(LargeProblems, F16) {
  HEADRACE_NEEDS_GPU(80);
  for (const Large& x : kLarge) check_large<__half>(x);
}
TEST(LargeProblems, Bf16) {
  HEADRACE_NEEDS_GPU(80);
  for (const Large& x : kLarge) check_large<__nv_bfloat16>(x);
}

// More than 2^31 elements in q and out: the last batch entry has the same bits as on its own.
TEST(LargeProblems, BeyondTwoToThe31Elements) {
  HEADRACE_NEEDS_GPU(80);
  std::size_t free_bytes = 0, total_bytes = 0;
  HEADRACE_EXPECT_CUDA(cudaMemGetInfo(&free_bytes, &total_bytes));
  constexpr std::int64_t kBatch = 1100, kRows = 2000, kHeads = 8, kDim = 128, kKeys = 3;
  constexpr std::int64_t kEntry = kRows * kHeads * kDim, kEntryK = kKeys * kHeads * kDim;
  static_assert(kBatch * kEntry > std::int64_t{1} << 31);
  if (free_bytes < std::size_t{30} << 30) GTEST_SKIP() << "needs 30 GiB of device memory";
  const Memory<__nv_bfloat16> q(kBatch * kEntry), out(kBatch * kEntry), k(kBatch * kEntryK);
  const Memory<__nv_bfloat16> alone(kEntry);
  const Memory<double> scratch(kBatch * kEntry);
  make_numbers<<<1024, 256>>>(q.data(), scratch.data(), nullptr, kBatch * kEntry, 4);
  make_numbers<<<1024, 256>>>(k.data(), scratch.data(), nullptr, kBatch * kEntryK, 5);
  const auto tensors = [&](std::int64_t first, std::int64_t batch, __nv_bfloat16* to) {
    headrace_attention_tensors t{};
    t.struct_size = sizeof t;
    t.q = on_gpu(q.data() + first * kEntry, DType::bf16, batch, kRows, kHeads, kDim);
    t.k = t.v = on_gpu(k.data() + first * kEntryK, DType::bf16, batch, kKeys, kHeads, kDim);
    t.out = on_gpu(to, DType::bf16, batch, kRows, kHeads, kDim);
    return t;
  };
  for (const Kernel& kernel : forward_kernels()) {
    const Status all = run_kernel(kernel, tensors(0, kBatch, out.data()), default_options());
    if (all && all->code == ErrorCode::unsupported) continue;
    ASSERT_FALSE(all) << all->message;
    const std::int64_t last = kBatch - 1;
    ASSERT_FALSE(run_kernel(kernel, tensors(last, 1, alone.data()), default_options()));
    std::vector<unsigned short> whole(kEntry), part(kEntry);
    const std::size_t bytes = kEntry * sizeof(unsigned short);
    HEADRACE_EXPECT_CUDA(
        cudaMemcpy(whole.data(), out.data() + last * kEntry, bytes, cudaMemcpyDeviceToHost));
    HEADRACE_EXPECT_CUDA(cudaMemcpy(part.data(), alone.data(), bytes, cudaMemcpyDeviceToHost));
    EXPECT_EQ(whole, part) << kernel.name;
  }
}

// A bf16 batch whose q, out, dq and dout have more than 2^31 elements, and the gradients of its
// last entry on its own.
class LargeBackward {
 public:
  static constexpr std::int64_t kBatch = 1100, kRows = 2000, kHeads = 8, kDim = 128, kKeys = 3;
  static constexpr std::int64_t kEntry = kRows * kHeads * kDim, kEntryK = kKeys * kHeads * kDim;
  static_assert(kBatch * kEntry > std::int64_t{1} << 31);

  LargeBackward() {
    const Memory<double> scratch(kBatch * kEntry);
    std::uint64_t seed = 6;
    for (const auto* x : {&q_, &dout_})
      make_numbers<<<1024, 256>>>(x->data(), scratch.data(), nullptr, kBatch * kEntry, ++seed);
    for (const auto* x : {&k_, &v_})
      make_numbers<<<1024, 256>>>(x->data(), scratch.data(), nullptr, kBatch * kEntryK, ++seed);
    for (const Kernel& kernel : forward_kernels())
      if (!run_kernel(kernel, tensors(0, kBatch), default_options())) return;
    ADD_FAILURE() << "no forward kernel took the problem";
  }

  // `batch` entries from `first` on.
  headrace_attention_tensors tensors(std::int64_t first, std::int64_t batch) const {
    headrace_attention_tensors t{};
    t.struct_size = sizeof t;
    t.q = wide(q_, first, batch);
    t.k = narrow(k_, first, batch);
    t.v = narrow(v_, first, batch);
    t.out = wide(out_, first, batch);
    t.lse = TensorView(lse_.data() + first * kHeads * kRows, DType::f32, {batch, kHeads, kRows});
    t.lse.device_type = HEADRACE_CUDA;
    return t;
  }
  Status run_entries(const Kernel& kernel, std::int64_t first, std::int64_t batch) const {
    headrace_attention_gradients g{};
    g.struct_size = sizeof g;
    g.dout = wide(dout_, first, batch);
    g.dq = wide(dq_, first, batch);
    g.dk = narrow(dk_, first, batch);
    g.dv = narrow(dv_, first, batch);
    headrace_attention_options options = default_options();
    options.deterministic = 1;
    const headrace_attention_tensors t = tensors(first, batch);
    return run_kernel(kernel, t, options, &g);
  }
  // Reads dq, dk and dv of the last entry, then poisons them.
  std::vector<unsigned short> take_last() const {
    std::vector<unsigned short> bits(kEntry + 2 * kEntryK);
    std::size_t at = 0;
    for (const auto& [x, count] :
         {std::pair(&dq_, kEntry), std::pair(&dk_, kEntryK), std::pair(&dv_, kEntryK)}) {
      __nv_bfloat16* last = x->data() + (kBatch - 1) * count;
      const std::size_t bytes = static_cast<std::size_t>(count) * sizeof *last;
      HEADRACE_EXPECT_CUDA(cudaMemcpy(&bits[at], last, bytes, cudaMemcpyDeviceToHost));
      HEADRACE_EXPECT_CUDA(cudaMemset(last, 0xFF, bytes));
      at += static_cast<std::size_t>(count);
    }
    return bits;
  }

 private:
  using Numbers = Memory<__nv_bfloat16>;
  static TensorView wide(const Numbers& x, std::int64_t first, std::int64_t batch) {
    return on_gpu(x.data() + first * kEntry, DType::bf16, batch, kRows, kHeads, kDim);
  }
  static TensorView narrow(const Numbers& x, std::int64_t first, std::int64_t batch) {
    return on_gpu(x.data() + first * kEntryK, DType::bf16, batch, kKeys, kHeads, kDim);
  }

  const Numbers q_{kBatch * kEntry}, out_{kBatch * kEntry}, dout_{kBatch * kEntry},
      dq_{kBatch * kEntry};
  const Numbers k_{kBatch * kEntryK}, v_{kBatch * kEntryK}, dk_{kBatch * kEntryK},
      dv_{kBatch * kEntryK};
  const Memory<float> lse_{kBatch * kHeads * kRows};
};

TEST(LargeProblems, GradientsBeyondTwoToThe31Elements) {
  HEADRACE_NEEDS_GPU(80);
  std::size_t free_bytes = 0, total_bytes = 0;
  HEADRACE_EXPECT_CUDA(cudaMemGetInfo(&free_bytes, &total_bytes));
  if (free_bytes < std::size_t{50} << 30) GTEST_SKIP() << "needs 50 GiB of device memory";
  const LargeBackward large;
  const std::int64_t last = LargeBackward::kBatch - 1;
  for (const Kernel& kernel : backward_kernels()) {
    const Status all = large.run_entries(kernel, 0, LargeBackward::kBatch);
    if (all && all->code == ErrorCode::unsupported) continue;
    ASSERT_FALSE(all) << all->message;
    const std::vector<unsigned short> whole = large.take_last();
    const Status alone = large.run_entries(kernel, last, 1);
    ASSERT_FALSE(alone) << alone->message;
    EXPECT_EQ(whole, large.take_last()) << kernel.name;
    EXPECT_TRUE(std::any_of(whole.begin(), whole.end(), [](unsigned short x) { return x != 0; }));
  }
}

}  // namespace
}  // namespace headrace::cuda
