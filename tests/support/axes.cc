#include "support/axes.h"

#include <cstdlib>
#include <cstring>
#include <utility>

#include "core/features.h"
#include "support/guarded_buffer.h"

namespace headrace::testing {
namespace {

constexpr const char* kDtype[] = {"f32", "f16", "bf16"};
constexpr const char* kHeadDim[] = {"64",  "1",   "4",   "8",   "16",  "21",  "40",
                                    "59",  "72",  "80",  "96",  "111", "128", "160",
                                    "192", "203", "224", "256", "288", "512", "576"};
constexpr const char* kDimV[] = {"same", "smaller", "larger"};
constexpr const char* kLengths[] = {"decode", "short",  "square", "q<k",       "q>k",
                                    "zero_q", "zero_k", "one",    "tile_edge", "long_keys"};
constexpr const char* kBatch[] = {"1", "2", "3", "5"};
constexpr const char* kGroup[] = {"1", "2", "3", "4", "7", "8"};
constexpr const char* kCausal[] = {"none", "bottom_right", "top_left"};
constexpr const char* kWindow[] = {"none", "left", "right", "both", "zero"};
constexpr const char* kSoftcap[] = {"none", "30", "1.5"};
constexpr const char* kScale[] = {"default", "custom", "negative"};
constexpr const char* kAlibi[] = {"none", "[h]", "[b,h]"};
constexpr const char* kBias[] = {"none", "f32",   "f32:b", "f32:h", "f32:q", "f32:k",
                                 "own",  "own:b", "own:h", "own:q", "own:k"};
constexpr const char* kMask[] = {"none", "full", "b", "h", "q", "k", "empty_rows"};
constexpr const char* kNoYes[] = {"no", "yes"};
constexpr const char* kDropout[] = {"0", "0.17"};
constexpr const char* kRagged[] = {"dense", "random", "full", "zeros"};
constexpr const char* kLayout[] = {"bshd",     "bhsd",     "packed",    "padded",
                                   "negative", "expanded", "misaligned"};
constexpr const char* kThreads[] = {"1", "2", "3"};
constexpr const char* kData[] = {"normal", "scaled", "negative", "uniform", "integer"};
constexpr const char* kGuard[] = {"after", "before"};
constexpr const char* kSplits[] = {"auto", "1", "3", "7"};

constexpr AxisInfo kAxes[] = {
    {Axis::dtype, "dtype", kDtype, 0},
    {Axis::head_dim, "head_dim", kHeadDim, 0},
    {Axis::head_dim_v, "head_dim_v", kDimV, 60},
    {Axis::lengths, "lengths", kLengths, 10},
    {Axis::batch, "batch", kBatch, 40},
    {Axis::group, "group", kGroup, 40},
    {Axis::causal, "causal", kCausal, 40},
    {Axis::window, "window", kWindow, 60},
    {Axis::softcap, "softcap", kSoftcap, 70},
    {Axis::scale, "scale", kScale, 80},
    {Axis::alibi, "alibi", kAlibi, 75},
    {Axis::bias, "bias", kBias, 65},
    {Axis::mask, "mask", kMask, 65},
    {Axis::tree_mask, "tree_mask", kNoYes, 85},
    {Axis::sinks, "sinks", kNoYes, 70},
    {Axis::dropout, "dropout", kDropout, 80},
    {Axis::ragged, "ragged", kRagged, 60},
    {Axis::layout, "layout", kLayout, 20},
    {Axis::lse, "lse", kNoYes, 25},
    {Axis::threads, "threads", kThreads, 40},
    {Axis::data, "data", kData, 50},
    {Axis::guard, "guard", kGuard, 60},
    {Axis::strict_rows, "strict_rows", kNoYes, 85},
    {Axis::num_splits, "num_splits", kSplits, 70},
};
static_assert(sizeof kAxes / sizeof kAxes[0] == kNumAxes);

// The axis of a feature that kernels for plain scores lack; it has the feature's name.
bool is_of_scores(const AxisInfo& axis) {
  for (const FeatureInfo& f : kFeatures)
    if (f.kind == FeatureKind::scores && f.name == axis.name) return true;
  return false;
}

bool is_pair(Axis a, Axis b, Axis x, Axis y) { return a == x && b == y; }

}  // namespace

std::span<const AxisInfo> axes() { return kAxes; }

int number_of(Axis axis, int value) {
  return std::atoi(kAxes[static_cast<int>(axis)].values[static_cast<std::size_t>(value)]);
}

const char* impossible_pair(Axis a, int value_a, Axis b, int value_b) {
  if (a > b) {
    std::swap(a, b);
    std::swap(value_a, value_b);
  }
  if (is_pair(a, b, Axis::head_dim, Axis::head_dim_v)) {
    const int dim = number_of(a, value_a);
    if (dim == 1 && value_b == static_cast<int>(DimV::smaller)) return "no dim is below 1";
    if (dim == 576 && value_b == static_cast<int>(DimV::larger)) return "576 is the largest dim";
  }
  if (is_pair(a, b, Axis::lengths, Axis::tree_mask) && value_b == 1) {
    const auto lengths = static_cast<Lengths>(value_a);
    if (lengths == Lengths::q_gt_k || lengths == Lengths::zero_k)
      return "a tree mask needs seqlen_q <= seqlen_k";
  }
  return nullptr;
}

bool is_possible(const AxisValues& values) {
  for (int a = 0; a < kNumAxes; ++a) {
    for (int b = a + 1; b < kNumAxes; ++b) {
      const auto axis_a = static_cast<Axis>(a), axis_b = static_cast<Axis>(b);
      if (impossible_pair(axis_a, values[axis_a], axis_b, values[axis_b]) != nullptr) return false;
    }
  }
  return true;
}

std::uint64_t code_of(const AxisValues& values) {
  std::uint64_t code = 0;
  for (int a = 0; a < kNumAxes; ++a)
    code = code * static_cast<std::uint64_t>(num_values(a)) +
           values.value[static_cast<std::size_t>(a)];
  return code;
}

std::uint64_t case_id(const AxisValues& values, std::uint16_t seed) {
  return code_of(values) * kSeedsPerCase + seed;
}

std::optional<CaseName> case_from_id(std::uint64_t id) {
  CaseName name{};
  name.seed = static_cast<std::uint16_t>(id % kSeedsPerCase);
  std::uint64_t code = id / kSeedsPerCase;
  for (int a = kNumAxes - 1; a >= 0; --a) {
    const auto count = static_cast<std::uint64_t>(num_values(a));
    name.values.value[static_cast<std::size_t>(a)] = static_cast<std::uint8_t>(code % count);
    code /= count;
  }
  if (code != 0 || !is_possible(name.values)) return std::nullopt;
  return name;
}

CaseName random_case(Random& random) {
  CaseName name{};
  do {
    for (int a = 0; a < kNumAxes; ++a) {
      const bool is_plain = random.chance(kAxes[a].plain_percent);
      const auto value = is_plain ? 0 : random.between(0, num_values(a) - 1);
      name.values.value[static_cast<std::size_t>(a)] = static_cast<std::uint8_t>(value);
    }
  } while (!is_possible(name.values));
  name.seed = static_cast<std::uint16_t>(random.next());
  return name;
}

CaseName plain_case(Random& random) {
  constexpr Layout kAligned[] = {Layout::bshd, Layout::bhsd, Layout::packed, Layout::expanded};
  const auto is_taken = [](const AxisValues& values) {
    const auto lengths = values.get<Lengths>(Axis::lengths);
    const int dim = values.number(Axis::head_dim);
    return dim % 8 == 0 && dim <= 256 && lengths != Lengths::zero_q && lengths != Lengths::zero_k &&
           values.get<Scale>(Axis::scale) != Scale::negative;
  };
  CaseName name{};
  do {
    name = random_case(random);
    const auto set = [&](Axis axis, int value) {
      name.values.value[static_cast<std::size_t>(axis)] = static_cast<std::uint8_t>(value);
    };
    set(Axis::head_dim_v, 0);
    for (const AxisInfo& axis : kAxes)
      if (is_of_scores(axis)) set(axis.axis, 0);
    set(Axis::dtype, static_cast<int>(random.between(1, 2)));  // f16, bf16
    set(Axis::layout, static_cast<int>(random.pick(kAligned)));
  } while (!is_taken(name.values));
  return name;
}

namespace {

// Any value of the axis except the first, which is the value of plain cases.
void draw_feature(Random& random, Axis axis, CaseName& name) {
  const int last = num_values(static_cast<int>(axis)) - 1;
  name.values.value[static_cast<std::size_t>(axis)] =
      static_cast<std::uint8_t>(random.between(1, last));
}

}  // namespace

CaseName scored_case(Random& random) {
  CaseName name{};
  do {
    name = plain_case(random);
    const bool has_softcap = random.chance(35);
    const std::int64_t others = has_softcap ? 0 : random.between(1, 3);
    if (has_softcap) draw_feature(random, Axis::softcap, name);
    if ((others & 1) != 0) draw_feature(random, Axis::alibi, name);
    if ((others & 2) != 0) draw_feature(random, Axis::bias, name);
  } while (!is_possible(name.values));
  return name;
}

namespace {

// A bias of the inputs' dtype with 16-byte aligned rows, one per query: loadable by TMA.
void suit_tma(Random& random, CaseName& name) {
  constexpr Bias kKinds[] = {Bias::full, Bias::batch, Bias::head};
  const auto set = [&](Axis axis, int value) {
    name.values.value[static_cast<std::size_t>(axis)] = static_cast<std::uint8_t>(value);
  };
  set(Axis::bias, static_cast<int>(random.pick(kKinds)));
  set(Axis::guard, static_cast<int>(Guard::before));
  name.seed = static_cast<std::uint16_t>(name.seed / 8 * 8 + 6);  // padded_row() of case_data.cc
}

}  // namespace

CaseName one_feature_case(Random& random) {
  constexpr Axis kFeatures[] = {Axis::softcap, Axis::alibi, Axis::bias, Axis::dropout};
  CaseName name{};
  do {
    name = plain_case(random);
    const Axis feature = random.pick(kFeatures);
    draw_feature(random, feature, name);
    if (feature == Axis::bias && random.chance(50)) suit_tma(random, name);
  } while (!is_possible(name.values));
  return name;
}

std::string describe(const AxisValues& values) {
  std::string text;
  for (const AxisInfo& axis : kAxes) {
    const int value = values[axis.axis];
    const bool is_size = axis.axis <= Axis::group;
    if (value == 0 && !is_size) continue;
    text += text.empty() ? "" : " ";
    text += std::string(axis.name) + "=" + axis.values[static_cast<std::size_t>(value)];
  }
  return text;
}

}  // namespace headrace::testing
