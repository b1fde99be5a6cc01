// Size-prefixed structs: reads structs of any header version and initializes them.
#include <cstddef>
#include <cstring>

#include "attention/select.h"
#include "capi/capi_common.h"
#include "core/device.h"

namespace headrace::capi {

// Reads a struct of any version. Fills in only what the caller's does not have: structs are large.
template <class T>
static Status read_over(const char* name, const T* theirs, std::size_t min_bytes, const T& defaults,
                        T& ours) {
  HEADRACE_TRY(copy_versioned(name, theirs, min_bytes, &ours, sizeof ours));
  const std::size_t known = std::min(theirs->struct_size, sizeof ours);
  if (known < sizeof ours)
    std::memcpy(reinterpret_cast<unsigned char*>(&ours) + known,
                reinterpret_cast<const unsigned char*>(&defaults) + known, sizeof ours - known);
  return std::nullopt;
}
template <class T>
static Status read_over_zeros(const char* name, const T* theirs, std::size_t min_bytes, T& ours) {
  static constexpr T kZeros{};
  return read_over(name, theirs, min_bytes, kZeros, ours);
}

Status read_tensors(const headrace_attention_tensors* theirs, headrace_attention_tensors& ours) {
  // The oldest accepted struct ends after the four required tensors.
  HEADRACE_TRY(read_over_zeros("tensors", theirs, offsetof(headrace_attention_tensors, lse), ours));
  if (ours.quantised == nullptr) return std::nullopt;
  // It is used in place: no older version is shorter.
  headrace_quantised_kv copy;
  return copy_versioned("tensors.quantised", ours.quantised, sizeof copy, &copy, sizeof copy);
}

Status read_gradients(const headrace_attention_gradients* theirs,
                      headrace_attention_gradients& ours) {
  return read_over_zeros("gradients", theirs, offsetof(headrace_attention_gradients, dbias), ours);
}

Status read_options(const headrace_attention_options* theirs, headrace_attention_options& ours) {
  ours = default_options();
  if (theirs == nullptr) return std::nullopt;
  return copy_versioned("options", theirs, offsetof(headrace_attention_options, softcap), &ours,
                        sizeof ours);
}

Status read_run_options(const headrace_run_options* theirs, headrace_run_options& ours) {
  ours = {};
  if (theirs == nullptr) return std::nullopt;
  return copy_versioned("options", theirs, sizeof ours, &ours, sizeof ours);
}

Status read_problem(const headrace_problem* theirs, headrace_problem& ours) {
  static const headrace_problem kDefaults = default_problem();
  return read_over("problem", theirs, offsetof(headrace_problem, window_left), kDefaults, ours);
}

Status read_device(const headrace_device_info* theirs, headrace_device_info& ours) {
  HEADRACE_TRY(copy_versioned("device", theirs, sizeof ours, &ours, sizeof ours));
  return check_device(ours);
}

Status write_versioned(const char* name, const void* ours, std::size_t our_bytes, void* theirs,
                       std::size_t bytes) {
  if (bytes < sizeof bytes || bytes % alignof(std::int64_t) != 0 || bytes > our_bytes)
    return invalid_argument(
        "{}.struct_size={}: must be the sizeof of the struct, at most {} bytes in this library "
        "({}); set it to sizeof, or load a library as new as the header",
        name, bytes, our_bytes, headrace_version());
  std::memcpy(theirs, ours, bytes);
  std::memcpy(theirs, &bytes, sizeof bytes);
  return std::nullopt;
}

}  // namespace headrace::capi

using namespace headrace::capi;  // the functions below are the C face of this namespace

extern "C" {

headrace_status headrace_attention_options_init_sized(headrace_attention_options* options,
                                                      size_t struct_size) {
  return init("options", headrace::default_options(), options, struct_size);
}

headrace_status headrace_run_options_init_sized(headrace_run_options* options, size_t struct_size) {
  return init("options", {}, options, struct_size);
}

headrace_status headrace_attention_tensors_init_sized(headrace_attention_tensors* tensors,
                                                      size_t struct_size) {
  return init("tensors", {}, tensors, struct_size);
}

headrace_status headrace_quantised_kv_init_sized(headrace_quantised_kv* quantised,
                                                 size_t struct_size) {
  return init("quantised", {}, quantised, struct_size);
}

headrace_status headrace_attention_gradients_init_sized(headrace_attention_gradients* gradients,
                                                        size_t struct_size) {
  return init("gradients", {}, gradients, struct_size);
}

headrace_status headrace_problem_init_sized(headrace_problem* problem, size_t struct_size) {
  return init("problem", headrace::default_problem(), problem, struct_size);
}

}  // extern "C"
