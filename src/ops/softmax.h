// Softmax along one axis, forward and backward: what the caller handed in becomes the arguments of
// a backend, or an error that names the argument, what arrived, the rule it broke and what to do.
#pragma once

#include "base/error.h"
#include "core/kernel.h"
#include "core/softmax_args.h"

namespace headrace {

headrace_softmax_options default_softmax_options();

// Shapes, strides, dtypes, devices, overlaps, options. Reads no element, allocates nothing where
// nothing is wrong.
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
