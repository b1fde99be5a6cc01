#include "backends/cuda/runtime/status.cuh"

namespace headrace::cuda {
namespace {

// After these errors every later call of the process on that device fails.
bool is_sticky(cudaError_t error) {
  switch (error) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorECCUncorrectable:
      return true;
    default:
      return false;
  }
}

const char* remedy_of(cudaError_t error) {
  switch (error) {
    case cudaErrorNoDevice:
      return "; this machine shows no CUDA device (see nvidia-smi and CUDA_VISIBLE_DEVICES)";
    case cudaErrorInsufficientDriver:
      return "; the driver is absent or older than CUDA 13: install one, or pass tensors in CPU "
             "memory";
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion:
      return "; this build has no code for the device: build with its architecture in "
             "HEADRACE_CUDA_ARCHITECTURES";
    case cudaErrorMemoryAllocation:
      return "; free device memory";
    default:
      return "";
  }
}

}  // namespace

Failure cuda_failure(cudaError_t error, const std::string& doing) {
  (void)cudaGetLastError();
  const ErrorCode code =
      error == cudaErrorMemoryAllocation ? ErrorCode::out_of_memory : ErrorCode::device_error;
  return {code,
          format_text("{} ({}) while {}{}{}", cudaGetErrorName(error), cudaGetErrorString(error),
                      doing, remedy_of(error),
                      is_sticky(error) ? "; the process's context on the device is lost, every "
                                         "later call there fails: restart the process"
                                       : "")};
}

}  // namespace headrace::cuda
