// The rules of tests/support/engine_bits.h on the CPU.
#include "tests/support/engine_bits.h"

namespace headrace::engine {
namespace {

INSTANTIATE_TEST_SUITE_P(
    Engine, Bits,
    ::testing::Values(
        Setup{"tiny_llama3_f16.gguf", MatmulMode::normal, DType::f32},
        Setup{"tiny_mistral_q4_1.gguf", MatmulMode::normal, DType::f32},
        Setup{"tiny_mistral_q4_1.gguf", MatmulMode::normal, DType::f16},
        Setup{"tiny_qwen2_f32.gguf", MatmulMode::exact, DType::f32},
        Setup{"tiny_llama2_q4_0.gguf", MatmulMode::normal, DType::bf16},
        Setup{"tiny_llama3_f16.gguf", MatmulMode::normal, DType::f16, nullptr, DType::i8},
        Setup{"tiny_mistral_q4_1.gguf", MatmulMode::normal, DType::f32, nullptr, DType::f8e4m3},
        Setup{"tiny_qwen2_f32.gguf", MatmulMode::exact, DType::f32, nullptr, DType::i4x2},
        Setup{"tiny_mistral_q4_1.gguf", MatmulMode::normal, DType::f16, nullptr, DType::u4x2},
        Setup{"tiny_qwen2_f32.gguf", MatmulMode::exact, DType::f16, nullptr, DType::i8},
        Setup{"tiny_llama3_f16.gguf", MatmulMode::normal, DType::f32, nullptr, DType::u2x4}));

}  // namespace
}  // namespace headrace::engine
