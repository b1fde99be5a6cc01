// TMA tensor maps of q, k, v, out and dout.
#pragma once

#include <string>

#include "backends/cuda/device/types.cuh"
#include "base/error.h"
#include "core/args.h"
#include "core/device.h"

namespace headrace::cuda::sm90 {

struct OperandShape {
  std::int64_t columns, rows, heads;  // rows of a sequence or a page; packed sequences: of all
  std::int64_t batch;                 // sequences or pages; packed sequences: 1
  int pack = 0;                       // above 0: the head axis is (heads / pack, pack), and a box
                                      // has `pack` heads of each row
  int box_rows;
  bool is_streamed = false;  // read once: lines of 128 bytes to L2, not pairs of them
};

// Axes [batch, heads, rows, columns], or [batch, heads / pack, rows, pack, columns]; boxes of
// kSwizzleAtomCols columns.
Status encode_operand(const Problem& p, const Operand& x, const OperandShape& shape,
                      TensorMap& map);

// Why these kernels cannot run on the device, or for the dtype; empty if they can.
std::string refused_device(const Problem& p, const DeviceInfo& device);
// Why TMA or the tiles cannot take these operands; empty if they can. has_tile: some tile is large
// enough.
std::string refused_operands(const Problem& p, bool has_tile);

}  // namespace headrace::cuda::sm90
