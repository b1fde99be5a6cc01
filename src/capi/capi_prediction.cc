// What a plan costs, and how long it will take.
#include <memory>

#include "attention/predict/prediction.h"
#include "capi/capi_common.h"
#include "headrace/roofline.h"

struct headrace_prediction {
  headrace::predict::Prediction prediction;
  // Terminated copies of names.
  std::string bound;
  std::vector<std::string> part_names;
};

namespace headrace::capi {

Result<std::vector<probes::Ceiling>> read_ceilings(const headrace_ceiling* theirs,
                                                   int64_t num_ceilings) {
  constexpr int64_t kMostCeilings = 10000;
  if (num_ceilings < 0 || num_ceilings > kMostCeilings)
    return invalid_argument("num_ceilings={}: must be 0 to {}; pass the number of ceilings",
                            num_ceilings, kMostCeilings);
  if (num_ceilings > 0 && theirs == nullptr)
    return null_argument("ceilings", "pass the ceilings, or num_ceilings=0");
  std::vector<probes::Ceiling> ours;
  const auto* next = reinterpret_cast<const unsigned char*>(theirs);
  for (int64_t i = 0; i < num_ceilings; ++i) {
    const auto* one = reinterpret_cast<const headrace_ceiling*>(next);
    headrace_ceiling c{};
    if (auto bad = copy_versioned("ceilings", one, sizeof c, &c, sizeof c)) return std::move(*bad);
    if (one->struct_size != theirs->struct_size)
      return invalid_argument(
          "ceilings[{}].struct_size={}: must be that of ceilings[0], {}; set all to sizeof", i,
          one->struct_size, theirs->struct_size);
    next += theirs->struct_size;
    if (c.kind < HEADRACE_CEILING_COMPUTE || c.kind > HEADRACE_CEILING_LATENCY ||
        c.resource == nullptr || c.operation == nullptr || c.num_units < 1 || !(c.value > 0) ||
        !(c.value < 1e30) || c.bytes < 0)
      return invalid_argument(
          "ceilings[{}]: kind={}, num_units={}, value={}, bytes={} and its names must be those of "
          "a ceiling; pass what headrace_ceilings_get() filled",
          i, c.kind, c.num_units, c.value, c.bytes);
    ours.push_back({.kind = static_cast<probes::CeilingKind>(c.kind),
                    .resource = c.resource,
                    .operation = c.operation,
                    .num_units = c.num_units,
                    .value = c.value,
                    .best = c.best,
                    .clock_hz = c.clock_hz,
                    .watts = c.watts,
                    .bytes = c.bytes});
  }
  return ours;
}

}  // namespace headrace::capi

using namespace headrace::capi;  // the functions below are the C face of this namespace

extern "C" {

headrace_status headrace_plan_predict(const headrace_plan* plan, const headrace_ceiling* ceilings,
                                      int64_t num_ceilings, headrace_prediction** prediction) {
  return guarded([&] {
    if (prediction == nullptr)
      return fail(null_argument("prediction", "pass the address of a prediction pointer"));
    *prediction = nullptr;
    if (plan == nullptr) return fail(null_argument("plan", "pass a plan"));
    auto measured = read_ceilings(ceilings, num_ceilings);
    if (!measured.ok()) return fail(std::move(measured.failure()));
    auto made = std::make_unique<headrace_prediction>();
    made->prediction = headrace::predict::predict(plan->plan, measured.value());
    made->bound = made->prediction.bound;
    for (const auto& part : made->prediction.time.parts) made->part_names.emplace_back(part.name);
    *prediction = made.release();
    return HEADRACE_OK;
  });
}

headrace_status headrace_prediction_get(const headrace_prediction* prediction,
                                        headrace_prediction_info* info) {
  return guarded([&] {
    if (prediction == nullptr) return fail(null_argument("prediction", "pass a prediction"));
    const headrace::predict::Prediction& ours = prediction->prediction;
    headrace_prediction_info i{};
    i.seconds = ours.seconds;
    i.flops = ours.work.flops;
    i.bytes = ours.work.bytes;
    i.exps = ours.work.exps;
    i.num_tiles = ours.time.waves.num_tiles;
    i.num_slots = ours.time.waves.num_slots;
    i.balance = ours.time.waves.balance();
    i.ctas = ours.occupancy.ctas;
    i.num_parts = static_cast<int32_t>(ours.time.parts.size());
    i.limit = ours.occupancy.limit.c_str();
    i.bound = prediction->bound.c_str();
    i.ceilings = ours.source.c_str();
    i.reason = ours.time.reason.c_str();
    i.text = ours.text.c_str();
    return give("info", i, info);
  });
}

headrace_status headrace_prediction_get_part(const headrace_prediction* prediction, int64_t index,
                                             headrace_prediction_part* part) {
  return guarded([&] {
    if (prediction == nullptr) return fail(null_argument("prediction", "pass a prediction"));
    const auto& parts = prediction->prediction.time.parts;
    if (index < 0 || index >= static_cast<int64_t>(parts.size()))
      return fail(headrace::invalid_argument(
          "index={}: must be 0 to below {}, the number of parts; pass one of them", index,
          parts.size()));
    const auto i = static_cast<size_t>(index);
    headrace_prediction_part p{};
    p.name = prediction->part_names[i].c_str();
    p.unit_seconds = parts[i].unit_seconds;
    p.constant = parts[i].constant;
    return give("part", p, part);
  });
}

void headrace_prediction_destroy(headrace_prediction* prediction) { delete prediction; }

}  // extern "C"
