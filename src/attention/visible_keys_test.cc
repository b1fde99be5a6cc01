// Visible keys of each query, read off the results of every CPU kernel, forward and backward. All
// scores are equal, so each visible key of a row has the same weight, and unit vectors as operands
// expose the weights. Compared with the definition of the masks for every (query, key) pair, also
// with more queries than keys.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "attention/forward.h"
#include "attention/select.h"
#include "attention/validate.h"
#include "core/device.h"
#include "core/dtype.h"
#include "tests/support/random.h"

namespace headrace {
namespace {

struct Lengths {
  std::int64_t q, k;
};

// Shorter and longer than each other and than any kernel's tiles.
constexpr Lengths kLengths[] = {{1, 1},  {1, 9},   {9, 1},    {3, 7},    {7, 3},     {5, 5},
                                {40, 9}, {9, 140}, {100, 70}, {70, 100}, {230, 150}, {110, 260}};
constexpr std::int64_t kHeads = 3;

struct Masking {
  std::int32_t causal;
  std::int64_t left, right;
};

bool is_visible(const Masking& m, const Lengths& n, std::int64_t i, std::int64_t j) {
  const std::int64_t diagonal = m.causal == HEADRACE_CAUSAL_TOP_LEFT ? i : i + n.k - n.q;
  return (m.causal == HEADRACE_CAUSAL_NONE || j <= diagonal) &&
         (m.left < 0 || j >= diagonal - m.left) && (m.right < 0 || j <= diagonal + m.right);
}

std::int64_t num_visible(const Masking& m, const Lengths& n, std::int64_t i) {
  std::int64_t count = 0;
  for (std::int64_t j = 0; j < n.k; ++j) count += is_visible(m, n, i, j);
  return count;
}

// Features that change no weight but select other code for the same masks. `lowest`: every third
// row has the lowest finite bias throughout, which hides no key.
enum class Extra { none, alibi, mask, bias, lowest };
constexpr float kLowest = std::numeric_limits<float>::lowest();

// A call on sequences: one is a dense batch, several a ragged one. Tensors are [total, heads, dim];
// row r of a sequence may be unit vector r.
struct Setup {
  std::vector<Lengths> sequences;
  Masking masking{};
  Extra extra = Extra::none;
  DType dtype = DType::f32;
  bool is_loose = false;  // max_seqlen is far above the lengths
  std::int64_t total_q = 0, total_k = 0, dim = 0;
  std::vector<float> q, k, v, out, lse, dlse, dout, dq, dk, dv, slopes, bias;
  std::vector<std::uint8_t> mask;
  std::vector<std::int32_t> cu_q{0}, cu_k{0};
  std::vector<std::pair<std::vector<float>*, headrace_tensor*>> operands;
  headrace_attention_tensors t{};
  headrace_attention_gradients g{};
  headrace_attention_options o = default_options();

  Setup(std::vector<Lengths> of, const Masking& masks, Extra feature, DType type,
        bool has_loose_bounds)
      : sequences(std::move(of)),
        masking(masks),
        extra(feature),
        dtype(type),
        is_loose(has_loose_bounds) {
    Lengths longest{0, 0};
    for (const Lengths& n : sequences) {
      cu_q.push_back(static_cast<std::int32_t>(total_q += n.q));
      cu_k.push_back(static_cast<std::int32_t>(total_k += n.k));
      longest = {std::max(longest.q, n.q), std::max(longest.k, n.k)};
    }
    dim = std::max(longest.q, longest.k);
    o.causal = masking.causal;
    o.window_left = masking.left;
    o.window_right = masking.right;
    o.softmax_scale = 1;
    o.max_seqlen_q = is_loose ? 100000 : longest.q;
    o.max_seqlen_k = is_loose ? total_k + 60 : longest.k;
    make_tensors();
    make_extra(longest.k);
  }
  Setup(const Setup&) = delete;
  Setup& operator=(const Setup&) = delete;

