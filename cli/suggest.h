// "Did you mean": the name that a mistyped one is closest to.
#pragma once

#include <string>
#include <vector>

namespace headrace::cli {

// Empty: none is close. A name is close when at most a third of its characters are wrong, missing,
// too many or swapped with their neighbour, or when the mistyped text is its beginning.
std::string closest_name(const std::string& mistyped, const std::vector<std::string>& names);

}  // namespace headrace::cli
