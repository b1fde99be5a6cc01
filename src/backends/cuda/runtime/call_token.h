// Numbers that tell the calls of a process apart, for kernels that mark a workspace as their own.
#pragma once

#include <cstdint>

namespace headrace::cuda {

// Below 2^62, and given once in the life of the process. Tokens begin with the clock, since memory
// may hold what an earlier process left there.
std::uint64_t next_call_token();

}  // namespace headrace::cuda
