// The JSON report of a command of the headrace program.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/program.h"

namespace headrace::testing {

inline nlohmann::json json_of(const std::string& arguments) {
  const ProgramResult result = run_program(arguments + " --format json");
  EXPECT_EQ(result.exit_code, 0) << arguments;
  return nlohmann::json::parse(result.out);
}

}  // namespace headrace::testing
