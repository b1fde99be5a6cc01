// Starts a region compiled for AVX2 + FMA + F16C; target_end.h ends it. Include it after all
// ordinary headers.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif
