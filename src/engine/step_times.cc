#include "engine/step_times.h"

#include <algorithm>
#include <chrono>
#include <string_view>

#include "model/operator_recorder.h"

namespace headrace::engine {
namespace {

using Clock = std::chrono::steady_clock;

// Before the rounds: on a GPU the second step of a kind becomes a graph.
constexpr std::int64_t kNumUntimed = 3;
constexpr std::int64_t kMaxRounds = 10000;

double median_of(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::ranges::nth_element(values, middle);
  return *middle;
}

// A step of one sequence, again and again in the same slots of the cache.
class Step {
 public:
  Step(Session& session, std::int64_t num_tokens)
      : runner_(session.runner()),
        part_{.sequence = session.sequence(), .tokens = {}},
        tokens_(static_cast<std::size_t>(num_tokens)) {
    const std::int64_t vocab_size = runner_.decoder().config.vocab_size;
    for (std::size_t i = 0; i < tokens_.size(); ++i)
      tokens_[i] = static_cast<std::int32_t>(static_cast<std::int64_t>(i) * 7919 % vocab_size);
    part_.tokens = tokens_;
    // As a session's, page-locked on a GPU.
    logits_ = runner_.device().allocate_host(static_cast<std::size_t>(vocab_size) * sizeof(float));
  }
  bool has_memory() const { return logits_.data() != nullptr; }

  // The seconds of the step without an operator. `operators`: if not null, receives all of the
  // step.
  Result<double> time_without(std::string_view skipped,
                              std::vector<model::OperatorCost>* operators) {
    model::OperatorRecorder recorder(runner_.decoder(), runner_.executor(), skipped,
                                     operators != nullptr);
    const Clock::time_point begin = Clock::now();
    // Logits on the host, so that the step has ended.
    if (Status bad = runner_.forward_on(recorder, {&part_, 1}, logits_.as<float>()))
      return std::move(*bad);
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    if (operators != nullptr) *operators = recorder.take();
    return seconds;
  }

 private:
  ModelRunner& runner_;
  ModelRunner::Part part_;
  std::vector<std::int32_t> tokens_;
  Buffer logits_;
};

Result<StepTimes> time_operators(Step& step, std::int64_t num_rounds) {
  StepTimes times;
  const auto time_without = [&](std::string_view name) {
    return step.time_without(name, times.operators.empty() ? &times.operators : nullptr);
  };
  std::vector<double> whole;
  std::vector<std::vector<double>> saved;  // by each operator
  for (std::int64_t round = -kNumUntimed; round < num_rounds; ++round) {
    Result<double> all = time_without({});
    if (!all.ok()) return std::move(all.failure());
    if (round >= 0) whole.push_back(all.value());
    saved.resize(times.operators.size());
    for (std::size_t i = 0; i < saved.size(); ++i) {
      Result<double> others = time_without(times.operators[i].name);
      if (!others.ok()) return std::move(others.failure());
      if (round >= 0) saved[i].push_back(all.value() - others.value());
    }
  }
  times.seconds = median_of(whole);
  for (std::size_t i = 0; i < saved.size(); ++i)
    times.operators[i].seconds = std::max(median_of(saved[i]), 0.0);
  return times;
}

}  // namespace

Result<StepTimes> time_step(Session& session, std::int64_t num_tokens, std::int64_t num_rounds) {
  KvCache& cache = session.runner().cache();
  const std::int64_t length = cache.info(session.sequence()).value().length;
  const std::int64_t most = std::min(session.batch_tokens(), session.max_tokens() - length);
  if (num_tokens < 1 || num_tokens > most)
    return invalid_argument(
        "num_tokens={}: must be 1 to {}, those that a step of the session has room for; pass fewer "
        "or truncate the session",
        num_tokens, most);
  if (num_rounds < 1 || num_rounds > kMaxRounds)
    return invalid_argument("num_rounds={}: must be 1 to {}; pass one of them", num_rounds,
                            kMaxRounds);
  if (session.runner().has_sparq())
    return unsupported(
        "the session decodes with SparQ attention, whose operators are not timed; use a session "
        "without");
  Step step(session, num_tokens);
  if (!step.has_memory())
    return Failure{ErrorCode::out_of_memory,
                   "no memory for the logits of a token; close other programs"};
  if (Status bad = cache.reserve(session.sequence(), num_tokens, session.runner().stream()))
    return std::move(*bad);
  Result<StepTimes> times = time_operators(step, num_rounds);
  // Gives up the reserved slots.
  if (Status bad = cache.truncate(session.sequence(), length)) return std::move(*bad);
  return times;
}

}  // namespace headrace::engine
