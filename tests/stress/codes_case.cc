#include "stress/codes_case.h"

#include <algorithm>

#include "base/error.h"
#include "stress/stress_case.h"
#include "support/quantised_call.h"
#include "support/random.h"

namespace headrace::testing {
namespace {

constexpr DType kFormats[] = {DType::i8, DType::f8e4m3, DType::i4x2, DType::u4x2, DType::u2x4};

Cell codes_cell(const char* kernel, DType dtype, int dim, KvDtypes codes) {
  return {.kernel = kernel,
          .is_backward = false,
          .dtype = dtype,
          .head_dim = dim,
          .head_dim_v = dim,
          .keys = Keys::paged,
          .codes = codes};
}

bool is_simple(const Cell& cell) { return std::string_view(cell.kernel) == "cuda_simple"; }

// Blocks, groups of recent keys, splits and chunks.
std::int32_t draw_keys(Random& random, std::int64_t longest) {
  constexpr std::int64_t kUnits[] = {16, 32, 64, 512, 2048, 2048, 2048};
  constexpr std::int64_t kOffsets[] = {0, 1, -1, 5, -17};
  const std::int64_t unit = random.pick(kUnits);
  const std::int64_t keys = unit * random.between(1, unit < 512 ? 5 : 3) + random.pick(kOffsets);
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(keys, 1, longest));
}

// One query, a few, a chunk of a prompt; some sequences of a batch have none.
std::int32_t draw_queries(Random& random, std::int32_t keys, std::int64_t longest) {
  const std::int64_t kind = random.between(0, 99);
  const std::int64_t queries = kind < 10   ? 0
                               : kind < 60 ? 1
                               : kind < 85 ? random.between(2, 8)
                                           : random.between(9, longest);
  return static_cast<std::int32_t>(std::min<std::int64_t>(queries, keys));
}

void draw_pages(Random& random, const KvDtypes& codes, bool is_simple, QuantisedCase& q) {
  constexpr std::int64_t kPages[] = {16, 32, 48, 64, 256}, kPagesOfGroups[] = {32, 64, 96};
  const bool has_zeros = has_zero_points(codes.k) || has_zero_points(codes.v);
  q.page_size = has_zeros ? random.pick(kPagesOfGroups) : random.pick(kPages);
  q.group = has_zeros ? kZeroPointGroup : random.chance(70) ? 16 : 0;
  q.is_head_major = random.chance(50);
  q.has_page_indptr = random.chance(30);
  const bool may_have_one_scale = is_simple && !has_zeros && q.group == 0;
  q.has_per_sequence_scales =
      may_have_one_scale && codes.k != DType::i4x2 && codes.v != DType::i4x2 && random.chance(50);
}

StressCase case_of(const Cell& cell, std::uint64_t seed, QuantisedCase q) {
  q.dtype = cell.dtype;
  q.k_dtype = cell.codes->k;
  q.v_dtype = cell.codes->v;
  q.head_dim = cell.head_dim;
  q.head_dim_v = cell.head_dim_v;
  q.seed = seed;
  StressCase c{.cell = cell, .seed = seed};
  c.batch = static_cast<std::int64_t>(q.keys.size());
  c.seqlen_q = *std::ranges::max_element(q.queries);
  c.seqlen_k = *std::ranges::max_element(q.keys);
  c.num_heads = q.num_heads;
  c.num_kv_heads = q.num_kv_heads;
  c.page_size = q.page_size;
  c.options = options_of(q);
  c.cu_seqlens_q.push_back(0);
  for (const std::int32_t queries : q.queries)
    c.cu_seqlens_q.push_back(c.cu_seqlens_q.back() + queries);
  c.quantised = std::move(q);
  return c;
}

}  // namespace

std::string name_of(const KvDtypes& codes) {
  const std::string k = dtype_name(codes.k);
  return codes.k == codes.v ? k : k + '/' + dtype_name(codes.v);
}

void add_codes_cells(std::vector<Cell>& cells) {
  for (const int dim : {64, 128})
    for (const DType dtype : {DType::bf16, DType::f16})
      for (const DType format : kFormats)
        cells.push_back(codes_cell("cuda_sm80_codes", dtype, dim, {format, format}));
  constexpr KvDtypes kMixed[] = {{DType::i8, DType::i4x2},   {DType::f8e4m3, DType::i8},
                                 {DType::u4x2, DType::u2x4}, {DType::i8, DType::u4x2},
                                 {DType::i4x2, DType::bf16}, {DType::bf16, DType::i4x2},
                                 {DType::u2x4, DType::bf16}, {DType::bf16, DType::f8e4m3}};
  for (const KvDtypes& codes : kMixed)
    cells.push_back(codes_cell("cuda_simple", DType::bf16, 128, codes));
  for (const DType format : kFormats)
    cells.push_back(codes_cell("cuda_simple", DType::f16, 256, {format, format}));
}

StressCase draw_codes_case(const Cell& cell, std::uint64_t seed) {
  // Elements of K: the host draws and quantises them in a fraction of a second.
  constexpr std::int64_t kMostElements = 4'000'000;
  constexpr std::int64_t kKvHeads[] = {1, 2, 8}, kGroups[] = {1, 2, 4, 7, 8}, kBatch[] = {1, 3, 64};
  Random random(seed * 0x9E3779B97F4A7C15u + 1);
  QuantisedCase q;
  q.num_kv_heads = random.pick(kKvHeads);
  q.num_heads = q.num_kv_heads * random.pick(kGroups);
  draw_pages(random, *cell.codes, is_simple(cell), q);
  if (random.chance(30)) q.window_left = random.between(0, 3000);
  if (random.chance(20)) q.q_scale = 6;
  q.has_softcap = is_simple(cell) && random.chance(20);
  q.strict_rows = random.chance(30);
  q.keys.clear();
  q.queries.clear();
  const std::int64_t batch = random.pick(kBatch);
  const std::int64_t most_keys = kMostElements / (q.num_kv_heads * cell.head_dim);
  std::int64_t num_keys = 0;
  while (static_cast<std::int64_t>(q.keys.size()) < batch) {
    const std::int32_t keys = draw_keys(random, is_simple(cell) ? 700 : most_keys);
    num_keys += keys;
    if (num_keys > most_keys && !q.keys.empty()) break;
    q.keys.push_back(keys);
    q.queries.push_back(draw_queries(random, keys, is_simple(cell) ? 20 : 200));
  }
  q.queries.back() = std::max(q.queries.back(), 1);
  return case_of(cell, seed, std::move(q));
}

void add_named_codes_cases(std::vector<StressCase>& cases) {
  constexpr int kCalls = 512;  // in each of the four modes
  for (const int dim : {64, 128})
    for (const DType dtype : {DType::bf16, DType::f16})
      for (const DType format : kFormats)
        for (const bool is_decode : {true, false}) {
          QuantisedCase q;
          q.num_heads = 8;
          q.num_kv_heads = 2;
          q.page_size = q.group = recent_group_of(format);
          q.keys = {2047, 2048, 2049, 4095, 4113, 31, 33, 1};
          q.queries.assign(q.keys.size(), 1);
          if (!is_decode) q.queries = {130, 64, 17, 16, 9, 31, 2, 1};
          q.has_page_indptr = !is_decode;
          StressCase c =
              case_of(codes_cell("cuda_sm80_codes", dtype, dim, {format, format}), 1, std::move(q));
          c.num_calls = kCalls;
          cases.push_back(std::move(c));
        }
}

}  // namespace headrace::testing
