#include "support/device_copy.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "attention/forward.h"
#include "attention/overlap.h"
#include "attention/validate.h"
#include "backends/cuda/backend.h"
#include "backends/cuda/runtime/status.cuh"
#include "support/guarded_buffer.h"

namespace headrace::testing {
namespace {

constexpr std::size_t kBand = 4096;  // guard band of NaNs around every block

using Tensors = headrace_attention_tensors;
using Gradients = headrace_attention_gradients;
constexpr headrace_tensor Tensors::*kInputs[] = {&Tensors::q,           &Tensors::k,
                                                 &Tensors::v,           &Tensors::cu_seqlens_q,
                                                 &Tensors::bias,        &Tensors::mask,
                                                 &Tensors::tree_mask,   &Tensors::cu_seqlens_k,
                                                 &Tensors::sinks,       &Tensors::alibi_slopes,
                                                 &Tensors::block_table, &Tensors::seqused_k,
                                                 &Tensors::page_indptr};
using Quantised = headrace_quantised_kv;
constexpr headrace_tensor Quantised::*kQuantised[] = {&Quantised::k_scale, &Quantised::v_scale,
                                                      &Quantised::k_recent, &Quantised::v_recent,
                                                      &Quantised::recent_table};
constexpr headrace_tensor Tensors::*kOutputs[] = {&Tensors::out, &Tensors::lse, &Tensors::probs};
constexpr headrace_tensor Gradients::*kGradientInputs[] = {&Gradients::dout, &Gradients::dlse};
constexpr headrace_tensor Gradients::*kGradientOutputs[] = {
    &Gradients::dq, &Gradients::dk, &Gradients::dv, &Gradients::dbias, &Gradients::dsinks};

// The tensors of a call; a forward has no gradients. tensors.quantised is not followed.
struct Views {
  Tensors tensors;
  Gradients gradients;
  bool is_backward;
  Quantised quantised = {};

  // visit(tensor, is_output), inputs first.
  template <class Visit>
  void for_each(Visit visit) {
    for (const auto member : kInputs) visit(tensors.*member, false);
    for (const auto member : kQuantised) visit(quantised.*member, false);
    for (const auto member : kGradientInputs) visit(gradients.*member, false);
    for (const auto member : kOutputs) visit(tensors.*member, !is_backward);
    for (const auto member : kGradientOutputs) visit(gradients.*member, true);
  }
};

// A block of host memory and its offset in the arena.
struct Block {
  std::span<unsigned char> host;
  std::size_t offset;
  bool is_output;
};

// A test thread's host and device memory; it grows and is never freed.
class Arena {
 public:
  Arena() {
    status_ = cuda::cuda_status(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
                                "creating a stream");
  }
  Arena(const Arena&) = delete;
  ~Arena() {
    cudaFree(device_);
    cudaFreeHost(host_);
    cudaStreamDestroy(stream_);
  }
  Status reserve(std::size_t bytes) {
    if (status_ || bytes <= bytes_) return status_;
    cudaFree(device_);
    cudaFreeHost(host_);
    device_ = host_ = nullptr;
    const std::size_t wanted = std::max(bytes, 2 * std::exchange(bytes_, 0));
    if (Status bad = cuda::cuda_status(cudaMalloc(&device_, wanted), "allocating {} bytes", wanted))
      return bad;
    if (Status bad = cuda::cuda_status(cudaMallocHost(&host_, wanted), "pinning {} bytes", wanted))
      return bad;
    bytes_ = wanted;
    return std::nullopt;
  }
  unsigned char* device() const { return static_cast<unsigned char*>(device_); }
  unsigned char* host() const { return static_cast<unsigned char*>(host_); }
  cudaStream_t stream() const { return stream_; }

 private:
  void* device_ = nullptr;
  void* host_ = nullptr;
  std::size_t bytes_ = 0;
  cudaStream_t stream_ = nullptr;
  Status status_;
};

class Copies {
 public:
  Copies(const Views& views, std::size_t workspace_bytes) : on_device_(views) {
    on_device_.for_each([&](const headrace_tensor& x, bool is_output) { add(x, is_output); });
    // Unaligned on purpose: workspaces may have any alignment.
    workspace_ = bytes_ + (4096 - workspace_bytes % 4096);
    bytes_ = (workspace_ + workspace_bytes + 2 * kBand - 1) / kBand * kBand;
  }

  std::size_t bytes() const { return bytes_; }
  std::size_t workspace() const { return workspace_; }

