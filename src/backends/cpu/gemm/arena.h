// Memory of packed matrices: large pieces of huge pages that matrices share. A matrix of a small
// model is smaller than a huge page, and a stream over pages of 4 KiB stops at the end of each.
#pragma once

#include <cstddef>
#include <memory>

namespace headrace::cpu::gemm {

// Zeros, 64-byte aligned; null where there is no memory. A piece lives as long as a matrix in it.
std::shared_ptr<std::byte> allocate_in_arena(std::size_t bytes);

}  // namespace headrace::cpu::gemm
