// Parses the schedule line of a plan's explanation.
#pragma once

#include <string_view>

#include "table.h"

namespace headrace::cli {

// Empty cells for values that the text lacks.
struct ScheduleFacts {
  Cell tile_m, tile_n, max_splits;
};

// Reads the line "schedule  tile_m 192, tile_n 128, up to 8 splits of 512 keys, 2 threads, ...".
ScheduleFacts schedule_of(std::string_view explain);

}  // namespace headrace::cli
