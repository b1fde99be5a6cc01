// q, k, v, out and dout as the copy engine sees them.
#pragma once

#include <string>

#include "backends/cuda/device/types.cuh"
#include "base/error.h"
#include "core/args.h"

namespace headrace::cuda::sm90 {

inline constexpr int kBoxColumns = 64;  // 128 bytes of 16-bit elements: the widest swizzled box

struct OperandShape {
  std::int64_t columns, rows, heads;  // rows of a sequence; ragged: of all
  int pack = 0;                       // above 0: heads are (heads / pack, pack), and a box has
                                      // `pack` heads of its rows
  int box_rows;
};

// Axes [batch, heads, rows, columns], or [batch, heads / pack, rows, pack, columns]; boxes of 64
// columns.
Status encode_operand(const Problem& p, const Operand& x, const OperandShape& shape,
                      TensorMap& map);

// Why the copy engine or the tiles take no such operands; empty where they do. has_tile: one is
// large enough.
std::string refused_operands(const Problem& p, bool has_tile);

}  // namespace headrace::cuda::sm90
