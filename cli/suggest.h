// "Did you mean": the name closest to a mistyped one.
#pragma once

#include <string>
#include <vector>

namespace headrace::cli {

// Empty: none is close. A name is close if the edit distance is at most a third of its length, or
// if the mistyped text is a prefix of it.
std::string closest_name(const std::string& mistyped, const std::vector<std::string>& names);

}  // namespace headrace::cli
