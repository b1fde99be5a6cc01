// Softmax along one axis, forward and backward: validation of the caller's tensors and dispatch to
// the backend of their device.
#pragma once

#include "base/error.h"
#include "core/kernel.h"
#include "core/softmax_args.h"

namespace headrace {

headrace_softmax_options default_softmax_options();

// Check shapes, strides, dtypes, devices, overlaps and options. They read no element and allocate
// only for error messages.
Result<SoftmaxForwardArgs> validate_softmax(const headrace_softmax_tensors& tensors,
                                            const headrace_softmax_options& options);
Result<SoftmaxBackwardArgs> validate_softmax_backward(
    const headrace_softmax_backward_tensors& tensors, const headrace_softmax_options& options);

// Validate and run on the device of the tensors.
Status softmax_forward(const headrace_softmax_tensors& tensors,
                       const headrace_softmax_options& options, Stream stream);
Status softmax_backward(const headrace_softmax_backward_tensors& tensors,
                        const headrace_softmax_options& options, Stream stream);

}  // namespace headrace
