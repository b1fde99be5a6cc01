// Plans and their runs: a plan only runs tensors of its own problem with the options it was made
// with, and only the run options may differ.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "headrace/headrace.hpp"

namespace {

using namespace headrace;

// A call with its own memory. Equal shapes have equal values.
struct Call {
  std::string name, base;  // differs from the call `base` in the problem's field `field`
  std::string field;       // empty: `name`
  AttentionTensors t;
  AttentionGradients g;
  AttentionOptions o;
  bool is_backward = false;
  std::vector<std::vector<std::uint64_t>> memory;

  TensorView fresh(DType dtype, std::initializer_list<std::int64_t> shape) {
    const TensorView view(nullptr, dtype, shape);
    const auto count = static_cast<std::size_t>(view.num_elements());
    auto& words =
        memory.emplace_back(count + 8);  // 8 bytes per element, with room for negative strides
    for (std::size_t i = 0; i < count; ++i) put(dtype, words.data(), i);
    return TensorView(words.data(), dtype, shape);
  }
  std::vector<std::vector<std::uint64_t>> run() {
    if (is_backward)
      attention_backward(t, g, o);
    else
      attention_forward(t, o);
    return memory;
  }

 private:
  static void put(DType dtype, void* data, std::size_t i) {
    const auto value = static_cast<float>(std::sin(0.7 * static_cast<double>(i) + 0.3));
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, 4);
    if (dtype == DType::f32) static_cast<float*>(data)[i] = value;
    if (dtype == DType::bf16)
      static_cast<std::uint16_t*>(data)[i] = static_cast<std::uint16_t>(bits >> 16);
    if (dtype == DType::f64) static_cast<double*>(data)[i] = static_cast<double>(value);
    if (dtype == DType::u32) static_cast<std::uint32_t*>(data)[i] = 0xFFFFFFFFu;
    if (dtype == DType::boolean) static_cast<std::uint8_t*>(data)[i] = i % 5 != 1;
  }
};

struct Sizes {
  std::int64_t batch = 2, seqlen_q = 4, seqlen_k = 6, heads = 4, kv_heads = 2, dim = 8, dim_v = 8;
  DType dtype = DType::f32;
};

Call dense(const char* name, const Sizes& s = {}) {
  Call c;
  c.name = name;
  c.base = "plain";
  c.t.q = c.fresh(s.dtype, {s.batch, s.seqlen_q, s.heads, s.dim});
  c.t.k = c.fresh(s.dtype, {s.batch, s.seqlen_k, s.kv_heads, s.dim});
  c.t.v = c.fresh(s.dtype, {s.batch, s.seqlen_k, s.kv_heads, s.dim_v});
  c.t.out = c.fresh(s.dtype, {s.batch, s.seqlen_q, s.heads, s.dim_v});
  return c;
}

// Rows of two sequences: as many as in the dense call, or different.
Call ragged(const char* name, const char* base, std::int32_t total_q = 8,
            std::int32_t total_k = 12) {
  Call c;
  c.name = name;
  c.base = base;
  c.t.q = c.fresh(DType::f32, {total_q, 4, 8});
  c.t.k = c.fresh(DType::f32, {total_k, 2, 8});
  c.t.v = c.fresh(DType::f32, {total_k, 2, 8});
  c.t.out = c.fresh(DType::f32, {total_q, 4, 8});
  for (auto* lengths : {&c.t.cu_seqlens_q, &c.t.cu_seqlens_k}) {
    *lengths = c.fresh(DType::i32, {3});
    auto* values = static_cast<std::int32_t*>(lengths->data);
    const bool is_q = lengths == &c.t.cu_seqlens_q;
    values[1] = is_q ? 4 : 6;
    values[2] = is_q ? total_q : total_k;
  }
  c.o.max_seqlen_q = 5;
  c.o.max_seqlen_k = 7;
  return c;
}

struct Pages {
  std::int64_t page_size = 3, num_pages = 4, max_pages = 2, max_seqlen_k = 0;
};

