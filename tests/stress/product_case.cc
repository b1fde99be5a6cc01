#include "stress/product_case.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/math.h"
#include "core/dtype.h"
#include "support/random.h"

namespace headrace::testing {
namespace {

using cuda::ProductKernel;

const char* name_of(Epilogue epilogue) {
  constexpr const char* kNames[] = {"plain",  "stacked", "residual", "logits",
                                    "swiglu", "norm",    "narrow",   "append"};
  return kNames[static_cast<int>(epilogue)];
}

// Multiples of the tiles of all kernels, and sizes beside them.
std::int64_t draw_size(Random& random, std::int64_t most) {
  constexpr std::int64_t kTiles[] = {1, 8, 16, 64, 128, 256};
  constexpr std::int64_t kOffsets[] = {0, 0, 1, -1, 7, 44};
  const std::int64_t size = random.pick(kTiles) * random.between(1, 24) + random.pick(kOffsets);
  return std::clamp<std::int64_t>(size, 1, most);
}

std::int64_t draw_tokens(Random& random, const ProductCell& cell) {
  switch (cell.kernel) {
    case ProductKernel::stream:
      return random.between(
          1, cell.epilogue == Epilogue::norm ? cuda::gemm::kMaxRows : cuda::gemm::kStreamTokens);
    case ProductKernel::wide:
      return random.between(cuda::gemm::kStreamTokens + 1, cuda::gemm::kWideTokens);
    case ProductKernel::tiles:
      return cuda::gemm::kWideTokens + draw_size(random, random.chance(30) ? 5000 : 900);
    case ProductKernel::portable:
      break;
  }
  return draw_size(random, 700);
}

}  // namespace

std::vector<ProductCell> product_cells() {
  std::vector<ProductCell> cells;
  for (const ProductKernel kernel :
       {ProductKernel::stream, ProductKernel::wide, ProductKernel::tiles, ProductKernel::portable})
    for (const DType dtype : {DType::bf16, DType::f16})
      for (const Epilogue epilogue : {Epilogue::plain, Epilogue::stacked, Epilogue::residual,
                                      Epilogue::logits, Epilogue::swiglu, Epilogue::narrow})
        cells.push_back({kernel, dtype, epilogue});
  cells.push_back({ProductKernel::stream, DType::bf16, Epilogue::norm});
  for (const DType dtype : {DType::bf16, DType::f16})
    cells.push_back({ProductKernel::stream, dtype, Epilogue::append});
  return cells;
}

std::string row_name(const ProductCell& cell) {
  return format_text("{} {} {}", cuda::name_of(cell.kernel), dtype_name(cell.dtype),
                     name_of(cell.epilogue));
}

std::int64_t ProductCase::out_rows() const {
  const std::int64_t all = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
  return cell.epilogue == Epilogue::swiglu ? all / 2 : all;
}

ProductCase draw_case(const ProductCell& cell, std::uint64_t seed) {
  // What the oracle in double multiplies and adds in a fraction of a second.
  constexpr std::int64_t kMost = 5'000'000'000;
  Random random(seed * 0x9E3779B97F4A7C15u + 2);
  ProductCase c{.cell = cell, .seed = seed, .rows = {}};
  c.num_tokens = draw_tokens(random, cell);
  const bool is_narrow = cell.epilogue == Epilogue::narrow;
  c.columns = round_up<std::int64_t>(draw_size(random, is_narrow ? 9000 : 4200), 8);
  while (cell.epilogue == Epilogue::norm && !cuda::takes_norm(90, c.num_tokens, c.columns))
    c.columns -= 8;
  // Small models have few rows, large ones more than one round of tiles for every CTA.
  const std::int64_t most_rows =
      std::clamp<std::int64_t>(kMost / (c.num_tokens * c.columns), 16, 40'000);
  const bool is_large = random.chance(40);
  const auto draw_rows = [&] {
    return std::min(is_large ? random.between(most_rows / 4, most_rows) : draw_size(random, 6000),
                    most_rows);
  };
  if (cell.epilogue == Epilogue::stacked) {
    c.rows = {draw_rows(), std::min<std::int64_t>(draw_rows(), 1024), random.between(1, 300)};
  } else if (cell.epilogue == Epilogue::append) {
    c.head_dim = 16 * random.between(1, 16);
    c.layout = random.chance(50) ? RopeLayout::halves : RopeLayout::interleaved;
    const std::int64_t num_kv_heads = random.between(1, 8);
    c.rows.assign(3, num_kv_heads * c.head_dim);
    c.rows[0] *= random.between(1, 8);
  } else if (is_narrow) {
    c.rows = {std::min(draw_size(random, cuda::gemm::kOneChainRows - 1), most_rows)};
  } else {
    c.rows = {draw_rows()};
    if (cell.epilogue == Epilogue::swiglu) c.rows.push_back(c.rows[0]);
  }
  c.has_bias = cell.epilogue == Epilogue::stacked || random.chance(30);
  return c;
}

std::string describe(const ProductCase& c) {
  std::string rows;
  for (const std::int64_t r : c.rows) rows += format_text("{}{}", rows.empty() ? "" : " + ", r);
  return format_text("{}, {} tokens, {} rows of {}{}, seed {}", row_name(c.cell), c.num_tokens,
                     rows, c.columns, c.has_bias ? ", bias" : "", c.seed);
}

}  // namespace headrace::testing
