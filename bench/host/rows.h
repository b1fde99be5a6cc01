// Rows of a table of host times.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

namespace headrace::bench {

using Clock = std::chrono::steady_clock;

constexpr int kRounds = 201;
constexpr double kNoLimit = -1;

inline double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

// Prints a row with minimum and median of many rounds; true if the minimum is within the limit.
// round(): microseconds per call.
template <class Round>
bool is_row_within(double limit, const char* what, Round round) {
  std::vector<double> rounds;
  for (int i = 0; i < kRounds; ++i) rounds.push_back(round());
  std::sort(rounds.begin(), rounds.end());
  std::printf("%-40s %8.2f %8.2f", what, rounds.front(), rounds[kRounds / 2]);
  if (limit != kNoLimit) std::printf(" %8.2f", limit);
  std::printf("\n");
  return limit == kNoLimit || rounds.front() <= limit;
}

// Few `calls` per round, so that some rounds are free of other programs.
template <class Body>
bool is_within(double limit, const char* what, int calls, Body body) {
  return is_row_within(limit, what, [&] {
    const auto start = Clock::now();
    for (int i = 0; i < calls; ++i) body();
    return microseconds_since(start) / calls;
  });
}

}  // namespace headrace::bench