// The dense call with its keys in pages, six of each sequence at most.
Call paged(const char* name, const char* base, const Pages& pages = {}) {
  Call c = dense(name);
  c.base = base;
  c.t.k = c.fresh(DType::f32, {pages.num_pages, pages.page_size, 2, 8});
  c.t.v = c.fresh(DType::f32, {pages.num_pages, pages.page_size, 2, 8});
  c.t.block_table = c.fresh(DType::i32, {2, pages.max_pages});
  for (std::int64_t i = 0; i < 2 * pages.max_pages; ++i)
    static_cast<std::int32_t*>(c.t.block_table.data)[i] =
        static_cast<std::int32_t>((3 * i + 1) % pages.num_pages);
  c.t.seqused_k = c.fresh(DType::i32, {2});
  static_cast<std::int32_t*>(c.t.seqused_k.data)[0] = 6;
  static_cast<std::int32_t*>(c.t.seqused_k.data)[1] = 5;
  c.o.max_seqlen_k = pages.max_seqlen_k;
  return c;
}

Call backward(const char* name, const char* base, const std::function<void(Call&)>& add = {}) {
  Call c = dense(name);
  c.base = base;
  c.is_backward = true;
  c.t.lse = c.fresh(DType::f32, {2, 4, 4});
  c.t.bias = c.fresh(DType::f32, {1, 4, 4, 6});
  c.t.sinks = c.fresh(DType::f32, {4});
  c.g.dout = c.fresh(DType::f32, {2, 4, 4, 8});
  c.g.dq = c.fresh(DType::f32, {2, 4, 4, 8});
  c.g.dk = c.fresh(DType::f32, {2, 6, 2, 8});
  c.g.dv = c.fresh(DType::f32, {2, 6, 2, 8});
  if (add) add(c);
  return c;
}

// The plain call, and calls that each differ from another in one field of the problem.
std::vector<Call> calls() {
  std::vector<Call> all;
  const auto with = [&all](const char* name, const std::function<void(Call&)>& change) {
    Call c = dense(name);
    change(c);
    all.push_back(std::move(c));
  };
  all.push_back(dense("plain"));
  all.push_back(dense("dtype", {.dtype = DType::bf16}));
  all.push_back(dense("batch", {.batch = 1}));
  all.push_back(dense("seqlen_q", {.seqlen_q = 3}));
  all.push_back(dense("seqlen_k", {.seqlen_k = 5}));
  all.push_back(dense("num_heads", {.heads = 6}));
  all.push_back(dense("num_kv_heads", {.kv_heads = 4}));
  all.push_back(dense("head_dim", {.dim = 12}));
  all.push_back(dense("head_dim_v", {.dim_v = 12}));
  with("has_lse", [](Call& c) { c.t.lse = c.fresh(DType::f32, {2, 4, 4}); });
  with("has_alibi", [](Call& c) { c.t.alibi_slopes = c.fresh(DType::f32, {4}); });
  with("bias_dtype", [](Call& c) { c.t.bias = c.fresh(DType::f32, {1, 4, 4, 6}); });
  with("has_mask", [](Call& c) { c.t.mask = c.fresh(DType::boolean, {1, 1, 4, 6}); });
  with("has_tree_mask", [](Call& c) { c.t.tree_mask = c.fresh(DType::u32, {2, 4, 1}); });
  with("has_sinks", [](Call& c) { c.t.sinks = c.fresh(DType::f32, {4}); });
  with("has_probs", [](Call& c) { c.t.probs = c.fresh(DType::f32, {2, 4, 4, 6}); });
  all.push_back(ragged("is_ragged", "plain"));
  all.push_back(ragged("total_q", "is_ragged", 9));
  all.push_back(ragged("total_k", "is_ragged", 8, 13));
  with("has_seqused_k", [](Call& c) { c.t.seqused_k = c.fresh(DType::i32, {2}); });
  all.push_back(paged("paged", "has_seqused_k"));
  all.back().field = "page_size";
  all.push_back(paged("page_size", "paged", {.page_size = 6, .max_seqlen_k = 6}));
  all.push_back(paged("num_pages", "paged", {.num_pages = 5}));
  all.push_back(paged("max_pages", "paged", {.max_pages = 3, .max_seqlen_k = 6}));
  all.push_back(backward("phase", "plain"));
  const auto with_gradient = [&all](const char* name, const std::function<void(Call&)>& add) {
    all.push_back(backward(name, "phase", add));
  };
  with_gradient("has_dlse", [](Call& c) { c.g.dlse = c.fresh(DType::f32, {2, 4, 4}); });
  with_gradient("has_dbias", [](Call& c) { c.g.dbias = c.fresh(DType::f32, {1, 4, 4, 6}); });
  with_gradient("has_dsinks", [](Call& c) { c.g.dsinks = c.fresh(DType::f32, {4}); });
  return all;
}

