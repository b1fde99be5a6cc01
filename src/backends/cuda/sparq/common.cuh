// Device code that the kernels of SparQ attention share.
#pragma once

#include "backends/cuda/common/key_row.cuh"
#include "backends/cuda/common/lengths.cuh"
#include "backends/cuda/sparq/sparq.h"

namespace headrace::cuda::sparq {

template <class E>
struct alignas(4 * sizeof(E)) Pack {
  E e[4];
};

// Elements [0, min(n, 4)) at x, then zeros; whole packs of four are aligned if `has_vectors`.
template <class E>
__device__ __forceinline__ void load4(const E* x, std::int64_t n, bool has_vectors,
                                      float (&to)[4]) {
  if (has_vectors && n >= 4) {
    const Pack<E> pack = *reinterpret_cast<const Pack<E>*>(x);
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = load_real(pack.e, i);
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) to[i] = i < n ? load_real(x, i) : 0.0f;
}

// Keys of a sequence, at most the buffers'. `reports`: in one thread of a sequence.
__device__ inline std::int64_t num_keys_of(const Params& p, std::int64_t batch_idx, bool reports) {
  const SparqArgs& a = p.args;
  if (a.paged.seqused_k == nullptr) return a.seqlen_k;
  const std::int64_t used = a.paged.seqused_k[batch_idx * a.paged.seqused_stride];
  const std::int64_t clamped = min(max(used, std::int64_t{0}), a.seqlen_k);
  if (reports && used != clamped)
    report_length_error(p.error_word, LengthError::seqused_k, batch_idx);
  return clamped;
}

// The page of a key, or -1 if block_table has none there.
__device__ __forceinline__ std::int64_t valid_page(const Params& p, std::int64_t batch_idx,
                                                   std::int64_t key) {
  const std::int64_t page =
      page_of(p.args, batch_idx, p.by_page_size.divide(static_cast<int>(key)));
  if (page >= 0 && page < p.args.num_pages) return page;
  report_length_error(p.error_word, LengthError::block_table, batch_idx);
  return -1;
}

__device__ __forceinline__ std::int64_t slot_in_page(const Params& p, std::int64_t key) {
  return key - p.by_page_size.divide(static_cast<int>(key)) * p.args.page_size;
}

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int mask = kWarp / 2; mask > 0; mask /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, mask));
  return x;
}
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int mask = kWarp / 2; mask > 0; mask /= 2) x += __shfl_xor_sync(~0u, x, mask);
  return x;
}

// The order of bits of values that are not negative; NaN is the largest.
__device__ __forceinline__ std::uint32_t rank_of(float x) {
  return __float_as_uint(x) & 0x7fffffffu;
}

// kernel.template operator()<E>() with the element type of the call.
template <class Body>
Status with_elements(DType dtype, Body body) {
  switch (dtype) {
    case DType::f16:
      return body.template operator()<__half>();
    case DType::bf16:
      return body.template operator()<__nv_bfloat16>();
    default:
      return body.template operator()<float>();
  }
}

}  // namespace headrace::cuda::sparq
