/// @file
/// TensorView: a non-owning, strided view of memory. Header-only, no library
/// calls.
#pragma once

#if __cplusplus < 202002L
#error \
    "Headrace's C++ headers need C++20: compile with -std=c++20 (or later), in CMake link \
headrace::headrace or set CMAKE_CXX_STANDARD to 20; C programs include headrace/headrace.h"
#endif

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>

#include "headrace/headrace.h"

namespace headrace {

/// headrace_dtype: the type of a tensor's elements.
enum class DType : std::int32_t {
  f32 = HEADRACE_F32,        ///< IEEE binary32
  f16 = HEADRACE_F16,        ///< IEEE binary16
  bf16 = HEADRACE_BF16,      ///< bfloat16, the upper half of a binary32
  f64 = HEADRACE_F64,        ///< IEEE binary64
  i32 = HEADRACE_I32,        ///< for lengths
  u32 = HEADRACE_U32,        ///< for bit masks
  boolean = HEADRACE_BOOL,   ///< one byte
  i64 = HEADRACE_I64,        ///< for slots
  i8 = HEADRACE_I8,          ///< codes of a quantised KV cache
  f8e4m3 = HEADRACE_F8E4M3,  ///< 8-bit float, to 448
  i4x2 = HEADRACE_I4X2,      ///< two 4-bit codes in a byte; shapes and strides count bytes
  u4x2 = HEADRACE_U4X2,      ///< the same with zero points
  u2x4 = HEADRACE_U2X4,      ///< four 2-bit codes in a byte, with zero points
};

/// Bytes per element; 0 for an invalid dtype.
constexpr std::size_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return 4;
    case DType::f16:
      return 2;
    case DType::bf16:
      return 2;
    case DType::f64:
      return 8;
    case DType::i32:
      return 4;
    case DType::u32:
      return 4;
    case DType::boolean:
      return 1;
    case DType::i64:
      return 8;
    case DType::i8:
    case DType::f8e4m3:
    case DType::i4x2:
    case DType::u4x2:
    case DType::u2x4:
      return 1;
  }
  return 0;
}

/// "f32", "f16", ...; "unknown" for an invalid dtype.
constexpr const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "f32";
    case DType::f16:
      return "f16";
    case DType::bf16:
      return "bf16";
    case DType::f64:
      return "f64";
    case DType::i32:
      return "i32";
    case DType::u32:
      return "u32";
    case DType::boolean:
      return "bool";
    case DType::i64:
      return "i64";
    case DType::i8:
      return "i8";
    case DType::f8e4m3:
      return "f8e4m3";
    case DType::i4x2:
      return "i4x2";
    case DType::u4x2:
      return "u4x2";
    case DType::u2x4:
      return "u2x4";
  }
  return "unknown";
}

/// headrace_tensor with methods. All operations return views and never touch the data. Operations
/// that may need a copy return nullopt if they do. Strides are in elements.
struct TensorView : headrace_tensor {
  /// Not given.
  constexpr TensorView() : headrace_tensor{} {}
  /// The same view.
  constexpr explicit TensorView(const headrace_tensor& t) : headrace_tensor(t) {}

  /// A row-major contiguous view (at most HEADRACE_MAX_RANK sizes; further ones are dropped):
  /// TensorView(q.data(), DType::f32, {batch, seqlen, num_heads, head_dim}).
  TensorView(const void* ptr, DType type, std::initializer_list<std::int64_t> sizes)
      : headrace_tensor{} {
    data = const_cast<void*>(ptr);
    dtype = static_cast<std::int32_t>(type);
    for (std::int64_t size : sizes) {
      if (rank == HEADRACE_MAX_RANK) break;
      shape[rank++] = size;
    }
    set_contiguous_strides();
  }

  /// dtype as DType.
  constexpr DType type() const { return static_cast<DType>(dtype); }
  /// False for an absent optional tensor.
  constexpr bool is_given() const { return data != nullptr || rank != 0; }

  /// 0 if any axis is 0. Wraps around on overflow; validation refuses such views.
  constexpr std::int64_t num_elements() const {
    std::uint64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= static_cast<std::uint64_t>(shape[i]);
    return static_cast<std::int64_t>(n);
  }

  /// True if the elements are row-major without gaps (axes of size 1 do not count; empty views are
  /// contiguous).
  constexpr bool is_contiguous() const {
    for (int i = 0; i < rank; ++i)
      if (shape[i] == 0) return true;
    std::uint64_t expected = 1;
    for (int i = rank - 1; i >= 0; --i) {
      if (shape[i] == 1) continue;
      if (static_cast<std::uint64_t>(strides[i]) != expected) return false;
      expected *= static_cast<std::uint64_t>(shape[i]);
    }
    return true;
  }

  /// Axes in a new order: BHSD memory read as BSHD is view.permute({0, 2, 1, 3}).
  std::optional<TensorView> permute(std::initializer_list<int> axes) const {
    if (static_cast<int>(axes.size()) != rank) return std::nullopt;
    TensorView out = *this;
    unsigned seen = 0;
    int i = 0;
    for (int axis : axes) {
      if (axis < 0 || axis >= rank || (seen >> axis & 1u)) return std::nullopt;
      seen |= 1u << axis;
      out.shape[i] = shape[axis];
      out.strides[i++] = strides[axis];
    }
    return out;
  }