Plan plan_of(const Call& c) {
  const Problem problem = c.is_backward ? Problem(c.t, c.g, c.o) : Problem(c.t, c.o);
  return plan_attention(problem, cpu_info());
}

// Empty, or the error of the run.
std::string run_of(const Plan& plan, Call& c, const RunOptions& options = {}) {
  std::vector<char> workspace(plan.workspace_bytes());
  try {
    if (c.is_backward)
      plan.run_backward(c.t, c.g, {workspace.data(), workspace.size()}, options);
    else
      plan.run(c.t, {workspace.data(), workspace.size()}, options);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), HEADRACE_INVALID_ARGUMENT);
    return error.what();
  }
  return "";
}

// Recent keys need causal, which a run takes from its plan.
TEST(Plans, RunQueriesOverCodesAndRecentKeys) {
  Call c = paged("codes", "plain", {.page_size = 16, .num_pages = 4, .max_pages = 2});
  static_cast<std::int32_t*>(c.t.seqused_k.data)[0] = 20;
  static_cast<std::int32_t*>(c.t.seqused_k.data)[1] = 17;
  c.t.k = c.fresh(DType::i8, {4, 16, 2, 8});
  std::memset(c.t.k.data, 3, 4 * 16 * 2 * 8);
  headrace_quantised_kv codes;
  ASSERT_EQ(headrace_quantised_kv_init(&codes), HEADRACE_OK);
  codes.k_scale = c.fresh(DType::f32, {4, 16, 2});
  codes.k_recent = c.fresh(DType::f32, {4, 16, 2, 8});
  codes.v_recent = c.fresh(DType::f32, {4, 16, 2, 8});
  const TensorView table = c.fresh(DType::i32, {2, 2});
  for (std::int32_t i = 0; i < 4; ++i) static_cast<std::int32_t*>(table.data)[i] = 3 - i;
  codes.recent_table = table;
  c.t.quantised = &codes;
  c.o.causal = Causal::bottom_right;
  const Plan plan = plan_of(c);
  EXPECT_EQ(run_of(plan, c), "");
  const auto ran = c.memory;
  EXPECT_EQ(c.run(), ran);
  c.t.quantised = nullptr;
  EXPECT_EQ(run_of(plan, c).find("k_scale: not given"), 0u);
}

// The options that a problem has, each with a value that is not its default.
TEST(Problems, HaveEveryOptionOfTheCall) {
  float data[16] = {};
  const TensorView view(data, DType::f32, {1, 4, 1, 4});
  headrace_attention_tensors tensors;
  ASSERT_EQ(headrace_attention_tensors_init(&tensors), HEADRACE_OK);
  tensors.q = tensors.k = tensors.v = view;
  float out[16] = {};
  tensors.out = TensorView(out, DType::f32, {1, 4, 1, 4});
  using Options = headrace_attention_options;
  const auto problem_of = [&](const Options& options) {
    headrace_problem p;
    EXPECT_EQ(headrace_problem_init(&p), HEADRACE_OK);
    EXPECT_EQ(headrace_attention_problem(&tensors, &options, &p), HEADRACE_OK)
        << headrace_last_error();
    return p;
  };
  const auto same = [](auto Options::*option, auto headrace_problem::*field, auto value) {
    return [=](Options& options, headrace_problem& wanted) {
      options.*option = value;
      wanted.*field = value;
    };
  };
  using P = headrace_problem;
  const std::function<void(Options&, P&)> changes[] = {
      same(&Options::softmax_scale, &P::softmax_scale, 0.75),
      same(&Options::softcap, &P::softcap, 2.5),
      same(&Options::dropout_p, &P::dropout_p, 0.25),
      same(&Options::window_left, &P::window_left, std::int64_t{1}),
      same(&Options::window_right, &P::window_right, std::int64_t{2}),
      same(&Options::causal, &P::causal, std::int32_t{HEADRACE_CAUSAL_TOP_LEFT}),
      same(&Options::num_splits, &P::num_splits, std::int32_t{3}),
      same(&Options::strict_fallback, &P::strict_fallback, std::int32_t{1}),
      same(&Options::strict_rows, &P::strict_rows, std::int32_t{1}),
      same(&Options::checked, &P::checked, std::int32_t{1}),
      same(&Options::deterministic, &P::deterministic, std::int32_t{1})};
  for (const auto& change : changes) {
    Options options;
    ASSERT_EQ(headrace_attention_options_init(&options), HEADRACE_OK);
    headrace_problem wanted = problem_of(options);
    change(options, wanted);
    const headrace_problem got = problem_of(options);
    EXPECT_EQ(std::memcmp(&got, &wanted, sizeof got), 0) << "change " << &change - changes;
  }
}

