// From here to the end of the file functions are compiled for AVX2 + FMA + F16C. Include it after
// every ordinary header.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif
