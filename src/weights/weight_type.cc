#include "weights/weight_type.h"

namespace headrace {
namespace {

constexpr WeightTypeInfo kTypes[] = {
    {WeightType::f32, "F32", 0, 1, 4},        {WeightType::f16, "F16", 1, 1, 2},
    {WeightType::bf16, "BF16", 30, 1, 2},     {WeightType::q4_0, "Q4_0", 2, 32, 18},
    {WeightType::q4_1, "Q4_1", 3, 32, 20},    {WeightType::q5_0, "Q5_0", 6, 32, 22},
    {WeightType::q5_1, "Q5_1", 7, 32, 24},    {WeightType::q8_0, "Q8_0", 8, 32, 34},
    {WeightType::q4_k, "Q4_K", 12, 256, 144}, {WeightType::q5_k, "Q5_K", 13, 256, 176},
    {WeightType::q6_k, "Q6_K", 14, 256, 210},
};

}  // namespace

std::span<const WeightTypeInfo> weight_types() { return kTypes; }

const WeightTypeInfo& info_of(WeightType type) { return kTypes[static_cast<std::size_t>(type)]; }

std::optional<WeightType> weight_type_from_gguf(std::uint32_t gguf_id) {
  for (const WeightTypeInfo& info : kTypes)
    if (info.gguf_id == gguf_id) return info.type;
  return std::nullopt;
}

}  // namespace headrace
