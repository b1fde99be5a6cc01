// A row's bits depend on the keys that it sees: not on keys behind them, and with strict_rows not
// on the other queries of the call.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "conformance/plain_call.h"

namespace headrace::testing {
namespace {

constexpr std::int64_t kDim = 16;

std::vector<Target> flash_targets(DType dtype) {
  std::vector<Target> list;
  for (const Target& target : targets()) {
    const bool takes_bf16_alone = target.kernel->name == "cpu_avx512bf16_fwd";
    if (target.kernel->name != "cpu_reference" && !is_on_gpu(target) &&
        (dtype == DType::bf16 || !takes_bf16_alone))
      list.push_back(target);
  }
  return list;
}

// A causal sequence: as many keys as queries, and calls of some of its rows.
class Sequence {
 public:
  Sequence(DType dtype, std::int64_t length, std::int64_t heads, std::int64_t kv_heads)
      : dtype_(dtype),
        length_(length),
        heads_(heads),
        kv_heads_(kv_heads),
        q_(dtype, {1, length, heads, kDim}, &random_),
        k_(dtype, {1, length, kv_heads, kDim}, &random_),
        v_(dtype, {1, length, kv_heads, kDim}, &random_),
        sinks_(DType::f32, {heads}, &random_) {
    options.causal = HEADRACE_CAUSAL_BOTTOM_RIGHT;
  }

  // The bytes of out and lse of rows [begin, begin + count), which see the keys before their end.
  std::vector<unsigned char> rows(const Target& target, std::int64_t begin, std::int64_t count) {
    PlainTensor out(dtype_, {1, count, heads_, kDim}), lse(DType::f32, {1, count, heads_});
    headrace_attention_tensors tensors{};
    tensors.struct_size = sizeof tensors;
    tensors.q = *TensorView(q_.view).slice(1, begin, begin + count);
    tensors.k = *TensorView(k_.view).slice(1, 0, begin + count);
    tensors.v = *TensorView(v_.view).slice(1, 0, begin + count);
    tensors.out = out.view;
    tensors.lse = *TensorView(lse.view).permute({0, 2, 1});
    if (has_sinks) tensors.sinks = sinks_.view;
    EXPECT_EQ(run_on(target, tensors, options), "");
    const std::size_t out_row = out.bytes.size() / static_cast<std::size_t>(count);
    const std::size_t lse_row = lse.bytes.size() / static_cast<std::size_t>(count);
    std::vector<unsigned char> bytes;  // row by row
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
      bytes.insert(bytes.end(), &out.bytes[i * out_row], &out.bytes[i * out_row] + out_row);
      bytes.insert(bytes.end(), &lse.bytes[i * lse_row], &lse.bytes[i * lse_row] + lse_row);
    }
    return bytes;
  }

  std::int64_t length() const { return length_; }

  headrace_attention_options options = default_options();
  bool has_sinks = false;

 private:
  Random random_{11};
  DType dtype_;
  std::int64_t length_, heads_, kv_heads_;
  PlainTensor q_, k_, v_, sinks_;
};

// Rows [begin, begin + count) of the bytes of rows [first, ...).
std::vector<unsigned char> part(const std::vector<unsigned char>& bytes, std::int64_t num_rows,
                                std::int64_t begin, std::int64_t count) {
  const auto row = static_cast<std::int64_t>(bytes.size()) / num_rows;
  return {bytes.begin() + begin * row, bytes.begin() + (begin + count) * row};
}

void add_features(Sequence& sequence, bool has_features) {
  if (!has_features) return;
  sequence.has_sinks = true;
  sequence.options.window_left = 700;
  sequence.options.softcap = 20;
}

// Keys behind a row's last one change no bit, up to caches whose tasks are groups of splits.
TEST(Splits, LaterKeysChangeNoBit) {
  for (const bool has_features : {false, true}) {
    Sequence sequence(DType::f32, 33300, 2, 1);
    add_features(sequence, has_features);
    for (const Target& target : flash_targets(DType::f32)) {
      for (const std::int64_t queries : {4, 20}) {  // direct, packed
        for (const std::int64_t keys : {512, 514, 1026, 2047, 2050, 4099, 32767, 32770, 33290}) {
          const std::int64_t begin = keys - queries;
          const auto all = sequence.rows(target, begin, queries);
          const std::int64_t fewer = queries == 4 ? 1 : 17;
          EXPECT_EQ(sequence.rows(target, begin, fewer), part(all, queries, 0, fewer))
              << target.kernel->name << " " << queries << " of " << keys << " " << has_features;
        }
      }
    }
  }
}

// strict_rows: a prefill, any chunks of it and its decode steps.
TEST(Splits, StrictRowsEqualChunksAndDecode) {
  for (const bool has_features : {false, true}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      Sequence sequence(dtype, 2300, 3, 1);
      sequence.options.strict_rows = 1;
      add_features(sequence, has_features);
      const std::int64_t n = sequence.length();
      for (const Target& target : flash_targets(dtype)) {
        SCOPED_TRACE(format_text("{} {} {}", target.kernel->name, dtype_name(dtype), has_features));
        const auto whole = sequence.rows(target, 0, n);
        for (const std::int64_t chunk : {64, 255, 256, 257, 1100}) {
          std::vector<unsigned char> chunks;
          for (std::int64_t begin = 0; begin < n; begin += chunk) {
            const auto some = sequence.rows(target, begin, std::min(chunk, n - begin));
            chunks.insert(chunks.end(), some.begin(), some.end());
          }
          EXPECT_TRUE(chunks == whole) << chunk;
        }
        for (const std::int64_t begin : {0, 1, 15, 16, 130, 504, 510, 511, 512, 1023, 1024, 1536,
                                         2044, 2047, 2048, 2049, 2290}) {
          for (const std::int64_t count : {1, 7})
            EXPECT_TRUE(sequence.rows(target, begin, count) == part(whole, n, begin, count))
                << begin << " " << count;
        }
      }
    }
  }
}

