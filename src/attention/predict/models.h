// A small model of each kernel: the parts of its time, each an amount of work at a ceiling of the
// device (or a count of microseconds) times a constant that recorded measurements fit
// (bench/fit_predictions.py).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "attention/predict/occupancy.h"
#include "attention/predict/rates.h"
#include "attention/predict/waves.h"
#include "core/plan.h"

namespace headrace::predict {

// What a call needs at least: each input that it reads and each output once. Sequences are as long
// as the plan allows.
struct Work {
  double bytes = 0, flops = 0, exps = 0;
};
Work work_of(const Problem& p);

// A part of the predicted time: `seconds` is `constant` x `unit_seconds`.
struct Part {
  std::string_view name;
  double unit_seconds;
  double constant = 0;
  double seconds() const { return constant * unit_seconds; }
};

struct ModelTime {
  Waves waves;
  std::vector<Part> parts;  // empty: no prediction
  std::string reason;       // why there is none
};
ModelTime model_time(const Plan& plan, const Rates& rates, const Occupancy& occupancy);

}  // namespace headrace::predict
