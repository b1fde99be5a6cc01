#include "conformance/backward_grids.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

namespace headrace::testing {
namespace {

constexpr DType k16Bit[] = {DType::f16, DType::bf16};

struct Heads {
  std::int64_t q, kv;
};
struct Lengths2 {
  std::int64_t q, k;
};

GridCase grid_case(DType dtype, Lengths2 n, std::int64_t dim, Heads heads,
                   std::initializer_list<Setting> settings) {
  GridCase one{named(dtype, {}), shape(dtype, n.q, n.k, dim, heads.q, heads.kv)};
  const auto set = [&](Axis axis, int value) {
    one.name.values.value[static_cast<std::size_t>(axis)] = static_cast<std::uint8_t>(value);
  };
  set(Axis::lse, 0);  // no gradient of lse
  for (const auto& [axis, value] : settings) set(axis, value);
  return one;
}

// Different data in every case; every fourth is deterministic.
std::vector<GridCase> with_seeds(std::vector<GridCase> cases) {
  for (std::size_t i = 0; i < cases.size(); ++i)
    cases[i].name.seed = static_cast<std::uint16_t>(i + 1);
  return cases;
}

// The masks of FlashAttention-2's test grids: none, causal, local.
constexpr Setting kMasks[] = {
    {Axis::causal, 0}, {Axis::causal, 1}, {Axis::window, static_cast<int>(Window::both)}};

// ---- B1: the shapes of FlashAttention-2's test of outputs and gradients

constexpr Lengths2 kShapes[] = {{113, 203}, {128, 217},   {113, 211},   {108, 256},   {256, 512},
                                {512, 256}, {1024, 1024}, {1023, 1024}, {1024, 1023}, {2048, 2048}};
constexpr std::int64_t kDims[] = {32, 40, 59, 64, 80, 96, 111, 128, 160, 192, 256};
constexpr Heads kHeads[] = {{2, 2}, {4, 2}, {3, 1}};

// `features`: which of the eight combinations of softcap (1), ALiBi (2) and dropout (4).
std::vector<GridCase> output_shapes(int first_features, int last_features) {
  std::vector<GridCase> cases;
  for (const Lengths2 n : kShapes)
    for (const std::int64_t dim : kDims)
      for (const DType dtype : kDtypes)
        for (const Heads heads : kHeads)
          for (const Setting& mask : kMasks)
            for (int f = first_features; f <= last_features; ++f)
              cases.push_back(grid_case(dtype, n, dim, heads,
                                        {mask,
                                         {Axis::softcap, f & 1},
                                         {Axis::alibi, f >> 1 & 1},
                                         {Axis::dropout, f >> 2}}));
  return with_seeds(std::move(cases));
}
std::vector<GridCase> plain_output_shapes() { return output_shapes(0, 0); }
std::vector<GridCase> general_output_shapes() { return output_shapes(1, 7); }

std::vector<GridCase> dims_in_eights() {
  std::vector<std::pair<std::int64_t, std::int64_t>> dims = {{192, 128}, {128, 64}, {64, 128},
                                                             {256, 128}, {96, 160}, {8, 256}};
  for (std::int64_t dim = 8; dim <= 256; dim += 8) dims.emplace_back(dim, dim);
  std::vector<GridCase> cases;
  for (const auto& [dim, dim_v] : dims)
    for (const DType dtype : k16Bit)
      for (const int causal : {0, 1}) {
        cases.push_back(grid_case(dtype, {65, 130}, dim, {2, 1}, {{Axis::causal, causal}}));
        cases.back().shape.head_dim_v = dim_v;
      }
  return with_seeds(std::move(cases));
}

std::vector<GridCase> groups() {
  std::vector<GridCase> cases;
  for (const std::int64_t group : {1, 2, 3, 7, 8, 16})
    for (const DType dtype : kDtypes)
      for (const std::int64_t dim : {64, 128})
        for (const int causal : {0, 1})
          cases.push_back(grid_case(dtype, {70, 130}, dim, {group, 1}, {{Axis::causal, causal}}));
  return with_seeds(std::move(cases));
}

// ---- B2, B2g: large inputs at short lengths, gradients of any magnitude

void scale_v(Lab& lab) {
  const headrace_tensor& v = lab.tensors().v;
  const auto dtype = static_cast<DType>(v.dtype);
  for_each_element(v, [&](std::int64_t i) {
    store_from_double(dtype, v.data, i, 3 * load_as_double(dtype, v.data, i));
  });
  lab.test_case.set_largest_v(3 * lab.test_case.largest_v());
}

std::vector<GridCase> large_inputs() {
  std::vector<GridCase> cases;
  for (const std::int64_t n : {1, 2, 5, 17, 128})
    for (const std::int64_t dim : {16, 32, 64})
      for (const DType dtype : k16Bit)
        for (const int causal : {0, 1}) {
          cases.push_back(
              grid_case(dtype, {n, n}, dim, {5, 5},
                        {{Axis::causal, causal}, {Axis::data, static_cast<int>(Data::scaled)}}));
          cases.back().shape.batch = 2;
          cases.back().prepare = scale_v;
        }
  return with_seeds(std::move(cases));
}

// They scale fixed-point sums; dot products of bf16 pairs and atomic float sums flush values below
// 2^-126.
template <int kExponent>
void scale_dout(Lab& lab) {
  lab.test_case.set_dout_scale(std::ldexp(1.0, kExponent));
}
std::vector<GridCase> gradients_of_any_size() {
  constexpr void (*kWide[])(Lab&) = {scale_dout<-110>, scale_dout<100>};
  constexpr void (*kF16[])(Lab&) = {scale_dout<-12>, scale_dout<6>};
  std::vector<GridCase> cases;
  const auto add = [&](DType dtype, void (*scale)(Lab&)) {
    for (const int causal : {0, 1})
      for (const std::int64_t dim :
           {64, 128, 256}) {  // three dims, so that each is deterministic in some cases
        cases.push_back(grid_case(dtype, {130, 200}, dim, {4, 2}, {{Axis::causal, causal}}));
        cases.back().prepare = scale;
      }
  };
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const auto scale : kWide) add(dtype, scale);
  for (const auto scale : {scale_dout<-118>, scale_dout<-122>, scale_dout<-126>})
    add(DType::bf16, scale);
  for (const auto scale : kF16) add(DType::f16, scale);
  return with_seeds(std::move(cases));
}

// ---- B2k: two keys per row, so that the two dS of a row sum to 0

void scale_q_window_of_two(Lab& lab) {
  const headrace_tensor& q = lab.tensors().q;
  const auto dtype = static_cast<DType>(q.dtype);
  for_each_element(q, [&](std::int64_t i) {
    store_from_double(dtype, q.data, i, 5 * load_as_double(dtype, q.data, i));
  });
  lab.test_case.mutable_options().window_left = 1;
}
std::vector<GridCase> two_keys_a_row() {
  std::vector<GridCase> cases;
  for (const DType dtype : kDtypes)
    for (const std::int64_t dim : {64, 128, 256})
      for (const int softcap : {0, 1}) {
        cases.push_back(
            grid_case(dtype, {2, 256}, dim, {4, 4}, {{Axis::causal, 1}, {Axis::softcap, softcap}}));
        cases.back().shape.batch = 16;
        cases.back().prepare = scale_q_window_of_two;
      }
  return with_seeds(std::move(cases));
}

// ---- B3, B3m: ragged batches with one key per sequence, or loose bounds

GridCase ragged_case(DType dtype, std::int64_t dim, int causal,
                     const std::vector<std::int32_t>& lengths_q,
                     const std::vector<std::int32_t>& lengths_k) {
  GridCase one = grid_case(dtype, {0, 0}, dim, {5, 5}, {{Axis::causal, causal}, {Axis::ragged, 1}});
  Shape& s = one.shape;
  s.is_ragged = true;
  s.batch = static_cast<std::int64_t>(lengths_q.size());
  s.lengths_q = lengths_q;
  s.lengths_k = lengths_k;
  s.seqlen_q = *std::max_element(lengths_q.begin(), lengths_q.end());
  s.seqlen_k = *std::max_element(lengths_k.begin(), lengths_k.end());
  s.total_q = std::accumulate(lengths_q.begin(), lengths_q.end(), std::int64_t{0});
  s.total_k = std::accumulate(lengths_k.begin(), lengths_k.end(), std::int64_t{0});
  return one;
}

std::vector<GridCase> one_key_each() {
  std::vector<GridCase> cases;
  for (const DType dtype : k16Bit)
    for (const std::int64_t dim : {16, 32, 64})
      for (const int causal : {0, 1, 2}) {
        cases.push_back(ragged_case(dtype, dim, causal, {76, 34, 146}, {1, 1, 1}));
        cases.push_back(ragged_case(dtype, dim, causal, {1, 1, 1}, {76, 34, 146}));
      }
  return with_seeds(std::move(cases));
}

void loosen_max_seqlen(Lab& lab) {
  // 2^21 blocks of 128 queries, almost all of them past a sequence's end (negative length).
  lab.test_case.mutable_options().max_seqlen_q = std::int64_t{1} << 28;
  lab.test_case.mutable_options().max_seqlen_k = std::int64_t{1} << 20;
}
std::vector<GridCase> ragged_scores() {
  std::vector<GridCase> cases;
  for (const DType dtype : kDtypes)
    for (const std::int64_t dim : {64, 128, 224, 256})
      for (const int causal : {0, 1}) {
        cases.push_back(ragged_case(dtype, dim, causal, {76, 0, 46, 1}, {90, 33, 5, 130}));
        cases.back().shape.num_heads = 8;
        cases.back().shape.num_kv_heads = 1;
        cases.back().name.values.value[static_cast<std::size_t>(Axis::alibi)] = 1;
        cases.back().name.values.value[static_cast<std::size_t>(Axis::bias)] =
            static_cast<std::uint8_t>(Bias::full);
      }
  return with_seeds(std::move(cases));
}
std::vector<GridCase> loose_bounds() {
  std::vector<GridCase> cases;
  for (const DType dtype : kDtypes)
    for (const std::int64_t dim : {64, 256})
      for (const int causal : {0, 1}) {
        cases.push_back(ragged_case(dtype, dim, causal, {76, 0, 146}, {90, 33, 5}));
        cases.back().prepare = loosen_max_seqlen;
      }
  return with_seeds(std::move(cases));
}

// ---- B5: gradients that must be exactly +0

void narrow_window(Lab& lab) {
  lab.test_case.mutable_options().window_left = 3;
  lab.test_case.mutable_options().window_right = 0;
}
void hide_a_row(Lab& lab) {
  lab.fill(lab.tensors().bias, [](const Index& i) { return i[2] == 1 ? -kInfinity : 0.5; });
}
void infinite_sink(Lab& lab) {
  lab.fill(lab.tensors().sinks, [](const Index& i) { return i[0] == 0 ? kInfinity : -kInfinity; });
}

std::vector<GridCase> nothing_to_give() {
  std::vector<GridCase> cases;
  for (const DType dtype : kDtypes) {
    for (const std::int64_t dim : {40, 64}) {
      const auto add = [&](Lengths2 n, std::initializer_list<Setting> settings,
                           void (*prepare)(Lab&) = nullptr) {
        cases.push_back(grid_case(dtype, n, dim, {4, 2}, settings));
        cases.back().prepare = prepare;
      };
      add({150, 20}, {{Axis::causal, 1}});                    // rows before the first key
      add({150, 20}, {{Axis::causal, 1}, {Axis::sinks, 1}});  //
      add({20, 150}, {{Axis::causal, 2}});                    // keys past the last row
      add({5, 0}, {});                                        // no keys
      add({5, 0}, {{Axis::sinks, 1}, {Axis::lse, 1}});        //
      add({0, 5}, {});                                        // no queries
      add({0, 5}, {{Axis::causal, 1}});                       //
      add({40, 9}, {}, narrow_window);                        // windows that end before key 0
      add({9, 130}, {{Axis::mask, static_cast<int>(Mask::empty_rows)}, {Axis::lse, 1}});
      add({3, 130}, {{Axis::bias, static_cast<int>(Bias::f32_full)}}, hide_a_row);
      add({6, 40}, {{Axis::sinks, 1}, {Axis::causal, 1}}, infinite_sink);
      for (const int causal : {0, 1})
        cases.push_back(ragged_case(dtype, dim, causal, {40, 0, 30, 0}, {50, 60, 0, 0}));
    }
  }
  return with_seeds(std::move(cases));
}

// ---- B6: gradients of lse and of sinks

std::vector<GridCase> lse_and_sinks() {
  std::vector<GridCase> cases;
  for (const Lengths2 n : {Lengths2{64, 96}, Lengths2{113, 203}})
    for (const std::int64_t dim : {64, 128})
      for (const DType dtype : kDtypes)
        for (const Setting& mask : kMasks)
          for (const int lse : {0, 1})
            for (const int sinks : {0, 1})
              cases.push_back(
                  grid_case(dtype, n, dim, {4, 2}, {mask, {Axis::lse, lse}, {Axis::sinks, sinks}}));
  return with_seeds(std::move(cases));
}

constexpr NamedGrid kGrids[] = {
    {"B1", "10 shapes to 2048 x 2048, 11 head dims, plain scores", plain_output_shapes, 14, 20},
    {"B1s", "the same with softcap, ALiBi and dropout", general_output_shapes, 8, 30},
    {"B1d", "every head_dim in steps of 8, and a different head_dim_v", dims_in_eights, 16, 0},
    {"B1g", "groups of 1 to 16 heads", groups, 12, 0},
    {"B2", "q * 5, k * 3, v * 3 at lengths 1 to 128", large_inputs, 20, 0},
    {"B2g", "dout * 2^-110, 2^100; of f16 2^-12, 2^6; of bf16 2^-118, 2^-122, 2^-126",
     gradients_of_any_size, 0, 0},
    {"B2k", "two keys per row, q * 5, with and without softcap", two_keys_a_row, 6, 0},
    {"B3", "ragged batches with one key, or one query, a sequence", one_key_each, 0, 0},
    {"B3m", "ragged batches whose max_seqlen is far above their lengths", loose_bounds, 0, 0},
    {"B3s", "ragged batches with ALiBi and a bias, groups of 8 heads", ragged_scores, 8, 0},
    {"B5", "rows, keys and sequences without contribution: exactly +0", nothing_to_give, 0, 0,
     true},
    {"B6", "the gradient of lse used and unused, sinks", lse_and_sinks, 12, 0},
};

// The features of a case besides dtype and mask.
std::uint64_t features_of(AxisValues values) {
  for (const Axis axis : {Axis::dtype, Axis::causal, Axis::window})
    values.value[static_cast<std::size_t>(axis)] = 0;
  return code_of(values);
}

}  // namespace

