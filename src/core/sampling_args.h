// The arguments of the passes over logits that sampling makes.
#pragma once

#include <cstdint>

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

// weights[i] = exp((logits[i] - max) / temperature), flushed to 0 below 2^-126; block_sums[i] is
// the sum of the i-th block of kWeightBlock weights.
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

struct LogitQuery {
  const float* row;           // [vocab_size]
  const float* model_row;     // [vocab_size], before edits; `row` where there are none
  const std::uint64_t* mask;  // of `row`, as LogitEdits has it
  float temperature;          // of the weights; 0: no weights
  double uniform;             // of a draw, in [0, 1); below 0: the largest logit
};

// Maxima of blocks of kLogitBlock logits, NaN where one is NaN or +infinity. Of rows with a
// temperature also the sums of blocks of kWeightBlock weights, with the bits
// of the CPU's.
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

// Of a row that GatherLogitsArgs takes: a counter per block fits 48 KiB of shared memory.
inline constexpr std::int64_t kMaxGatherLogits = (48 * 1024 / 4 - 1) * kLogitBlock;

// Logits above -infinity of at least a bound, ascending by token.
struct GatherLogitsArgs {
  std::int64_t vocab_size;
  const LogitQuery* queries;
  const LogitRange* ranges;  // [num_ranges]
  std::int64_t num_ranges;
  const float* maxima;    // [*, blocks of kLogitBlock], of the queries, as summarised
  Candidate* candidates;  // [num_ranges, max_candidates], the first of them
  float* model_logits;    // [num_ranges, max_candidates], of edited rows alone
  std::int64_t max_candidates;
  std::int32_t* counts;  // [num_ranges], of all
};

struct DrawnToken {
  std::int32_t token;  // below 0: none can be drawn
  float logit;         // of the token; NaN or +infinity: of token -1 - `token`; -infinity: all are
  float model_logit;   // of the same token, before edits
  float max;           // of the row
  double sum;          // of the weights, with a temperature
};

// Tokens from the summaries of their rows: the first of the largest logits, or the token on which
// `uniform` of the sum of all weights falls, added in the order and with the bits of the CPU.
struct DrawTokensArgs {
  std::int64_t vocab_size;
  const LogitQuery* queries;  // [num_queries]
  std::int64_t num_queries;
  const float* maxima;  // as summarised
  const double* block_sums;
  DrawnToken* drawn;     // [num_queries]
  std::int32_t* tokens;  // [num_queries]; 0 where none can be drawn
};

}  // namespace headrace
