// SparQ attention on the CPU. A unit is the group of queries of one sequence and KV head: it has
// one set of components and one set of keys.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/error.h"
#include "core/device.h"
#include "core/sparq_args.h"

namespace headrace::cpu {

// Scores of one tile are exponentials relative to its largest score.
inline constexpr std::int64_t kSparqTileKeys = 1024;

struct SparqUnit {
  std::int64_t batch_idx, kv_head;
  std::int64_t seqlen_k;
};

// Memory of a unit, g queries, at most `seqlen_k` keys. Rows have a stride.
struct SparqScratch {
  float* q;                    // [g, dim_stride], padded with zeros
  float* q_components;         // [g, num_components], scaled
  std::int32_t* components;    // [num_components], ascending
  float* scores;               // [g, key_stride]: exponentials
  float *tile_max, *tile_sum;  // [g, num_tiles]
  float* p;                    // [seqlen_k]: sums of softmaxes over the group
  std::int32_t* candidates;    // [seqlen_k]
  std::int32_t* keys;          // [num_keys], ascending
  float* weights;              // [g, num_keys]
  const void** rows;           // [num_keys]: of k, then of v
  float* elements;             // [num_keys, element_stride]: those rows, with codes
  std::int64_t dim_stride, key_stride, num_tiles, element_stride;
};

struct KeySpan {  // keys [first, last)
  std::int64_t first, last;
};

// The steps, compiled for one instruction set.
struct SparqOps {
  const char* name;
  std::uint32_t cpu_isa;  // required headrace_cpu_isa bits
  // Queries in float and the components.
  void (*prepare)(const SparqArgs& args, const SparqUnit& unit, const SparqScratch& scratch);
  // Step 1 for whole tiles, which begin at multiples of kSparqTileKeys.
  void (*score)(const SparqArgs& args, const SparqUnit& unit, const SparqScratch& scratch,
                KeySpan keys);
  // Steps 2 and 3.
  void (*attend)(const SparqArgs& args, const SparqUnit& unit, const SparqScratch& scratch);
  // to[dim]: the elements of a row.
  void (*load_row)(const KeyRow& row, std::int64_t dim, float* to);
};

const SparqOps& sparq_ops(const DeviceInfo& device);

// All of this build, the fastest first.
std::span<const SparqOps* const> all_sparq_ops();

// Depends on the shapes and on the threads of the device.
std::size_t sparq_workspace_bytes(const SparqArgs& args, const DeviceInfo& device);

// The workspace is aligned to any byte. Allocates nothing. Fails like parallel_for().
Status sparq_attention(const SparqArgs& args, const DeviceInfo& device, void* workspace);
Status sparq_attention(const SparqArgs& args, const DeviceInfo& device, const SparqOps& ops,
                       void* workspace);

Status sparq_append(const SparqAppendArgs& args, const DeviceInfo& device);

}  // namespace headrace::cpu
