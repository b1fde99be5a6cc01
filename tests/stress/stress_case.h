// A case of the stress suite: kernel, shapes and features as a pure function of a cell and a seed.
// Cases have hundreds to thousands of tiles, and lengths around multiples of every tile size.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "attention/validate.h"
#include "support/quantised_case.h"

namespace headrace::testing {

// The score features besides scale and causal mask. `several`: softcap, ALiBi and boolean mask.
enum class Feature { plain, alibi, softcap, bias, dropout, several };
const char* name_of(Feature feature);

// Where the keys lie; `shared`: in pages, of which neighbouring sequences have some in common.
enum class Keys { contiguous, paged, shared };

// The dtypes of quantised keys and values; one of them may be that of q.
struct KvDtypes {
  DType k, v;
};

// A row of the report. Every compiled tile of a kernel has at least one cell.
struct Cell {
  const char* kernel;
  bool is_backward;
  DType dtype;
  int head_dim, head_dim_v;
  Feature feature = Feature::plain;
  bool is_deterministic = false;  // backward: dq is bit-identical from run to run
  Keys keys = Keys::contiguous;
  std::optional<KvDtypes> codes = {};  // of paged keys
  bool has_few_rows = false;           // over keys of several splits
  bool is_strict = false;              // strict_rows: any number of rows over such keys
};
std::vector<Cell> all_cells();

struct StressCase {
  Cell cell;
  std::uint64_t seed = 0;                              // seed of shapes and data
  std::int64_t batch = 1, seqlen_q = 1, seqlen_k = 1;  // ragged: the longest
  std::int64_t num_heads = 1, num_kv_heads = 1;
  std::vector<std::int32_t> cu_seqlens_q{}, cu_seqlens_k{};  // ragged: [batch + 1], else empty
  std::int64_t page_size = 0, num_pages = 0;                 // 0: contiguous
  std::vector<std::int32_t> block_table{}, lengths{};        // paged: [batch, max_pages], [batch]
  std::vector<std::int32_t> page_indptr{};                   // block_table is [num_entries] then
  std::optional<QuantisedCase> quantised{};                  // has the keys and their pages then
  headrace_attention_options options = default_options();
  bool has_sinks = false;
  int num_calls = 0;  // named case: calls per mode; 0: limited by time

  bool is_ragged() const { return !cu_seqlens_q.empty(); }
};

// A random case of a cell.
StressCase draw_case(const Cell& cell, std::uint64_t seed);

// Named cases: shapes on which a release of shared memory one instruction too early was found
// (head_dim 112 and 128, causal, short last tiles), and the race loops of
// FlashAttention-2 (test_flash_attn_race_condition, 250 calls) and FlashAttention-3 (1000 calls).
std::vector<StressCase> named_cases();

// "bf16 hd128 60 x 257, 4 heads, causal, seed 17": fits a line.
std::string describe(const StressCase& c);

}  // namespace headrace::testing
