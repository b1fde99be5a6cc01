/// @file
/// Headrace for C++20: a header-only skin over the C ABI of headrace.h. Link libheadrace.
///
///   headrace::TensorView q(q_data, headrace::DType::bf16, {batch, seqlen_q, num_heads, head_dim});
///   ...
///   headrace::attention_forward(q, k, v, out, {}, {.causal = headrace::Causal::bottom_right});
///
/// This is the only place where anything is thrown: headrace::Error with the code and the text of
/// the library (which argument, what arrived, the rule it broke, what to do).
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
#include <utility>

#include "headrace/headrace.h"
#include "headrace/tensor.hpp"

namespace headrace {
/// Inline: the names are headrace::Plan and so on, the symbols cannot meet those of another
/// version.
inline namespace v0 {

/// A call failed. code(): HEADRACE_INVALID_ARGUMENT, HEADRACE_UNSUPPORTED, ... what(): the text.
class Error : public std::exception {
 public:
  /// Copies the text.
  Error(headrace_status code, const char* text) noexcept : code_(code), text_(copy_of(text)) {}
  /// Of a std::string.
  template <class Text>
  requires requires(const Text& text) { text.c_str(); }
  Error(headrace_status code, const Text& text) noexcept : Error(code, text.c_str()) {}
  /// The same error.
  Error(const Error& other) noexcept : Error(other.code_, other.what()) {}
  Error& operator=(const Error&) = delete;
  ~Error() override { delete[] text_; }
  /// HEADRACE_INVALID_ARGUMENT, HEADRACE_UNSUPPORTED, ...
  headrace_status code() const noexcept { return code_; }
  /// The text; the name of the code where there was no memory for it.
  const char* what() const noexcept override {
    return text_ == nullptr ? headrace_status_name(code_) : text_;
  }

 private:
  // By hand: <string>, which std::runtime_error brings along, costs more than this whole header.
  static const char* copy_of(const char* text) noexcept {
    const std::size_t bytes = std::strlen(text) + 1;
    char* copy = new (std::nothrow) char[bytes];
    if (copy != nullptr) std::memcpy(copy, text, bytes);
    return copy;
  }

  headrace_status code_;
  const char* text_;
};

/// Throws what headrace_last_error() says unless the status is HEADRACE_OK.
inline void check(headrace_status status) {
  if (status != HEADRACE_OK) throw Error(status, headrace_last_error());
}

/// "MAJOR.MINOR.PATCH" of the library that is loaded.
inline const char* version() { return headrace_version(); }
/// One line: version, compiler, dtypes, head sizes, instruction sets, kernels.
inline const char* build_info() { return headrace_build_info(); }

/// Which keys a query may see. bottom_right: key j <= i + seqlen_k - seqlen_q, so that the last
/// query sees the last key (decoding with a cache); top_left: key j <= i.
enum class Causal : std::int32_t {
  none = HEADRACE_CAUSAL_NONE,                  ///< every key
  bottom_right = HEADRACE_CAUSAL_BOTTOM_RIGHT,  ///< the last query sees the last key
  top_left = HEADRACE_CAUSAL_TOP_LEFT,          ///< the first query sees the first key
};

/// What one call shall compute. The defaults are plain softmax(q k^T * head_dim^-0.5) v.
///
/// Order of the score terms: scale, softcap, ALiBi and bias, mask; sinks join the denominator only.
/// Sources: softmax without materialising the scores: Dao, Fu, Ermon, Rudra, Re, "FlashAttention",
/// 2022, section 3.1; softcap: Gemma Team, "Gemma 2", 2024, section 2; window: Beltagy, Peters,
/// Cohan, "Longformer", 2020, section 3.1; ALiBi: Press, Smith, Lewis, "Train Short, Test Long",
/// 2022, section 3; sinks: Xiao et al., "Efficient Streaming Language Models with Attention Sinks",
/// 2024, section 3; dropout bits: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3",
/// 2011.
struct AttentionOptions {
  std::optional<double> softmax_scale = std::nullopt;  ///< absent: head_dim^-0.5
  double softcap = 0;  ///< c of c * tanh(score / c), in units of the scaled score; 0: none
  Causal causal = Causal::none;      ///< also aligns window and ALiBi
  std::int64_t window_left = -1;     ///< keys visible left of the diagonal, inclusive; -1: open
  std::int64_t window_right = -1;    ///< keys visible right of it, inclusive; -1: open
  double dropout_p = 0;              ///< probability of dropping, [0, 1)
  std::uint64_t dropout_seed = 0;    ///< the same seed and offset, the same mask
  std::uint64_t dropout_offset = 0;  ///< of calls that share a seed
  std::int64_t max_seqlen_q = 0;     ///< ragged only: bound of the lengths, in rows
  std::int64_t max_seqlen_k = 0;     ///< the same for keys
  std::int32_t num_splits = 0;       ///< 0: by the rule
  bool strict_fallback = false;      ///< an error instead of the last kernel of the list
  bool strict_rows = false;          ///< a prefill row has the bits of its decode row
  bool checked = false;              ///< lengths on a device are read by the host first
  bool deterministic = false;        ///< backward: the same bits from run to run (on CPU always)

  /// As the C ABI takes it.
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
    return c;
  }
};

/// The tensors of one call; those not set are absent. Strides are free (0 and negative included for
/// inputs) but for the innermost one, which is 1. Outputs share memory with nothing.
struct AttentionTensors {
  TensorView q{};    ///< [batch, seqlen_q, num_heads, head_dim]; f32, f16, bf16 or f64
  TensorView k{};    ///< [batch, seqlen_k, num_kv_heads, head_dim], dtype of q
  TensorView v{};    ///< [batch, seqlen_k, num_kv_heads, head_dim_v], dtype of q
  TensorView out{};  ///< written: [batch, seqlen_q, num_heads, head_dim_v], dtype of q
  TensorView lse{};  ///< written: f32 (f64 for f64), natural log, [batch, num_heads, seqlen_q]
  /// A ragged batch: q, k, v, out have the rows of all sequences as one axis, [total, heads, dim],
  /// lse is [num_heads, total_q]; i32 [batch + 1], prefix sums of the lengths of q.
  TensorView cu_seqlens_q{};
  TensorView cu_seqlens_k{};  ///< the same of the lengths of k
  TensorView alibi_slopes{};  ///< f32 [num_heads] or [batch, num_heads]
  TensorView bias{};  ///< dtype of q or f32, [batch, num_heads, seqlen_q, seqlen_k], axes of size 1
                      ///< broadcast; ragged [num_heads, total_q, max_seqlen_k]
  TensorView mask{};  ///< bool, true = keep, shaped like bias
  TensorView tree_mask{};  ///< u32 bits [batch, seqlen_q, words], ragged [total_q, words]
  TensorView sinks{};      ///< f32 [num_heads], logits
  TensorView probs{};      ///< written: f32 (f64 for f64) [batch, num_heads, seqlen_q, seqlen_k]

