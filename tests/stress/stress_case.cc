#include "stress/stress_case.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/math.h"
#include "stress/codes_case.h"
#include "support/page_tables.h"
#include "support/random.h"

namespace headrace::testing {
namespace {

// ---- cells

void add_cells(std::vector<Cell>& cells, const Cell& cell, std::initializer_list<DType> dtypes) {
  for (const DType dtype : dtypes) {
    cells.push_back(cell);
    cells.back().dtype = dtype;
  }
}

// Every tile of the Hopper kernels. head_dim 72, 104 and 200 leave columns of a tile unused.
void add_sm90_cells(std::vector<Cell>& cells) {
  const std::initializer_list<DType> kDtypes = {DType::bf16, DType::f16};
  constexpr int kDims[][2] = {{64, 64},   {72, 72},   {80, 80},   {96, 96},
                              {104, 104}, {112, 112}, {128, 128}, {192, 128},
                              {192, 192}, {200, 200}, {256, 256}};
  for (const auto& [dim, dim_v] : kDims)
    add_cells(cells, {"cuda_sm90_fwd", false, DType::bf16, dim, dim_v}, kDtypes);
  for (const int dim : {64, 128, 256})
    add_cells(cells,
              {"cuda_sm90_fwd", false, DType::bf16, dim, dim, Feature::plain, false, Keys::paged},
              kDtypes);
  for (const Feature feature : {Feature::plain, Feature::alibi, Feature::softcap, Feature::several})
    for (const Keys keys : {Keys::contiguous, Keys::paged})
      for (const int dim : {64, 128, 256}) {
        // The masks here have no columns for slots behind the last key of a page.
        if (feature == Feature::several && keys == Keys::paged) continue;
        Cell few{"cuda_sm90_fwd", false, DType::bf16, dim, dim, feature, false, keys};
        few.has_few_rows = true;
        add_cells(cells, few, kDtypes);
      }
  for (const Keys keys : {Keys::contiguous, Keys::paged})
    for (const int dim : {64, 128, 256}) {
      Cell strict{"cuda_sm90_fwd", false, DType::bf16, dim, dim, Feature::plain, false, keys};
      strict.is_strict = true;
      add_cells(cells, strict, kDtypes);
    }
  for (const Keys keys : {Keys::contiguous, Keys::paged, Keys::shared})
    for (const int dim : {64, 96, 128})
      add_cells(cells,
                {"cuda_sm90_decode", false, DType::bf16, dim, dim, Feature::plain, false, keys},
                kDtypes);
  for (const Feature feature :
       {Feature::alibi, Feature::softcap, Feature::bias, Feature::dropout, Feature::several})
    for (const int dim : {64, 128, 256})
      add_cells(cells, {"cuda_sm90_fwd", false, DType::bf16, dim, dim, feature}, kDtypes);
  for (const bool is_deterministic : {false, true}) {
    for (const auto& [dim, dim_v] :
         {std::pair{64, 64}, {128, 128}, {192, 128}, {192, 192}, {256, 256}})
      add_cells(cells,
                {"cuda_sm90_bwd", true, DType::bf16, dim, dim_v, Feature::plain, is_deterministic},
                kDtypes);
    for (const Feature feature : {Feature::alibi, Feature::softcap, Feature::bias})
      for (const int dim : {64, 128, 256})
        add_cells(cells, {"cuda_sm90_bwd", true, DType::bf16, dim, dim, feature, is_deterministic},
                  kDtypes);
  }
}

void add_portable_cells(std::vector<Cell>& cells) {
  const std::initializer_list<DType> kDtypes = {DType::f32, DType::bf16, DType::f16};
  for (const int dim : {64, 128, 256}) {
    for (const Feature feature : {Feature::plain, Feature::dropout, Feature::several}) {
      add_cells(cells, {"cuda_sm80_fwd", false, DType::f32, dim, dim, feature}, kDtypes);
      for (const bool is_deterministic : {false, true})
        add_cells(cells, {"cuda_sm80_bwd", true, DType::f32, dim, dim, feature, is_deterministic},
                  kDtypes);
    }
  }
  add_cells(cells,
            {"cuda_sm80_fwd", false, DType::f32, 128, 128, Feature::plain, false, Keys::paged},
            kDtypes);
  add_cells(cells, {"cuda_simple", false, DType::f32, 320, 320}, kDtypes);
  add_cells(cells, {"cuda_simple", true, DType::f32, 320, 320}, kDtypes);
}

// ---- shapes

// Tile sizes of all kernels, and granularities of shared memory accesses.
constexpr std::int64_t kTileRows[] = {1, 16, 64, 112, 128, 192, 256};

std::int64_t draw_length(Random& random, std::int64_t longest) {
  const std::int64_t tile = random.pick(kTileRows);
  const std::int64_t multiple = tile * random.between(1, 5);
  constexpr std::int64_t kOffsets[] = {0, 1, -1, 2, 44, -8};
  return std::clamp<std::int64_t>(multiple + random.pick(kOffsets), 1, longest);
}

// Ragged lengths of every kind, including empty and tiny ones.
std::vector<std::int32_t> draw_lengths(Random& random, std::int64_t batch, std::int64_t longest) {
  std::vector<std::int32_t> ends{0};
  for (std::int64_t i = 0; i < batch; ++i) {
    const std::int64_t length =
        random.chance(25) ? random.between(0, 2) : draw_length(random, longest);
    ends.push_back(ends.back() + static_cast<std::int32_t>(length));
  }
  return ends;
}

std::int64_t longest_of(const std::vector<std::int32_t>& ends) {
  std::int64_t longest = 1;
  for (std::size_t i = 1; i < ends.size(); ++i)
    longest = std::max<std::int64_t>(longest, ends[i] - ends[i - 1]);
  return longest;
}

double flops_of_entry(const StressCase& c) {
  const int products = c.cell.is_backward ? 5 : 2;
  return 2.0 * products * static_cast<double>(c.num_heads * c.seqlen_q * c.seqlen_k) *
         c.cell.head_dim;
}

// Between 200 and 5000 tiles of 128 rows, limited to what the oracle in double computes in a
// fraction of a second.
void draw_batch(Random& random, StressCase& c) {
  const bool is_simple = std::string_view(c.cell.kernel) == "cuda_simple";
  const double most_flops = is_simple ? 2e9 : 3e10;
  const double tiles = 200 * std::pow(25.0, random.uniform());
  const std::int64_t tiles_of_entry = c.num_heads * ceil_div<std::int64_t>(c.seqlen_q, 128);
  const auto most = static_cast<std::int64_t>(most_flops / flops_of_entry(c));
  c.batch = std::clamp<std::int64_t>(static_cast<std::int64_t>(tiles) / tiles_of_entry, 1,
                                     std::clamp<std::int64_t>(most, 1, 1000));
}

// Every cell's kernel supports causal masks, windows and sinks in addition to its feature.
void draw_mask(Random& random, StressCase& c) {
  if (random.chance(70))
    c.options.causal = random.chance(25) ? HEADRACE_CAUSAL_TOP_LEFT : HEADRACE_CAUSAL_BOTTOM_RIGHT;
  if (random.chance(20)) c.options.window_left = random.between(0, 300);
  if (random.chance(10)) c.options.window_right = random.between(0, 70);
  c.has_sinks = !c.cell.is_backward && random.chance(12);
}

bool is_decode(const Cell& cell) { return std::string_view(cell.kernel) == "cuda_sm90_decode"; }

// Blocks, splits, groups and chunks of the decode kernel.
std::int64_t draw_decode_length(Random& random) {
  constexpr std::int64_t kUnits[] = {16, 64, 512, 512, 512, 8192};
  constexpr std::int64_t kOffsets[] = {0, 1, -1, 5, 100};
  const std::int64_t unit = random.pick(kUnits);
  return std::max<std::int64_t>(
      1, unit * random.between(1, unit < 512 ? 5 : 2) + random.pick(kOffsets));
}

// Rows that the decode kernel leaves, up to 64 of a KV head, or any number of rows, and lengths
// around k-blocks and splits.
void draw_split_keys(Random& random, StressCase& c) {
  constexpr std::int64_t kUnits[] = {64, 128, 256, 512, 1024, 2048};
  constexpr std::int64_t kOffsets[] = {0, 1, -1, 5, 100};
  const std::int64_t group = std::int64_t{1} << random.between(0, 3);
  c.num_kv_heads = random.pick({std::int64_t{1}, std::int64_t{2}, std::int64_t{4}});
  c.num_heads = c.num_kv_heads * group;
  const bool is_decode =
      c.cell.head_dim > 128 || c.cell.feature != Feature::plain || c.cell.is_strict;
  c.seqlen_q = random.between(is_decode ? 1 : 16 / group + 1, 64 / group);
  if (is_decode && random.chance(30)) c.seqlen_q = 1;
  c.options.strict_rows = c.cell.is_strict;
  // Tiles of 8, 16 and 64 rows, and those that merge splits.
  if (c.cell.is_strict && random.chance(40)) c.seqlen_q = random.between(1, 16 / group);
  if (c.cell.is_strict && random.chance(50)) c.seqlen_q = random.between(65 / group + 1, 700);
  const std::int64_t unit = random.pick(kUnits);
  c.seqlen_k = unit * random.between(1, unit < 2048 ? 5 : 4) + random.pick(kOffsets);
  c.batch = random.pick({std::int64_t{1}, std::int64_t{3}, std::int64_t{20}, std::int64_t{64}});
  c.batch =
      std::clamp<std::int64_t>(static_cast<std::int64_t>(3e10 / flops_of_entry(c)), 1, c.batch);
  c.has_sinks = false;  // those have no splits
}

// Up to 16 rows of a KV head, from a single sequence to more heads than a GPU has multiprocessors.
void draw_decode(Random& random, StressCase& c) {
  c.num_kv_heads = random.pick({std::int64_t{1}, std::int64_t{2}, std::int64_t{8}});
  c.num_heads = c.num_kv_heads << random.between(0, 2);
  c.seqlen_q = random.chance(60) ? 1 : random.between(1, 4);
  c.seqlen_k = draw_decode_length(random);
  c.batch = random.pick({std::int64_t{1}, std::int64_t{3}, std::int64_t{20}, std::int64_t{64}});
  if (c.cell.keys == Keys::shared) {
    c.batch = random.between(160 / c.num_kv_heads, 200);
    c.seqlen_k =
        std::max<std::int64_t>(c.seqlen_k, 512 * random.between(1, 5) + random.between(0, 90));
  }
  // Keys that the oracle in double reads in a fraction of a second.
  c.batch = std::clamp<std::int64_t>(800'000 / (c.seqlen_k * c.num_kv_heads), 1, c.batch);
}

// Lengths up to seqlen_k, and pages in a mixed order. A sequence may begin with pages of the one
// before it. Entries that no sequence uses are no pages.
void draw_pages(Random& random, StressCase& c) {
  constexpr std::int64_t kPageSizes[] = {1, 8, 16, 16, 16, 24, 64, 256};
  c.page_size = random.pick(kPageSizes);
  const std::int64_t columns = ceil_div(c.seqlen_k, c.page_size);
  const bool is_shared = c.cell.keys == Keys::shared;
  std::vector<std::int32_t> unused;
  c.num_pages = c.batch * columns;
  for (std::int32_t page = 0; page < c.num_pages; ++page) unused.push_back(page);
  for (std::int64_t b = 0; b < c.batch; ++b) {
    const std::int64_t length =
        is_shared || random.chance(50) ? c.seqlen_k : random.between(0, c.seqlen_k);
    c.lengths.push_back(static_cast<std::int32_t>(length));
    const std::int64_t shared = !is_shared || b == 0 ? 0
                                : random.chance(80)  ? columns - random.between(0, 2)
                                                     : random.between(0, columns);
    for (std::int64_t i = 0; i < columns; ++i) {
      if (i * c.page_size >= length) {
        c.block_table.push_back(kNoPage);
        continue;
      }
      if (i < shared) {
        c.block_table.push_back(
            c.block_table[c.block_table.size() - static_cast<std::size_t>(columns)]);
        continue;
      }
      std::swap(unused.back(), unused[static_cast<std::size_t>(random.between(
                                   0, static_cast<std::int64_t>(unused.size()) - 1))]);
      c.block_table.push_back(unused.back());
      unused.pop_back();
    }
  }
  if (is_shared) c.options.max_shared_prefix = c.seqlen_k;
  if (!random.chance(30)) return;
  PageList list = page_list_of({columns, c.block_table}, c.lengths, c.page_size);
  c.block_table = std::move(list.pages);
  c.page_indptr = std::move(list.offsets);
  c.options.max_seqlen_k = c.seqlen_k;
}

void set_feature(StressCase& c) {
  const Feature feature = c.cell.feature;
  if (feature == Feature::softcap || feature == Feature::several) c.options.softcap = 20;
  if (feature == Feature::dropout) {
    c.options.dropout_p = 0.17;
    c.options.dropout_seed = c.seed;
  }
  c.options.deterministic = c.cell.is_deterministic;
}

}  // namespace

const char* name_of(Feature feature) {
  constexpr const char* kNames[] = {"plain", "alibi", "softcap", "bias", "dropout", "several"};
  return kNames[static_cast<int>(feature)];
}

std::vector<Cell> all_cells() {
  std::vector<Cell> cells;
  add_sm90_cells(cells);
  add_portable_cells(cells);
  add_codes_cells(cells);
  return cells;
}

StressCase draw_case(const Cell& cell, std::uint64_t seed) {
  if (cell.codes) return draw_codes_case(cell, seed);
  constexpr std::int64_t kLongest = 1100;
  Random random(seed * 0x9E3779B97F4A7C15u + 1);
  StressCase c{.cell = cell, .seed = seed};
  c.num_kv_heads = std::int64_t{1} << random.between(0, 2);
  c.num_heads = c.num_kv_heads << random.between(0, 2);
  c.seqlen_q = c.seqlen_k = draw_length(random, kLongest);
  if (random.chance(25)) c.seqlen_k = draw_length(random, kLongest);
  draw_mask(random, c);
  set_feature(c);
  if (is_decode(cell))
    draw_decode(random, c);
  else if (cell.has_few_rows || cell.is_strict)
    draw_split_keys(random, c);
  else
    draw_batch(random, c);
  if (cell.keys != Keys::contiguous) {
    if (cell.keys == Keys::shared) c.options.window_left = -1;
    draw_pages(random, c);
    return c;
  }
  // A ragged bias or mask would have max_seqlen_k columns for each query of all sequences.
  const bool is_dense = cell.feature == Feature::bias || cell.feature == Feature::several;
  if (!is_dense && !cell.has_few_rows && c.batch > 1 && random.chance(33)) {
    c.cu_seqlens_q = draw_lengths(random, c.batch, c.seqlen_q);
    c.cu_seqlens_k = c.seqlen_q == c.seqlen_k && random.chance(50)
                         ? c.cu_seqlens_q
                         : draw_lengths(random, c.batch, c.seqlen_k);
    c.seqlen_q = longest_of(c.cu_seqlens_q);
    c.seqlen_k = longest_of(c.cu_seqlens_k);
    c.options.max_seqlen_q = c.seqlen_q;
    c.options.max_seqlen_k = c.seqlen_k;
  }
  return c;
}

std::vector<StressCase> named_cases() {
  std::vector<StressCase> cases;
  const auto add = [&](DType dtype, int dim, std::int64_t batch, std::int64_t seqlen_q,
                       std::int64_t seqlen_k, std::int64_t heads, std::int64_t kv_heads,
                       int num_calls, bool is_causal = true) {
    StressCase c{.cell = {"cuda_sm90_fwd", false, dtype, dim, dim}, .seed = 1};
    c.batch = batch;
    c.seqlen_q = seqlen_q;
    c.seqlen_k = seqlen_k;
    c.num_heads = heads;
    c.num_kv_heads = kv_heads;
    c.options.causal = is_causal ? HEADRACE_CAUSAL_BOTTOM_RIGHT : HEADRACE_CAUSAL_NONE;
    c.num_calls = num_calls;
    cases.push_back(c);
  };
  constexpr int kCalls = 2560;  // in each of the four modes
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const std::int64_t seqlen : {257, 300, 513, 256, 384, 129, 1000})
      add(dtype, 128, 60, seqlen, seqlen, 4, 4, kCalls);
    add(dtype, 112, 60, 257, 257, 4, 4, kCalls);
    add(dtype, 128, 200, 257, 257, 8, 2, kCalls);
    add(dtype, 128, 32, 512, 512, 16, 16, kCalls);
  }
  for (const std::int64_t seqlen : {97, 128, 200, 256, 257, 384, 512, 768, 1024})
    for (const int dim : {64, 128, 256})
      for (const bool is_causal : {false, true})
        add(DType::f16, dim, 60, seqlen, seqlen, 4, 4, 250, is_causal);
  constexpr std::int64_t kUneven[][2] = {{1, 239}, {239, 1}, {3, 799}, {799, 3}, {1024, 128}};
  for (const auto& [seqlen_q, seqlen_k] : kUneven)
    for (const int dim : {64, 128, 256}) add(DType::f16, dim, 60, seqlen_q, seqlen_k, 4, 4, 250);
  for (const std::int64_t seqlen : {239, 799, 1024, 2048})
    for (const int dim : {64, 128, 192, 256}) add(DType::bf16, dim, 9, seqlen, seqlen, 6, 6, 1000);
  add_named_codes_cases(cases);
  return cases;
}

