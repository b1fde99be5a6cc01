// The data of a case's tensors.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/dtype.h"
#include "support/case.h"

namespace headrace::testing {
namespace {

using Sizes = std::vector<std::int64_t>;

// Fills with value(n) for the n-th element in row-major order.
template <class Value>
void fill(const headrace_tensor& view, Value value) {
  std::int64_t n = 0;
  for_each_element(view, [&](std::int64_t idx) {
    store_from_double(static_cast<DType>(view.dtype), view.data, idx, value(n++));
  });
}

std::int64_t dim_of(const headrace_tensor& view) { return view.shape[view.rank - 1]; }
std::int64_t heads_of(const headrace_tensor& view) { return view.shape[view.rank - 2]; }

double largest_magnitude(const headrace_tensor& view) {
  double largest = 0;
  for_each_element(view, [&](std::int64_t idx) {
    largest = std::max(largest,
                       std::fabs(load_as_double(static_cast<DType>(view.dtype), view.data, idx)));
  });
  return largest;
}

}  // namespace

void Case::fill_operands(Random& random) {
  const auto normal = [&](double factor) {
    return [&random, factor](std::int64_t) { return factor * random.normal(); };
  };
  const auto data = name_.values.get<Data>(Axis::data);
  fill(tensors_.v, normal(1));
  if (data == Data::normal) {
    fill(tensors_.q, normal(1));
    fill(tensors_.k, normal(1));
  } else if (data == Data::scaled) {
    fill(tensors_.q, normal(5));
    fill(tensors_.k, normal(3));
  } else if (data == Data::integer) {
    const auto integer = [&](std::int64_t) { return static_cast<double>(random.between(-3, 3)); };
    fill(tensors_.q, integer);
    fill(tensors_.k, integer);
    fill(tensors_.v, integer);
  } else if (data == Data::uniform) {  // every key of a head is the same vector
    const std::int64_t dim = shape_.head_dim, heads = shape_.num_kv_heads;
    fill(tensors_.q, normal(1));
    fill(tensors_.k, [=](std::int64_t n) {
      return Random(static_cast<std::uint64_t>(n % (dim * heads))).normal();
    });
  } else {
    fill_winner(random, 1024);
  }
  largest_v_ = largest_magnitude(tensors_.v);
}

// All logits are about -1e4 to -1e5; in half of the heads one key is `strength` above the others.
void Case::fill_winner(Random& random, double strength) {
  constexpr double kDepths[] = {1e4, 5e4, 6e4, 1e5};
  const double depth = random.pick(kDepths);
  const double size = std::sqrt(depth / std::sqrt(static_cast<double>(shape_.head_dim)));
  const double sign = options_.softmax_scale < 0 ? -1.0 : 1.0;
  fill(tensors_.q, [&](std::int64_t) { return size; });
  // Keys differ by a few units of the score, within the dtype's precision.
  const double noise = 4 * std::sqrt(static_cast<double>(shape_.head_dim)) / depth;
  fill(tensors_.k, [&](std::int64_t) { return -sign * size * (1 + noise * random.normal()); });
  const headrace_tensor& k = tensors_.k;
  const std::int64_t rows = k.rank == 4 ? k.shape[0] * k.shape[1] : k.shape[0];
  if (rows == 0) return;
  for (std::int64_t head = 0; head < heads_of(k); ++head) {
    if (random.chance(50)) continue;
    const std::int64_t row = random.between(0, rows - 1);
    const std::int64_t at = k.rank == 4
                                ? row / k.shape[1] * k.strides[0] + row % k.shape[1] * k.strides[1]
                                : row * k.strides[0];
    for (std::int64_t d = 0; d < dim_of(k); ++d)
      store_from_double(shape_.dtype, k.data, at + head * k.strides[k.rank - 2] + d,
                        -sign * size * (1 - strength / depth));
  }
}

namespace {

// Row sizes: unpadded, padded, or multiples of 16 bytes as TMA needs.
std::int64_t padded_row(std::uint16_t seed, std::int64_t size) {
  if (seed % 8 == 3) return size + 5;
  return seed % 4 == 0 || seed % 8 >= 6 ? (size + 7) / 8 * 8 : size;
}

}  // namespace

// [batch, heads, q, k] or ragged [heads, total_q, max_k]; `broadcast_axis` counts the dense axes,
// -1: none. Sometimes with permuted memory.
headrace_tensor Case::add_score_operand(DType dtype, int broadcast_axis) {
  const Shape& s = shape_;
  Sizes shape = s.is_ragged ? Sizes{s.num_heads, s.total_q, s.seqlen_k}
                            : Sizes{s.batch, s.num_heads, s.seqlen_q, s.seqlen_k};
  const int axis = broadcast_axis - (s.is_ragged ? 1 : 0);
  const bool has_size_one = name_.seed % 2 == 0;  // else: full size with stride 0
  if (broadcast_axis >= 0 && axis >= 0 && has_size_one) shape[static_cast<std::size_t>(axis)] = 1;
  Sizes strides(shape.size());
  Sizes order(shape.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int64_t>(i);
  if (name_.seed % 4 == 1) std::swap(order[order.size() - 1], order[order.size() - 2]);
  std::int64_t stride = 1;
  for (std::size_t i = order.size(); i-- > 0;) {
    const auto at = static_cast<std::size_t>(order[i]);
    const bool is_expanded = static_cast<int>(at) == axis && broadcast_axis >= 0;
    strides[at] = is_expanded ? 0 : stride;
    if (!is_expanded) stride *= shape[at];
    if (i + 1 == order.size()) stride = padded_row(name_.seed, stride);
  }
  return add_view(dtype, shape, strides, false);
}

namespace {

// A ragged operand has max_seqlen_k columns: those past a sequence's own keys hold NaN.
void poison_unused_columns(const Shape& s, const headrace_tensor& bias) {
  if (!s.is_ragged || bias.shape[1] == 1 || bias.strides[1] == 0 || bias.shape[2] == 1 ||
      bias.strides[2] == 0)
    return;
  for (std::int64_t head = 0; head < bias.shape[0]; ++head) {
    std::int64_t row = 0;
    for (std::size_t i = 0; i < s.lengths_q.size(); ++i) {
      for (std::int64_t end = row + s.lengths_q[i]; row < end; ++row) {
        for (std::int64_t col = s.lengths_k[i]; col < bias.shape[2]; ++col)
          store_from_double(static_cast<DType>(bias.dtype), bias.data,
                            head * bias.strides[0] + row * bias.strides[1] + col * bias.strides[2],
                            std::numeric_limits<double>::quiet_NaN());
      }
    }
  }
}

void fill_mask(Random& random, const headrace_tensor& view, bool has_empty_rows) {
  constexpr unsigned char kTrue[] = {1, 1, 0x80, 0xFF};  // any nonzero byte keeps
  auto* bytes = static_cast<unsigned char*>(view.data);
  const std::int64_t columns = std::max<std::int64_t>(view.shape[view.rank - 1], 1);
  const int keep = random.chance(50) ? 80 : 30;
  std::int64_t n = 0;
  bool is_empty = false;
  for_each_element(view, [&](std::int64_t idx) {
    if (n++ % columns == 0) is_empty = has_empty_rows && random.chance(30);
    bytes[idx] =
        !is_empty && random.chance(keep) ? random.pick(kTrue) : static_cast<unsigned char>(0);
  });
}

}  // namespace

void Case::make_extras(Random& random) {
  const AxisValues& values = name_.values;
  const Shape& s = shape_;
  if (const auto alibi = values.get<Alibi>(Axis::alibi); alibi != Alibi::none) {
    const bool per_batch = alibi == Alibi::per_batch;
    tensors_.alibi_slopes =
        add_contiguous(DType::f32, per_batch ? Sizes{s.batch, s.num_heads} : Sizes{s.num_heads});
    fill(tensors_.alibi_slopes, [&](std::int64_t) { return std::exp2(-8 * random.uniform()); });
  }
  if (const int bias = values[Axis::bias]; bias != 0) {
    const bool is_f32 = bias < static_cast<int>(Bias::full);
    const int axis = (bias - 1) % 5 - 1;  // full, batch, head, q, k
    tensors_.bias = add_score_operand(is_f32 ? DType::f32 : s.dtype, axis);
    const bool hides = random.chance(25);
    fill(tensors_.bias, [&](std::int64_t) {
      if (hides && random.chance(10)) return -std::numeric_limits<double>::infinity();
      return 2 * random.normal();
    });
    poison_unused_columns(s, tensors_.bias);
  }
  if (const auto mask = values.get<Mask>(Axis::mask); mask != Mask::none) {
    const bool is_full = mask == Mask::full || mask == Mask::empty_rows;
    tensors_.mask = add_score_operand(DType::boolean, is_full ? -1 : static_cast<int>(mask) - 2);
    fill_mask(random, tensors_.mask, mask == Mask::empty_rows);
  }
  if (values[Axis::tree_mask] != 0) {
    const std::int64_t words = (s.seqlen_q + 31) / 32 + random.between(0, 1);
    tensors_.tree_mask = add_contiguous(
        DType::u32, s.is_ragged ? Sizes{s.total_q, words} : Sizes{s.batch, s.seqlen_q, words});
    auto* bits = static_cast<std::uint32_t*>(tensors_.tree_mask.data);
    for_each_element(tensors_.tree_mask, [&](std::int64_t idx) {
      bits[idx] = static_cast<std::uint32_t>(random.next() | random.next());
    });
  }
  if (values[Axis::sinks] != 0) {
    tensors_.sinks = add_contiguous(DType::f32, {s.num_heads});
    fill(tensors_.sinks, [&](std::int64_t) { return 2 * random.normal(); });
  }
}

}  // namespace headrace::testing
