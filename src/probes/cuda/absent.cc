// The ceilings of a GPU in a build without CUDA.
#include "probes/measure.h"

namespace headrace::probes::gpu {

Result<std::vector<Ceiling>> measure(int, const MeasureOptions&) {
  return unsupported(
      "this build has no CUDA kernels: build with CUDA (nvcc on PATH, HEADRACE_CUDA=ON) or measure "
      "the CPU");
}

}  // namespace headrace::probes::gpu
