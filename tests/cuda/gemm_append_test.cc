// Products of Q, K and V that end with RoPE and the append to a cache, on a GPU: the bits of the
// append kernel behind the product.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>

#include "backends/cuda/backend.h"
#include "backends/cuda/gemm/gemm.h"
#include "core/dtype.h"
#include "cuda/gpu.h"
#include "cuda/random_elements.h"
#include "support/random.h"

namespace headrace::testing {
namespace {

using Elements = std::vector<std::uint16_t>;

struct Case {
  DType dtype = DType::bf16;
  std::int64_t num_tokens = 1, num_heads = 6, num_kv_heads = 2, head_dim = 64, columns = 576;
  RopeLayout layout = RopeLayout::halves;
  bool has_bias = false, has_norm = false, is_hnd = false;
};

constexpr std::int64_t kPageSize = 5, kPages = 8, kPositions = 40;
constexpr std::uint16_t kUnwritten = 0x7fc1;  // NaN in both formats

std::vector<float> random_floats(std::int64_t count, std::uint64_t seed) {
  Random random(seed);
  std::vector<float> floats(static_cast<std::size_t>(count));
  for (float& x : floats) x = static_cast<float>(random.normal());
  return floats;
}

struct Written {
  Elements q, k_pages, v_pages;
  bool operator==(const Written&) const = default;
};

class Call {
 public:
  using Product = cuda::Product;

  explicit Call(const Case& c)
      : c_(c),
        w_(random_elements(c.dtype, num_rows() * c.columns, 1)),
        x_(random_elements(c.dtype, c.num_tokens * c.columns, 2)),
        bias_(random_floats(num_rows(), 3)),
        norm_(random_floats(c.columns, 4)),
        cos_(random_floats(kPositions * c.head_dim / 2, 5)),
        sin_(random_floats(kPositions * c.head_dim / 2, 6)) {
    Random random(7);
    std::vector<std::int64_t> all(kPages * kPageSize);
    std::iota(all.begin(), all.end(), 0);
    for (std::size_t i = all.size() - 1; i > 0; --i)
      std::swap(all[i], all[static_cast<std::size_t>(random.between(0, static_cast<int>(i)))]);
    slots.assign(all.begin(), all.begin() + c.num_tokens);
    for (std::int64_t token = 0; token < c.num_tokens; ++token)
      positions.push_back(static_cast<std::int32_t>((7 * token + 3) % kPositions));
  }

  // `within` the product, or by a kernel behind it.
  Written run(bool within) const {
    const std::int64_t pages = kPages * kPageSize * c_.num_kv_heads * c_.head_dim;
    const auto unwritten = [](std::int64_t count) {
      return Elements(static_cast<std::size_t>(count), kUnwritten);
    };
    const OnDevice<std::uint16_t> qkv(unwritten(c_.num_tokens * num_rows())),
        q(unwritten(c_.num_tokens * c_.num_heads * c_.head_dim)), k(unwritten(pages)),
        v(unwritten(pages));
    const OnDevice<std::int64_t> slot_mapping(slots);
    const OnDevice<std::int32_t> on_device_positions(positions);
    KvAppendArgs args = args_of(qkv.data(), q.data(), k.data(), v.data());
    args.slot_mapping = slot_mapping.data();
    if (has_positions) args.positions = on_device_positions.data();
    Product product = product_of(qkv.data());
    if (within) product.append = &args;
    const Status failed = cuda::multiply(product, cuda::device_info(0).value(), nullptr);
    EXPECT_FALSE(failed) << failed->message;
    if (!within) {
      const Status append_failed = cuda::kv_append(args, 0, nullptr);
      EXPECT_FALSE(append_failed) << append_failed->message;
    }
    if (within) EXPECT_EQ(qkv.read(), unwritten(c_.num_tokens * num_rows()));
    return {q.read(), k.read(), v.read()};
  }

  // The error of a product of these arguments.
  Status refusal(const std::function<void(Product&, KvAppendArgs&)>& change) const {
    alignas(16) static std::uint16_t host[16];  // not read
    KvAppendArgs args = args_of(host, host, host, host);
    Product product = product_of(host);
    product.append = &args;
    change(product, args);
    return cuda::multiply(product, cuda::device_info(0).value(), nullptr);
  }

  std::vector<std::int64_t> slots;
  std::vector<std::int32_t> positions;
  bool has_positions = true;

 private:
  std::int64_t num_rows() const { return (c_.num_heads + 2 * c_.num_kv_heads) * c_.head_dim; }

