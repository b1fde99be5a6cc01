#include "backends/cuda/gemm/gemm.h"

#include "backends/cuda/elementwise/kv_append.h"
#include "backends/cuda/gemm/portable.h"
#include "backends/cuda/gemm/stream.h"
#include "backends/cuda/gemm/tiles.h"
#include "backends/cuda/gemm/wide.h"
#include "backends/cuda/runtime/device.cuh"
#include "backends/cuda/runtime/error_word.cuh"
#include "backends/cuda/runtime/tensor_map.cuh"
#include "base/math.h"

namespace headrace::cuda {
namespace {

Status check(const Product& p) {
  if (p.dtype != DType::bf16 && p.dtype != DType::f16)
    return unsupported("matrices of a product on a GPU are bf16 or f16, not {}",
                       dtype_name(p.dtype));
  if (p.out_dtype != p.dtype && p.out_dtype != DType::f32)
    return unsupported("the result of a product of {} is {} or f32, not {}", dtype_name(p.dtype),
                       dtype_name(p.dtype), dtype_name(p.out_dtype));
  if (p.matrices.empty() || p.matrices.size() > kMaxStackedMatrices)
    return unsupported("{} stacked matrices, a product takes 1 to {}", p.matrices.size(),
                       kMaxStackedMatrices);
  constexpr std::int64_t kLargest = std::int64_t{1} << 30;
  std::int64_t rows = 0;
  for (const Matrix& m : p.matrices) {
    if (m.rows < 1 || m.rows > kLargest - rows)
      return unsupported("the matrices of a product have 1 to {} rows in all", kLargest);
    rows += m.rows;
    if (reinterpret_cast<std::uintptr_t>(m.data) % kWholeAlignment != 0)
      return unsupported("a matrix at {} is not aligned to {} bytes", m.data, kWholeAlignment);
  }
  if (p.has_swiglu &&
      (p.matrices.size() != 2 || p.matrices[0].rows != p.matrices[1].rows || p.adds_to_out))
    return unsupported("SwiGLU takes two matrices of equal rows, and adds to nothing");
  if (p.columns < 8 || p.columns > kLargest || p.columns % 8 != 0)
    return unsupported("{} columns; products on a GPU take multiples of 8 up to {}", p.columns,
                       kLargest);
  constexpr std::int64_t kMostTokens = 65535 * gemm::kPortableTokens;  // the grid's second axis
  if (p.num_tokens > kMostTokens)
    return unsupported("{} tokens of one product, at most {}", p.num_tokens, kMostTokens);
  if (p.x_stride < p.columns || p.x_stride % 8 != 0 ||
      reinterpret_cast<std::uintptr_t>(p.x) % kWholeAlignment != 0)
    return unsupported("x at {} with {} elements from row to row is not aligned to {} bytes", p.x,
                       p.x_stride, kWholeAlignment);
  return std::nullopt;
}

Status check_norm(const Product& p, const DeviceInfo& device) {
  const bool is_aligned = reinterpret_cast<std::uintptr_t>(p.norm.weight) % kWholeAlignment == 0;
  if (p.norm.weight == nullptr ||
      (p.dtype == DType::bf16 && is_aligned && takes_norm(device.sm, p.num_tokens, p.columns)))
    return std::nullopt;
  return unsupported("a product of {} tokens of {} columns on sm_{} does not normalise its input",
                     p.num_tokens, p.columns, device.sm);
}

Status check_append(const Product& p, const DeviceInfo& device) {
  if (p.append == nullptr) return std::nullopt;
  const KvAppendArgs& args = *p.append;
  const std::int64_t dim = args.head_dim, num_kv_heads = args.num_kv_heads;
  const bool has_heads = p.matrices.size() == 3 && p.matrices[0].rows == args.num_heads * dim &&
                         p.matrices[1].rows == num_kv_heads * dim &&
                         p.matrices[2].rows == num_kv_heads * dim &&
                         args.num_tokens == p.num_tokens && args.k.dtype == p.dtype;
  const bool is_stored = !p.adds_to_out && args.recent.slots == nullptr &&
                         args.k_scale.data == nullptr && args.v_scale.data == nullptr;
  if (has_heads && is_stored &&
      takes_append(device.sm, p.num_tokens, dim, args.head_dim_v, args.rot_dim) &&
      append::takes_vectors(args, append::vectors_of(args)))
    return std::nullopt;
  return unsupported("a product of {} tokens on sm_{} does not append {} + 2 x {} heads of {}",
                     p.num_tokens, device.sm, args.num_heads, num_kv_heads, dim);
}

// The rows of a matrix or of x that TMA loads at a time, and their columns: swizzle atoms, the
// third of four axes.
struct Box {
  int rows, atoms = 1, rank = 2;
  L2Promotion promotion = L2Promotion::bytes_128;
};

Status encode(const Product& p, const void* data, std::int64_t rows, std::int64_t stride,
              const Box& box, TensorMap& map) {
  TensorMapSpec spec{.dtype = p.dtype, .rank = box.rank, .l2_promotion = box.promotion};
  spec.sizes[0] = p.columns;
  spec.sizes[1] = rows;
  spec.sizes[2] = spec.sizes[3] = 1;
  spec.box[0] = kSwizzleAtomCols;
  spec.box[1] = static_cast<std::uint32_t>(box.rows);
  spec.box[2] = static_cast<std::uint32_t>(box.atoms);
  spec.box[3] = 1;
  if (box.atoms > 1) {
    spec.sizes[0] = kSwizzleAtomCols;
    spec.sizes[2] = p.columns / kSwizzleAtomCols;
  }
  // The stride of an axis with one element is not used.
  const std::int64_t strides[5] = {1, rows > 1 ? stride : 8, kSwizzleAtomCols, 8};
  if (std::string reason = tensor_map_refusal(spec, data, strides); !reason.empty())
    return unsupported("a matrix of a product does not suit TMA: {}", reason);
  return encode_tensor_map(spec, data, strides, map);
}

Status encode_weights(const Product& p, const Box& box, gemm::Maps& maps) {
  for (std::size_t i = 0; i < p.matrices.size(); ++i)
    HEADRACE_TRY(encode(p, p.matrices[i].data, p.matrices[i].rows, p.columns, box, maps.w[i]));
  return std::nullopt;
}
Status encode_x(const Product& p, const Box& box, TensorMap& map) {
  return encode(p, p.x, p.num_tokens, p.x_stride, box, map);
}

// Rows of a box for a CTA that loads whole tiles, which have as many rows of gate as of up, or of
// both halves of a head.
int rows_of_box(const Product& p, int tile_rows) {
  const bool has_halves = p.append != nullptr && p.append->layout == RopeLayout::halves;
  return p.has_swiglu || has_halves ? tile_rows / 2 : tile_rows;
}

Status run_stream(const Product& p, const DeviceInfo& device, Stream stream) {
  const int tile_rows = gemm::stream_tile_rows(p, device.num_units);
  const auto tiles = gemm::RowTiles::of(p, tile_rows);
  const auto num_tokens = static_cast<std::int32_t>(p.num_tokens);
  const auto plan = gemm::StreamPlan::of(tile_rows, tiles.count, p.columns, num_tokens,
                                         device.num_units, num_chains(p));
  gemm::StreamParams params{.tiles = tiles,
                            .out = gemm::Output::of(p),
                            .plan = plan,
                            .num_tokens = num_tokens,
                            .num_chains = num_chains(p),
                            .norm = p.norm,
                            .x = p.x,
                            .x_stride = p.x_stride,
                            .columns = static_cast<std::int32_t>(p.columns),
                            .row_pitch = static_cast<std::int32_t>(gemm::row_pitch(p.columns)),
                            .has_append = p.append != nullptr,
                            .append = {}};
  if (p.append != nullptr) {
    Result<std::uint32_t*> word = error_word(device.device_id);
    if (!word.ok()) return std::move(word.failure());
    params.append = append::vector_params(*p.append, word.value());
  }
  gemm::Maps maps;
  HEADRACE_TRY(encode_weights(p, {.rows = rows_of_box(p, tile_rows)}, maps));
  if (!plan.has_rows)
    HEADRACE_TRY(encode_x(p, {.rows = num_tokens, .atoms = plan.x_box_atoms, .rank = 4}, maps.x));
  return gemm::launch_stream({params, maps, p.dtype, stream});
}

Status run_wide(const Product& p, const DeviceInfo& device, Stream stream) {
  const auto plan = gemm::WidePlan::of(p, device.num_units);
  const gemm::WideParams params{.tiles = gemm::RowTiles::of(p, plan.rows),
                                .out = gemm::Output::of(p),
                                .plan = plan,
                                .num_tokens = static_cast<std::int32_t>(p.num_tokens),
                                .num_chains = num_chains(p)};
  gemm::Maps maps;
  HEADRACE_TRY(encode_weights(p, {.rows = rows_of_box(p, plan.rows)}, maps));
  HEADRACE_TRY(encode_x(p, {.rows = plan.box_tokens}, maps.x));
  const gemm::WideCall call{params, maps, stream};
  return p.dtype == DType::bf16 ? gemm::launch_wide_bf16(call) : gemm::launch_wide_f16(call);
}

Status run_tiles(const Product& p, const DeviceInfo& device, Stream stream) {
  const gemm::TileShape shape = gemm::choose_tile_shape(p, device.num_units);
  const auto params = gemm::TileParams::of(p, shape);
  const auto box_of = [](int rows) {
    return Box{.rows = rows, .promotion = L2Promotion::bytes_256};
  };
  // A CTA loads half of the rows of a tile: those of gate or of up, or half of those of a matrix.
  gemm::Maps maps;
  HEADRACE_TRY(encode_weights(p, box_of(shape.rows / gemm::kTileCluster), maps));
  HEADRACE_TRY(encode_x(p, box_of(shape.tokens()), maps.x));
  if (params.tail_tokens > 0) HEADRACE_TRY(encode_x(p, box_of(params.tail_tokens), maps.x_tail));
  const gemm::TileCall call{params, maps, shape, device.num_units, stream};
  return p.dtype == DType::bf16 ? gemm::launch_tiles_bf16(call) : gemm::launch_tiles_f16(call);
}

Status run_portable(const Product& p, Stream stream) {
  gemm::PortableParams params{.tiles = gemm::RowTiles::of(p, gemm::kPortableRows),
                              .out = gemm::Output::of(p),
                              .w = {},
                              .x = p.x,
                              .x_stride = p.x_stride,
                              .num_tokens = static_cast<std::int32_t>(p.num_tokens),
                              .columns = static_cast<std::int32_t>(p.columns),
                              .num_chains = num_chains(p)};
  for (std::size_t i = 0; i < p.matrices.size(); ++i) params.w[i] = p.matrices[i].data;
  return gemm::launch_portable({params, p.dtype, stream});
}

}  // namespace

Status multiply(const Product& product, const DeviceInfo& device, Stream stream) {
  HEADRACE_TRY(check(product));
  HEADRACE_TRY(check_norm(product, device));
  HEADRACE_TRY(check_append(product, device));
  if (product.num_tokens <= 0) return std::nullopt;
  const DeviceScope scope(device.device_id);
  if (scope.status()) return scope.status();
  switch (product_kernel(device.sm, product.num_tokens)) {
    case ProductKernel::stream:
      return run_stream(product, device, stream);
    case ProductKernel::wide:
      return run_wide(product, device, stream);
    case ProductKernel::tiles:
      return run_tiles(product, device, stream);
    case ProductKernel::portable:
      break;
  }
  return run_portable(product, stream);
}

}  // namespace headrace::cuda
