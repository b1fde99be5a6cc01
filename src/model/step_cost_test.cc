#include "model/step_cost.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "attention/select.h"
#include "model/random_model.h"
#include "model/small_shape.h"

namespace headrace::model {
namespace {

std::map<std::string, OperatorCost> costs_of(const ModelShape& shape, const StepShape& step,
                                             WeightType type = WeightType::q8_0) {
  const ModelFile file = std::move(make_random_model(shape, type, 0).value().file);
  Result<std::vector<OperatorCost>> costs = step_cost(file, step, cpu_info().value());
  EXPECT_TRUE(costs.ok()) << costs.failure().message;
  std::map<std::string, OperatorCost> by_name;
  for (OperatorCost& cost : costs.value()) by_name[cost.name] = std::move(cost);
  return by_name;
}

// Bytes and FLOP from the sizes, written out: 3 sequences of 40 tokens, activations of 4 bytes, a
// cache of 2, blocks of 32 weights in 34 bytes.
TEST(StepCost, CountsADecodeStep) {
  auto costs = costs_of(small_shape(), {.num_seqs = 3, .seqlen_q = 1, .seqlen_k = 40});
  const auto expect = [&](const char* name, std::int64_t calls, double bytes, double flops) {
    const OperatorCost& cost = costs[name];
    EXPECT_EQ(cost.num_calls, calls) << name;
    EXPECT_EQ(cost.bytes, static_cast<double>(calls) * bytes) << name;
    EXPECT_EQ(cost.flops, static_cast<double>(calls) * flops) << name;
  };
  const auto linear = [&](const char* name, std::int64_t calls, double rows, double columns,
                          double outputs) {  // 2: a residual is read and written
    expect(name, calls, rows * columns * 34 / 32 + 3 * columns * 4 + outputs * 3 * rows * 4,
           2 * 3 * rows * columns);
  };
  linear("linear qkv", 2, 512, 256, 1);
  linear("linear attn_output", 2, 256, 256, 2);
  linear("linear gate_up", 2, 1024, 256, 1);
  linear("linear down", 2, 256, 512, 2);
  linear("linear logits", 1, 300, 256, 1);
  expect("attention", 2, 3 * 40 * 2 * 128 * 2 + 3 * 256 * 2 + 3 * 256 * 4, 2 * 128 * 4 * 40 * 3);
  expect("rope_append", 2, 3 * 512 * 4 + 3 * 256 * 2 + 3 * 2 * 128 * 2, 0);
  expect("swiglu", 2, 3 * (1024 + 512) * 4, 0);
  expect("rms_norm", 5, (3 + 3 + 1) * 256 * 4, 0);
  expect("embed", 1, 3 * 256 * 34 / 32 + 3 * 256 * 4, 0);
  expect("gather", 1, 2 * 3 * 256 * 4, 0);
  EXPECT_EQ(costs.size(), 11u);
  for (const auto& [name, cost] : costs) EXPECT_EQ(cost.kernel.find("cpu_"), 0u) << name;
  EXPECT_EQ(costs["linear qkv"].kernel, costs["linear logits"].kernel);
}

// Where the product of Q, K and V appends, it is listed with that, as its bytes are equal.
TEST(StepCost, AProductThatAppendsIsOneOperator) {
  const ModelFile file =
      std::move(make_random_model(small_shape(), WeightType::bf16, 0).value().file);
  const auto names = [&](const char* device, std::int64_t num_seqs, DType cache_dtype) {
    std::set<std::string> all;
    const StepShape step{.num_seqs = num_seqs, .seqlen_k = 40, .cache_dtype = cache_dtype};
    const auto costs = step_cost(file, step, device_from_text(device).value());
    for (const OperatorCost& cost : costs.value()) all.insert(cost.name);
    return all;
  };
  const auto expect_apart = [](const std::set<std::string>& all) {
    EXPECT_TRUE(all.contains("rope_append") && all.contains("linear qkv"));
    EXPECT_FALSE(all.contains("linear qkv, rope_append"));
  };
  expect_apart(names("cpu", 1, DType::bf16));
  if (kernels_of(HEADRACE_CUDA, HEADRACE_FORWARD).empty()) return;
  const std::set<std::string> few = names("sm90:132", 16, DType::bf16);
  EXPECT_TRUE(few.contains("linear qkv, rope_append"));
  EXPECT_FALSE(few.contains("rope_append") || few.contains("linear qkv"));
  expect_apart(names("sm90:132", 17, DType::bf16));
  expect_apart(names("sm90:132", 16, DType::f16));
  expect_apart(names("sm80:108", 16, DType::bf16));
}

// Codes have a scale of 4 bytes for each token and head, and the newest group of 16 is read whole:
// of 40 tokens 32 are read as codes; a step of 20 tokens from 20 on reads groups 1 and 2 whole.
TEST(StepCost, CountsCodesByTheirBytes) {
  const auto read = [](std::int64_t seqlen_q, std::optional<DType> k, std::optional<DType> v) {
    auto costs =
        costs_of(small_shape(),
                 {.num_seqs = 3, .seqlen_q = seqlen_q, .seqlen_k = 40, .k_dtype = k, .v_dtype = v});
    const auto tokens = static_cast<double>(3 * seqlen_q);
    EXPECT_EQ(costs["attention"].num_calls, 2);
    return std::pair(costs["attention"].bytes / 2 - tokens * 256 * (2 + 4),
                     costs["rope_append"].bytes / 2 - tokens * (512 * 4 + 256 * 2));
  };
  // 2 heads of 64: 64 + 4 bytes in 8 bits, 32 + 4 in 4 bits, 128 whole.
  const std::pair<DType, double> types[] = {
      {DType::i8, 68}, {DType::f8e4m3, 68}, {DType::i4x2, 36}};
  for (const auto& [k, k_bytes] : types) {
    for (const auto& [v, v_bytes] : types) {
      EXPECT_EQ(read(1, k, v).first, 3 * 2 * (32 * (k_bytes + v_bytes) + 8 * 2 * 128));
      EXPECT_EQ(read(20, k, v).first, 3 * 2 * (32 * (k_bytes + v_bytes) + 24 * 2 * 128));
      EXPECT_EQ(read(20, k, v).second, 3 * 20 * 2 * (k_bytes + v_bytes + 2 * 128));
    }
    EXPECT_EQ(read(1, k, {}).first, 3 * 2 * (32 * (k_bytes + 128) + 8 * 2 * 128));
  }
  // With zero points 32 + 8 and 16 + 8: a word of 4 bytes for each 32 elements.
  EXPECT_EQ(read(1, DType::u4x2, DType::u2x4).first, 3 * 2 * (32 * (40 + 24) + 8 * 2 * 128));
  EXPECT_EQ(read(1, DType::u2x4, DType::i8).first, 3 * 2 * (32 * (24 + 68) + 8 * 2 * 128));
  EXPECT_EQ(read(8, DType::u2x4, {}).first, 3 * 2 * (32 * (24 + 128) + 8 * 2 * 128));
  EXPECT_EQ(read(9, DType::u2x4, {}).first, 3 * 2 * (32 * (24 + 128) + 40 * 2 * 128));
}

TEST(StepCost, APrefillHasTheFlopsOfItsTokens) {
  for (const std::int64_t window : {0, 5}) {
    ModelShape shape = small_shape();
    shape.window = window;
    double flops = 0;
    for (std::int64_t k = 1; k <= 40; ++k)
      flops += costs_of(shape, {.seqlen_q = 1, .seqlen_k = k})["attention"].flops;
    EXPECT_EQ(costs_of(shape, {.seqlen_q = 40, .seqlen_k = 40})["attention"].flops, flops);
    EXPECT_EQ(costs_of(shape, {.seqlen_q = 40, .seqlen_k = 40})["linear down"].flops,
              40 * costs_of(shape, {.seqlen_q = 1, .seqlen_k = 40})["linear down"].flops);
  }
}

TEST(StepCost, AWindowLimitsTheKeysThatAreRead) {
  ModelShape shape = small_shape();
  const auto bytes = [&](std::int64_t q, std::int64_t k) {
    return costs_of(shape, {.seqlen_q = q, .seqlen_k = k})["attention"].bytes;
  };
  const double ten = bytes(1, 10), thirteen = bytes(4, 13);
  shape.window = 10;
  EXPECT_EQ(bytes(1, 60), ten);
  EXPECT_EQ(bytes(4, 60), thirteen);
  EXPECT_EQ(bytes(1, 10), ten);
}

TEST(StepCost, RefusesImpossibleSteps) {
  const ModelFile file =
      std::move(make_random_model(small_shape(), WeightType::f32, 0).value().file);
  const std::pair<StepShape, const char*> cases[] = {
      {{.num_seqs = 0}, "shape.num_seqs=0: must be 1 to "},
      {{.seqlen_q = 0}, "shape.seqlen_q=0: must be 1 to seqlen_k=1"},
      {{.seqlen_q = 5, .seqlen_k = 4}, "shape.seqlen_q=5: must be 1 to seqlen_k=4"},
      {{.seqlen_k = 65}, "shape.seqlen_k=65: must be at most the context_length 64"}};
  for (const auto& [step, text] : cases) {
    const auto costs = step_cost(file, step, cpu_info().value());
    ASSERT_FALSE(costs.ok());
    EXPECT_EQ(costs.failure().message.find(text), 0u) << costs.failure().message;
  }
}

}  // namespace
}  // namespace headrace::model
