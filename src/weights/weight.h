// A weight matrix that an executor packed for its device.
#pragma once

#include <cstdint>

#include "runtime/buffer.h"
#include "weights/weight_type.h"

namespace headrace {

enum class MatmulMode {
  normal,  // quantized weights with 8-bit activations (one scale per 32), bf16 weights with bf16
           // activations if the CPU has bf16 dot products
  exact,   // f32 weights and activations
  fast,    // on a GPU: the fastest products, also where a row's bits then depend on other rows
};

struct Weight {
  WeightType format = WeightType::f32;  // of the model file
  std::int64_t rows = 0, columns = 0;
  std::uint32_t layout = 0;  // of data; defined by the backend that packed it
  Buffer data;
};

}  // namespace headrace
