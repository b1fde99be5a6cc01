// Ends the region that a target_*.h header started.
#if defined(__clang__)
#pragma clang attribute pop
#endif
