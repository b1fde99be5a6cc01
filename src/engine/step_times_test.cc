// The times of a step's operators, and what is left of the session.
#include "engine/step_times.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/model_fixture.h"
#include "model/operator_recorder.h"
#include "weights/gguf.h"

namespace headrace::engine {
namespace {

const std::string kFile = std::string(HEADRACE_GOLDEN_DIR) + "/tiny/tiny_llama3_f16.gguf";

Session session_of(const LanguageModel& model, SessionOptions options = {}) {
  options.max_tokens = 64;
  return std::move(Session::make(model, options).value());
}

const std::vector<std::int32_t> kPrompt = {1, 5, 9, 2, 7};

TEST(StepTimes, CountsWhatThePredictionCounts) {
  const LanguageModel model = load(kFile, MatmulMode::normal);
  const ModelFile file = std::move(read_gguf(kFile).value());
  for (const std::int64_t num_tokens : {1, 3}) {
    Session session = session_of(model);
    ASSERT_FALSE(session.append(kPrompt, nullptr));
    const StepTimes times = std::move(time_step(session, num_tokens, 2).value());
    const auto expected =
        std::move(model::step_cost(
                      file, {.seqlen_q = num_tokens, .seqlen_k = std::ssize(kPrompt) + num_tokens},
                      model.device->info())
                      .value());
    ASSERT_EQ(times.operators.size(), expected.size());
    double sum = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(times.operators[i].name, expected[i].name);
      EXPECT_EQ(times.operators[i].kernel, expected[i].kernel);
      EXPECT_EQ(times.operators[i].num_calls, expected[i].num_calls);
      EXPECT_EQ(times.operators[i].bytes, expected[i].bytes) << expected[i].name;
      EXPECT_EQ(times.operators[i].flops, expected[i].flops);
      EXPECT_GE(times.operators[i].seconds, 0);
      EXPECT_EQ(expected[i].seconds, 0);
      sum += times.operators[i].seconds;
    }
    EXPECT_GT(sum, 0);
    EXPECT_GT(times.seconds, 0);
  }
}

// Also where the timed step fills the session to its end.
TEST(StepTimes, LeavesTheSessionAsItWas) {
  const LanguageModel model = load(kFile, MatmulMode::normal);
  for (const std::optional<DType> codes : {std::optional<DType>(), std::optional(DType::i8)}) {
    Session timed = session_of(model, {.k_dtype = codes, .v_dtype = codes});
    Session plain = session_of(model, {.k_dtype = codes, .v_dtype = codes});
    const auto vocab_size = static_cast<std::size_t>(model.decoder->config.vocab_size);
    const auto logits_of = [&](const Session& session) {
      return std::vector<float>(session.logits(), session.logits() + vocab_size);
    };
    for (const std::int64_t num_tokens : {1, 20, 39}) {
      for (Session* session : {&timed, &plain}) ASSERT_FALSE(session->append(kPrompt, nullptr));
      ASSERT_TRUE(time_step(timed, num_tokens, 1).ok());
      EXPECT_EQ(logits_of(timed), logits_of(plain));
      EXPECT_EQ(timed.cache().stats().num_free_pages, plain.cache().stats().num_free_pages);
      for (Session* session : {&timed, &plain}) ASSERT_FALSE(session->append(kPrompt, nullptr));
      EXPECT_EQ(logits_of(timed), logits_of(plain)) << num_tokens;
    }
  }
}

TEST(StepTimes, RefusesWhatDoesNotFit) {
  const LanguageModel model = load(kFile, MatmulMode::normal);
  Session session = session_of(model, {.batch_tokens = 32});
  const auto refusal = [](Session& of, std::int64_t num_tokens, std::int64_t num_rounds) {
    return std::move(time_step(of, num_tokens, num_rounds).failure().message);
  };
  for (const std::int64_t num_tokens : {-1, 0, 33})
    EXPECT_EQ(refusal(session, num_tokens, 1),
              "num_tokens=" + std::to_string(num_tokens) +
                  ": must be 1 to 32, those that a step of the session has room for; pass fewer or "
                  "truncate the session");
  for (const std::int64_t num_rounds : {-1, 0, 10001})
    EXPECT_EQ(refusal(session, 1, num_rounds), "num_rounds=" + std::to_string(num_rounds) +
                                                   ": must be 1 to 10000; pass one of them");
  ASSERT_FALSE(session.append(std::vector<std::int32_t>(62, 3), nullptr));
  EXPECT_TRUE(time_step(session, 2, 1).ok());
  EXPECT_NE(refusal(session, 3, 1).find("must be 1 to 2,"), std::string::npos);
  Session sparq = session_of(model, {.sparq = {.num_components = 8, .num_keys = 16}});
  EXPECT_NE(refusal(sparq, 1, 1).find("SparQ"), std::string::npos);
}

// Passes everything on, and notes the calls that arrive.
class Listener final : public Executor {
 public:
  explicit Listener(Executor& to) : to_(to) {}
  std::multiset<std::string> calls;

