/// @file
/// Headrace for C++20: a header-only wrapper of the C ABI in headrace.h. Link libheadrace.
///
///   headrace::TensorView q(q_data, headrace::DType::bf16, {batch, seqlen_q, num_heads, head_dim});
///   ...
///   headrace::attention_forward(q, k, v, out, {}, {.causal = headrace::Causal::bottom_right});
///
/// Failures throw headrace::Error with the library's code and message (argument, value, rule,
/// remedy).
#pragma once

#if __cplusplus < 202002L
#error \
    "Headrace's C++ headers need C++20: compile with -std=c++20 (or later), in CMake link \
headrace::headrace or set CMAKE_CXX_STANDARD to 20; C programs include headrace/headrace.h"
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <optional>
#include <span>
#include <utility>

#include "headrace/headrace.h"
#include "headrace/tensor.hpp"

namespace headrace {
/// Inline namespace: names stay headrace::Plan, but symbols cannot clash with another version's.
inline namespace v0 {

/// A failed call. code(): HEADRACE_INVALID_ARGUMENT, HEADRACE_UNSUPPORTED, ... what(): the message.
class Error : public std::exception {
 public:
  /// Copies the text.
  Error(headrace_status code, const char* text) noexcept : code_(code), text_(copy_of(text)) {}
  /// The same for a std::string.
  template <class Text>
  requires requires(const Text& text) { text.c_str(); }
  Error(headrace_status code, const Text& text) noexcept : Error(code, text.c_str()) {}
  /// The same error.
  Error(const Error& other) noexcept : Error(other.code_, other.what()) {}
  Error& operator=(const Error&) = delete;
  ~Error() override { delete[] text_; }
  /// HEADRACE_INVALID_ARGUMENT, HEADRACE_UNSUPPORTED, ...
  headrace_status code() const noexcept { return code_; }
  /// The message; the name of the code if copying the message failed.
  const char* what() const noexcept override {
    return text_ == nullptr ? headrace_status_name(code_) : text_;
  }

 private:
  // Not std::runtime_error: its <string> takes longer to compile than this whole header.
  static const char* copy_of(const char* text) noexcept {
    const std::size_t bytes = std::strlen(text) + 1;
    char* copy = new (std::nothrow) char[bytes];
    if (copy != nullptr) std::memcpy(copy, text, bytes);
    return copy;
  }

  headrace_status code_;
  const char* text_;
};

/// Throws Error with headrace_last_error() unless the status is HEADRACE_OK.
inline void check(headrace_status status) {
  if (status != HEADRACE_OK) throw Error(status, headrace_last_error());
}

/// "MAJOR.MINOR.PATCH" of the loaded library.
inline const char* version() { return headrace_version(); }
/// One line: version, compiler, dtypes, head sizes, instruction sets, kernels.
inline const char* build_info() { return headrace_build_info(); }

/// Alignment of the causal mask. bottom_right: query i sees keys j <= i + seqlen_k - seqlen_q, so
/// that the last query sees the last key (decoding with a KV cache); top_left: keys j <= i.
enum class Causal : std::int32_t {
  none = HEADRACE_CAUSAL_NONE,                  ///< every key
  bottom_right = HEADRACE_CAUSAL_BOTTOM_RIGHT,  ///< the last query sees the last key
  top_left = HEADRACE_CAUSAL_TOP_LEFT,          ///< the first query sees the first key
};

/// Options of a call. The defaults are plain softmax(q k^T * head_dim^-0.5) v.
///
/// Order of the score terms: scale, softcap, ALiBi and bias, mask; sinks only add to the
/// denominator. Sources: softmax without materializing the scores: Dao, Fu, Ermon, Rudra, Re,
/// "FlashAttention", 2022, section 3.1; softcap: Gemma Team, "Gemma 2", 2024, section 2; window:
/// Beltagy, Peters, Cohan, "Longformer", 2020, section 3.1; ALiBi: Press, Smith, Lewis, "Train
/// Short, Test Long", 2022, section 3; sinks: Xiao et al., "Efficient Streaming Language Models
/// with Attention Sinks", 2024, section 3; dropout bits: Salmon et al., "Parallel Random Numbers:
/// As Easy as 1, 2, 3", 2011.
struct AttentionOptions {
  std::optional<double> softmax_scale = std::nullopt;  ///< absent: head_dim^-0.5
  double softcap = 0;  ///< c of c * tanh(score / c), in units of the scaled score; 0: none
  Causal causal = Causal::none;      ///< also aligns window and ALiBi
  std::int64_t window_left = -1;     ///< keys visible left of the diagonal, inclusive; -1: open
  std::int64_t window_right = -1;    ///< keys visible right of it, inclusive; -1: open
  double dropout_p = 0;              ///< probability of dropping, [0, 1)
  std::uint64_t dropout_seed = 0;    ///< equal seed and offset give equal masks
  std::uint64_t dropout_offset = 0;  ///< distinguishes calls with the same seed
  std::int64_t max_seqlen_q = 0;     ///< ragged only: upper bound of the lengths of q
  std::int64_t max_seqlen_k = 0;     ///< ragged only: upper bound of the lengths of k
  std::int32_t num_splits = 0;       ///< 0: chosen automatically
  bool strict_fallback = false;      ///< fail rather than use the slow fallback
  bool strict_rows = false;          ///< a prefill row equals its decode row bit for bit
  bool checked = false;              ///< validate lengths in device memory on the host first
  bool deterministic = false;        ///< bit-identical gradients in each run (always on CPU)
  /// Paged: keys at the start of neighbouring sequences that are looked for in the same pages, to
  /// be read once; changes no bit.
  std::int64_t max_shared_prefix = 0;

  /// Converts to the C struct.
  headrace_attention_options to_c() const {
    headrace_attention_options c;
    check(headrace_attention_options_init(&c));
    if (softmax_scale) c.softmax_scale = *softmax_scale;
    c.softcap = softcap;
    c.causal = static_cast<std::int32_t>(causal);
    c.window_left = window_left;
    c.window_right = window_right;
    c.dropout_p = dropout_p;
    c.dropout_seed = dropout_seed;
    c.dropout_offset = dropout_offset;
    c.max_seqlen_q = max_seqlen_q;
    c.max_seqlen_k = max_seqlen_k;
    c.num_splits = num_splits;
    c.strict_fallback = strict_fallback;
    c.strict_rows = strict_rows;
    c.checked = checked;
    c.deterministic = deterministic;
    c.max_shared_prefix = max_shared_prefix;
    return c;
  }
};

/// The tensors of one call; unset ones are absent. Strides are free (for inputs also 0 and
/// negative) except the innermost, which is 1. Outputs must not overlap any other tensor.
struct AttentionTensors {
  TensorView q{};    ///< [batch, seqlen_q, num_heads, head_dim]; f32, f16, bf16 or f64
  TensorView k{};    ///< [batch, seqlen_k, num_kv_heads, head_dim], dtype of q, or codes
  TensorView v{};    ///< [batch, seqlen_k, num_kv_heads, head_dim_v], dtype of q, or codes
  TensorView out{};  ///< written: [batch, seqlen_q, num_heads, head_dim_v], dtype of q
  TensorView lse{};  ///< written: f32 (f64 for f64), natural log, [batch, num_heads, seqlen_q]
  /// For a ragged batch: i32 [batch + 1], prefix sums of the lengths of q. q, k, v and out then
  /// have batch and seqlen merged into one axis, [total, heads, dim]; lse is [num_heads, total_q].
  TensorView cu_seqlens_q{};
  TensorView cu_seqlens_k{};  ///< prefix sums of the lengths of k
  TensorView alibi_slopes{};  ///< f32 [num_heads] or [batch, num_heads]
  TensorView bias{};  ///< dtype of q or f32, [batch, num_heads, seqlen_q, seqlen_k], axes of size 1
                      ///< broadcast; ragged [num_heads, total_q, max_seqlen_k]
  TensorView mask{};  ///< bool, true = keep, shaped like bias
  TensorView tree_mask{};  ///< u32 bits [batch, seqlen_q, words], ragged [total_q, words]
  TensorView sinks{};      ///< f32 [num_heads], logits
  TensorView probs{};      ///< written: f32 (f64 for f64) [batch, num_heads, seqlen_q, seqlen_k]
  /// For keys in pages: i32 [batch, max_pages]. Key j of sequence b is slot j % page_size of page
  /// block_table[b, j / page_size]; k is [num_pages, page_size, num_kv_heads, head_dim], v alike.
  TensorView block_table{};
  /// Then block_table is [num_entries], and sequence b has entries page_indptr[b] to
  /// page_indptr[b + 1] - 1 of it, as in FlashInfer's kv_indptr and kv_indices: i32 [batch + 1].
  TensorView page_indptr{};
  TensorView seqused_k{};  ///< i32 [batch]: keys of each sequence; required with block_table
  /// Scales and recent keys of codes, borrowed: a value that headrace_quantised_kv_init() filled.
  const headrace_quantised_kv* quantised = nullptr;

  /// Converts to the C struct.
  headrace_attention_tensors to_c() const {
    headrace_attention_tensors c;
    c.struct_size = sizeof c;
    c.q = q;
    c.k = k;
    c.v = v;
    c.out = out;
    c.lse = lse;
    c.cu_seqlens_q = cu_seqlens_q;
    c.cu_seqlens_k = cu_seqlens_k;
    c.alibi_slopes = alibi_slopes;
    c.bias = bias;
    c.mask = mask;
    c.tree_mask = tree_mask;
    c.sinks = sinks;
    c.probs = probs;
    c.block_table = block_table;
    c.seqused_k = seqused_k;
    c.quantised = quantised;
    c.page_indptr = page_indptr;
    return c;
  }
};

/// Additional tensors of a backward, which also reads the forward's out and lse. The gradients are
/// those of sum(out * dout) + sum(lse * dlse). Outputs are overwritten and must not overlap
/// anything. Source: Dao, Fu, Ermon, Rudra, Re, "FlashAttention", 2022, appendix B.2.
struct AttentionGradients {
  TensorView dout{};   ///< shape and dtype of out
  TensorView dlse{};   ///< optional; shape and dtype of lse
  TensorView dq{};     ///< written: shape and dtype of q
  TensorView dk{};     ///< written: shape and dtype of k, summed over the heads of a group
  TensorView dv{};     ///< written: shape and dtype of v, summed over the heads of a group
  TensorView dbias{};  ///< optional, written: shape and dtype of bias; summed where bias has size 1
  TensorView dsinks{};  ///< optional, written: f32 [num_heads]

  /// Converts to the C struct.
  headrace_attention_gradients to_c() const {
    headrace_attention_gradients c;
    c.struct_size = sizeof c;
    c.dout = dout;
    c.dlse = dlse;
    c.dq = dq;
    c.dk = dk;
    c.dv = dv;
    c.dbias = dbias;
    c.dsinks = dsinks;
    return c;
  }
};

/// Shapes and features of a call, without pointers. Fill it field by field (defaults: sizes 1,
/// everything else absent) or construct it from the tensors of a call. Throws
/// Error(HEADRACE_INVALID_ARGUMENT or HEADRACE_UNSUPPORTED) if the tensors are invalid.
struct Problem : headrace_problem {
  /// The defaults.
  Problem() { check(headrace_problem_init(this)); }
  /// The problem of a forward.
  explicit Problem(const AttentionTensors& tensors, const AttentionOptions& options = {}) {
    check(headrace_problem_init(this));
    const headrace_attention_tensors c_tensors = tensors.to_c();
    const headrace_attention_options c_options = options.to_c();
    check(headrace_attention_problem(&c_tensors, &c_options, this));
  }
  /// The problem of a backward.
  Problem(const AttentionTensors& tensors, const AttentionGradients& gradients,
          const AttentionOptions& options = {}) {
    check(headrace_problem_init(this));
    const headrace_attention_tensors c_tensors = tensors.to_c();
    const headrace_attention_gradients c_gradients = gradients.to_c();
    const headrace_attention_options c_options = options.to_c();
    check(headrace_attention_backward_problem(&c_tensors, &c_gradients, &c_options, this));
  }
};

/// A device description: a plain value; the device need not exist.
using DeviceInfo = headrace_device_info;

/// The CPU of this process. Throws Error(HEADRACE_INVALID_ARGUMENT) if HEADRACE_CPU_ISA or
/// HEADRACE_NUM_THREADS is invalid.
inline DeviceInfo cpu_info() {
  DeviceInfo device{};
  device.struct_size = sizeof device;
  check(headrace_cpu_info(&device));
  return device;
}

/// Number of CUDA devices visible to this process. Throws Error if build or driver lack CUDA.
inline int num_cuda_devices() {
  std::int32_t count = 0;
  check(headrace_num_cuda_devices(&count));
  return count;
}

/// A CUDA device, by number from 0. Throws Error if there is no such device.
inline DeviceInfo cuda_info(int device_id = 0) {
  DeviceInfo device{};
  device.struct_size = sizeof device;
  check(headrace_cuda_info(device_id, &device));
  return device;
}

/// "cpu", "cpu:avx2", "cpu:avx512:16", "cuda", "cuda:1", "h200", "sm90:132". Throws
/// Error(HEADRACE_INVALID_ARGUMENT).
inline DeviceInfo device_from_text(const char* text) {
  DeviceInfo device{};
  device.struct_size = sizeof device;
  check(headrace_device_from_text(text, &device));
  return device;
}

/// Options that may differ between runs of a plan; all others are part of the plan.
struct RunOptions {
  std::uint64_t dropout_seed = 0;    ///< equal seed and offset give equal masks
  std::uint64_t dropout_offset = 0;  ///< distinguishes calls with the same seed

  /// Converts to the C struct.
  headrace_run_options to_c() const {
    return {sizeof(headrace_run_options), dropout_seed, dropout_offset};
  }
};

/// The caller's scratch memory for one run, any alignment.
struct Workspace {
  void* data = nullptr;   ///< on the plan's device
  std::size_t bytes = 0;  ///< at least the plan's workspace_bytes()
};

/// A selected kernel and its schedule. Immutable: several threads may run it at once, each with its
/// own workspace and outputs. Move-only.
class Plan {
 public:
  /// Takes ownership of the plan.
  explicit Plan(headrace_plan* plan) noexcept : plan_(plan) {}
  /// `other` is empty afterwards.
  Plan(Plan&& other) noexcept : plan_(std::exchange(other.plan_, nullptr)) {}
  /// Swaps the two.
  Plan& operator=(Plan&& other) noexcept {
    std::swap(plan_, other.plan_);
    return *this;
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan() { headrace_plan_destroy(plan_); }

  /// Workspace bytes that a run needs.
  std::size_t workspace_bytes() const { return headrace_plan_workspace_bytes(plan_); }
  /// True if only the slow fallback supports the problem.
  bool is_fallback() const { return headrace_plan_is_fallback(plan_) != 0; }
  /// The kernel's name, "cpu_avx2_fwd".
  const char* kernel() const { return headrace_plan_kernel(plan_); }
  /// The kernels in order, why each was refused, the schedule. Valid as long as the plan.
  const char* explain() const { return headrace_plan_explain(plan_); }

  /// Runs on tensors of the planned shapes.
  /// Throws Error(HEADRACE_INVALID_ARGUMENT) for other shapes or a workspace that is too small.
  void run(const AttentionTensors& tensors, Workspace workspace = {},
           const RunOptions& options = {}, void* stream = nullptr) const {
    const headrace_attention_tensors c_tensors = tensors.to_c();
    const headrace_run_options c_options = options.to_c();
    check(
        headrace_plan_run(plan_, &c_tensors, &c_options, workspace.data, workspace.bytes, stream));
  }

  /// Runs a backward plan. Pass the forward's dropout seed and offset.
  void run_backward(const AttentionTensors& tensors, const AttentionGradients& gradients,
                    Workspace workspace = {}, const RunOptions& options = {},
                    void* stream = nullptr) const {
    const headrace_attention_tensors c_tensors = tensors.to_c();
    const headrace_attention_gradients c_gradients = gradients.to_c();
    const headrace_run_options c_options = options.to_c();
    check(headrace_plan_run_backward(plan_, &c_tensors, &c_gradients, &c_options, workspace.data,
                                     workspace.bytes, stream));
  }

  /// For functions of the C ABI.
  const headrace_plan* get() const { return plan_; }

 private:
  headrace_plan* plan_;
};

/// Selects the kernel. Pure: needs no device. Throws Error(HEADRACE_UNSUPPORTED) with every
/// kernel's reason if none supports the problem.
inline Plan plan_attention(const headrace_problem& problem, const DeviceInfo& device) {
  headrace_plan* plan = nullptr;
  check(headrace_plan_attention(&problem, &device, &plan));
  return Plan(plan);
}

/// Whether plan_attention() would find a kernel. Throws on an invalid problem.
inline bool supports(const headrace_problem& problem, const DeviceInfo& device) {
  const headrace_status status = headrace_attention_supports(&problem, &device);
  if (status == HEADRACE_UNSUPPORTED) return false;
  check(status);
  return true;
}

/// Validates, plans and runs in one call. Without a workspace the call allocates one, on CUDA
/// stream-ordered. Throws Error.
inline void attention_forward(const AttentionTensors& tensors, const AttentionOptions& options = {},
                              Workspace workspace = {}, void* stream = nullptr) {
  const headrace_attention_tensors c_tensors = tensors.to_c();
  const headrace_attention_options c_options = options.to_c();
  check(
      headrace_attention_forward(&c_tensors, &c_options, workspace.data, workspace.bytes, stream));
}

/// The gradients of a forward. `tensors` are the forward's, with the out and lse that it wrote.
/// Validates, plans and runs in one call. Throws Error.
inline void attention_backward(const AttentionTensors& tensors, const AttentionGradients& gradients,
                               const AttentionOptions& options = {}, Workspace workspace = {},
                               void* stream = nullptr) {
  const headrace_attention_tensors c_tensors = tensors.to_c();
  const headrace_attention_gradients c_gradients = gradients.to_c();
  const headrace_attention_options c_options = options.to_c();
  check(headrace_attention_backward(&c_tensors, &c_gradients, &c_options, workspace.data,
                                    workspace.bytes, stream));
}

/// The forward for the common case; pass {} for no lse.
inline void attention_forward(const TensorView& q, const TensorView& k, const TensorView& v,
                              const TensorView& out, const TensorView& lse = {},
                              const AttentionOptions& options = {}) {
  attention_forward({.q = q, .k = k, .v = v, .out = out, .lse = lse}, options);
}

/// Softmax algorithms. safe: maximum, sum and results in three passes; online: maximum and sum in
/// one pass (Milakov, Gimelshein, "Online normalizer calculation for softmax", 2018).
enum class SoftmaxAlgorithm : std::int32_t {
  automatic = HEADRACE_SOFTMAX_AUTO,  ///< the faster one
  safe = HEADRACE_SOFTMAX_SAFE,       ///< three passes
  online = HEADRACE_SOFTMAX_ONLINE,   ///< two passes
};

/// Options of softmax.
struct SoftmaxOptions {
  double scale = 1;                                          ///< multiplies x; finite as f32
  std::int32_t axis = -1;                                    ///< negative values count from the end
  SoftmaxAlgorithm algorithm = SoftmaxAlgorithm::automatic;  ///< forward only

  /// Converts to the C struct.
  headrace_softmax_options to_c() const {
    headrace_softmax_options c;
    check(headrace_softmax_options_init(&c));
    c.scale = scale;
    c.axis = axis;
    c.algorithm = static_cast<std::int32_t>(algorithm);
    return c;
  }
};

/// y = softmax(scale * x) along one axis. x: rank 1 to 6, f32, f16 or bf16, any strides; y: shape
/// and dtype of x, may be the view x itself; lse (optional): f32, the shape of x without the axis,
/// natural logarithm. On CUDA enqueued on `stream`. Throws Error(HEADRACE_INVALID_ARGUMENT or
/// HEADRACE_UNSUPPORTED).
inline void softmax_forward(const TensorView& x, const TensorView& y, const TensorView& lse = {},
                            const SoftmaxOptions& options = {}, void* stream = nullptr) {
  headrace_softmax_tensors c_tensors;
  check(headrace_softmax_tensors_init(&c_tensors));
  c_tensors.x = x;
  c_tensors.y = y;
  c_tensors.lse = lse;
  const headrace_softmax_options c_options = options.to_c();
  check(headrace_softmax_forward(&c_tensors, &c_options, stream));
}

/// dx = scale * y * (dy - sum(y * dy)): the gradient with respect to x, from y and the gradient dy
/// with respect to y, all of one shape and dtype; dx may be the view y or dy itself. Throws like
/// softmax_forward.
inline void softmax_backward(const TensorView& y, const TensorView& dy, const TensorView& dx,
                             const SoftmaxOptions& options = {}, void* stream = nullptr) {
  headrace_softmax_backward_tensors c_tensors;
  check(headrace_softmax_backward_tensors_init(&c_tensors));
  c_tensors.y = y;
  c_tensors.dy = dy;
  c_tensors.dx = dx;
  const headrace_softmax_options c_options = options.to_c();
  check(headrace_softmax_backward(&c_tensors, &c_options, stream));
}

/// Merges attention over disjoint keys, outs[i] and lses[i] of the same rows, into out and lse
/// (optional), in the order of the states: shapes of AttentionTensors::out and lse; f32, f16 or
/// bf16. out may be the view outs[i], lse the view lses[i]. On CUDA enqueued on `stream`. Throws
/// Error(HEADRACE_INVALID_ARGUMENT or HEADRACE_UNSUPPORTED).
inline void merge_states(std::span<const headrace_tensor> outs,
                         std::span<const headrace_tensor> lses, const TensorView& out,
                         const TensorView& lse = {}, void* stream = nullptr) {
  if (outs.size() != lses.size())
    throw Error(HEADRACE_INVALID_ARGUMENT,
                "lses: must have one entry per state, as outs; pass the lse of every state");
  headrace_merge_states_tensors c_tensors;
  check(headrace_merge_states_tensors_init(&c_tensors));
  c_tensors.num_states = static_cast<std::int64_t>(outs.size());
  c_tensors.outs = outs.data();
  c_tensors.lses = lses.data();
  c_tensors.out = out;
  c_tensors.lse = lse;
  check(headrace_merge_states(&c_tensors, stream));
}

}  // namespace v0
}  // namespace headrace
