// What the host passes to the kernels of a product.
#pragma once

#include <climits>
#include <cstdint>

#include "backends/cuda/common/constants.h"
#include "backends/cuda/device/types.cuh"
#include "backends/cuda/gemm/gemm.h"

namespace headrace::cuda::gemm {

// The rows of stacked matrices, cut into tiles. A tile has rows of one matrix, or pairs.
struct RowTiles {
  int rows[kMaxStackedMatrices];        // of a matrix
  int first_row[kMaxStackedMatrices];   // in out
  int first_tile[kMaxStackedMatrices];  // INT_MAX behind the last matrix
  int count;
  int is_paired;  // SwiGLU: a tile has half of its rows of gate, then as many of up

  static constexpr RowTiles of(const Product& p, int tile_rows) {
    RowTiles t{};
    t.is_paired = p.has_swiglu;
    if (p.has_swiglu) tile_rows /= 2;
    std::int64_t row = 0;
    for (int i = 0; i < kMaxStackedMatrices; ++i) {
      const bool exists = static_cast<std::size_t>(i) < (p.has_swiglu ? 1 : p.matrices.size());
      const std::int64_t rows = exists ? p.matrices[static_cast<std::size_t>(i)].rows : 0;
      t.rows[i] = static_cast<int>(rows);
      t.first_row[i] = static_cast<int>(row);
      t.first_tile[i] = exists ? t.count : INT_MAX;
      t.count += static_cast<int>((rows + tile_rows - 1) / tile_rows);
      row += rows;
    }
    return t;
  }
  constexpr int matrix_of(int tile) const {
    return (tile >= first_tile[1] ? 1 : 0) + (tile >= first_tile[2] ? 1 : 0);
  }
  // The first row of a tile in its matrix.
  constexpr int row_of(int tile, int matrix, int tile_rows) const {
    return (tile - first_tile[matrix]) * (is_paired != 0 ? tile_rows / 2 : tile_rows);
  }
};

struct Output {
  void* data;
  std::int64_t stride;
  const float* bias;  // may be null
  std::int32_t is_float, adds;
  std::int32_t rows_of_gate;  // SwiGLU: before those of up in bias

  static constexpr Output of(const Product& p) {
    return {.data = p.out,
            .stride = p.out_stride,
            .bias = p.bias,
            .is_float = p.out_dtype == DType::f32,
            .adds = p.adds_to_out,
            .rows_of_gate = static_cast<std::int32_t>(p.matrices[0].rows)};
  }
};

struct Maps {
  TensorMap w[kMaxStackedMatrices];
  TensorMap x;
  TensorMap x_tail;  // of tiles: the last tokens, fewer than those of a tile
};

}  // namespace headrace::cuda::gemm
