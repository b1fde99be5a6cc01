// Names of the kernels that executors run for operators other than attention, whose plan names its
// own. The device need not be present.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/device.h"
#include "weights/weight_type.h"

namespace headrace {

// Of a product of num_tokens rows with weights of a type, which the executor prepared in its normal
// mode.
std::string product_kernel(const DeviceInfo& device, WeightType weights, std::int64_t num_tokens);

// Of an operator on rows: "rms_norm".
std::string elementwise_kernel(const DeviceInfo& device, std::string_view name);

}  // namespace headrace
