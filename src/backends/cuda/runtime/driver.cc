#include "backends/cuda/runtime/driver.cuh"

#include "backends/cuda/runtime/status.cuh"

namespace headrace::cuda {
namespace {

struct Found {
  Driver driver;
  Status failure;
};

// `version`: the CUDA version of the signature.
template <class Function>
Status find(const char* name, unsigned version, bool is_required, Function*& function) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, &address, version, cudaEnableDefault, &result);
  if (error == cudaSuccess && result == cudaDriverEntryPointSuccess) {
    function = reinterpret_cast<Function*>(address);
    return std::nullopt;
  }
  if (error != cudaSuccess) {
    if (is_required) return cuda_failure(error, format_text("looking for {} in the driver", name));
    (void)cudaGetLastError();
  }
  if (!is_required) return std::nullopt;
  return Failure{ErrorCode::device_error,
                 format_text("the driver has no {} of CUDA {}.{}; install a newer driver", name,
                             version / 1000, version % 1000 / 10)};
}

Found find_all() {
  Found found;
  Driver& d = found.driver;
  found.failure = find("cuCtxGetCurrent", 4000, true, d.ctx_get_current);
  if (!found.failure) found.failure = find("cuCtxSetCurrent", 4000, true, d.ctx_set_current);
  if (!found.failure) found.failure = find("cuCtxGetDevice", 2000, true, d.ctx_get_device);
  if (found.failure) return found;
  (void)find("cuTensorMapEncodeTiled", 12000, false, d.tensor_map_encode_tiled);
  (void)find("cuTensorMapReplaceAddress", 12000, false, d.tensor_map_replace_address);
  return found;
}

}  // namespace

Result<const Driver*> driver() {
  static const Found found = find_all();
  if (found.failure) return *found.failure;
  return &found.driver;
}

}  // namespace headrace::cuda