  KvAppendArgs args_of(std::uint16_t* qkv, std::uint16_t* q, std::uint16_t* k,
                       std::uint16_t* v) const {
    const std::int64_t dim = c_.head_dim, kv = c_.num_kv_heads;
    const auto heads = [&](std::int64_t first) {
      return HeadRows{.data = qkv + first * dim,
                      .dtype = c_.dtype,
                      .stride_token = num_rows(),
                      .stride_head = dim};
    };
    const auto pages = [&](void* data) {
      return PageRows{.data = data,
                      .dtype = c_.dtype,
                      .stride_page = kPageSize * kv * dim,
                      .stride_slot = c_.is_hnd ? dim : kv * dim,
                      .stride_head = c_.is_hnd ? kPageSize * dim : dim};
    };
    KvAppendArgs args;
    args.num_tokens = c_.num_tokens;
    args.num_heads = c_.num_heads;
    args.num_kv_heads = kv;
    args.head_dim = args.head_dim_v = args.rot_dim = dim;
    args.page_size = kPageSize;
    args.num_pages = kPages;
    args.q = heads(0);
    args.k = heads(c_.num_heads);
    args.v = heads(c_.num_heads + kv);
    args.q_out = {
        .data = q, .dtype = c_.dtype, .stride_token = c_.num_heads * dim, .stride_head = dim};
    args.k_pages = pages(k);
    args.v_pages = pages(v);
    args.slot_stride = args.position_stride = 1;
    args.layout = c_.layout;
    args.tables = {.cos = cos_.data(),
                   .sin = sin_.data(),
                   .cos_stride = dim / 2,
                   .sin_stride = dim / 2,
                   .max_positions = kPositions};
    return args;
  }
  Product product_of(void* out) const {
    const std::int64_t q = c_.num_heads * c_.head_dim, kv = c_.num_kv_heads * c_.head_dim;
    matrices_ = {cuda::Matrix{w_.data(), q}, cuda::Matrix{w_.data() + q * c_.columns, kv},
                 cuda::Matrix{w_.data() + (q + kv) * c_.columns, kv}};
    return {.dtype = c_.dtype,
            .matrices = matrices_,
            .columns = c_.columns,
            .num_tokens = c_.num_tokens,
            .x = x_.data(),
            .x_stride = c_.columns,
            .bias = c_.has_bias ? bias_.data() : nullptr,
            .out = out,
            .out_dtype = c_.dtype,
            .out_stride = num_rows(),
            .adds_to_out = false,
            .norm = {c_.has_norm ? norm_.data() : nullptr, 1e-5f}};
  }

