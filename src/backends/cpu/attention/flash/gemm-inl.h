// The two matmuls of attention on register tiles, and the packing of their operands.
//
// A *unit* is one 32-bit step of the reduction: a float, or two bf16 (Isa::kPair elements). A
// *panel* holds the kNr columns of a register tile, [reduction step][kNr] units, so that the inner
// loop reads it sequentially.
#pragma once

#include "backends/cpu/attention/flash/rows.h"
#include "backends/cpu/simd/element.h"

namespace headrace::cpu::flash {

template <class Isa>
inline constexpr int kNr = Isa::kNv* Isa::Vec::kWidth;

// c[kMr][kNr] = A B, or with row_scale: c = c * row_scale + A B.
//   a [kMr, steps] units, with kTransposed [steps, kMr];  b [steps, kNr] units;  strides of rows.
// The sum over the steps starts at zero and runs in order, independent of the tile.
template <class Isa, bool kAccumulate, bool kTransposed = false>
inline void register_tile(const typename Isa::Unit* a, int64_t a_stride,
                          const typename Isa::Unit* b, int64_t b_stride, int64_t steps, float* c,
                          int64_t c_stride, const float* row_scale) {
  using Vec = typename Isa::Vec;
  using F = typename Vec::F;
  constexpr int kMr = Isa::kMr, kNv = Isa::kNv, kW = Vec::kWidth;
  static_assert(kMr % 2 == 0);
  F acc[kMr][kNv];
#pragma GCC unroll 16
  for (int i = 0; i < kMr; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kNv; ++v) acc[i][v] = Vec::zero();
  }
  // One pointer per two rows of A: twelve pointers exceed the registers, and gcc 12 keeps the last
  // ones in vector registers, whose moves use an FMA port, one slot of 25.
  const typename Isa::Unit* row_pair[kMr / 2];
#pragma GCC unroll 8
  for (int i = 0; i < kMr / 2; ++i) row_pair[i] = a + 2 * i * a_stride;
  for (int64_t step = 0; step < steps; ++step) {
    F column[kNv];
#pragma GCC unroll 4
    for (int v = 0; v < kNv; ++v) column[v] = Isa::load_units(b + step * b_stride + v * kW);
#pragma GCC unroll 16
    for (int i = 0; i < kMr; ++i) {
      const F row = Isa::broadcast(kTransposed ? a + step * a_stride + i
                                               : row_pair[i / 2] + i % 2 * a_stride);
#pragma GCC unroll 4
      for (int v = 0; v < kNv; ++v) acc[i][v] = Isa::madd(row, column[v], acc[i][v]);
    }
#pragma GCC unroll 8
    for (auto& row : row_pair) ++row;
  }
#pragma GCC unroll 16
  for (int i = 0; i < kMr; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kNv; ++v) {
      float* out = c + i * c_stride + v * kW;
      if constexpr (kAccumulate) {
        Vec::store(out, Vec::fma(Vec::load(out), Vec::set1(row_scale[i]), acc[i][v]));
      } else {
        Vec::store(out, acc[i][v]);
      }
    }
  }
}

// A vector of a row of which `left` elements exist, padded with zeros.
template <class Vec, class E>
inline typename Vec::F load_columns(const E* row, int64_t left) {
  if (left >= Vec::kWidth) return Vec::load(row);
  return left > 0 ? Vec::load_partial(row, static_cast<int>(left)) : Vec::zero();
}

// Stores from [dim] * factor, rounded once. Adding +0 turns -0 into +0.
template <class Vec, class E>
inline void store_row(const float* from, int64_t dim, float factor, E* to) {
  for (int64_t c = 0; c < dim; c += Vec::kWidth) {
    const auto x = Vec::add(Vec::mul(Vec::load(from + c), Vec::set1(factor)), Vec::zero());
    if (dim - c >= Vec::kWidth) {
      Vec::store(to + c, x);
    } else {
      Vec::store_partial(to + c, x, static_cast<int>(dim - c));
    }
  }
}

// K rows [num_keys, head_dim] -> panels of kNr keys, [head_dim units][kNr]. Keys beyond num_keys in
// the last panel are zero.
template <class Isa, class Rows>
inline void pack_keys(Rows keys, int64_t num_keys, int64_t head_dim, float* panels,
                      int64_t panel_floats) {
  using Vec = typename Isa::Vec;
  constexpr int kW = Vec::kWidth, kStep = kW * Isa::kPair;
  const int64_t units = (head_dim + Isa::kPair - 1) / Isa::kPair;
  for (int64_t key = 0; key < num_keys; key += kW) {
    float* panel = panels + key / kNr<Isa> * panel_floats + key % kNr<Isa>;
    const int rows = static_cast<int>(num_keys - key < kW ? num_keys - key : kW);
    for (int64_t d = 0; d < head_dim; d += kStep) {
      const int elements = static_cast<int>(head_dim - d < kStep ? head_dim - d : kStep);
      typename Vec::F block[kW];
      for (int i = 0; i < kW; ++i) block[i] = Vec::zero();
      if (elements == kStep && rows == kW) {
#pragma GCC unroll 16
        for (int i = 0; i < kW; ++i) block[i] = Isa::load_row(keys[key + i] + d);
      } else {
        for (int i = 0; i < rows; ++i)
          block[i] = Isa::load_row_partial(keys[key + i] + d, elements);
      }
      Vec::transpose(block);
      const int64_t first = d / Isa::kPair;
      const int64_t count = units - first < kW ? units - first : kW;
      if (count == kW) {
#pragma GCC unroll 16
        for (int i = 0; i < kW; ++i) Vec::store(panel + (first + i) * kNr<Isa>, block[i]);
      } else {
        for (int i = 0; i < count; ++i) Vec::store(panel + (first + i) * kNr<Isa>, block[i]);
      }
    }
  }
  // Zeros in the rest of the last panel.
  const int64_t covered = (num_keys + kW - 1) / kW * kW;
  const int64_t end = (num_keys + kNr<Isa> - 1) / kNr<Isa> * kNr<Isa>;
  for (int64_t key = covered; key < end; key += kW) {
    float* panel = panels + key / kNr<Isa> * panel_floats + key % kNr<Isa>;
    for (int64_t unit = 0; unit < units; ++unit) Vec::store(panel + unit * kNr<Isa>, Vec::zero());
  }
}

// V rows [num_keys, head_dim_v] -> panels of kNr columns, [num_keys][kNr]; columns beyond
// head_dim_v are zero.
template <class Isa, class Rows>
inline void pack_values(Rows values, int64_t num_keys, int64_t head_dim_v, float* panels,
                        int64_t panel_floats) {
  using Vec = typename Isa::Vec;
  constexpr int kW = Vec::kWidth;
  const int64_t padded = (head_dim_v + kNr<Isa> - 1) / kNr<Isa> * kNr<Isa>;
  for (int64_t key = 0; key < num_keys; ++key) {
    const auto* row = values[key];
    float* step = panels + key * kNr<Isa>;
    int64_t c = 0;
    for (; c + kNr<Isa> <= head_dim_v; c += kNr<Isa>, step += panel_floats) {
#pragma GCC unroll 4
      for (int v = 0; v < Isa::kNv; ++v) Vec::store(step + v * kW, Vec::load(row + c + v * kW));
    }
    for (int v = 0; c < padded; c += kW, ++v) {
      const int64_t left = head_dim_v - c;
      Vec::store(step + v * kW, load_columns<Vec>(row + c, left));
    }
  }
}

}  // namespace headrace::cpu::flash
