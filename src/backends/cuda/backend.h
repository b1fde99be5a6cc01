// What the layers above see of the CUDA backend. In a build without CUDA absent.cc answers.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/kernel.h"
#include "core/softmax_args.h"

namespace headrace::cuda {

// Attention forward, best first; the last one takes every problem. Empty without CUDA.
std::span<const Kernel> forward_kernels();

// The same for the backward.
std::span<const Kernel> backward_kernels();

// "sm_80 sm_90a compute_80", or "none".
std::string architectures();

Result<int> num_devices();
Result<DeviceInfo> device_info(int device_id);

// Checks the device, the pointers and (with `checked`) nothing else, then launches on `stream` with
// the plan's device current; the caller's is current again afterwards.
Status run(const Plan& plan, const AttentionArgs& args, Workspace workspace, Stream stream);

// Memory on a device, allocated and freed in the order of a stream: nobody waits.
struct FreeScratch {
  int device_id = 0;
  Stream stream = nullptr;
  void operator()(void* data) const;
};
using Scratch = std::unique_ptr<void, FreeScratch>;
Result<Scratch> allocate_scratch(std::size_t bytes, int device_id, Stream stream);

// The row lengths of a ragged batch, copied to the host. Waits for `stream`.
struct HostLengths {
  std::vector<std::int32_t> cu_seqlens_q, cu_seqlens_k;  // [batch + 1]
};
Result<HostLengths> read_lengths(const Plan& plan, const AttentionArgs& args, Stream stream);

// Softmax along an axis: checks the device and the pointers, then launches on `stream`.
Status softmax_forward(const SoftmaxForwardArgs& args, int device_id, Stream stream);
Status softmax_backward(const SoftmaxBackwardArgs& args, int device_id, Stream stream);

// Waits for `stream`, then reads and clears the word that kernels set where lengths on the device
// are out of bounds.
Status check(int device_id, Stream stream);

}  // namespace headrace::cuda