  /// Elements [start, stop) of an axis, every `step`-th; negative steps go from `start` down to
  /// `stop` (exclusive).
  std::optional<TensorView> slice(int axis, std::int64_t start, std::int64_t stop,
                                  std::int64_t step = 1) const {
    if (axis < 0 || axis >= rank || step == 0 || step == INT64_MIN) return std::nullopt;
    const std::int64_t n = shape[axis];
    const bool forward = step > 0;
    const bool in_range =
        forward ? 0 <= start && start <= stop && stop <= n  //
                : -1 <= stop && stop <= start && (start < n || (n == 0 && start == -1));
    if (!in_range) return std::nullopt;
    const std::int64_t span = forward ? stop - start : start - stop;
    const std::int64_t stride = forward ? step : -step;
    TensorView out = *this;
    out.shape[axis] = span / stride + (span % stride != 0);
    if (out.shape[axis] > 1)
      out.strides[axis] = strides[axis] * step;  ///< strides of axes of size 1 do not count
    if (out.shape[axis] > 0) out.advance(start * strides[axis]);
    return out;
  }

  /// Selects one index and removes the axis: packed.select(2, 0) is q of a packed [batch,
  /// seqlen, 3, heads, dim].
  std::optional<TensorView> select(int axis, std::int64_t index) const {
    if (axis < 0 || axis >= rank || index < 0 || index >= shape[axis]) return std::nullopt;
    TensorView out = *this;
    out.advance(index * strides[axis]);
    for (int i = axis; i + 1 < rank; ++i) {
      out.shape[i] = shape[i + 1];
      out.strides[i] = strides[i + 1];
    }
    --out.rank;
    out.shape[out.rank] = 0;
    out.strides[out.rank] = 0;
    return out;
  }

  /// The same elements with another shape, if strides allow it (axes can be split; contiguous
  /// neighbouring axes can be merged).
  std::optional<TensorView> reshape(std::initializer_list<std::int64_t> sizes) const {
    if (sizes.size() > HEADRACE_MAX_RANK) return std::nullopt;
    TensorView out = *this;
    out.rank = 0;
    for (std::int64_t size : sizes) {
      if (size < 0) return std::nullopt;
      out.shape[out.rank++] = size;
    }
    if (!has_as_many_elements_as(out)) return std::nullopt;
    for (int i = out.rank; i < HEADRACE_MAX_RANK; ++i) out.shape[i] = out.strides[i] = 0;
    if (num_elements() == 0) {
      out.set_contiguous_strides();
      return out;
    }
    if (!out.split_axes_of(*this)) return std::nullopt;
    return out;
  }

 private:
  /// Compares the products of the sizes without overflow.
  bool has_as_many_elements_as(const TensorView& other) const {
    std::int64_t products[2] = {1, 1};
    bool fits[2] = {true, true};
    const TensorView* views[2] = {this, &other};
    for (int v = 0; v < 2; ++v) {
      for (int i = 0; i < views[v]->rank; ++i) {
        const std::int64_t size = views[v]->shape[i];
        if (size == 0) {
          products[v] = 0;
          fits[v] = true;
          break;
        }
        fits[v] = fits[v] && products[v] <= INT64_MAX / size;
        if (fits[v]) products[v] *= size;
      }
    }
    return fits[0] && fits[1] && products[0] == products[1];
  }

  void advance(std::int64_t elements) {
    if (data == nullptr) return;  ///< views without data can be sliced
    data = static_cast<char*>(data) + elements * static_cast<std::int64_t>(dtype_bytes(type()));
  }

  void set_contiguous_strides() {
    std::uint64_t stride = 1;
    for (int i = rank - 1; i >= 0; --i) {
      strides[i] = static_cast<std::int64_t>(stride);
      stride *= static_cast<std::uint64_t>(shape[i]);
    }
  }

  /// Matches runs of contiguous old axes with runs of new axes, from the last axis to the first.
  bool split_axes_of(const TensorView& old) {
    int i = old.rank - 1;
    int j = rank - 1;
    while (i >= 0 || j >= 0) {
      while (i >= 0 && old.shape[i] == 1) --i;
      if (i < 0) {
        for (; j >= 0; --j) strides[j] = 1;  ///< only axes of size 1 are left
        return true;
      }
      std::int64_t run = old.shape[i];
      std::int64_t stride = old.strides[i];
      const std::int64_t run_stride = stride;
      std::int64_t covered = 1;
      for (; j >= 0 && covered < run; --j) {
        strides[j] = run_stride * covered;
        covered *= shape[j];
        while (covered > run &&
               i > 0) {  ///< the new axis spans the next old axis: both must be contiguous
          --i;
          if (old.shape[i] == 1) continue;
          if (old.strides[i] != run_stride * run) return false;
          run *= old.shape[i];
        }
      }
      if (covered != run) return false;
      --i;
    }
    return true;
  }
};

}  // namespace headrace
