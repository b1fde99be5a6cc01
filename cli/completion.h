// Shell completion scripts.
#pragma once

#include <string>
#include <vector>

#include "command_tree.h"

namespace headrace::cli {

std::string bash_completion(const std::vector<CommandInfo>& commands);
std::string zsh_completion(const std::vector<CommandInfo>& commands);
std::string fish_completion(const std::vector<CommandInfo>& commands);

}  // namespace headrace::cli