  /// As the C ABI takes it.
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
    return c;
  }
};

/// What the backward adds to the tensors of its forward, where out and lse then are read: gradients
/// of sum(out * dout) + sum(lse * dlse). Outputs are overwritten and share memory with nothing.
/// Source: Dao, Fu, Ermon, Rudra, Re, "FlashAttention", 2022, appendix B.2.
struct AttentionGradients {
  TensorView dout{};   ///< shape and dtype of out
  TensorView dlse{};   ///< optional; shape and dtype of lse
  TensorView dq{};     ///< written: shape and dtype of q
  TensorView dk{};     ///< written: shape and dtype of k, summed over the heads of a group
  TensorView dv{};     ///< written: shape and dtype of v, summed over the heads of a group
  TensorView dbias{};  ///< optional, written: shape and dtype of bias, summed where that has size 1
  TensorView dsinks{};  ///< optional, written: f32 [num_heads]

  /// As the C ABI takes it.
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

/// Shapes and features of a call without its pointers. Fill it by hand (everything starts at 1 or
/// absent) or from the tensors of a call. Throws Error(HEADRACE_INVALID_ARGUMENT or
/// HEADRACE_UNSUPPORTED) where the tensors break a rule.
struct Problem : headrace_problem {
  /// The defaults.
  Problem() { check(headrace_problem_init(this)); }
  /// Of a forward.
  explicit Problem(const AttentionTensors& tensors, const AttentionOptions& options = {}) {
    check(headrace_problem_init(this));
    const headrace_attention_tensors c_tensors = tensors.to_c();
    const headrace_attention_options c_options = options.to_c();
    check(headrace_attention_problem(&c_tensors, &c_options, this));
  }
  /// Of a backward.
  Problem(const AttentionTensors& tensors, const AttentionGradients& gradients,
          const AttentionOptions& options = {}) {
    check(headrace_problem_init(this));
    const headrace_attention_tensors c_tensors = tensors.to_c();
    const headrace_attention_gradients c_gradients = gradients.to_c();
    const headrace_attention_options c_options = options.to_c();
    check(headrace_attention_backward_problem(&c_tensors, &c_gradients, &c_options, this));
  }
};

/// What selection knows of a device: a plain value, which may be made up.
using DeviceInfo = headrace_device_info;

/// The CPU of this process. Throws Error(HEADRACE_INVALID_ARGUMENT) where HEADRACE_CPU_ISA or
/// HEADRACE_NUM_THREADS is nonsense.
inline DeviceInfo cpu_info() {
  DeviceInfo device{};
  device.struct_size = sizeof device;
  check(headrace_cpu_info(&device));
  return device;
}

/// How many CUDA devices this process sees. Throws Error where the build or the driver has no CUDA.
inline int num_cuda_devices() {
  std::int32_t count = 0;
  check(headrace_num_cuda_devices(&count));
  return count;
}

/// A CUDA device by its number, from 0. Throws Error where there is no such device.
inline DeviceInfo cuda_info(int device_id = 0) {
  DeviceInfo device{};
  device.struct_size = sizeof device;
  check(headrace_cuda_info(device_id, &device));
  return device;
}

/// "cpu", "cpu:avx2", "cpu:avx512:16", "cuda", "cuda:1", "sm90:132". Throws
/// Error(HEADRACE_INVALID_ARGUMENT).
inline DeviceInfo device_from_text(const char* text) {
  DeviceInfo device{};
  device.struct_size = sizeof device;
  check(headrace_device_from_text(text, &device));
  return device;
}

/// What may differ from one run of a plan to the next; all other options are part of the plan.
struct RunOptions {
  std::uint64_t dropout_seed = 0;    ///< the same seed and offset, the same mask
  std::uint64_t dropout_offset = 0;  ///< of calls that share a seed

