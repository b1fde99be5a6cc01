// Launches of SparQ attention: the kernel of step 1, the kernel of steps 2 and 3, and the append.
#pragma once

#include <algorithm>
#include <cstddef>

#include "backends/cuda/common/constants.h"
#include "backends/cuda/common/divisor.h"
#include "base/error.h"
#include "base/math.h"
#include "core/kernel.h"
#include "core/sparq_args.h"

namespace headrace::cuda::sparq {

inline constexpr int kWarp = 32;
inline constexpr int kHeads = 8;           // queries that share a load of a component, at most
inline constexpr int kAttendHeads = 4;     // queries that share a load of a key or value
inline constexpr int kKeysOfThread = 4;    // adjacent keys or columns of a thread
inline constexpr int kScoreThreads = 256;  // of a CTA of step 1
inline constexpr int kChunkKeys = kScoreThreads * kKeysOfThread;  // of a CTA of step 1
inline constexpr int kAttendThreads = 384;       // two CTAs of an SM without spills
inline constexpr std::int64_t kMaxGroup = 1024;  // queries of a KV head

// The softmax of a chunk of keys.
struct alignas(8) ChunkSum {
  float maximum, sum;  // of exponentials relative to the maximum
};

// Parts of the workspace. Rows of keys have a stride; without scores its parts are empty.
struct Memory {
  float* scores;       // [batch, num_heads, key_stride]
  float* p;            // [batch, num_kv_heads, key_stride]: sums of softmaxes over the group
  ChunkSum* partials;  // [batch, num_heads, num_chunks]
  float* weights;      // [batch, num_heads, num_keys]
  std::int32_t* keys;  // [batch, num_kv_heads, num_keys]
  std::int64_t key_stride, num_chunks;
};

// Which operands are read four elements at a time.
struct Vectors {
  bool components, k, v;
};

struct Params {
  SparqArgs args;
  Memory memory;
  Vectors vectors;
  std::int64_t num_parts;  // CTAs of step 1 that share the chunks of a sequence and KV head
  Divisor by_page_size;
  std::uint32_t* error_word;
};

// Choosing components takes a CTA as long as a chunk or two, so it has several where there are
// enough for all multiprocessors, of which each holds three CTAs.
inline constexpr std::int64_t kScoreCtas = 1536;
constexpr std::int64_t num_parts_of(std::int64_t num_units, std::int64_t num_chunks) {
  const std::int64_t parts = kScoreCtas / std::max<std::int64_t>(num_units, 1);
  return std::clamp<std::int64_t>(parts, 1, std::max<std::int64_t>(num_chunks, 1));
}

Status launch_scores(const Params& params, Stream stream);
Status launch_attend(const Params& params, Stream stream);
Status launch_append(const SparqAppendArgs& args, std::uint32_t* error_word, Stream stream);

}  // namespace headrace::cuda::sparq
