// A case of the stress suite: a product of activations with weights (backends/cuda/gemm).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backends/cuda/gemm/gemm.h"

namespace headrace::testing {

// What a product does besides: nothing (a bias in some cases); three stacked matrices with a bias;
// add to the residual stream; f32 results; gate and up; normalise its input. narrow: nothing, with
// so few rows that there are two chains of sums. append: Q, K and V rotate and go to a cache.
enum class Epilogue { plain, stacked, residual, logits, swiglu, norm, narrow, append };

// A row of the report. Every kernel of products has cells.
struct ProductCell {
  cuda::ProductKernel kernel;
  DType dtype;
  Epilogue epilogue;
};
std::vector<ProductCell> product_cells();
std::string row_name(const ProductCell& cell);

struct ProductCase {
  ProductCell cell;
  std::uint64_t seed = 0;          // of shapes and data
  std::vector<std::int64_t> rows;  // of the matrices
  std::int64_t columns = 8, num_tokens = 1;
  bool has_bias = false;
  std::int64_t head_dim = 16;  // of an append
  RopeLayout layout = RopeLayout::interleaved;

  std::int64_t out_rows() const;
};

// A random case of a cell: sizes around those of all tiles, from one tile to many for each CTA.
ProductCase draw_case(const ProductCell& cell, std::uint64_t seed);

// "cuda_sm90_gemm_tiles bf16 swiglu, 513 tokens, 2 x 1536 rows of 576, seed 17": fits a line.
std::string describe(const ProductCase& c);

}  // namespace headrace::testing
