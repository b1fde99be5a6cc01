// Addresses of softmax rows, and piecewise copies of non-contiguous rows to contiguous memory.
// Templates on Vec, so that instruction sets never share a symbol.
#pragma once

#include <algorithm>

#include "backends/cpu/softmax/softmax.h"

namespace headrace::cpu {

template <class Vec>
struct SoftmaxRows {
  // A row's index on every axis; `rest` rows of the last axis start here.
  struct RowPlace {
    int64_t idx[kMaxRowAxes] = {};
    int num_axes = 0;
    int64_t rest = 1;
  };

  static RowPlace place_of(const RowSpace& rows, int64_t row) {
    RowPlace place{.idx = {}, .num_axes = rows.num_axes, .rest = 1};
    for (int i = rows.num_axes - 1; i >= 0; --i) {
      place.idx[i] = row % rows.sizes[i];
      row /= rows.sizes[i];
    }
    if (rows.num_axes > 0)
      place.rest = rows.sizes[rows.num_axes - 1] - place.idx[rows.num_axes - 1];
    return place;
  }

  template <class E>
  static E* data_of(const RowOperand& x, const RowPlace& place) {
    int64_t offset = 0;
    for (int i = 0; i < place.num_axes; ++i) offset += place.idx[i] * x.strides[i];
    return static_cast<E*>(x.data) + offset;
  }

  // Stride between rows along the last axis.
  static int64_t last_stride(const RowSpace& rows, const RowOperand& x) {
    return rows.num_axes == 0 ? 0 : x.strides[rows.num_axes - 1];
  }

  static constexpr int64_t kPanelLength = 256;  // a multiple of the block size of sums

  // A piece of up to kPanelRows rows.
  template <class E>
  class Panel {
   public:
    E* row(int r) { return elements_ + r * kPanelLength; }

    void gather(const E* x, const RowSpace& rows, const RowOperand& layout, int64_t first,
                int64_t n, int count) {
      const int64_t stride = layout.stride, row_stride = last_stride(rows, layout);
      x += first * stride;
      // The smaller stride innermost: neighbours share a cache line.
      if (std::abs(stride) < std::abs(row_stride)) {
        for (int r = 0; r < count; ++r)
          for (int64_t i = 0; i < n; ++i) row(r)[i] = x[r * row_stride + i * stride];
      } else {
        for (int64_t i = 0; i < n; ++i)
          for (int r = 0; r < count; ++r) row(r)[i] = x[r * row_stride + i * stride];
      }
    }

    void scatter(E* y, const RowSpace& rows, const RowOperand& layout, int64_t first, int64_t n,
                 int count) {
      const int64_t stride = layout.stride, row_stride = last_stride(rows, layout);
      y += first * stride;
      if (std::abs(stride) < std::abs(row_stride)) {
        for (int r = 0; r < count; ++r)
          for (int64_t i = 0; i < n; ++i) y[r * row_stride + i * stride] = row(r)[i];
      } else {
        for (int64_t i = 0; i < n; ++i)
          for (int r = 0; r < count; ++r) y[r * row_stride + i * stride] = row(r)[i];
      }
    }

   private:
    E elements_[kPanelRows * kPanelLength];
  };

  // A contiguous row, in one piece.
  template <class E>
  struct DirectRow {
    const E* x;
    E* y;
    int64_t length;

    template <class Body>
    void read(Body body) {
      body(0, x, length);
    }
    template <class Body>
    void write(Body body) {
      body(0, x, y, length);
    }
  };

  // Other rows, one panel at a time.
  template <class E>
  class PanelRows {
   public:
    PanelRows(const RowSpace& rows, const RowOperand& x_layout, const RowOperand& y_layout,
              const E* x, E* y, int count)
        : rows_(rows), x_layout_(x_layout), y_layout_(y_layout), x_(x), y_(y), count_(count) {}

    template <class Body>
    void read(Body body) {
      for (int64_t i = 0; i < rows_.length; i += kPanelLength) {
        const int64_t n = std::min(kPanelLength, rows_.length - i);
        panel_.gather(x_, rows_, x_layout_, i, n, count_);
        for (int r = 0; r < count_; ++r) body(r, panel_.row(r), n);
      }
    }
    template <class Body>
    void write(Body body) {
      for (int64_t i = 0; i < rows_.length; i += kPanelLength) {
        const int64_t n = std::min(kPanelLength, rows_.length - i);
        panel_.gather(x_, rows_, x_layout_, i, n, count_);
        for (int r = 0; r < count_; ++r) body(r, panel_.row(r), panel_.row(r), n);
        panel_.scatter(y_, rows_, y_layout_, i, n, count_);
      }
    }

   private:
    const RowSpace& rows_;
    const RowOperand &x_layout_, &y_layout_;
    const E* x_;
    E* y_;
    int count_;
    Panel<E> panel_;
  };
};

}  // namespace headrace::cpu
