// The order in which CTAs add to a block of dQ where the bits must not depend on who comes first.
// Plain numbers, tested on the host.
//
// A CTA waits for the CTAs before it, so the order must be one in which nobody waits long, nor for
// a CTA that has not begun: CTAs begin in the order of their numbers in the grid.
//   Every query sees every key: CTAs in a ring begin at different blocks of queries and go round,
//   so each has a block just after its neighbour. A ring has no more CTAs than run at a time; the
//   next one adds after it. Else: CTAs begin with the last keys, and a CTA adds after those with
//   later keys, which were at its block of queries some steps before.
#pragma once

#include "backends/cuda/sm90/bwd/config.h"

namespace headrace::cuda::sm90::bwd {

// Blocks of queries between the beginnings of two neighbours.
constexpr int ring_shift(const Tile& t) { return t.keys / t.queries; }

struct Ring {
  int num_key_blocks;  // in all rings
  int size;            // of every ring but the last
  int shift;
};
// `most`: CTAs that run at a time.
constexpr Ring ring_of(const Tile& t, int num_key_blocks, int num_query_blocks, int most) {
  const int shift = ring_shift(t), fits = num_query_blocks / shift;
  const int size = fits < most ? fits : most;
  return {num_key_blocks, size > 1 ? size : 1, shift};
}
// The block of queries at which the CTA of a block of keys begins.
constexpr int ring_start(const Ring& r, int key_block) { return key_block % r.size * r.shift; }
// How many CTAs add to a block of queries before it.
constexpr int ring_turn(const Ring& r, int key_block, int query_block) {
  const int place = key_block % r.size, before = key_block - place;
  const int rest = r.num_key_blocks - before, size = rest < r.size ? rest : r.size;
  // Who begins at the block, or last before it, is the first; then those before him in the ring.
  const int at = query_block / r.shift, first = at < size ? at : size - 1;
  return before + (place <= first ? first - place : first + size - place);
}

// The same behind a diagonal: `last_key` is the last one that the block of queries sees.
constexpr int diagonal_turn(const Tile& t, int num_key_blocks, int key_block, int last_key) {
  const int last = last_key / t.keys;
  return (last < num_key_blocks ? last : num_key_blocks - 1) - key_block;
}

}  // namespace headrace::cuda::sm90::bwd
