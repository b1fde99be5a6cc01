// Runs a plan.
#pragma once

#include <cstdlib>
#include <memory>

#include "backends/cuda/backend.h"
#include "core/kernel.h"

namespace headrace {

// Checks the workspace, the machine and (on CPU, or with `checked`) cu_seqlens, then launches. The
// arguments must match the plan's problem. Allocates only on failure.
Status run(const Plan& plan, const AttentionArgs& args, Workspace workspace, Stream stream);

// A workspace for callers that pass none: on a GPU allocated and freed in the order of a stream.
class OwnWorkspace {
 public:
  // Allocates at least what the plan needs. Throws std::bad_alloc if that is no size of memory.
  Status reserve(const Plan& plan, Stream stream);
  Workspace get() const { return {host_ != nullptr ? host_.get() : device_.get(), bytes_}; }

 private:
  struct Free {
    void operator()(void* data) const { std::free(data); }  // from std::aligned_alloc
  };
  std::unique_ptr<void, Free> host_;
  cuda::Scratch device_;
  std::size_t bytes_ = 0;
};

}  // namespace headrace