// Of the values of some keys, within a split, one column is `poison`, and 0 for all other keys.
struct Column {
  std::int64_t begin, end;
  double poison;
};
constexpr std::int64_t kColumn = 3;

struct Rows {
  std::vector<double> out, lse;  // out: [rows, kDim]
};
Rows rows_with(const Target& target, DType dtype, std::int64_t queries, bool is_strict,
               const Column& column) {
  constexpr std::int64_t kKeys = 2600;
  Random random(12);
  PlainTensor q(dtype, {1, queries, 2, kDim}, &random), k(dtype, {1, kKeys, 1, kDim}, &random),
      v(dtype, {1, kKeys, 1, kDim}, &random);
  PlainTensor out(dtype, {1, queries, 2, kDim}), lse(DType::f32, {1, queries, 2});
  for (std::int64_t key = 0; key < kKeys; ++key)
    store_from_double(dtype, v.bytes.data(), key * kDim + kColumn,
                      key >= column.begin && key < column.end ? column.poison : 0);
  headrace_attention_tensors tensors{};
  tensors.struct_size = sizeof tensors;
  tensors.q = q.view;
  tensors.k = k.view;
  tensors.v = v.view;
  tensors.out = out.view;
  tensors.lse = *TensorView(lse.view).permute({0, 2, 1});
  headrace_attention_options options = default_options();
  options.strict_rows = is_strict;
  EXPECT_EQ(run_on(target, tensors, options), "");
  Rows rows;
  for (std::int64_t i = 0; i < queries * 2 * kDim; ++i)
    rows.out.push_back(load_as_double(dtype, out.bytes.data(), i));
  for (std::int64_t i = 0; i < queries * 2; ++i)
    rows.lse.push_back(load_as_double(DType::f32, lse.bytes.data(), i));
  return rows;
}

// A sum that overflows although its mean does not, and a NaN: they change no bit of other columns
// and of the lse, whichever split they are in.
TEST(Splits, AnOverflowOrANanStaysInItsColumn) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const double largest = dtype == DType::bf16 ? 0x1.FEp127 : 0x1.FFFFFEp127;
    for (const Target& target : flash_targets(dtype))
      for (const std::int64_t queries : {1, 4, 20, 100})  // direct, packed with key tasks, without
        for (const bool is_strict : {false, true})
          for (const std::int64_t begin : {0, 600, 2100}) {
            SCOPED_TRACE(format_text("{} {} of {} queries, strict {}, from {}", target.kernel->name,
                                     dtype_name(dtype), queries, is_strict, begin));
            const auto rows = [&](double poison) {
              return rows_with(target, dtype, queries, is_strict, {begin, begin + 400, poison});
            };
            const Rows plain = rows(1), overflow = rows(largest), nan = rows(std::nan(""));
            EXPECT_EQ(overflow.lse, plain.lse);
            EXPECT_EQ(nan.lse, plain.lse);
            for (std::size_t i = 0; i < plain.out.size(); ++i) {
              if (i % kDim != kColumn) {
                ASSERT_EQ(overflow.out[i], plain.out[i]) << i;
                ASSERT_EQ(nan.out[i], plain.out[i]) << i;
                continue;
              }
              const double weight = plain.out[i];
              ASSERT_NEAR(overflow.out[i] / largest, weight, weight * 0x1p-7) << i;
              ASSERT_TRUE(std::isnan(nan.out[i])) << i;
            }
          }
  }
}

}  // namespace
}  // namespace headrace::testing