TEST(PlanRun, AcceptsOnlyTensorsOfItsProblem) {
  std::vector<Call> all = calls();
  for (Call& planned : all) {
    const Plan plan = plan_of(planned);
    for (Call& given : all) {
      SCOPED_TRACE("planned " + planned.name + ", given " + given.name);
      const auto before = given.memory;
      const std::string error = run_of(plan, given);
      if (&given == &planned) {
        EXPECT_EQ(error, "");
        const auto by_plan = given.memory;
        given.memory = before;
        // The assignment keeps the memory that the views point to.
        EXPECT_EQ(by_plan, given.run());
        continue;
      }
      EXPECT_NE(error, "");
      EXPECT_EQ(given.memory, before) << "something was written";
      // The error names the field; a different phase is checked first.
      if (planned.is_backward != given.is_backward) {
        EXPECT_EQ(error.find("plan: it was made for phase="), 0u) << error;
      } else if (given.base == planned.name || planned.base == given.name) {
        const Call& changed = given.base == planned.name ? given : planned;
        const std::string& field = changed.field.empty() ? changed.name : changed.field;
        EXPECT_NE(error.find(field + "="), std::string::npos) << error;
      }
    }
  }
}

// Bias and mask have max_seqlen_k columns, even if there are fewer keys.
TEST(PlanRun, KeepsTheColumnCountOfRaggedScores) {
  for (const std::int64_t columns : {7, 12, 20})
    for (const bool has_bias : {false, true}) {
      Call at_once, by_plan;
      for (Call* c : {&at_once, &by_plan}) {
        *c = ragged("scores", "");
        c->o.max_seqlen_k = columns;
        TensorView& scores = has_bias ? c->t.bias : c->t.mask;
        scores = c->fresh(has_bias ? DType::f32 : DType::boolean, {1, 8, columns});
      }
      const auto expected = at_once.run();
      EXPECT_EQ(run_of(plan_of(by_plan), by_plan), "");
      EXPECT_EQ(by_plan.memory, expected);
    }
}

TEST(PlanRun, AcceptsOperandsWithThePlannedAlignment) {
  for (const auto tensor :
       {&AttentionTensors::q, &AttentionTensors::k, &AttentionTensors::v, &AttentionTensors::out}) {
    Call whole = dense("whole"), odd = dense("odd"), reversed = dense("reversed");
    (odd.t.*tensor).data = static_cast<float*>((odd.t.*tensor).data) + 1;
    TensorView& view = reversed.t.*tensor;
    view = view.slice(1, view.shape[1] - 1, -1, -1).value();
    const Plan plan = plan_of(whole);
    EXPECT_NE(run_of(plan, odd).find("aligned to only 4 bytes"), std::string::npos);
    EXPECT_NE(run_of(plan, reversed).find("has a negative stride"), std::string::npos);
    EXPECT_EQ(run_of(plan_of(odd), whole), "");
    EXPECT_EQ(run_of(plan_of(reversed), whole), "");
  }
}

// ---- options ----

struct Option {
  const char* name;
  std::size_t bytes;
  std::function<void(AttentionOptions&)> set;
  bool changes_results = true;  // false: results may change or not
};
#define HEADRACE_OPTION(field, value)                  \
  {                                                    \
#field, sizeof(headrace_attention_options::field), \
        [](AttentionOptions & o) { o.field = value; }  \
  }
#define HEADRACE_SILENT_OPTION(field, value)                 \
  {                                                          \
#field, sizeof(headrace_attention_options::field),       \
        [](AttentionOptions & o) { o.field = value; }, false \
  }

