// Every rule of every tensor of a call: dense and ragged, forward and backward, keys in pages, and
// quantised keys.
#include "tests/support/every_rule.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "attention/validate_fixture.h"
#include "tests/support/quantised_call.h"

namespace headrace {
namespace {

using testing::Role;

// The forward and the backward, with all tensors that they may have.
struct WholeCall : Call {
  headrace_attention_gradients g{};

  WholeCall(bool is_ragged, bool is_backward)
      : Call(is_ragged ? Call::ragged() : Call::dense()), is_backward_(is_backward) {
    if (is_ragged) {
      t.lse = fresh(DType::f32, {kHeads, 10});
      t.bias = fresh(DType::f32, {kHeads, 10, 7});
      if (!is_backward) t.mask = fresh(DType::boolean, {kHeads, 10, 7});
    } else {
      t.lse = fresh(DType::f32, {kBatch, kHeads, kSeqlenQ});
      t.bias = fresh(DType::f32, {kBatch, kHeads, kSeqlenQ, kSeqlenK});
      t.mask = fresh(DType::boolean, {kBatch, kHeads, kSeqlenQ, kSeqlenK});
    }
    t.alibi_slopes = fresh(DType::f32, {kHeads});
    t.sinks = fresh(DType::f32, {kHeads});
    if (is_backward) g = gradients();
  }
  WholeCall(const WholeCall&) = delete;

  std::vector<Role> roles() {
    std::vector<Role> all = {
        {"q", &t.q, true, false, true},        {"k", &t.k, true, false, true},
        {"v", &t.v, true, false, true},        {"out", &t.out, true, !is_backward_},
        {"lse", &t.lse, false, !is_backward_}, {"bias", &t.bias, false, false, is_backward_},
        {"alibi_slopes", &t.alibi_slopes},     {"sinks", &t.sinks}};
    if (t.mask.rank != 0) all.push_back({"mask", &t.mask});
    if (t.cu_seqlens_q.rank != 0) {
      all.push_back({"cu_seqlens_q", &t.cu_seqlens_q, false, false, true});
      all.push_back({"cu_seqlens_k", &t.cu_seqlens_k});
    }
    if (!is_backward_) return all;
    all.push_back({"dout", &g.dout, true});
    all.push_back({"dq", &g.dq, true, true});
    all.push_back({"dk", &g.dk, true, true});
    all.push_back({"dv", &g.dv, true, true});
    all.push_back({"dlse", &g.dlse});
    all.push_back({"dbias", &g.dbias, false, true});
    all.push_back({"dsinks", &g.dsinks, false, true});
    return all;
  }
  Status run() const {
    if (!is_backward_) return check();
    const Result<Problem> problem = validate_backward(t, g, o);
    return problem.ok() ? Status() : Status(problem.failure());
  }
  std::vector<double> results() const { return memory; }

 private:
  bool is_backward_;
};

TEST(EveryRule, OfTheForwardAndTheBackward) {
  for (const bool is_ragged : {false, true})
    for (const bool is_backward : {false, true}) {
      SCOPED_TRACE(std::string(is_ragged ? "ragged " : "dense ") +
                   (is_backward ? "backward" : "forward"));
      testing::expect_every_rule(
          [&] { return std::make_unique<WholeCall>(is_ragged, is_backward); });
    }
}

// Ragged queries over pages of codes, with recent pages.
struct CodesCall {
  explicit CodesCall(const testing::QuantisedCase& c) : call(c), t(call.tensors()) {
    x = *t.quantised;
    t.quantised = &x;
  }
  std::vector<Role> roles() {
    const bool has_words = has_zero_points(static_cast<DType>(t.k.dtype));
    std::vector<Role> all = {
        {"q", &t.q, true, false, true},
        {"k", &t.k, true, false, true},
        {"v", &t.v, true, false, true},
        {"out", &t.out, true, true},
        {"lse", &t.lse, false, true},
        {"cu_seqlens_q", &t.cu_seqlens_q, false, false, true},
        {"block_table", &t.block_table, true, false, true, t.page_indptr.rank == 0 ? 1 : 0},
        {"seqused_k", &t.seqused_k},
        {"k_scale", &x.k_scale, has_words},
        {"v_scale", &x.v_scale, has_words}};
    if (t.page_indptr.rank != 0) all.push_back({"page_indptr", &t.page_indptr, true});
    if (x.k_recent.rank == 0) return all;
    all.push_back({"k_recent", &x.k_recent, true, false, true});
    all.push_back({"v_recent", &x.v_recent, true, false, true});
    all.push_back({"recent_table", &x.recent_table, false, false, false, 1});
    return all;
  }
  Status run() {
    const Result<Problem> problem = validate(t, call.attention_options());
    return problem.ok() ? Status() : Status(problem.failure());
  }
  auto results() { return call.out(); }

  testing::QuantisedCall call;
  headrace_attention_tensors t;
  headrace_quantised_kv x{};
};

TEST(EveryRule, OfCodes) {
  for (const DType codes : {DType::i8, DType::i4x2, DType::u4x2})
    for (const bool has_recent : {false, true}) {
      if (has_zero_points(codes) && !has_recent) continue;
      SCOPED_TRACE(std::string(dtype_name(codes)) + (has_recent ? " and recent pages" : ""));
      testing::QuantisedCase c;
      c.k_dtype = c.v_dtype = codes;
      c.queries = {2, 1};
      c.keys = {70, 33};
      c.head_dim = c.head_dim_v = 64;
      c.page_size = 32;
      c.group = has_recent ? 32 : 0;
      c.has_page_indptr = codes == DType::i4x2;
      testing::expect_every_rule([&] { return std::make_unique<CodesCall>(c); });
    }
}

}  // namespace
}  // namespace headrace