  /// As the C ABI takes it.
  headrace_run_options to_c() const {
    return {sizeof(headrace_run_options), dropout_seed, dropout_offset};
  }
};

/// Memory that the caller lends for one run, any alignment.
struct Workspace {
  void* data = nullptr;   ///< on the device of the plan
  std::size_t bytes = 0;  ///< at least workspace_bytes() of the plan
};

/// A chosen kernel and its schedule. Immutable: several threads may run it at once, each with its
/// own workspace and outputs. Move-only.
class Plan {
 public:
  /// Takes the plan over; it is destroyed with this object.
  explicit Plan(headrace_plan* plan) noexcept : plan_(plan) {}
  /// `other` is empty afterwards.
  Plan(Plan&& other) noexcept : plan_(std::exchange(other.plan_, nullptr)) {}
  /// The two change places.
  Plan& operator=(Plan&& other) noexcept {
    std::swap(plan_, other.plan_);
    return *this;
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan() { headrace_plan_destroy(plan_); }

  /// Bytes that a run needs.
  std::size_t workspace_bytes() const { return headrace_plan_workspace_bytes(plan_); }
  /// True where only the last kernel of the list accepts.
  bool is_fallback() const { return headrace_plan_is_fallback(plan_) != 0; }
  /// Its name, "cpu_avx2_fwd".
  const char* kernel() const { return headrace_plan_kernel(plan_); }
  /// The kernels in order, why each refused, the schedule. Valid as long as the plan.
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

  /// The same for the plan of a backward problem; dropout seed and offset are those of the forward.
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

/// Chooses the kernel. Pure: needs no device. Throws Error(HEADRACE_UNSUPPORTED) with every
/// kernel's reason where none takes the problem.
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

/// Validates, plans and runs in one call. Without a workspace one is allocated for the call, on
/// CUDA in the order of the stream. Throws Error.
inline void attention_forward(const AttentionTensors& tensors, const AttentionOptions& options = {},
                              Workspace workspace = {}, void* stream = nullptr) {
  const headrace_attention_tensors c_tensors = tensors.to_c();
  const headrace_attention_options c_options = options.to_c();
  check(
      headrace_attention_forward(&c_tensors, &c_options, workspace.data, workspace.bytes, stream));
}

/// The gradients of a forward: `tensors` as it got and left them, out and lse included. Validates,
/// plans and runs in one call. Throws Error.
inline void attention_backward(const AttentionTensors& tensors, const AttentionGradients& gradients,
                               const AttentionOptions& options = {}, Workspace workspace = {},
                               void* stream = nullptr) {
  const headrace_attention_tensors c_tensors = tensors.to_c();
  const headrace_attention_gradients c_gradients = gradients.to_c();
  const headrace_attention_options c_options = options.to_c();
  check(headrace_attention_backward(&c_tensors, &c_gradients, &c_options, workspace.data,
                                    workspace.bytes, stream));
}

/// The forward again, for the common case; pass {} for an lse that is not wanted.
inline void attention_forward(const TensorView& q, const TensorView& k, const TensorView& v,
                              const TensorView& out, const TensorView& lse = {},
                              const AttentionOptions& options = {}) {
  attention_forward({.q = q, .k = k, .v = v, .out = out, .lse = lse}, options);
}

/// How softmax reads a row: safe takes the maximum, the sum and the weights in three passes, online
/// maximum and sum in one (Milakov, Gimelshein, "Online normalizer calculation for softmax", 2018).
enum class SoftmaxAlgorithm : std::int32_t {
  automatic = HEADRACE_SOFTMAX_AUTO,  ///< the faster one
  safe = HEADRACE_SOFTMAX_SAFE,       ///< three passes
  online = HEADRACE_SOFTMAX_ONLINE,   ///< two passes
};

/// What one softmax shall compute.
struct SoftmaxOptions {
  double scale = 1;        ///< of the exponents; finite as f32
  std::int32_t axis = -1;  ///< counts from the end where it is negative
  SoftmaxAlgorithm algorithm = SoftmaxAlgorithm::automatic;  ///< of the forward

  /// As the C ABI takes it.
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

/// dx = scale * y * (dy - sum(y * dy)): the gradient with respect to x from y and the gradient dy
/// with respect to y, all of one shape and dtype; dx may be the view y or dy itself. Throws as
/// softmax_forward does.
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

}  // namespace v0
}  // namespace headrace
