#include "gpu.h"
#include "headrace/headrace.hpp"

namespace headrace::cli {

std::string gpu_versions() { return {}; }

struct Gpu::State {};

Gpu::Gpu(int) {
  throw Error(HEADRACE_UNSUPPORTED,
              "this program was built without CUDA; rebuild it with -DHEADRACE_CUDA=ON");
}
Gpu::Gpu(Gpu&&) noexcept = default;
Gpu& Gpu::operator=(Gpu&&) noexcept = default;
Gpu::~Gpu() = default;
void* Gpu::allocate(std::size_t) { return nullptr; }
void* Gpu::copy_of(const void*, std::size_t) { return nullptr; }
void Gpu::write(void*, const void*, std::size_t) {}
void Gpu::read(void*, const void*, std::size_t) {}
void Gpu::release() {}
void Gpu::copy(void*, const void*, std::size_t, void*) {}
void* Gpu::stream() const { return nullptr; }
void Gpu::evict() {}
double Gpu::time(const std::function<void(void*)>&, bool) { return 0; }

}  // namespace headrace::cli
