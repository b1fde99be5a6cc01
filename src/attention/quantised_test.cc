// Attention over quantised keys on the CPU.
#include <gtest/gtest.h>

#include "attention/select.h"
#include "core/device.h"
#include "tests/support/built_dtypes.h"
#include "tests/support/quantised_call.h"
#include "tests/support/quantised_close.h"

namespace headrace {
namespace {

using testing::built_dtypes;
using testing::QuantisedCall;
using testing::QuantisedCase;
using testing::Random;

// Runs a call on a kernel; empty, or why it did not run.
std::string run_on(const Kernel& kernel, const headrace_attention_tensors& tensors,
                   const headrace_attention_options& options, int num_threads) {
  Result<Problem> problem = validate(tensors, options);
  if (!problem.ok()) return problem.failure().message;
  const AttentionArgs args = make_args(problem.value(), tensors, options);
  if (Status bad = validate_lengths(problem.value(), args)) return bad->message;
  DeviceInfo device = cpu_info().value();
  device.num_units = num_threads;
  Result<Plan> plan = plan_attention(problem.value(), device, {&kernel, 1});
  if (!plan.ok()) return plan.failure().message;
  std::vector<unsigned char> workspace(plan.value().schedule.workspace_bytes);
  const Status bad =
      kernel.launch(plan.value(), args, {workspace.data(), workspace.size()}, nullptr);
  return bad ? bad->message : "";
}

std::string run_on(const Kernel& kernel, QuantisedCall& call, int num_threads) {
  return run_on(kernel, call.tensors(), call.attention_options(), num_threads);
}

bool has_instruction_set(const Kernel& kernel) {
  QuantisedCase c;
  QuantisedCall call(c);
  return run_on(kernel, call, 1).find("needs a CPU with") == std::string::npos;
}

// Those that this CPU can run.
std::vector<const Kernel*> kernels() {
  std::vector<const Kernel*> found;
  for (const Kernel& kernel : kernels_of(HEADRACE_CPU, HEADRACE_FORWARD))
    if (kernel.name != "cpu_avx512bf16_fwd" && kernel.name != "cpu_scalar_fwd" &&
        has_instruction_set(kernel))
      found.push_back(&kernel);
  return found;
}

TEST(Quantised, PageIndptrHasTheBitsOfABlockTable) {
  Random random(12);
  for (const Kernel* kernel : kernels())
    for (int i = 0; i < 60; ++i) {
      const std::vector<DType> dtypes = built_dtypes();
      QuantisedCase c = testing::random_quantised_case(
          random, dtypes[static_cast<std::size_t>(i) % dtypes.size()]);
      QuantisedCall of_table(c);
      c.has_page_indptr = true;
      QuantisedCall of_entries(c);
      ASSERT_EQ(run_on(*kernel, of_table, 2), "") << kernel->name << ": " << text_of(c);
      ASSERT_EQ(run_on(*kernel, of_entries, 2), "") << kernel->name << ": " << text_of(c);
      ASSERT_EQ(of_entries.out(), of_table.out()) << kernel->name << ": " << text_of(c);
      ASSERT_EQ(of_entries.lse(), of_table.lse()) << kernel->name << ": " << text_of(c);
    }
}

TEST(Quantised, EveryKernelAgreesWithTheDequantisedKeys) {
  const std::vector<DType> dtypes = built_dtypes();
  int num_run = 0;
  for (const Kernel* kernel : kernels()) {
    Random random(11);
    for (int i = 0; i < 60; ++i) {
      const DType dtype = dtypes[static_cast<std::size_t>(i) % dtypes.size()];
      const QuantisedCase c = testing::random_quantised_case(random, dtype);
      const std::string what = std::string(kernel->name) + ": " + text_of(c);
      QuantisedCall call(c);
      ASSERT_FALSE(call.append_status().has_value()) << call.append_status()->message;
      ASSERT_EQ(run_on(*kernel, call, 1 + i % 3), "") << what;
      testing::expect_close(call, testing::bounds_of(*kernel, c), what);
      ++num_run;
    }
  }
  EXPECT_GE(num_run, 120);  // the reference and one more
}

constexpr DType kCodes[] = {DType::i8, DType::f8e4m3, DType::i4x2, DType::u4x2, DType::u2x4};

// Lengths around tiles, splits and groups of splits, in one ragged batch.
TEST(Quantised, EveryLengthAroundATile) {
  for (const Kernel* kernel : kernels())
    for (const DType dtype : built_dtypes())
      for (const DType codes : kCodes) {
        QuantisedCase c;
        c.dtype = dtype;
        c.k_dtype = c.v_dtype = codes;
        c.keys = {31, 32, 33, 63, 64, 65, 127, 128, 129, 511, 512, 513, 1023, 1024, 1025, 2049};
        c.queries.assign(c.keys.size(), 1);
        c.page_size = c.group = 32;
        c.head_dim = c.head_dim_v = 64;
        const std::string what = std::string(kernel->name) + ": " + text_of(c);
        QuantisedCall call(c);
        ASSERT_EQ(run_on(*kernel, call, 2), "") << what;
        testing::expect_close(call, testing::bounds_of(*kernel, c), what);
      }
}

// Of a batch whose other sequences have some: what no query reads needs no page.
TEST(Quantised, SequencesWithoutQueriesNeedNoRecentPages) {
  for (const Kernel* kernel : kernels()) {
    QuantisedCase c;
    c.dtype = DType::bf16;
    c.keys = {40, 33, 17, 16, 1, 0};
    c.queries = {2, 0, 1, 0, 0, 0};
    const std::string what = std::string(kernel->name) + ": " + text_of(c);
    QuantisedCall call(c);
    headrace_attention_tensors t = call.tensors();
    headrace_quantised_kv quantised = *t.quantised;
    t.quantised = &quantised;
    headrace_tensor& table = quantised.recent_table;
    const auto* pages = static_cast<const std::int32_t*>(table.data);
    std::vector<std::int32_t> read(pages, pages + table.shape[0] * table.shape[1]);
    for (std::size_t b = 0; b < c.queries.size(); ++b)
      if (c.queries[b] == 0)
        std::fill_n(read.begin() + static_cast<std::ptrdiff_t>(b) * table.shape[1], table.shape[1],
                    -1);
    table.data = read.data();
    ASSERT_EQ(run_on(*kernel, t, call.attention_options(), 2), "") << what;
    testing::expect_close(call, testing::bounds_of(*kernel, c), what);
  }
}

// Of 6 queries the window of the first begins before the keys of a split, that of the last in it.
TEST(Quantised, WindowsThatBeginOnBothSidesOfASplit) {
  for (const Kernel* kernel : kernels())
    for (const DType codes : {DType::i8, DType::u4x2}) {
      QuantisedCase c;
      c.dtype = DType::bf16;
      c.k_dtype = c.v_dtype = codes;
      c.keys = {574, 1086, 573};
      c.queries = {6, 6, 6};
      c.window_left = 60;
      c.page_size = c.group = 32;
      QuantisedCall call(c);
      ASSERT_EQ(run_on(*kernel, call, 2), "") << kernel->name;
      testing::expect_close(call, testing::bounds_of(*kernel, c),
                            std::string(kernel->name) + ": " + text_of(c));
    }
}

// The KV heads and the splits of a task depend on the number of threads.
TEST(Quantised, BitsDependNeitherOnThreadsNorOnTheirTasks) {
  for (const Kernel* kernel : kernels())
    for (const DType codes : kCodes)
      for (const bool is_head_major : {false, true}) {
        QuantisedCase c;
        c.dtype = DType::bf16;
        c.k_dtype = c.v_dtype = codes;
        c.keys = {9000, 700, 90};
        c.queries = {2, 1, 1};
        c.num_heads = 16;
        c.num_kv_heads = 8;
        c.page_size = c.group = 32;
        c.is_head_major = is_head_major;
        QuantisedCall call(c);
        ASSERT_EQ(run_on(*kernel, call, 1), "") << kernel->name;
        testing::expect_close(call, testing::bounds_of(*kernel, c),
                              std::string(kernel->name) + ": " + text_of(c));
        const std::vector<unsigned char> out = call.out();
        const std::vector<float> lse = call.lse();
        for (const int num_threads : {2, 3, 16}) {
          std::ranges::fill(call.out(), 0xff);
          ASSERT_EQ(run_on(*kernel, call, num_threads), "") << kernel->name;
          EXPECT_EQ(call.out(), out) << kernel->name << ' ' << text_of(c) << num_threads;
          EXPECT_EQ(call.lse(), lse) << kernel->name << ' ' << text_of(c) << num_threads;
        }
      }
}

// A contiguous copy of codes, or of their scales, in the pages of `t`: [sum of keys, num_kv_heads,
// ..].
std::vector<unsigned char> without_pages(const headrace_attention_tensors& t,
                                         const headrace_tensor& pages,
                                         const std::vector<std::int32_t>& keys) {
  const std::size_t bytes = dtype_bytes(static_cast<DType>(pages.dtype));
  const std::int64_t page_size = pages.shape[1], heads = pages.shape[2];
  const std::int64_t width = pages.rank == 4 ? pages.shape[3] : 1;
  const auto* table = static_cast<const std::int32_t*>(t.block_table.data);
  std::vector<unsigned char> all;
  for (std::size_t b = 0; b < keys.size(); ++b)
    for (std::int64_t j = 0; j < keys[b]; ++j)
      for (std::int64_t head = 0; head < heads; ++head) {
        const std::int64_t entry = static_cast<std::int64_t>(b) * t.block_table.shape[1];
        const std::int64_t first = table[entry + j / page_size] * pages.strides[0] +
                                   j % page_size * pages.strides[1] + head * pages.strides[2];
        const auto* from =
            static_cast<const unsigned char*>(pages.data) + static_cast<std::size_t>(first) * bytes;
        all.insert(all.end(), from, from + static_cast<std::size_t>(width) * bytes);
      }
  return all;
}

// Ragged, and dense where all sequences are equally long.
TEST(Quantised, ContiguousKeysHaveTheBitsOfPages) {
  const std::vector<std::int32_t> lengths[] = {{5, 70, 600, 33}, {129, 129, 129}};
  for (const Kernel* kernel : kernels())
    for (const DType codes : {DType::i8, DType::f8e4m3, DType::i4x2})
      for (const std::vector<std::int32_t>& keys : lengths) {
        QuantisedCase c;
        c.dtype = DType::bf16;
        c.k_dtype = c.v_dtype = codes;
        c.keys = keys;
        c.queries.assign(keys.size(), 2);
        c.group = 0;
        const std::string what = std::string(kernel->name) + ": " + text_of(c);
        QuantisedCall call(c);
        ASSERT_EQ(run_on(*kernel, call, 2), "") << what;
        const std::vector<unsigned char> out = call.out();
        headrace_attention_tensors t = call.tensors();
        headrace_quantised_kv quantised = *t.quantised;
        std::vector<unsigned char> copies[] = {
            without_pages(t, t.k, keys), without_pages(t, t.v, keys),
            without_pages(t, quantised.k_scale, keys), without_pages(t, quantised.v_scale, keys)};
        std::vector<std::int32_t> cu_seqlens_k = {0};
        for (const std::int32_t count : keys) cu_seqlens_k.push_back(cu_seqlens_k.back() + count);
        const std::int64_t batch = static_cast<std::int64_t>(keys.size()),
                           all = cu_seqlens_k.back();
        const std::int64_t heads = c.num_kv_heads, width = t.k.shape[3];
        t.k = TensorView(copies[0].data(), codes, {all, heads, width});
        t.v = TensorView(copies[1].data(), codes, {all, heads, width});
        quantised.k_scale = TensorView(copies[2].data(), DType::f32, {all, heads});
        quantised.v_scale = TensorView(copies[3].data(), DType::f32, {all, heads});
        t.quantised = &quantised;
        t.block_table = t.seqused_k = {};
        t.cu_seqlens_k = TensorView(cu_seqlens_k.data(), DType::i32, {batch + 1});
        std::ranges::fill(call.out(), 0xff);
        ASSERT_EQ(run_on(*kernel, t, call.attention_options(), 2), "") << what;
        EXPECT_EQ(call.out(), out) << what << "ragged";
        if (keys.front() != keys.back()) continue;
        const std::int64_t each = keys.front();
        t.q = TensorView(t.q.data, c.dtype, {batch, 2, c.num_heads, c.head_dim});
        t.k = TensorView(copies[0].data(), codes, {batch, each, heads, width});
        t.v = TensorView(copies[1].data(), codes, {batch, each, heads, width});
        quantised.k_scale = TensorView(copies[2].data(), DType::f32, {batch, each, heads});
        quantised.v_scale = TensorView(copies[3].data(), DType::f32, {batch, each, heads});
        t.out = TensorView(t.out.data, c.dtype, {batch, 2, c.num_heads, c.head_dim_v});
        t.cu_seqlens_q = t.cu_seqlens_k = t.lse = {};
        std::ranges::fill(call.out(), 0xff);
        ASSERT_EQ(run_on(*kernel, t, call.attention_options(), 2), "") << what;
        EXPECT_EQ(call.out(), out) << what << "dense";
      }
}

TEST(Quantised, ScalesOfASequenceOfAnySize) {
  const double sizes[][2] = {{0x1p-8, 0x1p-8}, {0x1p-8, 0x1p8}, {2, 0x1p8}, {1, 0x1p-100}};
  for (const Kernel* kernel : kernels())
    for (const DType codes : {DType::i8, DType::f8e4m3})
      for (const auto& [k_scale, v_scale] : sizes) {
        QuantisedCase c;
        c.dtype = DType::bf16;
        c.k_dtype = c.v_dtype = codes;
        c.keys = {129, 40};
        c.queries = {1, 3};
        c.group = 0;
        c.has_per_sequence_scales = true;
        c.k_scale = codes == DType::f8e4m3 ? k_scale / 4 : k_scale;
        c.v_scale = v_scale;
        QuantisedCall call(c);
        ASSERT_EQ(run_on(*kernel, call, 2), "") << kernel->name;
        testing::expect_close(call, testing::bounds_of(*kernel, c),
                              std::string(kernel->name) + ": " + text_of(c));
      }
}

TEST(Quantised, ErrorsOfZeroPointsNameTheArgument) {
  const struct {
    void (*break_it)(headrace_attention_tensors&, headrace_quantised_kv&);
    const char* text;
  } cases[] = {
      {[](auto&, auto& x) { x.k_scale = {}; },
       "k_scale: not given, but k has codes of dtype u2x4; pass words of scales and zero points, "
       "u32 [num_pages, page_size / 32, num_kv_heads, head_dim]"},
      {[](auto&, auto& x) { x.v_scale.dtype = HEADRACE_F32; },
       "v_scale.dtype=f32: must be u32 (a scale and a zero point)"},
      {[](auto&, auto& x) { x.k_scale.shape[1] = 1; }, "k_scale.shape[1]=1"},
      {[](auto&, auto& x) { x.k_scale.strides[3] = 2; }, "k_scale.strides[3]=2"},
      {[](auto& t, auto& x) { t.k.shape[1] = t.v.shape[1] = x.v_scale.shape[1] = 80; },
       "k.dtype=u2x4 with page_size=80 and groups of 32 recent keys: both must be multiples of 32"},
      {[](auto&, auto& x) { x.k_recent.shape[1] = x.v_recent.shape[1] = 16; },
       "k.dtype=u2x4 with page_size=64 and groups of 16 recent keys: both must be multiples of "
       "32"}};
  QuantisedCase c;
  c.k_dtype = DType::u2x4;
  c.v_dtype = DType::u4x2;
  c.page_size = 64;
  c.group = 32;
  QuantisedCall call(c);
  for (const auto& [break_it, text] : cases) {
    headrace_attention_tensors tensors = call.tensors();
    headrace_quantised_kv quantised = *tensors.quantised;
    tensors.quantised = &quantised;
    ASSERT_TRUE(validate(tensors, call.attention_options()).ok());
    break_it(tensors, quantised);
    const Result<Problem> bad = validate(tensors, call.attention_options());
    ASSERT_FALSE(bad.ok()) << text;
    EXPECT_EQ(bad.failure().message.find(text), 0u) << bad.failure().message << ", not " << text;
  }
}

// Codes of one side alone: only that one has scales, for pages of keys and for whole sequences.
TEST(Quantised, ScalesOfWhatHasNoCodesAreRefused) {
  for (const bool is_of_k : {false, true})
    for (const bool has_per_sequence_scales : {false, true}) {
      QuantisedCase c;
      (is_of_k ? c.k_dtype : c.v_dtype) = c.dtype;
      c.has_per_sequence_scales = has_per_sequence_scales;
      QuantisedCall call(c);
      headrace_attention_tensors tensors = call.tensors();
      headrace_quantised_kv x = *tensors.quantised;
      tensors.quantised = &x;
      (is_of_k ? x.k_scale : x.v_scale) = {};
      ASSERT_TRUE(validate(tensors, call.attention_options()).ok());
      (is_of_k ? x.k_scale : x.v_scale) = is_of_k ? x.v_scale : x.k_scale;
      const Result<Problem> bad = validate(tensors, call.attention_options());
      ASSERT_FALSE(bad.ok());
      EXPECT_EQ(bad.failure().message,
                is_of_k ? "k_scale: given, but k.dtype=f32 has no codes; leave k_scale out"
                        : "v_scale: given, but v.dtype=f32 has no codes; leave v_scale out");
    }
}

// Of keys that lie in no pages: a scale for each key, or, where sequences have one length, one for
// each of them. Each size is checked.
TEST(Quantised, ScalesOfContiguousKeysHaveTheirShape) {
  std::vector<float> memory(2048);
  std::int32_t cu_seqlens_q[] = {0, 1, 3}, cu_seqlens_k[] = {0, 4, 10};
  for (const bool is_ragged : {false, true})
    for (const bool is_per_sequence : {false, true}) {
      if (is_ragged && is_per_sequence) continue;
      headrace_attention_tensors t{};
      headrace_quantised_kv x{};
      t.struct_size = sizeof t;
      x.struct_size = sizeof x;
      t.quantised = &x;
      const auto view = [&](std::size_t at, DType dtype, std::int64_t length, std::int64_t heads) {
        float* data = memory.data() + at;
        return is_ragged ? TensorView(data, dtype, {2 * length, heads, 16})
                         : TensorView(data, dtype, {2, length, heads, 16});
      };
      t.q = view(0, DType::f32, 1, 4);
      t.out = view(512, DType::f32, 1, 4);
      if (is_ragged) {
        t.q.shape[0] = t.out.shape[0] = 3;
        t.cu_seqlens_q = TensorView(cu_seqlens_q, DType::i32, {3});
        t.cu_seqlens_k = TensorView(cu_seqlens_k, DType::i32, {3});
      }
      t.k = view(1024, DType::i8, 5, 2);
      t.v = view(1124, DType::i8, 5, 2);
      const auto scale = [&](std::size_t at) {
        float* data = memory.data() + at;
        return is_per_sequence ? TensorView(data, DType::f32, {2, 2})
               : is_ragged     ? TensorView(data, DType::f32, {10, 2})
                               : TensorView(data, DType::f32, {2, 5, 2});
      };
      x.k_scale = scale(1300);
      x.v_scale = scale(1400);
      headrace_attention_options options = default_options();
      options.max_seqlen_q = 2;
      options.max_seqlen_k = 6;
      ASSERT_TRUE(validate(t, options).ok()) << validate(t, options).failure().message;
      for (const bool is_of_k : {false, true}) {
        headrace_tensor& wrong = is_of_k ? x.k_scale : x.v_scale;
        for (std::int32_t axis = 0; axis < wrong.rank; ++axis)
          for (const int step : {-1, 1}) {
            wrong.shape[axis] += step;
            const Result<Problem> bad = validate(t, options);
            ASSERT_FALSE(bad.ok()) << axis;
            const std::string text = std::string(is_of_k ? "k" : "v") + "_scale.shape[" +
                                     std::to_string(axis) +
                                     "]=" + std::to_string(wrong.shape[axis]) + ": must equal ";
            EXPECT_EQ(bad.failure().message.find(text), 0u) << bad.failure().message;
            wrong.shape[axis] -= step;
          }
      }
    }
}

}  // namespace
}  // namespace headrace
