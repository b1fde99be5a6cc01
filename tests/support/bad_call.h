// Calls that break one rule each, for tests of errors.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "attention/validate_fixture.h"
#include "tests/support/golden_texts.h"

namespace headrace {

struct BadCall {
  std::function<Call()> make;  // a valid one
  std::function<void(Call&)> mutate;
  std::vector<const char*> substrings;  // argument, value, rule, remedy
};

inline void expect_refusals(const std::vector<BadCall>& all) {
  testing::GoldenTexts texts("attention.txt");
  int index = 0;
  for (const BadCall& test : all) {
    SCOPED_TRACE(index++);
    Call c = test.make();
    ASSERT_FALSE(c.check()) << c.check()->message;
    test.mutate(c);
    const Status status = c.check();
    ASSERT_TRUE(status.has_value());
    EXPECT_EQ(status->code, ErrorCode::invalid_argument);
    texts.add(status->message);
    for (const char* substring : test.substrings)
      EXPECT_NE(status->message.find(substring), std::string::npos)
          << "no \"" << substring << "\" in: " << status->message;
  }
}

}  // namespace headrace
