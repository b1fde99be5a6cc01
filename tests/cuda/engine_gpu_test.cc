// The rules of tests/support/engine_bits.h on a GPU.
#include "backends/cuda/backend.h"
#include "cuda/gpu.h"
#include "support/engine_bits.h"

namespace headrace::engine {
namespace {

std::optional<DeviceInfo> gpu() {
  if (!testing::has_gpu(80)) return std::nullopt;
  return cuda::device_info(0).value();
}

// No step of an engine, and no other call of these tests, leaves an error of lengths on the device.
class NoErrorIsLeft : public ::testing::Environment {
 public:
  void TearDown() override {
    if (!gpu()) return;
    const Status left = cuda::check(0, nullptr);
    EXPECT_FALSE(left) << left->message;
  }
};
const ::testing::Environment* const kNoErrorIsLeft =
    ::testing::AddGlobalTestEnvironment(new NoErrorIsLeft);

INSTANTIATE_TEST_SUITE_P(
    EngineOnGpu, Bits,
    ::testing::Values(
        Setup{"tiny_llama3_f16.gguf", MatmulMode::normal, DType::bf16, gpu},
        Setup{"tiny_mistral_q4_1.gguf", MatmulMode::normal, DType::f16, gpu},
        Setup{"tiny_llama_headdim32_q8_0.gguf", MatmulMode::normal, DType::bf16, gpu},
        Setup{"tiny_qwen2_f32.gguf", MatmulMode::normal, DType::bf16, gpu},
        Setup{"tiny_llama2_q4_0.gguf", MatmulMode::normal, DType::bf16, gpu},
        Setup{"tiny_llama3_f16.gguf", MatmulMode::normal, DType::bf16, gpu, DType::i8},
        Setup{"tiny_mistral_q4_1.gguf", MatmulMode::normal, DType::f16, gpu, DType::i4x2},
        Setup{"tiny_qwen2_f32.gguf", MatmulMode::normal, DType::bf16, gpu, DType::i8},
        Setup{"tiny_mistral_q4_1.gguf", MatmulMode::normal, DType::bf16, gpu, DType::f8e4m3},
        Setup{"tiny_llama2_q4_0.gguf", MatmulMode::normal, DType::f16, gpu, DType::u4x2},
        Setup{"tiny_llama3_f16.gguf", MatmulMode::normal, DType::bf16, gpu, DType::u2x4}));

}  // namespace
}  // namespace headrace::engine
