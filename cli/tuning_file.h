// What headrace tune found, kept in a file of the user's cache folder.
#pragma once

#include <string>

#include "headrace/tuning.hpp"

namespace headrace::cli {

// $XDG_CACHE_HOME/headrace/tuning-....txt, by default under ~/.cache; "" if HOME is unset.
std::string tuning_path(const DeviceInfo& device);

// The table of a file; an empty one if there is none, or if the file is ignored, with a note that
// gives the reason.
Tuning read_tuning(const DeviceInfo& device, const std::string& path);

// Makes later plans take the choices of the device's file. Returns its path; "": there are none.
std::string use_tuning(const DeviceInfo& device);

}  // namespace headrace::cli
