// The sizes and options of a call of attention over quantised keys.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/quantise.h"
#include "support/random.h"

namespace headrace::testing {

struct QuantisedCase {
  DType dtype = DType::f32, k_dtype = DType::i8, v_dtype = DType::i8;
  std::vector<std::int32_t> queries = {1}, keys = {20};  // of each sequence
  std::int64_t num_heads = 4, num_kv_heads = 2, head_dim = 16, head_dim_v = 16;
  std::int64_t page_size = 16, group = 16;  // group 0: no recent keys
  std::int64_t window_left = -1;
  bool is_head_major = false, has_per_sequence_scales = false, has_softcap = false;
  bool strict_rows = false, has_page_indptr = false;
  double k_scale = 1, v_scale = 1;  // times the scales of each sequence
  // [queries.size() * num_kv_heads]: the scales of each sequence and head, instead of drawn ones
  // or, in a form of a scale for each key, of those that an append computes.
  std::vector<float> k_scales = {}, v_scales = {};
  double q_scale = 1;              // standard deviation of elements of q
  std::int64_t num_tail_keys = 0;  // keys at the end of a sequence that have most of the weight
  std::uint64_t seed = 1;
};

inline std::string text_of(const QuantisedCase& c) {
  const auto list = [](const std::vector<std::int32_t>& x) {
    std::string all;
    for (const std::int32_t i : x) all += std::to_string(i) + ' ';
    return all;
  };
  const auto number = [](auto x) { return std::to_string(static_cast<long long>(x)) + ' '; };
  return std::string(dtype_name(c.dtype)) + ' ' + dtype_name(c.k_dtype) + ' ' +
         dtype_name(c.v_dtype) + " queries " + list(c.queries) + "keys " + list(c.keys) + "heads " +
         number(c.num_heads) + number(c.num_kv_heads) + "dims " + number(c.head_dim) +
         number(c.head_dim_v) + "page " + number(c.page_size) + "group " + number(c.group) +
         "window " + number(c.window_left) + "flags " + number(c.is_head_major) +
         number(c.has_per_sequence_scales) + number(c.has_softcap) + "q " + number(c.q_scale) +
         "seed " + number(c.seed);
}

inline QuantisedCase random_quantised_case(Random& random, DType dtype) {
  constexpr DType kCodes[] = {DType::i8, DType::f8e4m3, DType::i4x2, DType::u4x2, DType::u2x4};
  constexpr std::int64_t kDims[] = {2, 16, 20, 64, 80, 128, 130};
  constexpr std::int32_t kKeys[] = {1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 200, 513, 1100};
  QuantisedCase c;
  c.dtype = dtype;
  c.k_dtype = random.chance(15) ? dtype : random.pick(kCodes);
  c.v_dtype = random.chance(15) && c.k_dtype != dtype ? dtype : random.pick(kCodes);
  constexpr std::int64_t kKvHeads[] = {1, 2, 3, 4, 8};
  c.num_kv_heads = random.pick(kKvHeads);
  c.num_heads = c.num_kv_heads * random.between(1, 4);
  c.head_dim = random.pick(kDims);
  c.head_dim_v = random.chance(70) ? c.head_dim : random.pick(kDims);
  if (c.head_dim % codes_per_byte(c.k_dtype) != 0) c.head_dim = 20;
  if (c.head_dim_v % codes_per_byte(c.v_dtype) != 0) c.head_dim_v = 20;
  constexpr std::int64_t kGroups[] = {0, 1, 16, 32, 64};
  constexpr std::int64_t kPages[] = {1, 5, 16, 64};
  c.group = random.pick(kGroups);
  c.page_size = random.pick(kPages);
  if (has_zero_points(c.k_dtype)) {
    c.group = random.chance(70) ? 32 : 64;
    c.page_size = random.chance(70) ? 32 : 96;
  }
  c.queries.clear();
  c.keys.clear();
  const std::int64_t batch = random.between(1, 4);
  for (std::int64_t b = 0; b < batch; ++b) {
    c.keys.push_back(random.pick(kKeys));
    const auto most = std::min<std::int64_t>(c.keys.back(), random.chance(30) ? 200 : 5);
    c.queries.push_back(static_cast<std::int32_t>(random.between(1, most)));
  }
  if (random.chance(30)) c.window_left = random.between(0, 100);
  c.is_head_major = random.chance(50);
  c.has_per_sequence_scales = c.k_dtype != DType::i4x2 && c.v_dtype != DType::i4x2 &&
                              !has_zero_points(c.v_dtype) && c.group == 0 && random.chance(30);
  c.has_softcap = random.chance(20);
  c.strict_rows = random.chance(30);
  c.seed = random.next() % 1000000;
  return c;
}

}  // namespace headrace::testing
