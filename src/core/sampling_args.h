// The arguments of the passes over logits that sampling makes.
#pragma once

#include <cstdint>
#include <limits>

namespace headrace {

// Logits per block maximum, and weights per block sum.
inline constexpr std::int64_t kLogitBlock = 64;
inline constexpr std::int64_t kWeightBlock = 256;

// maxima[i] is the maximum of the i-th block of kLogitBlock logits; NaN is ignored.
struct BlockMaximaArgs {
  const float* logits;  // [num_logits]
  std::int64_t num_logits;
  float* maxima;  // [ceil(num_logits / kLogitBlock)]
};

// What a weight of at most 1 counts: rounded to multiples of 2^-34, so that doubles add up to 2^19
// of them without rounding, in any order to the same sum.
inline constexpr double kMassUnit = 0x1p-34;
constexpr double mass_of(float weight) {
  constexpr double kRounder = 0x1.8p52 * kMassUnit;
  return static_cast<double>(weight) + kRounder - kRounder;
}

// weights[i] = exp((logits[i] - max) / temperature), flushed to 0 below 2^-126; block_sums[i] is
// the sum of the masses of the i-th block of kWeightBlock weights.
struct ExpWeightsArgs {
  const float* logits;  // [num_logits]
  std::int64_t num_logits;
  float max;  // the maximum of the logits; finite
  float temperature;
  float* weights;      // [num_logits]
  double* block_sums;  // [ceil(num_logits / kWeightBlock)]
};

struct Candidate {
  float logit;
  std::int32_t token;
};

// What filters keep: logits above `logit`, and those equal to it with an id up to `last_token`.
struct LogitBound {
  float logit = -std::numeric_limits<float>::infinity();
  std::int32_t last_token = -1;
  constexpr bool keeps(float value, std::int32_t token) const {
    return (value > logit) | ((value == logit) & (token <= last_token));
  }
  // No filter has taken a token above -infinity.
  constexpr bool keeps_all() const { return last_token < 0; }
  // To what both keep.
  constexpr void raise(const LogitBound& other) {
    const bool is_higher =
        other.logit > logit || (other.logit == logit && other.last_token < last_token);
    if (is_higher) *this = other;
  }
};

struct LogitBias {
  std::int32_t token;
  float value;  // added; -infinity forbids the token
};

struct TokenCount {
  std::int32_t token;
  std::int32_t count;  // in a history
};

// The passes of a GPU, over rows of logits in its memory.

// At once: the second axis of a grid.
inline constexpr std::int64_t kMaxLogitQueries = 65535;

// What a draw changes in a row before it: the mask, then biases, then penalties.
struct LogitEdits {
  const float* from;           // [vocab_size], of the model
  float* to;                   // [vocab_size]
  const std::uint64_t* mask;   // [blocks of kLogitBlock], a bit per token; null: all are allowed
  const LogitBias* biases;     // [num_biases], those of a token side by side
  const TokenCount* repeated;  // [num_repeated], each token once: of the repetition penalty
  const TokenCount* counted;   // [num_counted], each token once: of presence and frequency
  std::int32_t num_biases, num_repeated, num_counted;
  double repetition_penalty, presence_penalty, frequency_penalty;
};

// With the bits of the CPU's.
struct EditLogitsArgs {
  std::int64_t vocab_size;
  const LogitEdits* rows;  // [num_rows]
  std::int64_t num_rows;   // up to kMaxLogitQueries
};

// As ops/sampling.h has them: min_p before or behind top_k and top_p.
struct LogitFilters {
  std::int32_t top_k = 0;   // 0: all
  bool keeps_ties = false;  // with the last of top_k
  bool is_min_p_first = false;
  double top_p = 1;
  double min_p_offset = -std::numeric_limits<double>::infinity();  // added to the largest logit
  constexpr bool has_any() const { return top_k != 0 || top_p < 1 || has_min_p(); }
  constexpr bool has_min_p() const {
    return min_p_offset != -std::numeric_limits<double>::infinity();
  }
};

struct LogitQuery {
  const float* row;           // [vocab_size]
  const float* model_row;     // [vocab_size], before edits; `row` where there are none
  const std::uint64_t* mask;  // of `row`, as LogitEdits has it
  float temperature;          // of the masses that are summed, those of filters; 0: none
  double uniform;             // of a draw, in [0, 1); below 0: the largest logit
  // Then the token is drawn from what `filters` keep, by `filtered_temperature`.
  bool is_filtered = false;
  float filtered_temperature = 0;
  LogitFilters filters = {};
};

// Maxima of blocks of kLogitBlock logits, NaN where one is NaN or +infinity. Of rows with a
// temperature also the masses of blocks of kWeightBlock weights.
struct SummariseLogitsArgs {
  std::int64_t vocab_size;
  const LogitQuery* queries;  // [num_queries]
  std::int64_t num_queries;
  bool has_weights;    // a query has a temperature
  float* maxima;       // [num_queries, blocks of kLogitBlock]
  double* block_sums;  // [num_queries, blocks of kWeightBlock]
};

struct LogitRange {
  std::int32_t query;  // of the row
  float at_least;      // -infinity: all above it
};

// Of a row on a GPU: its masses add up without rounding, and a counter per block fits 48 KiB of
// shared memory.
inline constexpr std::int64_t kMaxDeviceLogits = std::int64_t{1} << 19;
static_assert((kMaxDeviceLogits / kLogitBlock + 1) * 4 <= 48 * 1024);

// Logits above -infinity of at least a bound, ascending by token.
struct GatherLogitsArgs {
  std::int64_t vocab_size;
  const LogitQuery* queries;
  const LogitRange* ranges;  // [num_ranges]
  std::int64_t num_ranges;
  const float* maxima;    // [*, blocks of kLogitBlock], of the queries, as summarised
  Candidate* candidates;  // [num_ranges, max_candidates], the first of them
  std::int64_t max_candidates;
  std::int32_t* counts;  // [num_ranges], of all
};

struct DrawnToken {
  std::int32_t token;  // below 0: none can be drawn
  float logit;         // of the token; NaN or +infinity: of token -1 - `token`; -infinity: all are
  float model_logit;   // of the same token, before edits
  float max;           // of the row
  double sum;          // of the masses, with a temperature; of those that filters keep
  LogitBound bound;    // of filters
};

// Tokens from the summaries of their rows: the first of the largest logits, or the token on which
// `uniform` of the sum of the masses falls, in the order of the ids: of all, or of those that the
// filters keep.
struct DrawTokensArgs {
  std::int64_t vocab_size;
  const LogitQuery* queries;  // [num_queries]
  std::int64_t num_queries;
  bool has_filters;     // a query is filtered
  const float* maxima;  // as summarised
  const double* block_sums;
  DrawnToken* drawn;     // [num_queries]
  std::int32_t* tokens;  // [num_queries]; 0 where none can be drawn
};

}  // namespace headrace
