// The numbers in the schedule of a plan's explanation.
#pragma once

#include <string_view>

#include "table.h"

namespace headrace::cli {

// No value where the text does not say.
struct ScheduleFacts {
  Cell tile_m, tile_n, max_splits;
};

// Reads the line "schedule  tile_m 192, tile_n 128, up to 8 splits of 512 keys, 2 threads, ...".
ScheduleFacts schedule_of(std::string_view explain);

}  // namespace headrace::cli
