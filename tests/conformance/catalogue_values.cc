// Values that overflow, vanish, dominate or are no numbers.
#include <cmath>
#include <limits>

#include "conformance/catalogue.h"
#include "core/dtype.h"

namespace headrace::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr DType kDtypes[] = {DType::f32, DType::f16, DType::bf16};

using Index = const std::int64_t*;

// A1: every logit far below zero, one key 1024 above the others.
void deep_logits(Check& check) {
  for (const DType dtype : kDtypes) {
    for (const double depth : {1e4, 5e4, 5.5e4, 6e4, 1e5, 2e5, 2.45e5}) {
      for (const bool has_winner : {false, true}) {
        Case c = plain_case({.dtype = dtype,
                             .seqlen_q = 5,
                             .seqlen_k = 300,
                             .num_heads = 2,
                             .num_kv_heads = 1,
                             .head_dim = 64,
                             .head_dim_v = 8});
        c.mutable_options().softmax_scale = 1.0;
        const double size = std::sqrt(depth / 64);
        set_elements(c, c.tensors().q, [&](Index) { return size; });
        set_elements(c, c.tensors().k, [&](Index i) {
          return has_winner && i[1] == 211 ? -size * (1 - 1024 / depth) : -size;
        });
        const std::string label = format_text("{} depth {}", dtype_name(dtype), depth);
        check.judge_rows(c, label);
        if (!has_winner) continue;
        const auto values = check.run(c, label);
        for (std::size_t i = 0; i < values.out.size(); ++i)
          check.expect_true(values.out[i] == load_as_double(dtype, c.tensors().v.data,
                                                            at(c.tensors().v, 0, 211, 0,
                                                               static_cast<std::int64_t>(i % 8))),
                            label + ": the winner's V does not come out exactly");
      }
    }
  }
}

// A2: what a masked key holds changes no bit, however large its score would be.
void masked_giant(Check& check) {
  for (const DType dtype : kDtypes) {
    for (const std::int64_t key : {0, 77, 129, 199}) {
      CaseName name = plain_name(dtype);
      name.values.value[static_cast<std::size_t>(Axis::mask)] = static_cast<int>(Mask::full);
      Case c = plain_case({.dtype = dtype, .seqlen_q = 20, .seqlen_k = 200}, name);
      set_elements(c, c.tensors().mask, [&](Index i) { return i[3] == key ? 0.0 : 1.0; });
      const auto before = check.run(c, "small");
      for (std::int64_t d = 0; d < 16; ++d)
        set_element(c.tensors().k, at(c.tensors().k, 0, key, 0, d), 3e4);
      const auto after = check.run(c, "giant");
      check.expect_true(before.bytes == after.bytes,
                        format_text("{}: masked key {} matters", dtype_name(dtype), key));
    }
  }
}

// A3.
void scaled_up(Check& check) {
  for (const DType dtype : kDtypes)
    for (const std::int64_t n : {1, 2, 5, 17, 128})
      for (const std::int64_t dim : {16, 32, 64}) {
        Case c = plain_case({.dtype = dtype,
                             .batch = 2,
                             .seqlen_q = n,
                             .seqlen_k = n,
                             .num_heads = 3,
                             .num_kv_heads = 3,
                             .head_dim = dim,
                             .head_dim_v = dim},
                            Data::scaled);
        check.judge_rows(c, format_text("{} seqlen {} dim {}", dtype_name(dtype), n, dim));
      }
}

// A4: rows that see nothing, for every reason there is.
void empty_rows(Check& check) {
  for (const DType dtype : kDtypes) {
    const PlainShape shape{.dtype = dtype,
                           .batch = 2,
                           .seqlen_q = 70,
                           .seqlen_k = 30,
                           .num_heads = 2,
                           .num_kv_heads = 2};
    CaseName name = plain_name(dtype);
    const auto set = [&](Axis axis, int value) {
      name.values.value[static_cast<std::size_t>(axis)] = static_cast<std::uint8_t>(value);
    };
    set(Axis::causal, HEADRACE_CAUSAL_BOTTOM_RIGHT);
    for (const double sink : {0.5, 300.0, -kInfinity}) {
      set(Axis::sinks, 1);
      Case c = plain_case(shape, name);
      set_elements(c, c.tensors().sinks, [&](Index) { return sink; });
      check.judge_rows(c, format_text("causal with more queries than keys, sink {}", sink));
    }
    set(Axis::sinks, 0);
    set(Axis::causal, 0);
    Case window = plain_case(shape, name);
    window.mutable_options().window_left = 2;
    window.mutable_options().window_right = 0;
    check.judge_rows(window, "window beyond the keys");
    set(Axis::mask, static_cast<int>(Mask::full));
    Case mask = plain_case(shape, name);
    set_elements(mask, mask.tensors().mask, [](Index) { return 0.0; });
    check.judge_rows(mask, "all keys masked");
  }
}

