// Draws of rows that have filters (ops/sampling.h).
#pragma once

#include "base/error.h"
#include "core/kernel.h"
#include "core/sampling_args.h"

namespace headrace::cuda {

// Of the queries that are filtered and have a finite maximum. The device is current.
Status draw_filtered(const DrawTokensArgs& call, Stream stream);

}  // namespace headrace::cuda
