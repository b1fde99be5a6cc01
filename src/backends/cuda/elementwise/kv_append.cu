// The append kernel: a CTA per token, or per group of its heads; a warp per head. A head is staged
// in shared memory as floats: read, normalised, rotated, written.
#include "backends/cuda/common/constants.h"
#include "backends/cuda/common/element.cuh"
#include "backends/cuda/common/lengths.cuh"
#include "backends/cuda/device/barrier.cuh"
#include "backends/cuda/elementwise/angle.h"
#include "backends/cuda/elementwise/kv_append.h"
#include "backends/cuda/elementwise/rotate.cuh"
#include "backends/cuda/runtime/launch.cuh"
#include "core/quantise.h"

namespace headrace::cuda::append {
namespace {

struct Params {
  KvAppendArgs args;
  Config config;
  Vectors vectors;
  std::uint32_t* error_word;
};
static_assert(sizeof(Params) <= 4096, "parameters of a kernel");

// kVec elements of T: 16 bytes.
template <class T>
struct alignas(kVectorBytes) Pack {
  static constexpr int kVec = kVectorBytes / static_cast<int>(sizeof(T));
  T e[kVec];
};

template <class T>
__device__ void read_elements(const T* from, int width, bool has_vectors, int lane, float* x) {
  if (!has_vectors) {
    for (int i = lane; i < width; i += kWarp) x[i] = load_real(from, i);
    return;
  }
  constexpr int kVec = Pack<T>::kVec;
  for (int i = lane * kVec; i < width; i += kWarp * kVec) {
    const Pack<T> pack = *reinterpret_cast<const Pack<T>*>(from + i);
#pragma unroll
    for (int e = 0; e < kVec; e += 4)
      *reinterpret_cast<float4*>(x + i + e) =
          make_float4(load_real(pack.e, e), load_real(pack.e, e + 1), load_real(pack.e, e + 2),
                      load_real(pack.e, e + 3));
  }
}

template <class T>
__device__ void write_elements(const float* x, int width, bool has_vectors, int lane, T* to) {
  if (!has_vectors) {
    for (int i = lane; i < width; i += kWarp) store_real(to, i, x[i]);
    return;
  }
  constexpr int kVec = Pack<T>::kVec;
  for (int i = lane * kVec; i < width; i += kWarp * kVec) {
    Pack<T> pack;
#pragma unroll
    for (int e = 0; e < kVec; e += 4) {
      const float4 y = *reinterpret_cast<const float4*>(x + i + e);
      store_real(pack.e, e, y.x);
      store_real(pack.e, e + 1, y.y);
      store_real(pack.e, e + 2, y.z);
      store_real(pack.e, e + 3, y.w);
    }
    *reinterpret_cast<Pack<T>*>(to + i) = pack;
  }
}

__device__ inline void read_row(DType dtype, const void* data, std::int64_t offset, int width,
                                bool has_vectors, int lane, float* x) {
  switch (dtype) {
    case DType::f16:
      return read_elements(static_cast<const __half*>(data) + offset, width, has_vectors, lane, x);
    case DType::bf16:
      return read_elements(static_cast<const __nv_bfloat16*>(data) + offset, width, has_vectors,
                           lane, x);
    default:
      return read_elements(static_cast<const float*>(data) + offset, width, has_vectors, lane, x);
  }
}

__device__ inline void write_row(const float* x, int width, bool has_vectors, int lane, DType dtype,
                                 void* data, std::int64_t offset) {
  switch (dtype) {
    case DType::f16:
      return write_elements(x, width, has_vectors, lane, static_cast<__half*>(data) + offset);
    case DType::bf16:
      return write_elements(x, width, has_vectors, lane,
                            static_cast<__nv_bfloat16*>(data) + offset);
    default:
      return write_elements(x, width, has_vectors, lane, static_cast<float*>(data) + offset);
  }
}

// The first element of the largest magnitude; NaN if any is: its bits are the largest.
__device__ inline float extreme_of(const float* x, int width, int lane) {
  const auto bits_of = [](float value) { return __float_as_uint(value) & 0x7fffffffu; };
  float extreme = 0;
  int at = width;
  for (int i = lane; i < width; i += kWarp)
    if (bits_of(x[i]) > bits_of(extreme)) {
      extreme = x[i];
      at = i;
    }
#pragma unroll
  for (int mask = kWarp / 2; mask > 0; mask /= 2) {
    const float other = __shfl_xor_sync(~0u, extreme, mask);
    const int other_at = __shfl_xor_sync(~0u, at, mask);
    const bool is_first = bits_of(other) == bits_of(extreme) && other_at < at;
    if (bits_of(other) > bits_of(extreme) || is_first) {
      extreme = other;
      at = other_at;
    }
  }
  return extreme;
}

// Codes of a head, and its scale.
__device__ inline void write_codes(const float* x, int width, int lane, DType format, void* data,
                                   std::int64_t offset, float* scale) {
  const float s = quantised_scale(format, extreme_of(x, width, lane));
  const float inverse = inverse_scale(s);
  if (lane == 0) *scale = s;
  auto* to = static_cast<std::uint8_t*>(data) + offset;
  if (format == DType::i4x2) {
    for (int i = lane; i < width / 2; i += kWarp)
      to[i] = static_cast<std::uint8_t>(quantise_i4(x[2 * i], inverse) |
                                        quantise_i4(x[2 * i + 1], inverse) << 4);
    return;
  }
  for (int i = lane; i < width; i += kWarp)
    to[i] = format == DType::i8 ? static_cast<std::uint8_t>(quantise_i8(x[i], inverse))
                                : quantise_e4m3(x[i], inverse);
}

// One byte of codes; element j of it is x(j), with the scale and zero point `by`(j).
template <class Element, class Scale>
__device__ inline std::uint8_t pack_byte(DType format, Element x, Scale by) {
  const int per_byte = static_cast<int>(codes_per_byte(format));
  int byte = 0;
  for (int j = 0; j < per_byte; ++j) {
    const ScaleAndZero scale = by(j);
    byte |= quantise_unsigned(x(j), scale.zero, inverse_scale(scale.scale), largest_code(format))
            << 8 / per_byte * j;
  }
  return static_cast<std::uint8_t>(byte);
}

// Codes of a value, and a word for each kZeroPointGroup channels.
__device__ inline void write_value(const float* x, int width, int lane, DType format,
                                   std::uint8_t* to, std::uint32_t* words) {
  static_assert(kZeroPointGroup == kWarp);
  const int per_byte = static_cast<int>(codes_per_byte(format));
  for (int first = 0; first < width; first += kWarp) {
    Extent extent;
    if (first + lane < width) extent.add(x[first + lane]);
#pragma unroll
    for (int mask = kWarp / 2; mask > 0; mask /= 2) {
      extent.least = fminf(extent.least, __shfl_xor_sync(~0u, extent.least, mask));
      extent.most = fmaxf(extent.most, __shfl_xor_sync(~0u, extent.most, mask));
      extent.invalid += __shfl_xor_sync(~0u, extent.invalid, mask);
    }
    const std::uint32_t word = scale_word(format, extent);
    if (lane == 0) words[first / kWarp] = word;
    const int i = first + per_byte * lane;
    if (per_byte * lane >= kWarp || i >= width) continue;
    to[i / per_byte] = pack_byte(
        format, [&](int j) { return x[i + j]; }, [&](int) { return unpack_scale(word); });
  }
}

// x * weight / sqrt(mean(x^2) + eps), by one warp in a fixed order.
__device__ inline void norm_row(const KvAppendArgs& args, const NormWeight& weight, int lane,
                                float* x) {
  const int width = static_cast<int>(args.head_dim);
  float sum = 0;
  for (int i = lane; i < width; i += kWarp) sum += x[i] * x[i];
#pragma unroll
  for (int mask = kWarp / 2; mask > 0; mask /= 2) sum += __shfl_xor_sync(~0u, sum, mask);
  const float scale = 1 / sqrtf(sum / static_cast<float>(width) + args.norm_eps);
  for (int i = lane; i < width; i += kWarp)
    x[i] = x[i] * scale * load_real(weight.dtype, weight.data, i);
  __syncwarp();
}

// A lane owns the pairs lane, lane + 32, ...
__device__ inline void rotate_row(const KvAppendArgs& args, const float* cos, const float* sin,
                                  int lane, float* x) {
  const int half = static_cast<int>(args.rot_dim / 2);
  const bool is_halves = args.layout == RopeLayout::halves;
  for (int pair = lane; pair < half; pair += kWarp) {
    const int i = is_halves ? pair : 2 * pair, j = is_halves ? pair + half : 2 * pair + 1;
    rotate_pair(x[i], x[j], cos[pair], sin[pair]);
  }
  __syncwarp();
}

// q times the factors of its channels, k over them. A quotient as IEEE has it: the bits of a CPU.
__device__ inline void scale_channels(const KvAppendArgs& args, std::int64_t head, bool is_k,
                                      int lane, float* x) {
  const ChannelFactors& by = args.channel_factors;
  const float* factors = by.data + (is_k ? head : head / by.group) * by.stride_head;
  for (int i = lane; i < static_cast<int>(args.head_dim); i += kWarp)
    x[i] = is_k ? __fdiv_rn(x[i], factors[i]) : x[i] * factors[i];
  __syncwarp();
}

// Every block times the Hadamard matrix, by butterflies: the step doubles. A lane owns the
// butterflies lane, lane + 32, ...
__device__ inline void multiply_by_hadamard(const KvAppendArgs& args, int lane, float* x) {
  const int width = static_cast<int>(args.head_dim);
  for (int step = 1; step < args.hadamard_block; step *= 2) {
    for (int i = lane; i < width / 2; i += kWarp) {
      const int low = 2 * (i & -step) + (i & (step - 1)), high = low + step;
      const float a = x[low], b = x[high];
      x[low] = a + b;
      x[high] = a - b;
    }
    __syncwarp();
  }
  for (int i = lane; i < width; i += kWarp) x[i] *= args.hadamard_scale;
  __syncwarp();
}

// By all threads of the CTA.
__device__ inline void compute_angles(const KvAppendArgs& args, int position, float* cos,
                                      float* sin) {
  const RopeTables& tables = args.tables;
  const auto factor = static_cast<float>(args.attention_factor);
  for (int pair = static_cast<int>(threadIdx.x); pair < args.rot_dim / 2; pair += kWarp * kWarps) {
    if (tables.cos != nullptr) {
      cos[pair] = load_real(tables.cos_dtype, tables.cos, position * tables.cos_stride + pair);
      sin[pair] = load_real(tables.sin_dtype, tables.sin, position * tables.sin_stride + pair);
    } else {
      const CosSin angle = cos_sin(position, args.frequencies[pair]);
      cos[pair] = angle.cos * factor;
      sin[pair] = angle.sin * factor;
    }
  }
}

// Where a token is stored; negative: it is not.
struct Slots {
  std::int64_t slot, recent;
};

__device__ inline Slots slots_of(const KvAppendArgs& args, std::int64_t token) {
  const RecentRows& recent = args.recent;
  return {args.num_kv_heads == 0 ? -1 : args.slot_mapping[token * args.slot_stride],
          recent.slots == nullptr ? -1 : recent.slots[token * recent.slot_stride]};
}
__device__ inline bool are_within(const KvAppendArgs& args, const Slots& slots) {
  return slots.slot < args.num_pages * args.page_size &&
         slots.recent < args.recent.num_pages * args.recent.group;
}

// A head of K or V, to its slots.
__device__ inline void store_head(const Params& p, const Slots& slots, std::int64_t head, bool is_k,
                                  int width, int lane, const float* x) {
  const KvAppendArgs& args = p.args;
  const PageRows& pages = is_k ? args.k_pages : args.v_pages;
  const ScaleRows& scales = is_k ? args.k_scale : args.v_scale;
  if (slots.slot >= 0) {
    const std::int64_t at = slot_offset(args.page_size, pages, slots.slot, head);
    const std::int64_t scale_at = slot_offset(args.page_size, scales, slots.slot, head);
    if (has_zero_points(pages.dtype)) {
      if (!is_k)  // keys: quantise_keys
        write_value(x, width, lane, pages.dtype, static_cast<std::uint8_t*>(pages.data) + at,
                    static_cast<std::uint32_t*>(scales.data) + scale_at);
    } else if (scales.data != nullptr) {
      write_codes(x, width, lane, pages.dtype, pages.data, at,
                  static_cast<float*>(scales.data) + scale_at);
    } else {
      write_row(x, width, is_k ? p.vectors.k_pages : p.vectors.v_pages, lane, pages.dtype,
                pages.data, at);
    }
  }
  if (slots.recent < 0) return;
  const PageRows& recent = is_k ? args.recent.k : args.recent.v;
  write_row(x, width, is_k ? p.vectors.k_recent : p.vectors.v_recent, lane, recent.dtype,
            recent.data, slot_offset(args.recent.group, recent, slots.recent, head));
}

// One head of a token by one warp.
__device__ inline void append_row(const Params& p, std::int64_t token, std::int64_t row_idx,
                                  const Slots& slots, const float* cos, const float* sin, int lane,
                                  float* x) {
  const KvAppendArgs& args = p.args;
  const bool is_q = row_idx < args.num_heads;
  if (!is_q && slots.slot < 0 && slots.recent < 0) return;
  const bool is_k = !is_q && row_idx < args.num_heads + args.num_kv_heads;
  const HeadRows& from = is_q ? args.q : is_k ? args.k : args.v;
  const bool from_vectors = is_q ? p.vectors.q : is_k ? p.vectors.k : p.vectors.v;
  const int width = static_cast<int>(is_q || is_k ? args.head_dim : args.head_dim_v);
  const std::int64_t head = row_idx - (is_q   ? 0
                                       : is_k ? args.num_heads
                                              : args.num_heads + args.num_kv_heads);
  read_row(from.dtype, from.data, token * from.stride_token + head * from.stride_head, width,
           from_vectors, lane, x);
  __syncwarp();
  if (is_q || is_k) {
    const NormWeight& weight = is_q ? args.q_norm : args.k_norm;
    if (weight.data != nullptr) norm_row(args, weight, lane, x);
    if (args.rot_dim > 0) rotate_row(args, cos, sin, lane, x);
    if (args.channel_factors.data != nullptr) scale_channels(args, head, is_k, lane, x);
    if (args.hadamard_block > 1) multiply_by_hadamard(args, lane, x);
  }
  if (is_q) {
    const HeadRows& to = args.q_out;
    write_row(x, width, p.vectors.q_out, lane, to.dtype, to.data,
              token * to.stride_token + head * to.stride_head);
  } else {
    store_head(p, slots, head, is_k, width, lane, x);
  }
  __syncwarp();  // the row is written before the next head is read into it
}

__global__ void __launch_bounds__(kWarp* kWarps) append_tokens(const __grid_constant__ Params p) {
  extern __shared__ float4 smem[];
  griddep_launch_dependents();
  griddep_wait();
  const KvAppendArgs& args = p.args;
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  float* cos = reinterpret_cast<float*>(smem);                          // [rot_dim / 2]
  float* sin = cos + p.config.angle_stride;                             // [rot_dim / 2]
  float* x = sin + p.config.angle_stride + warp * p.config.row_stride;  // [head_dim]
  const std::int64_t first_row = blockIdx.y * p.config.rows_of_cta;
  const std::int64_t last_row = min(first_row + p.config.rows_of_cta, p.config.num_rows);
  const bool reports = threadIdx.x == 0 && blockIdx.y == 0;
  for (std::int64_t token = blockIdx.x; token < args.num_tokens; token += gridDim.x) {
    if (args.rot_dim > 0) {
      const int position = args.positions == nullptr ? static_cast<int>(token)
                                                     : args.positions[token * args.position_stride];
      if (!has_angles(args, position)) {
        if (reports) report_length_error(p.error_word, LengthError::positions, token);
        continue;
      }
      __syncthreads();  // the angles of the previous token have been read
      compute_angles(args, position, cos, sin);
      __syncthreads();
    }
    Slots slots = slots_of(args, token);
    if (!are_within(args, slots)) {
      if (reports) report_length_error(p.error_word, LengthError::slot_mapping, token);
      slots = {-1, -1};
    }
    for (std::int64_t row_idx = first_row + warp; row_idx < last_row; row_idx += kWarps)
      append_row(p, token, row_idx, slots, cos, sin, lane, x);
  }
}

// Keys with zero points, after all tokens were appended: a CTA per token quantises the group that
// it ends from the recent rows. A thread owns the channels of a byte.
__global__ void __launch_bounds__(kWarp* kWarps) quantise_keys(const __grid_constant__ Params p) {
  griddep_launch_dependents();
  griddep_wait();
  const KvAppendArgs& args = p.args;
  const PageRows &pages = args.k_pages, &recent = args.recent.k;
  const std::int64_t per_byte = codes_per_byte(pages.dtype), bytes = args.head_dim / per_byte;
  for (std::int64_t token = blockIdx.x; token < args.num_tokens; token += gridDim.x) {
    const Slots slots = slots_of(args, token);
    if (slots.recent < 0 || !ends_zero_point_group(slots.slot) || !are_within(args, slots))
      continue;
    for (std::int64_t i = threadIdx.x; i < args.num_kv_heads * bytes; i += kWarp * kWarps) {
      const std::int64_t head = i / bytes, channel = i % bytes * per_byte;
      auto* words = static_cast<std::uint32_t*>(args.k_scale.data) + channel +
                    slot_offset(args.page_size / kZeroPointGroup, args.k_scale,
                                slots.slot / kZeroPointGroup, head);
      const auto element = [&](int key, int j) {
        const std::int64_t slot = slots.recent - (kZeroPointGroup - 1) + key;
        return load_real(recent.dtype, recent.data,
                         slot_offset(args.recent.group, recent, slot, head) + channel + j);
      };
      Extent extents[4];
      for (int key = 0; key < kZeroPointGroup; ++key)
        for (int j = 0; j < per_byte; ++j) extents[j].add(element(key, j));
      for (int j = 0; j < per_byte; ++j) words[j] = scale_word(pages.dtype, extents[j]);
      for (int key = 0; key < kZeroPointGroup; ++key) {
        const std::int64_t slot = slots.slot - (kZeroPointGroup - 1) + key;
        static_cast<std::uint8_t*>(
            pages.data)[slot_offset(args.page_size, pages, slot, head) + i % bytes] =
            pack_byte(
                pages.dtype, [&](int j) { return element(key, j); },
                [&](int j) { return unpack_scale(words[j]); });
      }
    }
  }
}

}  // namespace

Status launch(const KvAppendArgs& args, const Config& config, const Vectors& vectors,
              std::uint32_t* error_word, Stream stream) {
  const Params params{args, config, vectors, error_word};
  const LaunchShape shape{.name = "kv_append",
                          .grid = dim3(static_cast<unsigned>(std::min(args.num_tokens, kMaxGridX)),
                                       static_cast<unsigned>(config.num_groups)),
                          .block = dim3(kWarp * kWarps),
                          .smem_bytes = static_cast<unsigned>(config.smem_bytes),
                          .use_pdl = true};
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  HEADRACE_TRY(headrace::cuda::launch(shape, cuda_stream, append_tokens, params));
  if (!has_zero_points(args.k_pages.dtype)) return std::nullopt;
  const LaunchShape of_keys{.name = "kv_append_keys",
                            .grid = dim3(shape.grid.x),
                            .block = shape.block,
                            .smem_bytes = 0,
                            .use_pdl = true};
  return headrace::cuda::launch(of_keys, cuda_stream, quantise_keys, params);
}

}  // namespace headrace::cuda::append
