#include <immintrin.h>
#include <string.h>

#include "backends/cpu/gemm/instance.h"
#include "backends/cpu/simd/element.h"

// Nothing above this line is compiled for the instruction set, everything below is.
// clang-format off
#include "backends/cpu/simd/target_avx512bf16.h"
#include "backends/cpu/simd/vec_avx512bf16.h"
#include "backends/cpu/gemm/float-inl.h"
// clang-format on

namespace headrace::cpu::gemm::avx512bf16 {
namespace {

using Isa = cpu::avx512bf16::PairIsa;

void round(const float* x, int64_t columns, float* pairs) {
  using Vec = Isa::Vec;
  auto* to = reinterpret_cast<Bf16*>(pairs);
  int64_t k = 0;
  for (; k + Vec::kWidth <= columns; k += Vec::kWidth) Vec::store(to + k, Vec::load(x + k));
  const int rest = static_cast<int>(columns - k);
  // Missing lanes and the other half of an odd last column are 0.
  if (rest > 0) Vec::store_partial(to + k, Vec::load_partial(x + k, rest), rest + rest % 2);
}

}  // namespace

// A pair of bf16 is a 32-bit unit like a float, so the float tile is used with a multiply-add that
// multiplies two pairs.
const PairProducts kPairs = {kFloatRows<Isa>, round, float_panels<Isa, float>};

}  // namespace headrace::cpu::gemm::avx512bf16

#include "backends/cpu/simd/target_end.h"
