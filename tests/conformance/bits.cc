// Bit for bit: results that must not depend on how they were asked for.
#include "conformance/suites.h"

namespace headrace::testing {

Report run_bits(const SuiteOptions&) { return {}; }

}  // namespace headrace::testing
