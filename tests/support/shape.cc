// The sizes of a case: those of its axis values, shrunk until it is cheap.
#include <algorithm>

#include "support/case.h"

namespace headrace::testing {
namespace {

// Multiply-adds of one case: a few milliseconds of the scalar kernel.
constexpr std::int64_t kMaxCost = 3'000'000;
constexpr std::int64_t kEdges[] = {127, 128, 129, 191, 192, 193, 255, 256, 257, 511, 512, 513};
constexpr std::int64_t kFirstEdges[] = {127, 128, 129};

struct LengthPair {
  std::int64_t q, k;
  std::int64_t min_q = 1, min_k = 1;  // smaller lengths would belong to another class
};

LengthPair edge_lengths(Random& random, bool is_cheap) {
  const std::int64_t edge = is_cheap ? random.pick(kEdges) : random.pick(kFirstEdges);
  const std::int64_t other = random.chance(50) ? random.pick(kEdges) : random.between(1, 300);
  if (random.chance(50)) return {other, edge, 1, edge};
  return {edge, other, edge, 1};
}

LengthPair draw_lengths(Random& random, Lengths lengths, bool is_cheap) {
  switch (lengths) {
    case Lengths::decode:
      return {random.chance(70) ? 1 : random.between(2, 4), random.between(1, 400)};
    case Lengths::brief:
      return {random.between(1, 17), random.between(1, 17)};
    case Lengths::square: {
      const std::int64_t n = random.between(2, 200);
      return {n, n, 2, 2};
    }
    case Lengths::q_lt_k: {
      const std::int64_t q = random.between(2, 120);
      return {q, q + random.between(1, 300), 1, 2};
    }
    case Lengths::q_gt_k: {
      const std::int64_t k = random.between(1, 120);
      return {k + random.between(1, 300), k, 2, 1};
    }
    case Lengths::zero_q:
      return {0, random.between(1, 50), 0, 1};
    case Lengths::zero_k:
      return {random.between(1, 50), 0, 1, 0};
    case Lengths::one:
      return {1, 1};
    case Lengths::tile_edge:
      return edge_lengths(random, is_cheap);
    case Lengths::long_keys:
      return {random.chance(50) ? random.between(1, 4) : random.between(5, 70),
              random.between(600, 3000), 1, 600};
  }
  return {1, 1};
}

// Halves the side furthest above its minimum until the total fits; `cost` is per element.
void shrink(LengthPair& n, std::int64_t cost, Lengths lengths) {
  while (n.q * n.k * cost > kMaxCost && (n.q > n.min_q || n.k > n.min_k)) {
    const bool shrink_q = n.q * n.min_k > n.k * n.min_q;
    if (lengths == Lengths::square) {
      n.q = n.k = std::max(n.q / 2, n.min_q);
    } else if ((shrink_q || n.k == n.min_k) && n.q > n.min_q) {
      n.q = std::max(n.q / 2, n.min_q);
    } else {
      n.k = std::max(n.k / 2, n.min_k);
    }
  }
  if (lengths == Lengths::q_lt_k) n.k = std::max(n.k, n.q + 1);
  if (lengths == Lengths::q_gt_k) n.q = std::max(n.q, n.k + 1);
}

std::int64_t draw_dim_v(Random& random, DimV kind, std::int64_t dim) {
  if (kind == DimV::smaller) return random.between(1, dim - 1);
  if (kind == DimV::larger)
    return random.between(dim + 1, std::min(kMaxHeadDim, dim + dim / 2 + 8));
  return dim;
}

void draw_sequences(Random& random, const AxisValues& values, Shape& shape) {
  const auto kind = values.get<RaggedKind>(Axis::ragged);
  shape.is_ragged = kind != RaggedKind::dense;
  if (!shape.is_ragged) return;
  const bool is_tight = random.chance(50);  // the longest sequence has exactly max_seqlen rows
  const auto draw = [&](std::int64_t longest, std::int64_t i) -> std::int64_t {
    if (longest == 0) return 0;
    if (kind == RaggedKind::zeros && random.chance(40)) return 0;
    if (kind == RaggedKind::full || (is_tight && i == 0)) return longest;
    return random.between(1, longest);
  };
  for (std::int64_t i = 0; i < shape.batch; ++i) {
    std::int64_t q = draw(shape.seqlen_q, i);
    const std::int64_t k = draw(shape.seqlen_k, i);
    if (values[Axis::tree_mask] != 0) q = std::min(q, k);
    shape.lengths_q.push_back(static_cast<std::int32_t>(q));
    shape.lengths_k.push_back(static_cast<std::int32_t>(k));
    shape.total_q += q;
    shape.total_k += k;
  }
}

}  // namespace

Shape shape_of(const CaseName& name) {
  const AxisValues& values = name.values;
  Random random(case_id(values, name.seed));
  Shape shape;
  constexpr DType kDtypes[] = {DType::f32, DType::f16, DType::bf16};
  shape.dtype = kDtypes[values[Axis::dtype]];
  shape.batch = values.number(Axis::batch);
  shape.head_dim = values.number(Axis::head_dim);
  shape.head_dim_v = draw_dim_v(random, values.get<DimV>(Axis::head_dim_v), shape.head_dim);
  const std::int64_t group = values.number(Axis::group);
  const std::int64_t cost = shape.batch * group * (shape.head_dim + shape.head_dim_v);
  const auto lengths = values.get<Lengths>(Axis::lengths);
  LengthPair n = draw_lengths(random, lengths, cost < 1000);
  // A tree mask needs seqlen_q <= seqlen_k.
  if (values[Axis::tree_mask] != 0 && lengths != Lengths::zero_q && n.q > n.k) {
    std::swap(n.q, n.k);
    std::swap(n.min_q, n.min_k);
  }
  shrink(n, cost, lengths);
  if (values[Axis::tree_mask] != 0) n.k = std::max(n.k, n.q);
  shape.seqlen_q = n.q;
  shape.seqlen_k = n.k;
  const std::int64_t all = std::max<std::int64_t>(cost * n.q * n.k, 1);
  shape.num_kv_heads = std::clamp<std::int64_t>(kMaxCost / all, 1, random.between(1, 3));
  shape.num_heads = shape.num_kv_heads * group;
  draw_sequences(random, values, shape);
  return shape;
}

}  // namespace headrace::testing
