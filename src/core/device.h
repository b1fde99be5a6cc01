// Device descriptions: the CPU of this process, and any device described by text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"
#include "core/problem.h"

namespace headrace {

// Instruction sets (headrace_cpu_isa bits) that this CPU and its operating system support,
// regardless of environment variables.
std::uint32_t detected_cpu_isa();

// The CPU of this process; HEADRACE_CPU_ISA caps the instruction set, HEADRACE_NUM_THREADS sets the
// threads. Fails if one of them is invalid.
Result<DeviceInfo> cpu_info();

// The device as HEADRACE_CUDA_SM caps it: with the compute capability and shared memory of an older
// GPU it gets the kernels of that GPU. Fails if the variable is invalid.
Result<DeviceInfo> capped_gpu(const DeviceInfo& device);

// "cpu" (this machine), "cpu:ISA", "cpu:ISA:THREADS", "smNN:UNITS". An instruction set implies the
// lower ones. The device need not be present. (The C API handles "cuda:NUMBER", which queries the
// backend.)
Result<DeviceInfo> device_from_text(std::string_view text);

// "scalar", "avx2", "avx512", "avx512_vnni", "avx512_bf16", "avx512_bf16_fast", "neon": the highest
// one of the bits.
std::string_view cpu_isa_name(std::uint32_t cpu_isa);

// One line for explain(): "cpu avx2, 16 threads, L2 512 KiB (name)".
std::string device_text(const DeviceInfo& device);

// Checks a caller's description: type, unit count, known bits, terminated name.
Status check_device(const DeviceInfo& device);

}  // namespace headrace
