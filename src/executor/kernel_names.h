// Names of the kernels that executors run for operators other than attention, whose plan names its
// own. The device need not be present.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/device.h"
#include "kv_cache/kv_view.h"
#include "weights/weight.h"

namespace headrace {

// Of a product of num_tokens rows with weights of a type, which an executor prepared in a mode.
std::string product_kernel(const DeviceInfo& device, MatmulMode mode, WeightType weights,
                           std::int64_t num_tokens, bool has_bias);

// Whether cuBLASLt computes that product. Only on a CUDA device.
bool is_by_cublaslt(MatmulMode mode, std::int64_t num_tokens, bool has_bias);

// Whether that product, of gate and up, computes SwiGLU too.
bool has_swiglu(const DeviceInfo& device, MatmulMode mode, std::int64_t num_tokens, bool has_bias);

// Whether that product, of `columns` columns, normalises its input too.
bool has_norm(const DeviceInfo& device, std::int64_t num_tokens, std::int64_t columns);

// Whether our own product of Q, K and V appends them to a cache too. rot_dim: elements of a head
// that RoPE rotates.
bool has_append(const DeviceInfo& device, std::int64_t num_tokens, const KvShape& kv,
                std::int64_t rot_dim);

// Of an operator on rows: "rms_norm".
std::string elementwise_kernel(const DeviceInfo& device, std::string_view name);

}  // namespace headrace
