// Checks of tensor arguments that several operators make.
#pragma once

#include "base/error.h"
#include "core/kernel.h"
#include "headrace/tensor.hpp"

namespace headrace {

struct NamedTensor {
  const char* name;
  const headrace_tensor* view;
};

// The dtypes of activations.
Status check_activation_dtype(const NamedTensor& tensor);

Status check_same_device(const NamedTensor& other, const NamedTensor& first);

// `may_be_same`: in-place calls are allowed; `other` has the shape and dtype of the output, and
// each element is read before it is written.
Status check_overlap(const NamedTensor& output, const NamedTensor& other, bool may_be_same);

// Two indices of an output must not lie on one element.
Status check_within(const NamedTensor& output);

// On the CPU a call has no stream.
Status check_no_stream(Stream stream);

}  // namespace headrace
