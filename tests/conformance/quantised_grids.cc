#include "conformance/quantised_grids.h"

#include <cmath>
#include <limits>

namespace headrace::testing {
namespace {

constexpr DType kDtypes[] = {DType::bf16, DType::f16, DType::f32};

// ---- Q2: fp8 with scales of sequences and heads, as descales of FlashAttention-3

// Codes have a standard deviation of some 64: times a scale of kUnit that of usual elements.
constexpr float kUnit = 0x1p-6f;

QuantisedCase fp8_case(DType dtype, std::int64_t head_dim, bool has_per_sequence_scales) {
  QuantisedCase c;
  c.dtype = dtype;
  c.k_dtype = c.v_dtype = DType::f8e4m3;
  c.head_dim = c.head_dim_v = head_dim;
  c.group = 0;
  c.has_per_sequence_scales = has_per_sequence_scales;
  return c;
}

float draw_descale(Random& random) {
  constexpr float kSizes[] = {0x1p-8f, 1, 0x1p8f};
  return kUnit *
         (random.chance(25) ? static_cast<float>(2 * random.uniform()) : random.pick(kSizes));
}

std::vector<QuantisedCase> cases_of_descales(Tier tier) {
  // A head of zeros has the scale 0, one with a NaN or an infinity the scale NaN; int4 has scales
  // of both signs, and any format may.
  constexpr float kSpecial[] = {1, 0, -1, std::numeric_limits<float>::quiet_NaN()};
  Random random(2);
  std::vector<QuantisedCase> cases;
  for (const DType dtype : kDtypes)
    for (const std::int64_t head_dim : {64, 128})
      for (const bool has_per_sequence_scales : {true, false})
        for (const float special : kSpecial) {
          if (tier == Tier::small && head_dim == 128) continue;
          QuantisedCase c = fp8_case(dtype, head_dim, has_per_sequence_scales);
          c.keys = {129, 40, 1, 300, 64};
          c.queries = {1, 3, 1, 20, 2};
          c.has_page_indptr = head_dim == 128;
          for (std::size_t i = 0; i < c.keys.size() * 2; ++i) {
            c.k_scales.push_back(draw_descale(random));
            c.v_scales.push_back(draw_descale(random));
          }
          if (special != 1) c.k_scales[1] = c.v_scales[6] = special * kUnit;
          c.seed = random.next() % 1000000;
          cases.push_back(c);
        }
  return cases;
}

// A scale of NaN reaches all rows of its sequence and head, and no other one.
std::string judge_descales(const Kernel&, const QuantisedCall& call,
                           const QuantisedExpected& expected) {
  const QuantisedCase& c = call.options();
  const auto is_wrong = [](double got, double exact, double allowed) {
    return std::isnan(exact) ? !std::isnan(got) : !(std::abs(got - exact) <= allowed);
  };
  for (const auto& [b, i, head, exact] : expected.rows) {
    const std::int64_t kv_head = b * c.num_kv_heads + head / (c.num_heads / c.num_kv_heads);
    const double v_scale = std::abs(c.v_scales[static_cast<std::size_t>(kv_head)] / kUnit);
    const double unit = v_scale > 1 ? v_scale : 1;
    const double lse = call.result_lse(b, i, head);
    if (is_wrong(lse, exact.lse, 1e-2 + 1e-5 * std::abs(exact.lse)))
      return format_text("lse of row {} of sequence {}, head {} is {} instead of {}", i, b, head,
                         lse, exact.lse);
    for (std::int64_t d = 0; d < c.head_dim_v; ++d) {
      const double want = exact.out[static_cast<std::size_t>(d)];
      const double got = call.result(b, i, head, d);
      if (is_wrong(got, want, 1e-2 * unit + rounding_of(c.dtype) * std::abs(want)))
        return format_text("out[{}] of row {} of sequence {}, head {} is {} instead of {}", d, i, b,
                           head, got, want);
    }
  }
  return {};
}

// ---- Q3: 4 bits and 2 bits in their groups

std::vector<QuantisedCase> cases_of_few_bits(Tier tier) {
  std::vector<QuantisedCase> cases;
  for (const DType format : {DType::i4x2, DType::u4x2, DType::u2x4})
    for (const DType dtype : kDtypes)
      for (const std::int64_t head_dim : {64, 128}) {
        if (tier == Tier::small && head_dim == 128) continue;
        QuantisedCase c;
        c.dtype = dtype;
        c.k_dtype = c.v_dtype = format;
        c.head_dim = c.head_dim_v = head_dim;
        c.page_size = c.group = recent_group_of(format);
        c.keys = {31, 33, 127, 129, 513, 1100};
        c.queries = {1, 2, 1, 3, 1, 1};
        c.has_page_indptr = head_dim == 128;
        c.seed = static_cast<std::uint64_t>(head_dim);
        cases.push_back(c);
      }
  return cases;
}

std::string judge_by_bounds(const Kernel& kernel, const QuantisedCall& call,
                            const QuantisedExpected& expected) {
  const BoundShares worst = shares_of(call, expected.rows, bounds_of(kernel, call.options()));
  if (worst.out <= 1 && worst.lse <= 1) return {};
  return format_text("out is off by {} of its bound, lse by {}", worst.out, worst.lse);
}

// ---- Q5: fp8, one key over a tile, and weight at the end of many keys

std::vector<QuantisedCase> cases_of_tails(Tier tier) {
  struct Sizes {
    std::int32_t keys, queries;
    std::int64_t num_tail_keys;
  };
  constexpr Sizes kSizes[] = {{129, 1, 0}, {129, 4, 0}, {129, 1, 1}, {1024, 1, 16}, {1024, 5, 3}};
  std::vector<QuantisedCase> cases;
  for (const DType dtype : kDtypes)
    for (const std::int64_t head_dim : {64, 128})
      for (const bool has_per_sequence_scales : {true, false})
        for (const auto& [keys, queries, num_tail_keys] : kSizes)
          for (const std::int64_t group : {0, 16}) {
            if (group > 0 && has_per_sequence_scales) continue;
            if (tier == Tier::small && head_dim == 128) continue;
            QuantisedCase c = fp8_case(dtype, head_dim, has_per_sequence_scales);
            c.keys = {keys};
            c.queries = {queries};
            c.num_tail_keys = num_tail_keys;
            c.group = group;
            if (has_per_sequence_scales) c.k_scales = c.v_scales = {kUnit, kUnit};
            c.seed = static_cast<std::uint64_t>(keys + queries);
            cases.push_back(c);
          }
  return cases;
}

std::string judge_by_cosine(const Kernel&, const QuantisedCall& call,
                            const QuantisedExpected& expected) {
  for (const auto& [b, i, head, exact] : expected.rows) {
    double product = 0, of_got = 0, of_exact = 0;
    for (std::int64_t d = 0; d < call.options().head_dim_v; ++d) {
      const double got = call.result(b, i, head, d);
      const double want = exact.out[static_cast<std::size_t>(d)];
      product += got * want;
      of_got += got * got;
      of_exact += want * want;
    }
    const double cosine = product / std::sqrt(of_got * of_exact);
    if (!(cosine > 0.9999))
      return format_text("row {} of sequence {}, head {} has a cosine of {} with the exact one", i,
                         b, head, cosine);
  }
  return {};
}

}  // namespace

const std::vector<QuantisedGrid> kQuantisedGrids = {
    {"Q2", "fp8, scales of sequences and heads, also 0, negative and NaN", cases_of_descales,
     judge_descales, false},
    {"Q3", "int4, kivi4 and kivi2", cases_of_few_bits, judge_by_bounds, true},
    {"Q5", "fp8, 129 keys, and 1024 whose last have the weight", cases_of_tails, judge_by_cosine,
     false}};

}  // namespace headrace::testing
