// Tuned choices of a device.
#include <iterator>
#include <map>
#include <memory>

#include "attention/select.h"
#include "attention/tune/tune.h"
#include "base/callback.h"
#include "capi/capi_common.h"
#include "headrace/tuning.h"

struct headrace_tuning {
  explicit headrace_tuning(headrace::tune::Table table_of_device)
      : table(std::move(table_of_device)) {}
  headrace::tune::Table table;
  mutable std::string text;  // what headrace_tuning_text() returned
  struct Texts {
    std::string kernel, call, config;
  };
  mutable std::map<int64_t, Texts> texts;  // that were given to the caller, by index
};

namespace headrace::capi {
namespace {

headrace_tune_options default_tune_options() {
  const tune::TuneOptions ours;
  headrace_tune_options options{};
  options.struct_size = sizeof options;
  options.num_rounds = ours.search.num_rounds;
  options.round_seconds = ours.round_seconds;
  return options;
}

Status read_tune_options(const headrace_tune_options* theirs, headrace_tune_options& ours) {
  ours = default_tune_options();
  if (theirs == nullptr) return std::nullopt;
  HEADRACE_TRY(copy_versioned("tune_options", theirs, sizeof ours, &ours, sizeof ours));
  if (ours.num_rounds < 1 || ours.num_rounds > 1000)
    return invalid_argument("tune_options.num_rounds={}: must be 1 to 1000; pass 15",
                            ours.num_rounds);
  if (!(ours.round_seconds >= 0 && ours.round_seconds <= 10))
    return invalid_argument("tune_options.round_seconds={}: must be 0 to 10; pass 0.01",
                            ours.round_seconds);
  return std::nullopt;
}

headrace_status give_call(const headrace_tuning& tuning, int64_t index, int num_configs,
                          int num_timed, headrace_tuned_call* theirs) {
  const auto& [key, tuned] = *std::next(tuning.table.calls().begin(), index);
  const auto [at, is_new] = tuning.texts.try_emplace(index);
  headrace_tuning::Texts& texts = at->second;
  if (is_new)
    texts = {std::string(key.first->name), tune::call_text(key.second),
             tune::config_text(tuned.config)};
  headrace_tuned_call c{};
  c.kernel = texts.kernel.c_str();
  c.call = texts.call.c_str();
  c.config = texts.config.c_str();
  c.seconds = tuned.seconds;
  c.own_seconds = tuned.own_seconds;
  c.num_configs = num_configs;
  c.num_timed = num_timed;
  return give("call", c, theirs);
}

Result<tune::Found> tune_plan(const headrace_plan& planned, const TensorsFromC& from,
                              const headrace_run_options* options,
                              const headrace_tune_options* tune_options, Stream stream,
                              const tune::Table& table) {
  const Plan& plan = planned.plan;
  if (!table.is_of(plan.device))
    return invalid_argument(
        "tuning: is of another device than the plan, {}; create it for that one", plan.device.name);
  headrace_tune_options o;
  if (auto bad = read_tune_options(tune_options, o)) return std::move(*bad);
  auto ceilings = read_ceilings(o.ceilings, o.num_ceilings);
  if (!ceilings.ok()) return std::move(ceilings.failure());
  Result<AttentionArgs> args = args_of_run(plan, from, options);
  if (!args.ok()) return std::move(args.failure());
  tune::TuneOptions ours{.search = {.num_rounds = o.num_rounds, .ceilings = ceilings.value()},
                         .round_seconds = o.round_seconds,
                         .before_call = {}};
  if (o.before_call != nullptr)
    ours.before_call = [&o](Stream s) {
      return call_back("tune_options.before_call", [&] { o.before_call(o.user, s); });
    };
  return tune::tune_call(plan, args.value(), stream, ours);
}

}  // namespace
}  // namespace headrace::capi

using namespace headrace::capi;  // the functions below are the C face of this namespace