  Device& device() override { return to_.device(); }
  DType activation_dtype() const override { return to_.activation_dtype(); }
  MatmulMode mode() const override { return to_.mode(); }
  Stream stream() const override { return to_.stream(); }
  Result<Weight> prepare(WeightType format, std::int64_t rows, std::int64_t columns,
                         const WeightBlocks& blocks) override {
    return to_.prepare(format, rows, columns, blocks);
  }
  Result<Rows> alloc(std::int64_t num_rows, std::int64_t width, DType dtype) override {
    return to_.alloc(num_rows, width, dtype);
  }
  Status begin_step(const Batch& batch, const KvView& kv, const AttentionSpec& spec) override {
    return to_.begin_step(batch, kv, spec);
  }
  Status embed(const Weight& embedding, const Rows& out) override {
    calls.insert("embed");
    return to_.embed(embedding, out);
  }
  Status gather(const Rows& x, const Rows& out) override {
    calls.insert("gather");
    return to_.gather(x, out);
  }
  Status rms_norm(const Rows& x, const Buffer& weight, float eps, const Rows& out) override {
    calls.insert("rms_norm");
    return to_.rms_norm(x, weight, eps, out);
  }
  Status linear(const Linear& call) override {
    calls.insert(names_.at({call.weights[0].rows, call.weights.size()}));
    return to_.linear(call);
  }
  Status rope_append(const Rows& qkv, std::int64_t layer, const Rows& q) override {
    calls.insert("rope_append");
    return to_.rope_append(qkv, layer, q);
  }
  Status attention(const Rows& q, std::int64_t layer, const Rows& out) override {
    calls.insert("attention");
    return to_.attention(q, layer, out);
  }
  Status swiglu(const Rows& gate_up, const Rows& out) override {
    calls.insert("swiglu");
    return to_.swiglu(gate_up, out);
  }
  Result<bool> repeat_step(const void*, const float*) override { return false; }
  Status end_step() override { return to_.end_step(); }
  Status wait() override { return to_.wait(); }

  // Of the products of a decoder, by the rows of the first matrix and the number of matrices.
  void name_products(const model::Decoder& decoder) {
    const model::LayerWeights& layer = decoder.layers[0];
    names_ = {{{layer.qkv[0].rows, 3}, "linear qkv"},
              {{layer.gate_up[0].rows, 2}, "linear gate_up"},
              {{decoder.output_matrix().rows, 1}, "linear logits"},
              {{layer.down.rows, 1}, "linear attn_output or down"}};
  }

 private:
  Executor& to_;
  std::map<std::pair<std::int64_t, std::size_t>, std::string> names_;
};

TEST(StepTimes, ASkippedOperatorAloneIsNotRun) {
  const LanguageModel model = load(kFile, MatmulMode::normal);
  Session session = session_of(model);
  ASSERT_FALSE(session.append(kPrompt, nullptr));
  ModelRunner& runner = session.runner();
  std::vector<float> logits(static_cast<std::size_t>(model.decoder->config.vocab_size));
  const std::vector<std::int32_t> tokens = {3};
  const ModelRunner::Part part{.sequence = session.sequence(), .tokens = tokens};
  ASSERT_FALSE(runner.cache().reserve(session.sequence(), 1, nullptr));
  std::vector<model::OperatorCost> operators;
  const auto calls_without = [&](const std::string& skipped) {
    Listener listener(runner.executor());
    listener.name_products(*model.decoder);
    model::OperatorRecorder recorder(*model.decoder, listener, skipped, true);
    EXPECT_FALSE(runner.forward_on(recorder, {&part, 1}, logits.data()));
    operators = recorder.take();
    return listener.calls;
  };
  const std::multiset<std::string> all = calls_without("");
  const std::vector<float> whole = logits;
  const std::vector<model::OperatorCost> whole_operators = operators;
  std::size_t num_calls = 0;
  for (const model::OperatorCost& op : whole_operators) {
    SCOPED_TRACE(op.name);
    auto without = all;
    const bool is_shared = op.name == "linear attn_output" || op.name == "linear down";
    const std::string name = is_shared ? "linear attn_output or down" : op.name;
    ASSERT_EQ(static_cast<std::int64_t>(all.count(name)), op.num_calls * (is_shared ? 2 : 1));
    for (std::int64_t i = 0; i < op.num_calls; ++i) without.erase(without.find(name));
    EXPECT_EQ(calls_without(op.name), without);
    num_calls += static_cast<std::size_t>(op.num_calls);
  }
  EXPECT_EQ(num_calls, all.size());
  calls_without("");
  EXPECT_EQ(logits, whole);
}

}  // namespace
}  // namespace headrace::engine
