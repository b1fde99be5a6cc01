#include "base/env.h"

#include <cstdlib>

namespace headrace::env {
namespace {

// In the order of the enum.
constexpr Description kVariables[] = {
    {Variable::cpu_isa, "HEADRACE_CPU_ISA",
     "highest CPU instruction set used: scalar, avx2, avx512, avx512_vnni, avx512_bf16, "
     "avx512_bf16_fast or neon"},
    {Variable::cuda_sm, "HEADRACE_CUDA_SM",
     "highest compute capability whose kernels are used, 80 to 999: 80 runs the portable ones"},
    {Variable::num_threads, "HEADRACE_NUM_THREADS",
     "threads per CPU call, 1 to 1024 (default: the CPUs of the affinity mask)"},
    {Variable::kernel, "HEADRACE_KERNEL",
     "forces one kernel by its name (default: the first kernel that supports the problem)"},
};

}  // namespace

std::span<const Description> variables() { return kVariables; }

const char* name_of(Variable variable) { return kVariables[static_cast<int>(variable)].name; }

std::string_view value_of(Variable variable) {
  const char* value = std::getenv(name_of(variable));
  return value == nullptr ? std::string_view() : std::string_view(value);
}

}  // namespace headrace::env
