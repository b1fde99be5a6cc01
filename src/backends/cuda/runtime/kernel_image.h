// Compiled kernels as data: what code of the host needs to launch one. A file of kernels that
// exports them includes no code of the host, and compiles seconds faster.
#pragma once

#include <cstdint>

namespace headrace::cuda {

// Devices on which a kernel has been allowed more than 48 KiB of dynamic shared memory. One object
// per kernel, so that the driver is called once per device and not at every launch.
struct AllowedSmem {
  std::uint64_t devices = 0;  // bit i: cuda:i; threads change it by std::atomic_ref
};

// A kernel whose CTAs are all alike. Args: its parameters.
template <class... Args>
struct KernelImage {
  const char* name;  // in errors: "cuda_sm90_fwd<bf16, 128>"
  void (*function)(Args...);
  unsigned threads, smem_bytes;  // of a CTA; the shared memory is dynamic
  AllowedSmem allowed = {};
};

// A kernel in both dtypes.
template <class... Args>
struct KernelPair {
  KernelImage<Args...> bf16, f16;
};

}  // namespace headrace::cuda
