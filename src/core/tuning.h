// The choices of a plan that change no bits, and that headrace tune measures. Plain values.
#pragma once

#include <cstdint>

namespace headrace {

// 0: the kernel's own rule. A kernel lists the values that suit a problem (Kernel::configs) and
// plans with no others.
struct TuningConfig {
  std::int32_t num_threads = 0;     // CPU: of the call
  std::int32_t tile_m = 0;          // query rows of a tile
  std::int32_t heads_per_task = 0;  // CPU: adjacent KV heads with few rows, at most
  std::int32_t backward_tasks = 0;  // CPU: kFusedTasks or kSeparateTasks
  std::int32_t packed_heads = 0;    // query heads of a group that share a tile
  std::int32_t tile_order = 0;      // kStaticTiles or kDynamicTiles
  std::int32_t section_heads = 0;   // heads whose tiles run at the same time
  std::int32_t cluster_size = 0;    // CTAs that share the keys of a KV head
  std::int32_t run_groups = 0;      // groups of keys of an item of a persistent grid
  friend bool operator==(const TuningConfig&, const TuningConfig&) = default;
};
inline constexpr std::int32_t kFusedTasks = 1, kSeparateTasks = 2;
inline constexpr std::int32_t kStaticTiles = 1, kDynamicTiles = 2;

// The value of a choice: the config's, or the kernel's own.
template <class Int>
constexpr Int chosen(std::int32_t value, Int own) {
  return value > 0 ? static_cast<Int>(value) : own;
}

}  // namespace headrace