// A6: a NaN reaches the rows that see it, all of them.
void nan_in_key(Check& check) {
  for (const DType dtype : kDtypes) {
    for (const std::int64_t rows : {9, 150}) {
      CaseName name = plain_name(dtype);
      name.values.value[static_cast<std::size_t>(Axis::causal)] = HEADRACE_CAUSAL_BOTTOM_RIGHT;
      Case c = plain_case({.dtype = dtype,
                           .batch = 2,
                           .seqlen_q = rows,
                           .seqlen_k = 150,
                           .num_heads = 2,
                           .num_kv_heads = 2},
                          name);
      c.unlock_inputs();
      set_element(c.tensors().k, at(c.tensors().k, 1, 145, 0, 3), kNan);
      check.judge_rows(c, format_text("{} NaN in k, {} rows", dtype_name(dtype), rows), false);
    }
  }
}

void nan_in_value(Check& check) {
  for (const DType dtype : kDtypes) {
    Case c = plain_case({.dtype = dtype,
                         .batch = 2,
                         .seqlen_q = 40,
                         .seqlen_k = 40,
                         .num_heads = 2,
                         .num_kv_heads = 2});
    const auto clean = check.run(c, "clean");
    c.unlock_inputs();
    set_element(c.tensors().v, at(c.tensors().v, 1, 33, 0, 3), kNan);
    const auto values = check.run(c, "NaN in v");
    for (std::size_t i = 0; i < values.out.size() && i < clean.out.size(); ++i) {
      const bool sees = i / 16 % 2 == 0 && i / (16 * 2 * 40) == 1 && i % 16 == 3;
      check.expect_true(sees ? std::isnan(values.out[i]) : values.out[i] == clean.out[i],
                        format_text("{} element {}: {}", dtype_name(dtype), i, values.out[i]));
    }
  }
}

// A7: infinite logits; splits that see nothing.
void infinite_logits(Check& check) {
  for (const DType dtype : kDtypes) {
    Case c = plain_case(
        {.dtype = dtype, .seqlen_q = 3, .seqlen_k = 100, .num_heads = 2, .num_kv_heads = 2});
    c.unlock_inputs();
    set_element(c.tensors().k, at(c.tensors().k, 0, 60, 1, 0), kInfinity);
    check.judge_rows(c, "infinity in k", false);
    for (const std::int64_t begin : {0, 512, 1024}) {
      CaseName name = plain_name(dtype);
      name.values.value[static_cast<std::size_t>(Axis::mask)] = static_cast<int>(Mask::full);
      Case split = plain_case({.dtype = dtype, .seqlen_q = 2, .seqlen_k = 1600}, name);
      split.mutable_options().num_splits = 3;
      set_elements(split, split.tensors().mask,
                   [&](Index i) { return i[3] >= begin && i[3] < begin + 640 ? 0.0 : 1.0; });
      check.judge_rows(split, format_text("a split that sees nothing, from key {}", begin));
    }
  }
}

// A8: the ends of the formats.
void extreme_magnitudes(Check& check) {
  for (const DType dtype : kDtypes) {
    const double largest = dtype == DType::f16   ? 65504.0
                           : dtype == DType::f32 ? 0x1.fffffep127
                                                 : 0x1.fep127;
    const double normal = dtype == DType::f16 ? 0x1p-14 : 0x1p-126;
    for (const double size : {smallest_denormal(dtype), normal, largest / 4, largest}) {
      Case c = plain_case({.dtype = dtype, .seqlen_q = 20, .seqlen_k = 70});
      set_elements(c, c.tensors().v,
                   [&](Index i) { return (i[1] + i[3]) % 3 == 0 ? -size : size; });
      c.set_largest_v(size);
      check.judge_rows(c, format_text("{} v of {}", dtype_name(dtype), size));
    }
    for (const double size : {smallest_denormal(dtype), normal}) {
      Case c = plain_case({.dtype = dtype, .seqlen_q = 20, .seqlen_k = 70});
      set_elements(c, c.tensors().q, [&](Index i) { return i[3] % 2 == 0 ? -size : size; });
      set_elements(c, c.tensors().k, [&](Index i) { return i[1] % 2 == 0 ? -size : size; });
      check.judge_rows(c, format_text("{} q and k of {}", dtype_name(dtype), size));
    }
  }
}

}  // namespace

std::vector<CatalogueEntry> value_checks() {
  return {{"A1", "logits of -1e4 to -2.45e5 and a winner", deep_logits},
          {"A2", "a masked key with a huge score", masked_giant},
          {"A3", "q times 5, k times 3", scaled_up},
          {"A4", "rows that see nothing", empty_rows},
          {"A6", "NaN in a key", nan_in_key},
          {"A6", "NaN in a value", nan_in_value},
          {"A7", "infinite logits, empty splits", infinite_logits},
          {"A8", "denormals and the largest numbers", extreme_magnitudes}};
}

}  // namespace headrace::testing
