// Problems that a caller fills: each field of each kind of problem takes values out of its range or
// against other fields.
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "attention/validate.h"
#include "tests/support/golden_texts.h"

namespace headrace {
namespace {

struct Kind {
  const char* name;
  Problem problem;
};

std::vector<Kind> kinds() {
  std::vector<Kind> all = {{"dense", default_problem()}};
  all.reserve(8);  // references to its elements stay valid
  const auto add = [&all](const char* name) -> Problem& {
    all.push_back({name, default_problem()});
    Problem& p = all.back().problem;
    p.batch = 2;
    p.seqlen_q = 3;
    p.seqlen_k = 8;
    p.head_dim = p.head_dim_v = 4;
    return p;
  };
  Problem& ragged = add("ragged");
  ragged.is_ragged = 1;
  ragged.total_q = 5;
  ragged.total_k = 9;
  Problem& backward = add("backward");
  backward.phase = HEADRACE_BACKWARD;
  backward.has_lse = 1;
  Problem& f64 = add("f64");
  f64.dtype = f64.bias_dtype = HEADRACE_F64;
  Problem& paged = add("paged");
  paged.has_seqused_k = 1;
  paged.page_size = 16;
  paged.num_pages = 6;
  paged.max_pages = 3;
  paged.max_shared_prefix = 2;
  Problem& codes = add("codes");
  codes.k_dtype = HEADRACE_I8;
  codes.v_dtype = HEADRACE_I4X2;
  codes.k_scaling = HEADRACE_SCALING_PER_KEY;
  codes.v_scaling = HEADRACE_SCALING_PER_SEQUENCE;
  Problem& recent = add("recent");
  recent = paged;
  recent.k_dtype = recent.v_dtype = HEADRACE_I8;
  recent.k_scaling = recent.v_scaling = HEADRACE_SCALING_PER_KEY;
  recent.causal = HEADRACE_CAUSAL_BOTTOM_RIGHT;
  recent.recent_group = 16;
  recent.num_recent_pages = 4;
  recent.max_recent = 2;
  return all;
}

using Field = std::variant<std::int64_t Problem::*, std::int32_t Problem::*, double Problem::*>;

std::vector<std::pair<std::string, Field>> fields() {
#define FIELD(name) \
  { #name, &Problem::name }
  return {
      FIELD(batch),         FIELD(seqlen_q),         FIELD(seqlen_k),     FIELD(total_q),
      FIELD(total_k),       FIELD(num_heads),        FIELD(num_kv_heads), FIELD(head_dim),
      FIELD(head_dim_v),    FIELD(window_left),      FIELD(window_right), FIELD(softmax_scale),
      FIELD(softcap),       FIELD(dropout_p),        FIELD(dtype),        FIELD(bias_dtype),
      FIELD(causal),        FIELD(num_splits),       FIELD(is_ragged),    FIELD(has_tree_mask),
      FIELD(has_sinks),     FIELD(has_lse),          FIELD(has_probs),    FIELD(alignment),
      FIELD(phase),         FIELD(has_dlse),         FIELD(has_dbias),    FIELD(has_dsinks),
      FIELD(has_seqused_k), FIELD(page_size),        FIELD(num_pages),    FIELD(max_pages),
      FIELD(k_dtype),       FIELD(v_dtype),          FIELD(k_scaling),    FIELD(v_scaling),
      FIELD(recent_group),  FIELD(num_recent_pages), FIELD(max_recent),   FIELD(max_shared_prefix)};
#undef FIELD
}

TEST(CheckProblem, ErrorsInFull) {
  testing::GoldenTexts texts("attention.txt");
  std::set<std::string> seen;  // by other kinds and fields
  const double values[] = {-2, 0, 1, 2, 3, 5, 577, 0x1p40, 1e300, std::nan("")};
  for (const Kind& kind : kinds()) {
    const Result<Problem> good = check_problem(kind.problem);
    ASSERT_TRUE(good.ok()) << kind.name << ": " << good.failure().message;
    for (const auto& [name, field] : fields())
      for (const double value : values) {
        Problem p = kind.problem;
        const auto set = [&](auto member) {
          using Number = std::remove_reference_t<decltype(p.*member)>;
          if (std::is_same_v<Number, double> ||
              std::abs(value) < 0x1p31 + (sizeof(Number) == 8 ? 0x1p50 : 0))
            p.*member = static_cast<Number>(value);
        };
        std::visit(set, field);
        const Result<Problem> checked = check_problem(p);
        if (checked.ok() || !seen.insert(checked.failure().message).second) continue;
        texts.add(static_cast<int>(checked.failure().code),
                  std::string(kind.name) + ' ' + name + " | " + checked.failure().message);
      }
  }
}

}  // namespace
}  // namespace headrace
