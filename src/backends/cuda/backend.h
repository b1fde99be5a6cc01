// Interface of the CUDA backend. A build without CUDA links absent.cc.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backends/cuda/elementwise/decoder_ops.h"
#include "backends/cuda/gemm/cublaslt.h"
#include "backends/cuda/gemm/gemm.h"
#include "backends/cuda/runtime/event.h"
#include "backends/cuda/runtime/graph.h"
#include "backends/cuda/runtime/timer.h"
#include "core/kernel.h"
#include "core/kv_append_args.h"
#include "core/merge_states_args.h"
#include "core/sampling_args.h"
#include "core/softmax_args.h"
#include "core/sparq_args.h"
#include "runtime/device.h"

namespace headrace::cuda {

// Attention forward kernels in order of preference; the last one takes every problem. Empty without
// CUDA.
std::span<const Kernel> forward_kernels();
// Queries x heads of a group of a sequence, up to which a forward over a KV cache is a decode: the
// kernel for it splits the keys.
inline constexpr std::int64_t kMaxDecodeRows = 16;

// The same for the backward.
std::span<const Kernel> backward_kernels();

// "sm_80 sm_90a compute_80", or "none".
std::string architectures();

Result<int> num_devices();
Result<DeviceInfo> device_info(int device_id);

// Memory of a CUDA device.
Result<std::unique_ptr<Device>> make_device(int device_id);

// Checks the device and the pointers, then launches on `stream` with the plan's device current.
// Afterwards the caller's device is current again.
Status run(const Plan& plan, const AttentionArgs& args, Workspace workspace, Stream stream);

// Stream-ordered device memory: allocation and free do not block.
struct FreeScratch {
  int device_id = 0;
  Stream stream = nullptr;
  void operator()(void* data) const;
};
using Scratch = std::unique_ptr<void, FreeScratch>;
Result<Scratch> allocate_scratch(std::size_t bytes, int device_id, Stream stream);

// cu_seqlens, seqused_k, block_table and page_indptr, as far as they are given, copied to the host
// with their strides. Synchronises `stream`.
struct HostLengths {
  std::vector<std::int32_t> cu_seqlens_q, cu_seqlens_k;  // [batch + 1]
  std::vector<std::int32_t> seqused_k;                   // [batch]
  std::vector<std::int32_t> block_table;                 // [batch][max_pages] or [num_entries]
  std::vector<std::int32_t> page_indptr;                 // [batch + 1]
};
Result<HostLengths> read_lengths(const Plan& plan, const AttentionArgs& args, Stream stream);

// Softmax along an axis: checks the device and the pointers, then launches on `stream`.
Status softmax_forward(const SoftmaxForwardArgs& args, int device_id, Stream stream);
Status softmax_backward(const SoftmaxBackwardArgs& args, int device_id, Stream stream);

// The passes over logits that sampling makes.
Status edit_logits(const EditLogitsArgs& args, int device_id, Stream stream);
Status summarise_logits(const SummariseLogitsArgs& args, int device_id, Stream stream);
Status gather_logits(const GatherLogitsArgs& args, int device_id, Stream stream);
Status draw_tokens(const DrawTokensArgs& args, int device_id, Stream stream);

// An append to a paged KV cache: checks the device and the pointers, then launches on `stream`.
Status kv_append(const KvAppendArgs& args, int device_id, Stream stream);

// A merge of attention states: checks the device and the pointers, then launches on `stream`.
Status merge_states(const MergeStatesArgs& args, int device_id, Stream stream);

// SparQ attention and its append: check the device and the pointers, then launch on `stream`.
std::size_t sparq_workspace_bytes(const SparqArgs& args);
Status sparq_attention(const SparqArgs& args, int device_id, void* workspace, Stream stream);
Status sparq_append(const SparqAppendArgs& args, int device_id, Stream stream);

// Synchronises `stream`, then reads and clears the error word that kernels set if lengths, pages,
// slots or positions on the device are out of bounds.
Status check(int device_id, Stream stream);

}  // namespace headrace::cuda
