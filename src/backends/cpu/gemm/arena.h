// Memory of packed matrices: large pieces of huge pages, shared by matrices. A matrix of a small
// model is smaller than a huge page, and hardware prefetch stops at the end of each 4 KiB page.
#pragma once

#include <cstddef>
#include <memory>

namespace headrace::cpu::gemm {

// Zeroed, 64-byte aligned; null if out of memory. A piece lives as long as any matrix in it.
std::shared_ptr<std::byte> allocate_in_arena(std::size_t bytes);

}  // namespace headrace::cpu::gemm
