// The text of an expected headrace::Error.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "headrace/headrace.hpp"

namespace headrace::testing {

// What body() throws, with a failure of the test if it throws nothing or another code.
template <class Body>
std::string error_of(Body body, headrace_status code) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

}  // namespace headrace::testing