  Views addressed(unsigned char* base, std::int32_t device_id) const {
    Views views = on_device_;
    views.for_each([&](headrace_tensor& x, bool) {
      if (x.rank == 0) return;
      x.device_type = HEADRACE_CUDA;
      x.device_id = device_id;
      const Block* block = block_of(x);
      // An empty tensor may have any device address.
      x.data = block == nullptr ? base
                                : base + block->offset +
                                      (static_cast<unsigned char*>(x.data) - block->host.data());
    });
    return views;
  }

  void fill(unsigned char* arena) const {
    std::memset(arena, kNanByte, bytes_);
    for (const Block& block : blocks_)
      std::memcpy(arena + block.offset, block.host.data(), block.host.size());
  }

  // Copies the outputs back from the arena and checks that nothing else was written.
  Status take(const unsigned char* arena, std::size_t workspace_bytes) {
    std::vector<Block> known = blocks_;
    known.push_back({{static_cast<unsigned char*>(nullptr), workspace_bytes}, workspace_, true});
    std::size_t at = 0;
    for (const Block& block : known) {
      if (Status bad = check_band(arena, at, block.offset)) return bad;
      at = block.offset + block.host.size();
      if (block.host.data() == nullptr) continue;
      if (block.is_output) {
        std::memcpy(block.host.data(), arena + block.offset, block.host.size());
      } else if (std::memcmp(block.host.data(), arena + block.offset, block.host.size()) != 0) {
        return Failure{ErrorCode::internal, "an input was changed on the device"};
      }
    }
    return check_band(arena, at, bytes_);
  }

 private:
  const Block* block_of(const headrace_tensor& x) const {
    const auto* data = static_cast<const unsigned char*>(x.data);
    for (const Block& block : blocks_)
      if (data >= block.host.data() && data < block.host.data() + block.host.size()) return &block;
    return nullptr;
  }

  void add(const headrace_tensor& x, bool is_output) {
    if (x.rank == 0 || block_of(x) != nullptr) return;
    std::span<unsigned char> host = guarded_bytes_around(x.data);
    if (host.empty()) return;
    blocks_.push_back({host, bytes_, is_output});
    bytes_ = (bytes_ + host.size() + 2 * kBand - 1) / kBand * kBand;
  }

  static Status check_band(const unsigned char* arena, std::size_t begin, std::size_t end) {
    const auto* wrong = std::find_if(arena + begin, arena + end,
                                     [](unsigned char byte) { return byte != kNanByte; });
    if (wrong == arena + end) return std::nullopt;
    return Failure{ErrorCode::internal,
                   format_text("a byte was written on the device {} bytes past the end of a "
                               "tensor's memory",
                               wrong - (arena + begin))};
  }

  Views on_device_;
  std::vector<Block> blocks_;
  std::size_t bytes_ = kBand, workspace_ = 0;
};

Status run_views(const Plan& plan, const Views& views, const headrace_attention_options& options) {
  thread_local Arena arena;
  const int device_id = plan.device.device_id;
  const std::size_t workspace_bytes = plan.schedule.workspace_bytes;
  Copies copies(views, workspace_bytes);
  if (Status bad = arena.reserve(copies.bytes())) return bad;
  copies.fill(arena.host());
  const auto copy = [&](void* to, const void* from) {
    return cuda::cuda_status(
        cudaMemcpyAsync(to, from, copies.bytes(), cudaMemcpyDefault, arena.stream()),
        "copying {} bytes", copies.bytes());
  };
  if (Status bad = copy(arena.device(), arena.host())) return bad;
  Views there = copies.addressed(arena.device(), device_id);
  if (there.tensors.quantised != nullptr) there.tensors.quantised = &there.quantised;
  const AttentionArgs args =
      views.is_backward ? make_backward_args(plan.problem, there.tensors, there.gradients, options)
                        : make_args(plan.problem, there.tensors, options);
  const Workspace workspace{workspace_bytes > 0 ? arena.device() + copies.workspace() : nullptr,
                            workspace_bytes};
  if (Status bad = headrace::run(plan, args, workspace, arena.stream())) return bad;
  if (Status bad = copy(arena.host(), arena.device())) return bad;
  if (Status bad = cuda::check(device_id, arena.stream())) return bad;
  return copies.take(arena.host(), workspace_bytes);
}

}  // namespace

Status run_on_copies(const Plan& plan, const Tensors& tensors,
                     const headrace_attention_options& options) {
  Views views{tensors, {}, false};
  if (tensors.quantised != nullptr) views.quantised = *tensors.quantised;
  return run_views(plan, views, options);
}

Status run_backward_on_copies(const Plan& plan, const Tensors& tensors, const Gradients& gradients,
                              const headrace_attention_options& options) {
  return run_views(plan, {tensors, gradients, true}, options);
}

}  // namespace headrace::testing