std::span<const NamedGrid> backward_grids() { return kGrids; }

std::vector<std::size_t> sample_of(const NamedGrid& grid, const std::vector<GridCase>& cases,
                                   Tier tier) {
  constexpr double kMostSmall = 2e7, kMostFull = 6e8;
  std::vector<std::size_t> order(cases.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const std::size_t wanted = tier == Tier::small  ? grid.num_small
                             : tier == Tier::full ? grid.num_full
                                                  : 0;
  if (wanted == 0) return order;
  Random random(1);
  for (std::size_t i = order.size(); i > 1; --i)
    std::swap(order[i - 1],
              order[static_cast<std::size_t>(random.between(0, static_cast<std::int64_t>(i) - 1))]);
  std::erase_if(order, [&](std::size_t i) {
    return cost_of(cases[i].shape) > (tier == Tier::small ? kMostSmall : kMostFull);
  });
  // Among the remaining cases, prefer the least covered lengths, then the least covered features.
  std::vector<std::size_t> chosen;
  std::map<std::pair<std::int64_t, std::int64_t>, int> of_lengths;
  std::map<std::uint64_t, int> of_features;
  const auto taken = [&](std::size_t i) {
    const Shape& s = cases[i].shape;
    return std::pair<int&, int&>(of_lengths[{s.seqlen_q, s.seqlen_k}],
                                 of_features[features_of(cases[i].name.values)]);
  };
  while (!order.empty() && chosen.size() < wanted) {
    const auto next = std::min_element(order.begin(), order.end(),
                                       [&](auto a, auto b) { return taken(a) < taken(b); });
    ++taken(*next).first;
    ++taken(*next).second;
    chosen.push_back(*next);
    order.erase(next);
  }
  return chosen;
}

double cost_of(const Shape& s) {
  std::int64_t pairs = s.batch * s.seqlen_q * s.seqlen_k;
  if (s.is_ragged)
    pairs = std::inner_product(s.lengths_q.begin(), s.lengths_q.end(), s.lengths_k.begin(),
                               std::int64_t{0});
  return static_cast<double>(pairs * s.num_heads * (s.head_dim + s.head_dim_v));
}

std::string text_of(const GridCase& one) {
  const Shape& s = one.shape;
  std::string text =
      format_text("{} {}x{}, batch {}, {}:{} heads of {}:{}", dtype_name(s.dtype), s.seqlen_q,
                  s.seqlen_k, s.batch, s.num_heads, s.num_kv_heads, s.head_dim, s.head_dim_v);
  for (const AxisInfo& axis : axes()) {
    const int value = one.name.values[axis.axis];
    if (axis.axis > Axis::group && value != 0)
      text += format_text(" {}={}", axis.name, axis.values[static_cast<std::size_t>(value)]);
  }
  return text;
}

}  // namespace headrace::testing
