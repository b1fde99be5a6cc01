// The operators of a decoder on one device. A call is one operator on all rows of a step, so the
// cost of a virtual call is negligible; nothing below it is virtual.
//
// An executor runs one step at a time. The weights that it prepares are immutable and shared by all
// executors of the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/error.h"
#include "core/dtype.h"
#include "core/kernel.h"
#include "core/rope.h"
#include "executor/batch.h"
#include "kv_cache/kv_view.h"
#include "runtime/device.h"
#include "weights/weight.h"
#include "weights/weight_source.h"

namespace headrace {

// Activations in device memory, [num_rows, width], contiguous.
struct Rows {
  void* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t num_rows = 0, width = 0;
  bool operator==(const Rows&) const = default;
};

// The parameters of attention that all layers share, beside the shape of the cache.
struct AttentionSpec {
  std::int64_t num_heads = 0;
  std::int64_t window = 0;  // visible keys per query, including its own; 0: all
  RopeLayout rope_layout = RopeLayout::interleaved;
  Buffer rope_frequencies;  // double [rot_dim / 2]
  Buffer channel_factors;   // float [num_layers, num_kv_heads, head_dim]; no data: none
};

// out = x * transpose(weights stacked along rows) + bias.
struct Linear {
  std::span<const Weight> weights;  // with equal numbers of columns
  const Buffer* bias = nullptr;     // float [rows of all weights], or null
  Rows x;
  Rows out;
  bool accumulate = false;  // add to out: the residual stream
};

class Executor {
 public:
  virtual ~Executor() = default;

  virtual Device& device() = 0;
  virtual DType activation_dtype() const = 0;
  virtual MatmulMode mode() const = 0;
  // On a GPU a stream of its own, on which its steps run; work of other streams does not wait for
  // them. Null on a CPU.
  virtual Stream stream() const = 0;

  // Packs a matrix [rows, columns] of a model file for the device. unsupported, out_of_memory, and
  // those of reading the file.
  virtual Result<Weight> prepare(WeightType format, std::int64_t rows, std::int64_t columns,
                                 const WeightBlocks& blocks) = 0;

  // Allocates activations, valid until the next begin_step. The n-th call of a step reuses the
  // memory of the n-th call of earlier steps, so that no step after the largest one allocates.
  // out_of_memory.
  virtual Result<Rows> alloc(std::int64_t num_rows, std::int64_t width, DType dtype) = 0;

  // Plans attention for all layers. `batch` and `spec` must outlive the step. Operators may wait
  // for end_step() with their work: no result is there before.
  virtual Status begin_step(const Batch& batch, const KvView& kv, const AttentionSpec& spec) = 0;

  // Runs a step in place of the operators: one that was recorded before for `decoder`, with the
  // sizes of begin_step() and the same `logits`. False: the executor keeps no such step.
  virtual Result<bool> repeat_step(const void* decoder, const float* logits) = 0;

  // An operator may be computed as a part of the next one: what rms_norm writes for linear, and
  // linear for swiglu, is then not written, so nothing else may read it.

  // out[i] = embedding[batch.tokens[i]].
  virtual Status embed(const Weight& embedding, const Rows& out) = 0;
  // out[i] = x[batch.logits_rows[i]].
  virtual Status gather(const Rows& x, const Rows& out) = 0;
  // out = x * weight / sqrt(mean(x^2) + eps); weight: float [width]. In place if out is x.
  virtual Status rms_norm(const Rows& x, const Buffer& weight, float eps, const Rows& out) = 0;
  virtual Status linear(const Linear& call) = 0;
  // qkv: the heads of Q, K and V. Applies RoPE to Q, writes it to q in the dtype of the cache, and
  // writes K with RoPE, and V, to the slots of the tokens in a layer of the cache.
  virtual Status rope_append(const Rows& qkv, std::int64_t layer, const Rows& q) = 0;
  // Causal attention of q over the cached tokens of its sequence; out: [num_tokens, num_heads *
  // head_dim_v].
  virtual Status attention(const Rows& q, std::int64_t layer, const Rows& out) = 0;
  // gate_up: [gate, up]. out = silu(gate) * up.
  virtual Status swiglu(const Rows& gate_up, const Rows& out) = 0;
  // Enqueues what is left of the step. Later work of stream() comes behind it.
  virtual Status end_step() = 0;
  // Waits for the work of the steps.
  virtual Status wait() = 0;
};

// The memory of a CPU or CUDA device. invalid_argument, unsupported: the device is absent.
Result<std::unique_ptr<Device>> make_device(const DeviceInfo& info);

// Makes an executor for the device, which must outlive it. `mode` applies to the weights that it
// prepares. device_error.
Result<std::unique_ptr<Executor>> make_executor(Device& device, MatmulMode mode);

}  // namespace headrace