const std::vector<Option> kOptions = {
    HEADRACE_OPTION(softmax_scale, 0.7),
    HEADRACE_OPTION(softcap, 0.5),
    HEADRACE_OPTION(dropout_p, 0.5),
    HEADRACE_OPTION(window_left, 1),
    HEADRACE_OPTION(window_right, 1),
    HEADRACE_OPTION(causal, Causal::top_left),
    HEADRACE_SILENT_OPTION(max_seqlen_q, 8),
    HEADRACE_SILENT_OPTION(max_seqlen_k, 12),
    HEADRACE_SILENT_OPTION(num_splits, 2),
    HEADRACE_SILENT_OPTION(strict_fallback, true),
    HEADRACE_SILENT_OPTION(strict_rows, true),
    HEADRACE_SILENT_OPTION(checked, true),
    HEADRACE_SILENT_OPTION(deterministic, true),
    HEADRACE_SILENT_OPTION(max_shared_prefix, 8),
};

TEST(PlanRun, UsesTheOptionsItWasPlannedWith) {
  // The list has every field of the struct except struct_size and the run options.
  std::size_t bytes = sizeof(headrace_attention_options::struct_size) +
                      sizeof(headrace_run_options) - sizeof(headrace_run_options::struct_size);
  for (const Option& option : kOptions) bytes += option.bytes;
  EXPECT_EQ(bytes, sizeof(headrace_attention_options));
  const std::function<Call()> layouts[] = {
      [] { return dense("dense"); }, [] { return ragged("ragged", ""); },
      [] { return paged("paged", "", {.num_pages = 10, .max_pages = 5}); }};
  for (const auto& layout : layouts) {
    const auto call_with = [&layout](const Option* option) {
      Call c = layout();
      if (option != nullptr) option->set(c.o);
      return c;
    };
    const auto plain = call_with(nullptr).run();
    for (const Option& option : kOptions) {
      const std::string name = option.name, of_layout = layout().name;
      if (name == "max_shared_prefix" && of_layout != "paged") continue;  // refused
      SCOPED_TRACE(name + ", " + of_layout);
      Call at_once = call_with(&option), by_plan = call_with(&option);
      const auto expected = at_once.run();
      EXPECT_TRUE(expected != plain || !option.changes_results);
      EXPECT_EQ(run_of(plan_of(by_plan), by_plan), "");
      EXPECT_EQ(by_plan.memory, expected);
    }
  }
}

struct RunOption {
  const char* name;
  std::uint64_t RunOptions::*of_run;
  std::uint64_t AttentionOptions::*of_call;
};
constexpr RunOption kRunOptions[] = {
    {"dropout_seed", &RunOptions::dropout_seed, &AttentionOptions::dropout_seed},
    {"dropout_offset", &RunOptions::dropout_offset, &AttentionOptions::dropout_offset}};

// Every bit of every option, forward and backward, with enough elements to tell the masks apart.
TEST(PlanRun, EveryBitOfARunOptionHasItsEffect) {
  static_assert(sizeof(headrace_run_options) ==
                sizeof(std::size_t) + std::size(kRunOptions) * sizeof(std::uint64_t));
  for (const bool is_backward : {false, true}) {
    const auto call = [is_backward] {
      Call c = is_backward ? backward("dropout", "") : dense("dropout");
      c.o.dropout_p = 0.5;
      return c;
    };
    const Plan plan = plan_of(call());
    for (const RunOption& option : kRunOptions) {
      std::set<std::vector<std::vector<std::uint64_t>>> results = {call().run()};
      for (int bit = 0; bit < 64; ++bit) {
        SCOPED_TRACE(std::string(option.name) + ", bit " + std::to_string(bit));
        RunOptions options;
        Call at_once = call(), by_plan = call();
        options.*option.of_run = at_once.o.*option.of_call = std::uint64_t{1} << bit;
        ASSERT_EQ(run_of(plan, by_plan, options), "");
        EXPECT_EQ(by_plan.memory, at_once.run());
        EXPECT_TRUE(results.insert(by_plan.memory).second) << "as with another bit";
      }
    }
  }
}

TEST(PlanRun, WithoutRunOptionsTheyAreZero) {
  Call zeros = dense("zeros");
  zeros.o.dropout_p = 0.5;
  const Plan plan = plan_of(zeros);
  ASSERT_EQ(run_of(plan, zeros), "");
  Call null = dense("null");
  std::vector<char> workspace(plan.workspace_bytes());
  const headrace_attention_tensors tensors = null.t.to_c();
  EXPECT_EQ(
      headrace_plan_run(plan.get(), &tensors, nullptr, workspace.data(), workspace.size(), nullptr),
      HEADRACE_OK);
  EXPECT_EQ(null.memory, zeros.memory);
}

}  // namespace
