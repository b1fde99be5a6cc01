// Whether attention over quantised keys is what it must be.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "support/quantised_bounds.h"

namespace headrace::testing {

inline void expect_close(const QuantisedCall& call, const ErrorBounds& bounds,
                         const std::string& what) {
  const BoundShares worst = shares_of(call, judged_rows(call), bounds);
  EXPECT_LE(worst.out, 1.0) << what;
  EXPECT_LE(worst.lse, 1.0) << what;
}

}  // namespace headrace::testing
