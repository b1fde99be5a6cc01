// Every CTA has its turn, and nobody waits for ever.
#include "backends/cuda/sm90/bwd/turns.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace headrace::cuda::sm90::bwd {
namespace {

constexpr Tile kAll[] = {kTile64, kTile128, kTile256};

// CTAs with the blocks of queries that each meets, in order, and its turn at each. `most` run at a
// time, in the order given. Returns the number of rounds until all are done, or -1 if nobody moves.
struct Visit {
  int block, turn;
};
int rounds_of(std::vector<std::vector<Visit>> ctas, int num_blocks, int most) {
  std::vector<int> counter(static_cast<std::size_t>(num_blocks)), running;
  std::vector<std::size_t> step(ctas.size());
  std::size_t next = 0;
  for (int round = 0;; ++round) {
    while (static_cast<int>(running.size()) < most && next < ctas.size())
      running.push_back(static_cast<int>(next++));
    if (running.empty()) return round;
    const std::vector<int> before = counter;
    bool moves = false;
    for (int& cta : running) {
      const auto i = static_cast<std::size_t>(cta);
      if (step[i] < ctas[i].size()) {
        const Visit v = ctas[i][step[i]];
        if (before[static_cast<std::size_t>(v.block)] != v.turn) continue;
        ++counter[static_cast<std::size_t>(v.block)];
        ++step[i];
        moves = true;
      }
      if (step[i] == ctas[i].size()) cta = -1;
    }
    const auto end = std::remove(running.begin(), running.end(), -1);
    moves |= end != running.end();
    running.erase(end, running.end());
    if (!moves) return -1;
  }
}

TEST(HopperBackwardTurns, RingsTakeEveryTurnOnceAndNeverStop) {
  for (const Tile& tile : kAll)
    for (const int keys : {1, 2, 3, 7, 16, 40})
      for (const int queries : {1, 2, 3, 5, 8, 33, 64})
        for (const int most : {1, 4, 16}) {
          const Ring ring = ring_of(tile, keys, queries, most);
          std::vector<std::vector<Visit>> ctas(static_cast<std::size_t>(keys));
          for (int n = 0; n < keys; ++n)
            for (int i = 0; i < queries; ++i) {
              const int block = (ring_start(ring, n) + i) % queries;
              ctas[static_cast<std::size_t>(n)].push_back({block, ring_turn(ring, n, block)});
            }
          EXPECT_GT(rounds_of(ctas, queries, most), 0)
              << keys << " key blocks, " << queries << " query blocks, " << most << " at a time";
        }
}

// A ring that runs as a whole waits for nobody: a round a step, and one for a neighbour who begins
// at the same time.
TEST(HopperBackwardTurns, ARingIsInStep) {
  constexpr int kQueries = 64;
  const int keys = kQueries / ring_shift(kTile128);
  const Ring ring = ring_of(kTile128, keys, kQueries, 132);
  std::vector<std::vector<Visit>> ctas(static_cast<std::size_t>(keys));
  for (int n = 0; n < keys; ++n)
    for (int i = 0; i < kQueries; ++i) {
      const int block = (ring_start(ring, n) + i) % kQueries;
      ctas[static_cast<std::size_t>(n)].push_back({block, ring_turn(ring, n, block)});
    }
  EXPECT_LE(rounds_of(ctas, kQueries, keys), kQueries + 1);
}

// Causal, windows: last keys first, whatever runs at a time.
TEST(HopperBackwardTurns, DiagonalsNeverStop) {
  for (const Tile& tile : kAll)
    for (const int seqlen_q : {1, 64, 200, 1000})
      for (const int seqlen_k : {1, 130, 1000})
        for (const int left : {0, 70, 100000})
          for (const int right : {0, 3, 200})
            for (const int most : {1, 4, 16}) {
              const int diagonal = seqlen_k - seqlen_q;
              const int keys = (seqlen_k + tile.keys - 1) / tile.keys;
              const int queries = (seqlen_q + tile.queries - 1) / tile.queries;
              std::vector<std::vector<Visit>> ctas;
              for (int n = keys - 1; n >= 0; --n) {
                ctas.emplace_back();
                for (int m = 0; m < queries; ++m) {
                  const int last_query = std::min((m + 1) * tile.queries, seqlen_q) - 1;
                  const int last_key = last_query + diagonal + right;
                  const int first_key = m * tile.queries + diagonal - left;
                  if (last_key < n * tile.keys ||
                      first_key >= std::min((n + 1) * tile.keys, seqlen_k))
                    continue;
                  ctas.back().push_back({m, diagonal_turn(tile, keys, n, last_key)});
                }
              }
              EXPECT_GE(rounds_of(ctas, queries, most), 0)
                  << seqlen_q << " queries, " << seqlen_k << " keys, " << left << ", " << right;
            }
}

}  // namespace
}  // namespace headrace::cuda::sm90::bwd
