// Results of the C++ wrappers: each field of a C struct arrives in the field of the same name, and
// every field has a value of its own. Functions of the library that are defined here take the place
// of those that are linked.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "headrace/engine.hpp"
#include "headrace/step.hpp"
#include "headrace/tuning.hpp"
#include "support/fields.h"

namespace {

using namespace headrace;
using namespace headrace::testing;

const std::int32_t tokens[] = {7, 8};
const float logprobs[] = {-0.5f, -0.25f};
const headrace_token_logprob top[] = {{1, -1}, {2, -2}, {3, -3}, {4, -4}, {5, -5}, {6, -6}};
headrace_output_info polled;

template <class T>
void fill(T* to, T from) {
  EXPECT_EQ(to->struct_size, sizeof(T));
  from.struct_size = to->struct_size;
  *to = from;
}

}  // namespace

extern "C" {

headrace_status headrace_model_load(const char*, const headrace_model_options*,
                                    headrace_model** model) {
  *model = nullptr;
  return HEADRACE_OK;
}
headrace_status headrace_engine_create(const headrace_model*, const headrace_engine_options*,
                                       headrace_engine** engine) {
  *engine = nullptr;
  return HEADRACE_OK;
}
headrace_status headrace_engine_poll(headrace_engine*, headrace_output** output) {
  *output = handle<headrace_output>();
  return HEADRACE_OK;
}
void headrace_output_destroy(headrace_output*) {}
headrace_status headrace_output_get(const headrace_output*, headrace_output_info* info) {
  fill(info, polled);
  return HEADRACE_OK;
}

headrace_status headrace_session_create(const headrace_model*, const headrace_session_options*,
                                        headrace_session** session) {
  *session = nullptr;
  return HEADRACE_OK;
}
headrace_status headrace_session_generate(headrace_session*, const headrace_generation_options*,
                                          headrace_generation* result) {
  result->num_tokens = 11;
  result->finish = HEADRACE_FINISH_LENGTH;
  return HEADRACE_OK;
}
headrace_status headrace_session_beam_search(headrace_session*, const headrace_beam_options*,
                                             headrace_completions** completions) {
  *completions = handle<headrace_completions>();
  return HEADRACE_OK;
}
void headrace_completions_destroy(headrace_completions*) {}
int64_t headrace_completions_count(const headrace_completions*) { return 2; }
headrace_status headrace_completions_get(const headrace_completions*, int64_t index,
                                         headrace_completion* completion) {
  headrace_completion c{};
  c.tokens = tokens;
  c.num_tokens = 2;
  c.text = "text that goes on";
  c.num_bytes = 4;
  c.logprob = 3;
  c.score = 5 + static_cast<double>(index);
  c.finish = HEADRACE_FINISH_LENGTH;
  fill(completion, c);
  return HEADRACE_OK;
}

headrace_status headrace_step_explain(const headrace_model_file*, const headrace_step_shape*,
                                      const headrace_device_info*, headrace_step** step) {
  *step = handle<headrace_step>();
  return HEADRACE_OK;
}
void headrace_step_destroy(headrace_step*) {}
int64_t headrace_step_count(const headrace_step*) { return 1; }
headrace_status headrace_step_get(const headrace_step*, int64_t, headrace_operator_cost* cost) {
  fill(cost, {0, "a name", "a kernel", 3, 4, 5, 6});
  return HEADRACE_OK;
}
headrace_status headrace_session_time_step(headrace_session*, int64_t, int64_t,
                                           headrace_step** step) {
  *step = handle<headrace_step>();
  return HEADRACE_OK;
}
double headrace_step_seconds(const headrace_step*) { return 7; }

headrace_status headrace_ceilings_measure(const headrace_device_info*,
                                          const headrace_ceiling_options*,
                                          headrace_ceilings** ceilings) {
  *ceilings = handle<headrace_ceilings>();
  return HEADRACE_OK;
}
void headrace_ceilings_destroy(headrace_ceilings*) {}
int64_t headrace_ceilings_count(const headrace_ceilings*) { return 1; }
headrace_status headrace_ceilings_get(const headrace_ceilings*, int64_t,
                                      headrace_ceiling* ceiling) {
  fill(ceiling, {0, HEADRACE_CEILING_LATENCY, 3, "a resource", "an operation", 4, 5, 6, 7, 8});
  return HEADRACE_OK;
}

headrace_status headrace_plan_predict(const headrace_plan*, const headrace_ceiling* ceilings,
                                      int64_t num_ceilings, headrace_prediction** prediction) {
  EXPECT_EQ(num_ceilings, 1);
  const headrace_ceiling& c = ceilings[0];
  EXPECT_EQ(c.struct_size, sizeof c);
  EXPECT_EQ((Shown{SHOW(kind), SHOW(num_units), SHOW(resource), SHOW(operation), SHOW(value),
                   SHOW(best), SHOW(clock_hz), SHOW(watts), SHOW(bytes)}),
            (Shown{{"kind", "2"},
                   {"num_units", "3"},
                   {"resource", "a resource"},
                   {"operation", "an operation"},
                   {"value", "4"},
                   {"best", "5"},
                   {"clock_hz", "6"},
                   {"watts", "7"},
                   {"bytes", "8"}}));
  *prediction = handle<headrace_prediction>();
  return HEADRACE_OK;
}
void headrace_prediction_destroy(headrace_prediction*) {}
headrace_status headrace_prediction_get(const headrace_prediction*,
                                        headrace_prediction_info* info) {
  fill(info, {0, 1, 2, 3, 4, 5, 6, 7, 8, 1, "limit", "bound", "ceilings", "reason", "text"});
  return HEADRACE_OK;
}
headrace_status headrace_prediction_get_part(const headrace_prediction*, int64_t,
                                             headrace_prediction_part* part) {
  fill(part, {0, "a part", 3, 4});
  return HEADRACE_OK;
}

headrace_status headrace_plan_tune(const headrace_plan*, const headrace_attention_tensors*,
                                   const headrace_attention_gradients*, const headrace_run_options*,
                                   const headrace_tune_options*, void*, headrace_tuning*,
                                   headrace_tuned_call* call) {
  fill(call, {0, "a kernel", "a call", "a config", 3, 4, 5, 6});
  return HEADRACE_OK;
}
int64_t headrace_tuning_count(const headrace_tuning*) { return 1; }
headrace_status headrace_tuning_get(const headrace_tuning*, int64_t, headrace_tuned_call* call) {
  return headrace_plan_tune(nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, call);
}

headrace_status headrace_model_file_weight(const headrace_model_file*, int64_t,
                                           headrace_weight_info* info) {
  fill(info, {0, "a name", "a type", 2, 0, {3, 4, 5, 6}, 7, 8});
  return HEADRACE_OK;
}

}  // extern "C"