  const Case c_;
  const OnDevice<std::uint16_t> w_, x_;
  const OnDevice<float> bias_, norm_, cos_, sin_;
  mutable std::array<cuda::Matrix, 3> matrices_;
};

std::string text_of(const Case& c) {
  return format_text("{} tokens, {} + 2 x {} heads of {}, {} columns{}{}{}{}", c.num_tokens,
                     c.num_heads, c.num_kv_heads, c.head_dim, c.columns,
                     c.layout == RopeLayout::halves ? ", halves" : "", c.has_bias ? ", bias" : "",
                     c.has_norm ? ", norm" : "", c.is_hnd ? ", HND" : "");
}

void expect_equal_bits(const Case& c) {
  Call call(c);
  if (c.num_tokens > 4) call.slots[4] = -1;
  const Written behind = call.run(false), within = call.run(true);
  ASSERT_EQ(within.q, behind.q) << text_of(c);
  ASSERT_EQ(within.k_pages, behind.k_pages) << text_of(c);
  ASSERT_EQ(within.v_pages, behind.v_pages) << text_of(c);
}

// Heads of one to sixteen tiles, and columns beside stages; with one chain of sums and with two;
// with the rows of x in shared memory and in stages.
TEST(GemmOnGpuAppend, HasTheBitsOfAnAppendBehindTheProduct) {
  HEADRACE_NEEDS_GPU(90);
  const Case kSizes[] = {{.head_dim = 16, .columns = 8},
                         {.num_heads = 1, .num_kv_heads = 1, .head_dim = 48, .columns = 200},
                         {.num_heads = 9, .num_kv_heads = 3},
                         {.num_heads = 12, .head_dim = 128, .columns = 1536},
                         {.num_heads = 32, .num_kv_heads = 8, .head_dim = 128, .columns = 136},
                         {.num_heads = 40, .num_kv_heads = 1, .head_dim = 256, .columns = 264}};
  for (const Case& size : kSizes)
    for (const DType dtype : {DType::bf16, DType::f16})
      for (const RopeLayout layout : {RopeLayout::interleaved, RopeLayout::halves})
        for (const std::int64_t num_tokens : {1, 2, 7, 8, 9, 16})
          for (const bool has_bias : {false, true}) {
            Case c = size;
            c.dtype = dtype;
            c.layout = layout;
            c.num_tokens = num_tokens;
            c.has_bias = has_bias;
            c.is_hnd = has_bias != (num_tokens % 2 == 0);
            c.has_norm =
                has_bias && dtype == DType::bf16 && cuda::takes_norm(90, num_tokens, c.columns);
            expect_equal_bits(c);
          }
  EXPECT_FALSE(cuda::check(0, nullptr));
}

// Of a kernel for any call, of that for whole vectors, and within the product.
TEST(GemmOnGpuAppend, WithoutPositionsATokenHasItsOwnRow) {
  HEADRACE_NEEDS_GPU(90);
  for (const std::int64_t head_dim : {72, 64}) {
    Call call({.num_tokens = 9, .head_dim = head_dim});
    std::iota(call.positions.begin(), call.positions.end(), 0);
    const Written behind = call.run(false);
    call.has_positions = false;
    EXPECT_EQ(call.run(false), behind) << head_dim;
    if (head_dim % 16 == 0) EXPECT_EQ(call.run(true), behind);
  }
}

// The token is reported and not stored, the others are.
TEST(GemmOnGpuAppend, ReportsBadTokens) {
  HEADRACE_NEEDS_GPU(90);
  for (const RopeLayout layout : {RopeLayout::interleaved, RopeLayout::halves})
    for (const int bad_value : {0, 1, 2, 3}) {
      const bool is_slot = bad_value < 2;
      Call call({.num_tokens = 9, .layout = layout});
      if (is_slot)
        call.slots[3] = bad_value == 0 ? kPages * kPageSize : std::int64_t{1} << 62;
      else
        call.positions[3] = bad_value == 2 ? kPositions : INT32_MAX;
      const Written behind = call.run(false);
      EXPECT_TRUE(cuda::check(0, nullptr).has_value());
      const Written within = call.run(true);
      const Status bad = cuda::check(0, nullptr);
      ASSERT_TRUE(bad.has_value());
      EXPECT_EQ(bad->message.find(is_slot ? "slot_mapping on cuda:0" : "positions on cuda:0"), 0u)
          << bad->message;
      EXPECT_NE(bad->message.find("token 3"), std::string::npos) << bad->message;
      EXPECT_EQ(within.k_pages, behind.k_pages);
      EXPECT_EQ(within.v_pages, behind.v_pages);
      EXPECT_EQ(within.q, behind.q);
    }
}

// What has another kernel behind the product.
TEST(GemmOnGpuAppend, RefusesOtherCases) {
  HEADRACE_NEEDS_GPU(90);
  const Call call({});
  static std::int64_t slot = 0;
  static float scale = 0;
  using Change = std::function<void(cuda::Product&, KvAppendArgs&)>;
  const Change changes[] = {[](auto& p, auto&) { p.num_tokens = 17; },
                            [](auto& p, auto&) { p.matrices = p.matrices.first(2); },
                            [](auto& p, auto&) { p.adds_to_out = true; },
                            [](auto&, auto& args) { args.num_tokens = 2; },
                            [](auto&, auto& args) { args.num_heads = 5; },
                            [](auto&, auto& args) { args.num_kv_heads = 3; },
                            [](auto&, auto& args) { args.rot_dim = 32; },
                            [](auto&, auto& args) { args.rot_dim = 0; },
                            [](auto&, auto& args) { args.head_dim_v = 32; },
                            [](auto&, auto& args) { args.k_pages.dtype = DType::f16; },
                            [](auto&, auto& args) { args.q_out.dtype = DType::f32; },
                            [](auto&, auto& args) { args.k_scale.data = &scale; },
                            [](auto&, auto& args) { args.recent.slots = &slot; },
                            [](auto&, auto& args) { args.k_norm.data = &scale; },
                            [](auto&, auto& args) { args.channel_factors.data = &scale; },
                            [](auto&, auto& args) { args.hadamard_block = 16; },
                            [](auto&, auto& args) { args.v_pages.stride_head = 63; }};
  for (std::size_t i = 0; i < std::size(changes); ++i) {
    const Status failed = call.refusal(changes[i]);
    ASSERT_TRUE(failed.has_value()) << i;
    EXPECT_EQ(failed->code, ErrorCode::unsupported) << failed->message;
  }
}

}  // namespace
}  // namespace headrace::testing
