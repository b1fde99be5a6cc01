// The man page, as roff.
#pragma once

#include <string>
#include <vector>

#include "command_tree.h"

namespace headrace::cli {

std::string man_page(const std::vector<CommandInfo>& commands);

}  // namespace headrace::cli
