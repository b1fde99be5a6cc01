/// @file
/// SparQ attention in C++: headrace/sparq.h with structs that have defaults, and errors as
/// exceptions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "headrace/headrace.hpp"

namespace headrace {
inline namespace v0 {

/// Options of SparQ attention; see headrace_sparq_options.
struct SparqOptions {
  double softmax_scale = std::numeric_limits<double>::quiet_NaN();  ///< NaN: head_dim^-0.5
  std::int64_t num_components = 0;  ///< r of the paper, 1 to head_dim; required
  std::int64_t num_keys = 0;        ///< k of the paper, 1 or more; required
  std::int64_t local_window = 0;    ///< l of the paper: the last keys, always among num_keys
  std::int64_t max_seqlen_k = 0;    ///< paged: upper bound of seqused_k; 0: chosen automatically

  /// Converts to the C struct.
  headrace_sparq_options to_c() const {
    headrace_sparq_options c;
    check(headrace_sparq_options_init(&c));
    c.softmax_scale = softmax_scale;
    c.num_components = num_components;
    c.num_keys = num_keys;
    c.local_window = local_window;
    c.max_seqlen_k = max_seqlen_k;
    return c;
  }
};

/// The tensors of SparQ attention; see headrace_sparq_tensors.
struct SparqTensors {
  TensorView q;                 ///< [batch, num_heads, head_dim]; f32, f16 or bf16
  TensorView k;                 ///< [batch, seqlen_k, num_kv_heads, head_dim], or pages
  TensorView k_components;      ///< [batch, num_kv_heads, head_dim, seqlen_k], or pages
  TensorView v;                 ///< [batch, seqlen_k, num_kv_heads, head_dim_v], or pages
  TensorView out;               ///< [batch, num_heads, head_dim_v]
  TensorView v_sum = {};        ///< optional: f32 [batch, num_kv_heads, head_dim_v]
  TensorView block_table = {};  ///< optional: i32 [batch, max_pages]
  TensorView seqused_k = {};    ///< optional: i32 [batch]
  TensorView indices = {};      ///< optional, written: i32 [batch, num_kv_heads, num_keys]
  TensorView alpha = {};        ///< optional, written: f32 [batch, num_heads]
  const headrace_quantised_kv* quantised = nullptr;  ///< optional: scales and recent keys of codes

  /// Converts to the C struct.
  headrace_sparq_tensors to_c() const {
    headrace_sparq_tensors c;
    check(headrace_sparq_tensors_init(&c));
    c.q = q;
    c.k = k;
    c.k_components = k_components;
    c.v = v;
    c.out = out;
    c.v_sum = v_sum;
    c.block_table = block_table;
    c.seqused_k = seqused_k;
    c.indices = indices;
    c.alpha = alpha;
    c.quantised = quantised;
    return c;
  }
};

/// Bytes of workspace that sparq_attention() needs. Throws Error(HEADRACE_INVALID_ARGUMENT or
/// HEADRACE_UNSUPPORTED).
inline std::size_t sparq_workspace_bytes(const SparqTensors& tensors, const SparqOptions& options) {
  const headrace_sparq_tensors c_tensors = tensors.to_c();
  const headrace_sparq_options c_options = options.to_c();
  std::size_t bytes = 0;
  check(headrace_sparq_workspace_bytes(&c_tensors, &c_options, &bytes));
  return bytes;
}

/// SparQ attention of one query token per sequence; see headrace_sparq_attention(). Without a
/// workspace the call allocates one. On CUDA enqueued on `stream`. Throws
/// Error(HEADRACE_INVALID_ARGUMENT, HEADRACE_UNSUPPORTED or HEADRACE_OUT_OF_MEMORY).
inline void sparq_attention(const SparqTensors& tensors, const SparqOptions& options,
                            Workspace workspace = {}, void* stream = nullptr) {
  const headrace_sparq_tensors c_tensors = tensors.to_c();
  const headrace_sparq_options c_options = options.to_c();
  check(headrace_sparq_attention(&c_tensors, &c_options, workspace.data, workspace.bytes, stream));
}

/// The tensors of sparq_append(); see headrace_sparq_append_tensors.
struct SparqAppendTensors {
  TensorView k;                ///< [num_pages, page_size, num_kv_heads, head_dim]
  TensorView slot_mapping;     ///< i64 [num_tokens]
  TensorView k_components;     ///< written: [num_pages, num_kv_heads, head_dim, page_size]
  TensorView v = {};           ///< optional: [num_pages, page_size, num_kv_heads, head_dim_v]
  TensorView v_sum = {};       ///< optional, added to: f32 [batch, num_kv_heads, head_dim_v]
  TensorView cu_seqlens = {};  ///< optional: i32 [batch + 1]
  TensorView k_slots = {};     ///< optional: i64 [num_tokens], of k where it has other pages
  TensorView v_scale = {};     ///< of a v of codes
};

/// Copies new keys to k_components and adds new values to v_sum; see headrace_sparq_append(). On
/// CUDA enqueued on `stream`. Throws Error(HEADRACE_INVALID_ARGUMENT or HEADRACE_UNSUPPORTED).
inline void sparq_append(const SparqAppendTensors& tensors, void* stream = nullptr) {
  headrace_sparq_append_tensors c;
  check(headrace_sparq_append_tensors_init(&c));
  c.k = tensors.k;
  c.slot_mapping = tensors.slot_mapping;
  c.k_components = tensors.k_components;
  c.v = tensors.v;
  c.v_sum = tensors.v_sum;
  c.cu_seqlens = tensors.cu_seqlens;
  c.k_slots = tensors.k_slots;
  c.v_scale = tensors.v_scale;
  check(headrace_sparq_append(&c, stream));
}

}  // namespace v0
}  // namespace headrace
