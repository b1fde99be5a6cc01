// Weight formats of model files: rows of blocks, each block some elements with a common scale.
// Layouts: dequantise.cc.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace headrace {

enum class WeightType { f32, f16, bf16, q4_0, q4_1, q5_0, q5_1, q8_0, q4_k, q5_k, q6_k };

struct WeightTypeInfo {
  WeightType type;
  const char* name;
  std::uint32_t gguf_id;        // type id in GGUF files
  std::int64_t block_elements;  // a row is a whole number of blocks
  std::int64_t block_bytes;

  std::int64_t bytes_of(std::int64_t elements) const {  // whole blocks
    return elements / block_elements * block_bytes;
  }
};

std::span<const WeightTypeInfo> weight_types();
const WeightTypeInfo& info_of(WeightType type);
std::optional<WeightType> weight_type_from_gguf(std::uint32_t gguf_id);

}  // namespace headrace