std::string describe(const StressCase& c) {
  const Cell& cell = c.cell;
  std::string text = format_text("{}{} {} hd{}", cell.kernel, cell.is_backward ? " backward" : "",
                                 dtype_name(cell.dtype), cell.head_dim);
  if (cell.head_dim_v != cell.head_dim) text += format_text("/{}", cell.head_dim_v);
  if (cell.codes) text += ' ' + name_of(*cell.codes);
  text += format_text(" {} x {} x {}{}, {} over {} heads", c.batch, c.seqlen_q, c.seqlen_k,
                      c.is_ragged() ? " ragged" : "", c.num_heads, c.num_kv_heads);
  if (c.options.causal != HEADRACE_CAUSAL_NONE)
    text += c.options.causal == HEADRACE_CAUSAL_TOP_LEFT ? ", top-left" : ", causal";
  if (c.options.window_left >= 0 || c.options.window_right >= 0)
    text += format_text(", window {} {}", c.options.window_left, c.options.window_right);
  if (c.has_sinks) text += ", sinks";
  if (c.page_size > 0) text += format_text(", pages of {}", c.page_size);
  const bool has_indptr = c.quantised ? c.quantised->has_page_indptr : !c.page_indptr.empty();
  if (has_indptr) text += ", page_indptr";
  if (cell.keys == Keys::shared) text += ", shared prefixes";
  if (cell.feature != Feature::plain) text += format_text(", {}", name_of(cell.feature));
  if (cell.is_deterministic) text += ", deterministic";
  return text + format_text(", seed {}", c.seed);
}

}  // namespace headrace::testing