extern "C" {

headrace_status headrace_tune_options_init_sized(headrace_tune_options* options,
                                                 size_t struct_size) {
  return init("options", default_tune_options(), options, struct_size);
}

headrace_status headrace_tuning_create(const headrace_device_info* device,
                                       headrace_tuning** tuning) {
  return guarded([&] {
    if (tuning == nullptr)
      return fail(null_argument("tuning", "pass the address of a tuning pointer"));
    *tuning = nullptr;
    headrace_device_info info{};
    if (auto bad = read_device(device, info)) return fail(std::move(*bad));
    *tuning = new headrace_tuning(headrace::tune::Table(info, "a table of the program"));
    return HEADRACE_OK;
  });
}

headrace_status headrace_tuning_parse(const headrace_device_info* device, const char* text,
                                      size_t text_bytes, const char* source,
                                      headrace_tuning** tuning) {
  return guarded([&] {
    if (tuning == nullptr)
      return fail(null_argument("tuning", "pass the address of a tuning pointer"));
    *tuning = nullptr;
    if (text == nullptr) return fail(null_argument("text", "pass the text of a table"));
    headrace_device_info info{};
    if (auto bad = read_device(device, info)) return fail(std::move(*bad));
    auto table = headrace::tune::Table::parse(
        info, {text, text_bytes}, source == nullptr ? "a table of the program" : source);
    if (!table.ok()) return fail(std::move(table.failure()));
    *tuning = new headrace_tuning(std::move(table.value()));
    return HEADRACE_OK;
  });
}

const char* headrace_tuning_text(const headrace_tuning* tuning) {
  if (tuning == nullptr) return "";
  const headrace_status status = guarded([&] {
    tuning->text = tuning->table.text();
    return HEADRACE_OK;
  });
  return status == HEADRACE_OK ? tuning->text.c_str() : "";
}

void headrace_tuning_destroy(headrace_tuning* tuning) { delete tuning; }

headrace_status headrace_tuning_use(const headrace_tuning* tuning) {
  return guarded([&] {
    return status_of(headrace::tune::use_table(
        tuning == nullptr ? nullptr
                          : std::make_shared<const headrace::tune::Table>(tuning->table)));
  });
}

headrace_status headrace_plan_tune(const headrace_plan* plan,
                                   const headrace_attention_tensors* tensors,
                                   const headrace_attention_gradients* gradients,
                                   const headrace_run_options* options,
                                   const headrace_tune_options* tune_options, void* stream,
                                   headrace_tuning* tuning, headrace_tuned_call* call) {
  return guarded([&] {
    if (plan == nullptr)
      return fail(null_argument("plan", "create one with headrace_plan_attention"));
    if (tuning == nullptr)
      return fail(null_argument("tuning", "create one with headrace_tuning_create"));
    const TensorsFromC from{tensors, gradients,
                            gradients == nullptr ? HEADRACE_FORWARD : HEADRACE_BACKWARD};
    auto found = tune_plan(*plan, from, options, tune_options, stream, tuning->table);
    if (!found.ok()) return fail(std::move(found.failure()));
    const auto& f = found.value();
    const headrace::Kernel& kernel = *plan->plan.kernel;
    if (auto bad = tuning->table.set(kernel, plan->plan.problem, f.call))
      return fail(std::move(*bad));
    tuning->texts.clear();
    if (call == nullptr) return HEADRACE_OK;
    const auto& calls = tuning->table.calls();
    const auto at = calls.find({&kernel, headrace::tune::key_of(plan->plan.problem)});
    return give_call(*tuning, std::distance(calls.begin(), at), f.num_configs, f.num_timed, call);
  });
}

int64_t headrace_tuning_count(const headrace_tuning* tuning) {
  return tuning == nullptr ? 0 : static_cast<int64_t>(tuning->table.calls().size());
}

headrace_status headrace_tuning_get(const headrace_tuning* tuning, int64_t index,
                                    headrace_tuned_call* call) {
  return guarded([&] {
    const int64_t count = headrace_tuning_count(tuning);
    if (index < 0 || index >= count)
      return fail(headrace::invalid_argument(
          "index={}: must be 0 to below {}, the number of calls; pass one of them", index, count));
    return give_call(*tuning, index, 0, 0, call);
  });
}

}  // extern "C"