  bool is_ragged() const { return sequences.size() > 1; }
  float& at(std::vector<float>& x, std::int64_t row, std::int64_t head, std::int64_t c) const {
    return x[static_cast<std::size_t>((row * kHeads + head) * dim + c)];
  }
  void set_units(std::vector<float>& x, const std::vector<std::int32_t>& starts) {
    for (std::size_t s = 0; s < sequences.size(); ++s)
      for (std::int32_t row = starts[s]; row < starts[s + 1]; ++row)
        for (std::int64_t h = 0; h < kHeads; ++h) at(x, row, h, row - starts[s]) = 1;
  }
  // visit(sequence, first row of q, first row of k)
  template <class Visit>
  void for_each_sequence(Visit visit) const {
    for (std::size_t s = 0; s < sequences.size(); ++s) visit(sequences[s], cu_q[s], cu_k[s]);
  }

 private:
  void add_rows(std::vector<float>& x, headrace_tensor& tensor, std::int64_t total) {
    x.assign(static_cast<std::size_t>(total * kHeads * dim), 0.0f);
    tensor = is_ragged() ? TensorView(x.data(), DType::f32, {total, kHeads, dim})
                         : TensorView(x.data(), DType::f32, {1, total, kHeads, dim});
    operands.emplace_back(&x, &tensor);
  }
  void make_tensors() {
    t.struct_size = sizeof t;
    g.struct_size = sizeof g;
    add_rows(q, t.q, total_q);
    add_rows(k, t.k, total_k);
    add_rows(v, t.v, total_k);
    add_rows(out, t.out, total_q);
    add_rows(dout, g.dout, total_q);
    add_rows(dq, g.dq, total_q);
    add_rows(dk, g.dk, total_k);
    add_rows(dv, g.dv, total_k);
    lse.assign(static_cast<std::size_t>(total_q * kHeads), -7.0f);
    t.lse = is_ragged() ? TensorView(lse.data(), DType::f32, {kHeads, total_q})
                        : TensorView(lse.data(), DType::f32, {1, kHeads, total_q});
    if (!is_ragged()) return;
    const auto num_sequences = static_cast<std::int64_t>(sequences.size());
    t.cu_seqlens_q = TensorView(cu_q.data(), DType::i32, {num_sequences + 1});
    t.cu_seqlens_k = TensorView(cu_k.data(), DType::i32, {num_sequences + 1});
  }
  void make_extra(std::int64_t longest_k) {
    const std::int64_t keys = is_ragged() ? o.max_seqlen_k : longest_k;
    const auto scores = [&](void* data, DType score_dtype) {
      return is_ragged() ? TensorView(data, score_dtype, {1, total_q, keys})
                         : TensorView(data, score_dtype, {1, 1, total_q, keys});
    };
    const auto count = static_cast<std::size_t>(total_q * keys);
    slopes.assign(kHeads, 0.0f);
    if (extra == Extra::alibi) t.alibi_slopes = TensorView(slopes.data(), DType::f32, {kHeads});
    if (extra == Extra::mask) mask.assign(count, 1);
    if (extra == Extra::mask) t.mask = scores(mask.data(), DType::boolean);
    if (extra != Extra::bias && extra != Extra::lowest) return;
    bias.assign(count, 0.0f);
    t.bias = scores(bias.data(), DType::f32);
    for (std::int64_t row = 0; row < total_q && extra == Extra::lowest; row += 3)
      std::fill_n(bias.begin() + row * keys, keys, kLowest);
  }
};

// Converts the operands to bf16 for its lifetime and back on destruction.
class InBf16 {
 public:
  explicit InBf16(Setup& s) : setup_(s) {
    if (s.dtype != DType::bf16) return;
    for (const auto& [values, tensor] : s.operands) {
      auto& bits = bits_.emplace_back(values->size());
      for (std::size_t i = 0; i < bits.size(); ++i)
        store_from_double(DType::bf16, bits.data(), static_cast<std::int64_t>(i), (*values)[i]);
      tensor->data = bits.data();
      tensor->dtype = HEADRACE_BF16;
    }
  }
  InBf16(const InBf16&) = delete;
  InBf16& operator=(const InBf16&) = delete;
  ~InBf16() {
    for (std::size_t n = 0; n < bits_.size(); ++n) {
      const auto& [values, tensor] = setup_.operands[n];
      for (std::size_t i = 0; i < values->size(); ++i)
        (*values)[i] = static_cast<float>(
            load_as_double(DType::bf16, bits_[n].data(), static_cast<std::int64_t>(i)));
      tensor->data = values->data();
      tensor->dtype = HEADRACE_F32;
    }
  }

