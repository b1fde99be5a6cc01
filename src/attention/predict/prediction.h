// What a call costs and how long it takes: work, tiles, occupancy, and the time that the model of
// its kernel predicts.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "attention/predict/models.h"

namespace headrace::predict {

struct Prediction {
  Work work;
  Occupancy occupancy;
  ModelTime time;
  std::string source;      // of the ceilings
  double seconds = 0;      // 0: no prediction; time.reason says why
  std::string_view bound;  // the part that takes longest; empty: no prediction
  std::string text;        // lines for people
};

// `measured`: ceilings of the plan's device; empty: those that the library knows of it.
Prediction predict(const Plan& plan, std::span<const probes::Ceiling> measured);

}  // namespace headrace::predict
