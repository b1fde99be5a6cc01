// Where the time of a step goes.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/session.h"
#include "model/step_cost.h"

namespace headrace::engine {

struct StepTimes {
  std::vector<model::OperatorCost> operators;  // with seconds
  double seconds = 0;                          // of the step: the median of the rounds
};

// Times a step that appends num_tokens arbitrary tokens to the session, num_rounds times, in turn
// with steps that leave out one of its operators. The seconds of an operator are what the step
// takes longer with it, the median of the rounds: on a GPU the end of one operator hides the start
// of the next, so they are less than those of the operator alone. The session does not change.
// invalid_argument: num_tokens, num_rounds. unsupported: the session decodes with SparQ attention.
// out_of_memory: pages.
Result<StepTimes> time_step(Session& session, std::int64_t num_tokens, std::int64_t num_rounds);

}  // namespace headrace::engine
