// Errors of SparQ attention and of its append: every one names the argument, what arrived, the rule
// and the remedy, and nothing is written.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <regex>

#include "tests/support/every_rule.h"
#include "tests/support/golden_texts.h"
#include "tests/support/sparq_case.h"

namespace headrace {
namespace {

using testing::SparqCall;
using testing::SparqCase;

void expect_error(const Status& status, const std::vector<std::string>& parts,
                  testing::GoldenTexts& texts) {
  ASSERT_TRUE(status.has_value()) << parts[0];
  EXPECT_EQ(status->code, ErrorCode::invalid_argument) << status->message;
  // The bytes that a call needs depend on the machine's number of CPUs.
  texts.add(std::regex_replace(status->message, std::regex("needs [0-9]+"), "needs ..."));
  EXPECT_EQ(status->message.find(parts[0]), 0u) << status->message;
  for (const std::string& part : parts)
    EXPECT_NE(status->message.find(part), std::string::npos)
        << '"' << part << "\" is not in: " << status->message;
}

struct Call {
  explicit Call(std::int64_t page_size) : call({.page_size = page_size}) {}
  SparqCall call;
  headrace_sparq_tensors t = call.tensors();
  headrace_sparq_options o = call.options();
  Workspace workspace;
  Stream stream = nullptr;
};

struct Bad {
  std::function<void(Call&)> break_it;
  std::vector<std::string> parts;
};

void expect_refused(const Bad& bad, std::int64_t page_size, testing::GoldenTexts& texts) {
  Call c(page_size);
  const auto out = c.call.out().bytes();
  bad.break_it(c);
  expect_error(sparq_attention(c.t, c.o, c.workspace, c.stream), bad.parts, texts);
  EXPECT_EQ(c.call.out().bytes(), out) << bad.parts[0] << ": something was written";
}

TEST(SparqErrors, TensorsAndOptions) {
  testing::GoldenTexts texts("ops.txt");
  const Bad cases[] = {
      {[](Call& c) { c.t.q = TensorView(); }, {"q: not given", "are required"}},
      {[](Call& c) { c.t.k_components = TensorView(); }, {"k_components: not given", "seqlen_k]"}},
      {[](Call& c) { c.t.q.rank = 4; }, {"q.rank=4", "must be 3"}},
      {[](Call& c) { c.t.q.dtype = HEADRACE_F64; }, {"q.dtype=f64", "f32, f16 or bf16"}},
      {[](Call& c) { c.t.v.dtype = HEADRACE_F16; }, {"v.dtype=f16", "must be f32, as q"}},
      {[](Call& c) { c.t.k.device_type = HEADRACE_CUDA; }, {"k.device_type=1"}},
      {[](Call& c) { c.t.k.shape[0] = 3; }, {"k.shape[0]=3", "batch=2 of q"}},
      {[](Call& c) { c.t.k.shape[3] = 15; }, {"k.shape[3]=15", "head_dim=16 of q"}},
      {[](Call& c) { c.t.v.shape[1] = 39; }, {"v.shape[1]=39", "seqlen_k=40 of k"}},
      {[](Call& c) { std::swap(c.t.k_components.shape[2], c.t.k_components.shape[3]); },
       {"k_components.shape[2]=40", "[batch, num_kv_heads, head_dim, seqlen_k]"}},
      {[](Call& c) { c.t.k_components.strides[3] = 2; }, {"k_components.strides[3]=2", "be 1"}},
      {[](Call& c) { c.t.q.strides[2] = 2; }, {"q.strides[2]=2", "must be 1"}},
      {[](Call& c) { c.t.out.shape[1] = 1; }, {"out.shape[1]=1", "num_heads=2"}},
      {[](Call& c) { c.t.q.shape[1] = c.t.out.shape[1] = 3; }, {"q.shape[1]=3", "num_kv_heads=2"}},
      {[](Call& c) { c.t.q.shape[2] = c.t.k.shape[3] = c.t.k_components.shape[2] = 0; },
       {"head_dim=0", "1 to 576"}},
      {[](Call& c) { c.t.v.shape[3] = c.t.out.shape[2] = 577; }, {"head_dim_v=577", "1 to 576"}},
      {[](Call& c) { c.o.num_components = 0; }, {"num_components=0", "1 to head_dim=16"}},
      {[](Call& c) { c.o.num_components = 17; }, {"num_components=17"}},
      {[](Call& c) { c.o.num_keys = 0; }, {"num_keys=0", "at least 1"}},
      {[](Call& c) { c.o.local_window = -1; }, {"local_window=-1", "not be negative"}},
      {[](Call& c) { c.o.softmax_scale = HUGE_VAL; }, {"softmax_scale=inf", "finite"}},
      {[](Call& c) { c.o.max_seqlen_k = 5; }, {"max_seqlen_k=5", "with block_table"}},
      {[](Call& c) { c.t.v_sum.dtype = HEADRACE_BF16; }, {"v_sum.dtype=bf16", "must be f32"}},
      {[](Call& c) { c.t.v_sum.shape[2] = 3; }, {"v_sum.shape[2]=3", "head_dim_v=16"}},
      {[](Call& c) { c.t.indices.shape[2] = 3; }, {"indices.shape[2]=3", "num_keys=8 of options"}},
      {[](Call& c) { c.t.alpha.shape[0] = 3; }, {"alpha.shape[0]=3", "batch=2"}},
      {[](Call& c) { c.t.seqused_k.dtype = HEADRACE_I64; }, {"seqused_k.dtype=i64", "must be i32"}},
      {[](Call& c) { c.call.lengths()[1] = 41; }, {"seqused_k[1]=41", "0 to 40"}},
      {[](Call& c) { c.call.lengths()[0] = -1; }, {"seqused_k[0]=-1"}},
      {[](Call& c) { c.t.out.data = c.t.q.data; }, {"out overlaps q"}},
      {[](Call& c) { c.t.alpha.strides[0] = 0; }, {"alpha overlaps itself"}},
      {[](Call& c) { c.t.alpha.data = c.t.indices.data; }, {"indices overlaps alpha"}},
      {[](Call& c) { c.stream = &c; }, {"stream=", "NULL on CPU"}},
      {[](Call& c) {
         c.workspace = {&c, 1};
       },
       {"workspace of 1 bytes", "workspace_bytes()"}},
      {[](Call& c) {
         c.workspace = {nullptr, 1 << 30};
       },
       {"workspace of 1073741824 bytes at NULL"}},
  };
  for (const Bad& bad : cases) expect_refused(bad, 0, texts);
}

TEST(SparqErrors, WorkspacesNameTheBytesOfTheCall) {
  Call c(0);
  const std::size_t bytes = sparq_workspace_bytes(c.t, c.o).value();
  c.workspace = {&c, 1};
  const Status status = sparq_attention(c.t, c.o, c.workspace, c.stream);
  ASSERT_TRUE(status.has_value());
  EXPECT_NE(status->message.find(format_text("needs {};", bytes)), std::string::npos)
      << status->message;
}

TEST(SparqErrors, Pages) {
  testing::GoldenTexts texts("ops.txt");
  const Bad cases[] = {
      {[](Call& c) { c.t.seqused_k = TensorView(); }, {"seqused_k: not given", "block_table is"}},
      {[](Call& c) { c.t.k_components.shape[3] = 7; }, {"k_components.shape[3]=7", "page_size=8"}},
      {[](Call& c) { c.t.k.shape[1] = c.t.v.shape[1] = c.t.k_components.shape[3] = 0; },
       {"k.shape[1]=0", "page size"}},
      {[](Call& c) { c.t.block_table.dtype = HEADRACE_I64; }, {"block_table.dtype=i64"}},
      {[](Call& c) { c.t.block_table.shape[0] = 1; }, {"block_table.shape[0]=1", "batch=2"}},
      {[](Call& c) { c.call.block_table()[1] = 13; }, {"block_table[0, 1]=13", "0 to 12"}},
      {[](Call& c) { c.call.block_table()[2] = -1; }, {"block_table[0, 2]=-1"}},
      {[](Call& c) { c.o.max_seqlen_k = 39; }, {"seqused_k[0]=40", "0 to 39"}},
      {[](Call& c) { c.o.max_seqlen_k = -1; }, {"max_seqlen_k=-1"}},
  };
  for (const Bad& bad : cases) expect_refused(bad, 8, texts);
}

struct WholeCall : Call {
  WholeCall() : Call(8) {}
  std::vector<testing::Role> roles() {
    return {{"q", &t.q, true, false, true},
            {"k", &t.k, true, false, true},
            {"k_components", &t.k_components, true},
            {"v", &t.v, true, false, true},
            {"out", &t.out, true, true},
            {"v_sum", &t.v_sum, true},
            {"indices", &t.indices, false, true},
            {"alpha", &t.alpha, false, true},
            {"seqused_k", &t.seqused_k},
            {"block_table", &t.block_table, true, false, false, 1}};
  }
  Status run() { return sparq_attention(t, o, workspace, stream); }
  auto results() { return call.out().bytes(); }
};

TEST(SparqErrors, EveryRuleOfEveryTensor) {
  testing::expect_every_rule([] { return std::make_unique<WholeCall>(); });
}

// ---- the append

struct Append {
  Append() {
    t.struct_size = sizeof t;
    t.k = call.k().view();
    t.v = call.v().view();
    t.k_components = call.components().view();
    t.v_sum = call.v_sum().view();
    t.slot_mapping = TensorView(slots.data(), DType::i64, {3});
    t.cu_seqlens = TensorView(cu_seqlens.data(), DType::i32, {3});
  }
  SparqCall call{SparqCase{}};
  std::vector<std::int64_t> slots = {0, 5, -1};
  std::vector<std::int32_t> cu_seqlens = {0, 2, 3};
  headrace_sparq_append_tensors t{};
  Stream stream = nullptr;
};

struct WholeAppend : Append {
  std::vector<testing::Role> roles() {
    return {{"k", &t.k, true, false, true},        {"k_components", &t.k_components, true, true},
            {"slot_mapping", &t.slot_mapping},     {"v", &t.v, true, false, true},
            {"v_sum", &t.v_sum, true, true, true}, {"cu_seqlens", &t.cu_seqlens, true}};
  }
  Status run() { return sparq_append(t, stream); }
  auto results() { return std::pair(call.components().bytes(), call.v_sum().bytes()); }
};

TEST(SparqErrors, EveryRuleOfEveryTensorOfAnAppend) {
  testing::expect_every_rule([] { return std::make_unique<WholeAppend>(); });
}

// What the tensors agree on must be possible, too.
TEST(SparqErrors, DtypesAndHeadsThatNoAppendHas) {
  for (const auto dtype : {HEADRACE_F64, HEADRACE_I32, HEADRACE_I8}) {
    Append a;
    a.t.k.dtype = a.t.k_components.dtype = a.t.v.dtype = dtype;
    const Status bad = sparq_append(a.t, nullptr);
    ASSERT_TRUE(bad);
    EXPECT_EQ(bad->message.find("k.dtype="), 0u) << bad->message;
  }
  for (const std::int64_t dim : {0, 577}) {
    Append a;
    a.t.k.shape[3] = a.t.k_components.shape[2] = dim;
    Status bad = sparq_append(a.t, nullptr);
    ASSERT_TRUE(bad);
    EXPECT_EQ(bad->message.find("k.shape[3]="), 0u) << bad->message;
    Append b;
    b.t.v.shape[3] = b.t.v_sum.shape[2] = dim;
    bad = sparq_append(b.t, nullptr);
    ASSERT_TRUE(bad);
    EXPECT_EQ(bad->message.find("v.shape[3]="), 0u) << bad->message;
  }
}

TEST(SparqErrors, Append) {
  testing::GoldenTexts texts("ops.txt");
  const struct {
    std::function<void(Append&)> break_it;
    std::vector<std::string> parts;
  } cases[] = {
      {[](Append& a) { a.t.k = TensorView(); }, {"k: not given", "[num_pages"}},
      {[](Append& a) { a.t.k_components.shape[2] = 3; }, {"k_components.shape[2]=3"}},
      {[](Append& a) { a.t.k_components.dtype = HEADRACE_BF16; }, {"k_components.dtype=bf16"}},
      {[](Append& a) { a.t.v = TensorView(); }, {"v: not given, but v_sum is"}},
      {[](Append& a) { a.t.v_sum = TensorView(); }, {"v_sum: not given, but v is"}},
      {[](Append& a) { a.t.v = a.t.v_sum = TensorView(); }, {"cu_seqlens: given without v_sum"}},
      {[](Append& a) { a.t.cu_seqlens = TensorView(); }, {"v_sum.shape[0]=2", "batch=3"}},
      {[](Append& a) { a.t.cu_seqlens.shape[0] = 2; }, {"cu_seqlens.shape[0]=2", "batch + 1=3"}},
      {[](Append& a) { a.t.slot_mapping.dtype = HEADRACE_I32; }, {"slot_mapping.dtype=i32"}},
      {[](Append& a) { a.slots[1] = 80; }, {"slot_mapping[1]=80", "below 80"}},
      {[](Append& a) {
         a.cu_seqlens = {0, 4, 3};
       },
       {"cu_seqlens[1]=4, cu_seqlens[2]=3"}},
      {[](Append& a) {
         a.cu_seqlens = {0, 2, 4};
       },
       {"cu_seqlens[1]=2, cu_seqlens[2]=4", "the 3"}},
      {[](Append& a) {
         a.cu_seqlens = {-1, 2, 3};
       },
       {"cu_seqlens[0]=-1"}},
      {[](Append& a) { a.t.v_sum.data = a.t.k_components.data; }, {"k_components overlaps v_sum"}},
      {[](Append& a) { a.stream = &a; }, {"stream=", "NULL on CPU"}},
  };
  for (const auto& [break_it, parts] : cases) {
    Append a;
    const auto components = a.call.components().bytes(), sums = a.call.v_sum().bytes();
    break_it(a);
    if (a.t.cu_seqlens.rank > 0) a.t.cu_seqlens.data = a.cu_seqlens.data();
    expect_error(sparq_append(a.t, a.stream), parts, texts);
    EXPECT_EQ(a.call.components().bytes(), components) << parts[0];
    EXPECT_EQ(a.call.v_sum().bytes(), sums) << parts[0];
  }
}

}  // namespace
}  // namespace headrace
