// Ends the region that a target_*.h header began.
#if defined(__clang__)
#pragma clang attribute pop
#endif