 private:
  Setup& setup_;
  std::vector<std::vector<std::uint16_t>> bits_;
};

// Plans, validates and runs a call with a given kernel.
void run_kernel(const Kernel& kernel, Setup& s, std::int32_t phase) {
  const bool is_backward = phase == HEADRACE_BACKWARD;
  const InBf16 in_bf16(s);
  const Result<Problem> problem =
      is_backward ? validate_backward(s.t, s.g, s.o) : validate(s.t, s.o);
  ASSERT_TRUE(problem.ok()) << problem.failure().message;
  const Result<Plan> plan =
      plan_attention(problem.value(), cpu_info().value(), std::span(&kernel, 1));
  ASSERT_TRUE(plan.ok()) << plan.failure().message;
  std::vector<char> workspace(plan.value().schedule.workspace_bytes);
  const Problem& p = plan.value().problem;
  const Status bad =
      run(plan.value(), is_backward ? make_backward_args(p, s.t, s.g, s.o) : make_args(p, s.t, s.o),
          {workspace.data(), workspace.size()}, nullptr);
  ASSERT_FALSE(bad) << bad->message;
}

// Expects element j of row i of `x` to be `weight` / (number of visible keys) if query i sees key
// j, else 0. `is_of_keys`: element i of row j.
void expect_weights(const Setup& s, std::vector<float>& x, bool is_of_keys, const char* what) {
  // P and the result are rounded; 4 bf16 ulps.
  const double tolerance = s.dtype == DType::bf16 ? 0x1p-6 : 1e-5;
  s.for_each_sequence([&](const Lengths& n, std::int64_t first_q, std::int64_t first_k) {
    for (std::int64_t i = 0; i < n.q; ++i) {
      const std::int64_t count = num_visible(s.masking, n, i);
      for (std::int64_t j = 0; j < n.k; ++j)
        for (std::int64_t h = 0; h < kHeads; ++h) {
          const float got = is_of_keys ? s.at(x, first_k + j, h, i) : s.at(x, first_q + i, h, j);
          const double expected =
              is_visible(s.masking, n, i, j) ? 1.0 / static_cast<double>(count) : 0;
          ASSERT_NEAR(got, expected, tolerance * expected)
              << what << " of query " << i << " of " << n.q << ", key " << j << " of " << n.k
              << ", head " << h;
        }
    }
  });
}

void expect_forward(const Kernel& kernel, Setup& s) {
  s.set_units(s.v, s.cu_k);
  ASSERT_NO_FATAL_FAILURE(run_kernel(kernel, s, HEADRACE_FORWARD));
  ASSERT_NO_FATAL_FAILURE(expect_weights(s, s.out, false, "out"));
  s.for_each_sequence([&](const Lengths& n, std::int64_t first_q, std::int64_t) {
    for (std::int64_t i = 0; i < n.q; ++i) {
      const float got = s.lse[static_cast<std::size_t>(first_q + i)];
      const std::int64_t count = num_visible(s.masking, n, i);
      if (count == 0)
        ASSERT_EQ(got, -std::numeric_limits<float>::infinity());
      else if (s.extra == Extra::lowest && (first_q + i) % 3 == 0)
        ASSERT_EQ(got, kLowest);
      else
        ASSERT_NEAR(got, std::log(static_cast<double>(count)), 1e-5);
    }
  });
}

// With V = 0 and dlse = 1, dS = P. With unit vectors as K or Q (the other is 0, so that all scores
// are 0), dQ and dK are dS. With unit vectors as dout, dV is P.
void expect_backward(const Kernel& kernel, Setup& s, bool has_unit_keys) {
  s.set_units(s.dout, s.cu_q);
  s.dlse.assign(s.lse.size(), 1.0f);
  s.g.dlse = s.t.lse;
  s.g.dlse.data = s.dlse.data();
  s.set_units(has_unit_keys ? s.k : s.q, has_unit_keys ? s.cu_k : s.cu_q);
  s.for_each_sequence([&](const Lengths& n, std::int64_t first_q, std::int64_t) {
    for (std::int64_t i = 0; i < n.q; ++i)
      for (std::int64_t h = 0; h < kHeads; ++h)
        s.lse[static_cast<std::size_t>(h * s.total_q + first_q + i)] =
            static_cast<float>(std::log(static_cast<double>(num_visible(s.masking, n, i))));
  });
  ASSERT_NO_FATAL_FAILURE(run_kernel(kernel, s, HEADRACE_BACKWARD));
  ASSERT_NO_FATAL_FAILURE(expect_weights(s, s.dv, true, "dv"));
  if (has_unit_keys)
    ASSERT_NO_FATAL_FAILURE(expect_weights(s, s.dq, false, "dq"));
  else
    ASSERT_NO_FATAL_FAILURE(expect_weights(s, s.dk, true, "dk"));
}

// Runs every kernel of this machine; the slow reference only on short sequences.
void expect_all_kernels(const std::vector<Lengths>& sequences, const Masking& masking,
                        testing::Random& random) {
  const bool is_short =
      std::all_of(sequences.begin(), sequences.end(), [](auto& n) { return n.q * n.k < 100; });
  constexpr Extra kExtras[] = {Extra::none, Extra::none, Extra::alibi,
                               Extra::mask, Extra::bias, Extra::lowest};
  const Extra extra = random.pick(kExtras);
  const DType dtype = random.chance(50) ? DType::bf16 : DType::f32;
  const bool is_loose = sequences.size() > 1 && random.chance(50);
  for (const std::int32_t phase : {HEADRACE_FORWARD, HEADRACE_BACKWARD}) {
    // An lse near the lowest float has no digits left for the number of keys.
    if (phase == HEADRACE_BACKWARD && extra == Extra::lowest) continue;
    for (const Kernel& kernel : kernels_of(HEADRACE_CPU, phase)) {
      Setup probe(sequences, masking, extra, dtype, is_loose);
      const InBf16 in_bf16(probe);
      const Result<Problem> problem = validate(probe.t, probe.o);
      ASSERT_TRUE(problem.ok()) << problem.failure().message;
      if (!kernel.refuses(problem.value(), cpu_info().value()).empty()) continue;
      if (kernel.name == "cpu_reference" && !is_short) continue;
      SCOPED_TRACE(std::string(kernel.name));
      SCOPED_TRACE(format_text("{}, causal {}, window {}/{}, extra {}, loose {}", dtype_name(dtype),
                               masking.causal, masking.left, masking.right, static_cast<int>(extra),
                               is_loose));
      Setup setup(sequences, masking, extra, dtype, is_loose);
      if (phase == HEADRACE_FORWARD) {
        ASSERT_NO_FATAL_FAILURE(expect_forward(kernel, setup));
        continue;
      }
      ASSERT_NO_FATAL_FAILURE(expect_backward(kernel, setup, true));
      Setup other(sequences, masking, extra, dtype, is_loose);
      ASSERT_NO_FATAL_FAILURE(expect_backward(kernel, other, false));
    }
  }
}

// Windows of 0 or 1 keys, ending at an edge of the lengths, or of any size.
std::int64_t draw_window(testing::Random& random, const Lengths& n) {
  const std::int64_t edges[] = {-1, -1, 0, 1, n.q - 1, n.q, n.k - 1, n.k, n.q + n.k - 1, n.q + n.k};
  return random.chance(30) ? random.between(0, n.q + n.k) : random.pick(edges);
}

Masking draw_masking(testing::Random& random, const Lengths& n) {
  return {static_cast<std::int32_t>(random.between(0, 2)), draw_window(random, n),
          draw_window(random, n)};
}

TEST(VisibleKeys, OfDenseBatchesMatchTheDefinition) {
  testing::Random random(1);
  for (const Lengths& n : kLengths) {
    const int num_draws = n.q * n.k < 100 ? 60 : 12;
    for (int i = 0; i < num_draws; ++i)
      ASSERT_NO_FATAL_FAILURE(expect_all_kernels({n}, draw_masking(random, n), random));
  }
}

TEST(VisibleKeys, OfRaggedBatchesMatchEachSequence) {
  testing::Random random(2);
  for (int i = 0; i < 24; ++i) {
    std::vector<Lengths> sequences;
    const bool is_short = i % 2 == 0;
    while (sequences.size() < 4) {
      const Lengths n = random.pick(kLengths);
      if (!is_short || n.q * n.k < 100) sequences.push_back(n);
    }
    const Lengths n = sequences[static_cast<std::size_t>(random.between(0, 3))];
    ASSERT_NO_FATAL_FAILURE(expect_all_kernels(sequences, draw_masking(random, n), random));
  }
}

}  // namespace
}  // namespace headrace
