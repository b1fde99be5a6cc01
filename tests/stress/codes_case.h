// Cases of the stress suite over quantised keys and values.
#pragma once

#include <string>
#include <vector>

#include "stress/stress_case.h"

namespace headrace::testing {

// "i8", "i8/i4x2".
std::string name_of(const KvDtypes& codes);
// Every format and head_dim that cuda_sm80_codes has instances of; mixed formats of cuda_simple.
void add_codes_cells(std::vector<Cell>& cells);
// A random case of a cell with codes: decode steps and chunks, lengths around blocks, groups of
// recent keys and chunks of keys.
StressCase draw_codes_case(const Cell& cell, std::uint64_t seed);
// Lengths around the first chunks of keys, in a decode step and in a chunk of a prompt.
void add_named_codes_cases(std::vector<StressCase>& cases);

}  // namespace headrace::testing