namespace {

// `shown` has all fields of T.
template <class T>
void expect_shown(const Shown& shown, const Shown& expected) {
  EXPECT_EQ(shown.size(), num_fields<T>()) << "a field is missing in this test";
  EXPECT_EQ(shown, expected);
}

const Model& no_model() {
  static const Model model("none");
  return model;
}

Shown shown(const Output& c) {
  std::string most_likely;
  for (const auto& one : c.top_logprobs) most_likely += show(one.token) + ' ';
  return {SHOW(id),
          SHOW(sample),
          {"tokens", show(c.tokens.data(), c.tokens.size())},
          {"logprobs", show(c.logprobs.data(), c.logprobs.size())},
          {"top_logprobs", most_likely},
          SHOW(text),
          SHOW(finish),
          SHOW(error),
          {"stop_string", c.stop_string ? show(*c.stop_string) : "none"},
          SHOW(num_cached_tokens)};
}

TEST(CppResults, OutputsOfAnEngine) {
  Engine engine(no_model());
  polled = {};
  polled.tokens = tokens;
  polled.text = polled.error = "";
  polled.stop_string = -1;
  Shown expected = {{"id", "0"},
                    {"sample", "0"},
                    {"tokens", ""},
                    {"logprobs", ""},
                    {"top_logprobs", ""},
                    {"text", ""},
                    {"finish", "0"},
                    {"error", ""},
                    {"stop_string", "none"},
                    {"num_cached_tokens", "0"}};
  expect_shown<Output>(shown(*engine.poll()), expected);
  // The first stop string is one.
  for (const std::int64_t stop_string : {0, 5}) {
    polled.stop_string = stop_string;
    expected["stop_string"] = show(stop_string);
    EXPECT_EQ(shown(*engine.poll()), expected);
  }
  polled.id = 2;
  polled.sample = 3;
  polled.num_tokens = 2;
  polled.logprobs = logprobs;
  polled.top_logprobs = top;
  polled.num_top = 3;
  polled.text = "text that goes on";
  polled.num_bytes = 4;
  polled.error = "an error";
  polled.finish = HEADRACE_REQUEST_ERROR;
  polled.num_cached_tokens = 6;
  expect_shown<Output>(shown(*engine.poll()), {{"id", "2"},
                                               {"sample", "3"},
                                               {"tokens", "7 8 "},
                                               {"logprobs", "-0.5 -0.25 "},
                                               {"top_logprobs", "1 2 3 4 5 6 "},
                                               {"text", "text"},
                                               {"finish", show(HEADRACE_REQUEST_ERROR)},
                                               {"error", "an error"},
                                               {"stop_string", "5"},
                                               {"num_cached_tokens", "6"}});
}

TEST(CppResults, OfSessions) {
  Session session(no_model());
  const Generation generation = session.generate({}, [](std::string_view) { return true; });
  EXPECT_EQ(num_fields<Generation>(), 2u);
  EXPECT_EQ(generation.num_tokens, 11);
  EXPECT_EQ(generation.finish, HEADRACE_FINISH_LENGTH);
  const std::vector<Completion> completions = session.beam_search();
  ASSERT_EQ(completions.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    const Completion& c = completions[i];
    expect_shown<Completion>({{"tokens", show(c.tokens.data(), c.tokens.size())},
                              SHOW(text),
                              SHOW(logprob),
                              SHOW(score),
                              SHOW(finish)},
                             {{"tokens", "7 8 "},
                              {"text", "text"},
                              {"logprob", "3"},
                              {"score", show(5 + i)},
                              {"finish", show(HEADRACE_FINISH_LENGTH)}});
  }
}

TEST(CppResults, OfFilesAndSteps) {
  const ModelFile file(find_model_shape(model_shape_names().front()), "BF16");
  const ModelFile::Weight weight = file.weight(0);
  EXPECT_EQ(weight.name, "a name");
  EXPECT_EQ(weight.type, "a type");
  EXPECT_EQ(weight.shape, (std::vector<std::int64_t>{3, 4}));
  EXPECT_EQ(weight.offset, 7u);
  EXPECT_EQ(weight.bytes, 8u);
  Session session(no_model());
  const StepTimes times = time_step(session);
  EXPECT_EQ(times.seconds, 7);
  for (const std::vector<OperatorCost>& costs : {explain_step(file, {}, {}), times.operators}) {
    ASSERT_EQ(costs.size(), 1u);
    const OperatorCost& c = costs[0];
    expect_shown<OperatorCost>(
        {SHOW(name), SHOW(kernel), SHOW(num_calls), SHOW(bytes), SHOW(flops), SHOW(seconds)},
        {{"name", "a name"},
         {"kernel", "a kernel"},
         {"num_calls", "3"},
         {"bytes", "4"},
         {"flops", "5"},
         {"seconds", "6"}});
  }
}

TEST(CppResults, OfCeilingsAndPredictions) {
  const std::vector<Ceiling> ceilings = measure_ceilings({});
  const Plan plan(nullptr);
  const Prediction c = predict(plan, ceilings);  // compares the ceilings
  EXPECT_EQ(num_fields<Ceiling>(), 9u);
  ASSERT_EQ(c.parts.size(), 1u);
  EXPECT_EQ(num_fields<PredictionPart>(), 3u);
  EXPECT_EQ(c.parts[0].name, "a part");
  EXPECT_EQ(c.parts[0].unit_seconds, 3);
  EXPECT_EQ(c.parts[0].constant, 4);
  expect_shown<Prediction>({SHOW(seconds),
                            SHOW(flops),
                            SHOW(bytes),
                            SHOW(exps),
                            SHOW(num_tiles),
                            SHOW(num_slots),
                            SHOW(balance),
                            SHOW(ctas),
                            SHOW(limit),
                            SHOW(bound),
                            SHOW(ceilings),
                            SHOW(reason),
                            SHOW(text),
                            {"parts", show(c.parts.size())}},
                           {{"seconds", "1"},
                            {"flops", "2"},
                            {"bytes", "3"},
                            {"exps", "4"},
                            {"num_tiles", "5"},
                            {"num_slots", "6"},
                            {"balance", "7"},
                            {"ctas", "8"},
                            {"limit", "limit"},
                            {"bound", "bound"},
                            {"ceilings", "ceilings"},
                            {"reason", "reason"},
                            {"text", "text"},
                            {"parts", "1"}});
}

TEST(CppResults, OfTuning) {
  const Plan plan(nullptr);
  Tuning tuning(cpu_info());
  std::vector<TunedCall> all = tuning.calls();
  ASSERT_EQ(all.size(), 1u);
  all.push_back(tuning.tune(plan, {}));
  for (const TunedCall& c : all)
    expect_shown<TunedCall>({SHOW(kernel), SHOW(call), SHOW(config), SHOW(seconds),
                             SHOW(own_seconds), SHOW(num_configs), SHOW(num_timed)},
                            {{"kernel", "a kernel"},
                             {"call", "a call"},
                             {"config", "a config"},
                             {"seconds", "3"},
                             {"own_seconds", "4"},
                             {"num_configs", "5"},
                             {"num_timed", "6"}});
}

}  // namespace
