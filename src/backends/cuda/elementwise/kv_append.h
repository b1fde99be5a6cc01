// Launch of the append kernel, and how it divides the work.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backends/cuda/common/divisor.h"
#include "base/error.h"
#include "base/math.h"
#include "core/kernel.h"
#include "core/kv_append_args.h"

namespace headrace::cuda::append {

inline constexpr int kWarp = 32;
inline constexpr int kWarps = 8;  // of a CTA
inline constexpr int kVectorBytes = 16;

struct Config {
  std::int64_t num_rows;      // heads of a token: of q, then k, then v
  std::int64_t rows_of_cta;   // a multiple of kWarps
  std::int64_t num_groups;    // CTAs of a token
  std::int64_t row_stride;    // floats of a head in shared memory
  std::int64_t angle_stride;  // floats of the cosines in shared memory, and of the sines
  std::int64_t smem_bytes;
};

// A CTA computes the angles of a token once for all its heads. With fewer tokens than the GPU has
// SMs, the heads of a token are divided among CTAs. That changes no bit.
constexpr Config config_of(const KvAppendArgs& args, std::int64_t num_sms) {
  Config config{};
  config.num_rows = args.num_heads + 2 * args.num_kv_heads;
  const std::int64_t max_groups =
      std::max<std::int64_t>(1, ceil_div<std::int64_t>(config.num_rows, kWarps));
  const std::int64_t wanted = ceil_div(2 * num_sms, std::max<std::int64_t>(1, args.num_tokens));
  config.rows_of_cta = round_up<std::int64_t>(
      ceil_div(config.num_rows, std::clamp<std::int64_t>(wanted, 1, max_groups)), kWarps);
  config.num_groups = ceil_div(config.num_rows, std::max<std::int64_t>(1, config.rows_of_cta));
  config.row_stride = round_up<std::int64_t>(std::max(args.head_dim, args.head_dim_v), 4);
  config.angle_stride = round_up<std::int64_t>(args.rot_dim / 2, 4);
  config.smem_bytes = static_cast<std::int64_t>(sizeof(float)) *
                      (2 * config.angle_stride + kWarps * config.row_stride);
  return config;
}

// Which operands allow accesses of 16 bytes: all their heads are aligned and whole vectors long.
struct Vectors {
  bool q, q_out, k, v, k_pages, v_pages, k_recent, v_recent;
};
Vectors vectors_of(const KvAppendArgs& args);

// Enqueues the general kernel; num_tokens and num_rows are not 0.
Status launch(const KvAppendArgs& args, const Config& config, const Vectors& vectors,
              std::uint32_t* error_word, Stream stream);

// ---- the common case (kv_append_vectors.cu, and the end of a product)

struct HeadRowsOf {
  void* data;
  std::int64_t stride_token, stride_head;
};
struct PageRowsOf {
  void* data;
  std::int64_t stride_page, stride_slot, stride_head;
};
struct VectorParams {
  HeadRowsOf q, q_out, k, v;
  PageRowsOf k_pages, v_pages;
  const std::int64_t* slot_mapping;
  std::int64_t slot_stride;
  const std::int32_t* positions;
  std::int64_t position_stride;
  const float *cos, *sin;
  std::int64_t cos_stride, sin_stride, max_positions;
  std::int32_t num_tokens, num_rows, num_heads, num_kv_heads, page_size, num_slots;
  std::int32_t num_chunks;  // threads of a head
  std::int32_t is_halves;
  Divisor by_chunks, by_rows, by_page_size;
  std::uint32_t* error_word;
};

// Whether its kernels take the call: one 16-bit format, whole vectors, no norms, heads of q, k and
// v of a multiple of 16 elements, which rotate as a whole by f32 tables.
bool takes_vectors(const KvAppendArgs& args, const Vectors& vectors);
VectorParams vector_params(const KvAppendArgs& args, std::uint32_t* error_word);
Status launch_vectors(const VectorParams& params, DType dtype, Stream stream);

}  // namespace headrace::cuda::append
