// Size-prefixed structs: reading those of any header version, and making them.
#include <cstddef>

#include "attention/select.h"
#include "capi/door.h"
#include "core/device.h"

namespace headrace::capi {

Status read_tensors(const headrace_attention_tensors* theirs, headrace_attention_tensors& ours) {
  ours = {};
  // The oldest useful struct ends after the four tensors that are required.
  return copy_versioned("tensors", theirs, offsetof(headrace_attention_tensors, lse), &ours,
                        sizeof ours);
}

Status read_gradients(const headrace_attention_gradients* theirs,
                      headrace_attention_gradients& ours) {
  ours = {};
  return copy_versioned("gradients", theirs, offsetof(headrace_attention_gradients, dbias), &ours,
                        sizeof ours);
}

Status read_options(const headrace_attention_options* theirs, headrace_attention_options& ours) {
  ours = default_options();
  if (theirs == nullptr) return std::nullopt;
  return copy_versioned("options", theirs, offsetof(headrace_attention_options, softcap), &ours,
                        sizeof ours);
}

Status read_problem(const headrace_problem* theirs, headrace_problem& ours) {
  ours = default_problem();
  return copy_versioned("problem", theirs, offsetof(headrace_problem, window_left), &ours,
                        sizeof ours);
}

Status read_device(const headrace_device_info* theirs, headrace_device_info& ours) {
  ours = {};
  if (auto bad = copy_versioned("device", theirs, sizeof ours, &ours, sizeof ours)) return bad;
  return check_device(ours);
}

}  // namespace headrace::capi

extern "C" {

void headrace_attention_options_init(headrace_attention_options* options) {
  if (options != nullptr) *options = headrace::default_options();
}

void headrace_attention_tensors_init(headrace_attention_tensors* tensors) {
  if (tensors == nullptr) return;
  *tensors = {};
  tensors->struct_size = sizeof *tensors;
}

void headrace_attention_gradients_init(headrace_attention_gradients* gradients) {
  if (gradients == nullptr) return;
  *gradients = {};
  gradients->struct_size = sizeof *gradients;
}

void headrace_problem_init(headrace_problem* problem) {
  if (problem != nullptr) *problem = headrace::default_problem();
}

}  // extern "C"
