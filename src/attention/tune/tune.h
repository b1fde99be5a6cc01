// Measures a call and finds the fastest choices of its kernel.
#pragma once

#include <functional>

#include "attention/tune/search.h"
#include "core/kernel.h"

namespace headrace::tune {

struct TuneOptions {
  SearchOptions search{};
  double round_seconds = 0.01;  // a round takes about as long, at least one call
  // Before every call, such as to evict caches; not timed. Empty: the calls of a round follow each
  // other.
  std::function<Status(Stream)> before_call{};
};

// Runs `plan` with its kernel's own choices and with others on the caller's tensors
// and stream, many times. The bits of the outputs are those of one call.
Result<Found> tune_call(const Plan& plan, const AttentionArgs& args, Stream stream,
                        const TuneOptions& options);

}  // namespace headrace::tune
