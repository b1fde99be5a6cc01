// Softmax along an axis.
#include <cstddef>

#include "capi/capi_common.h"
#include "ops/softmax.h"

namespace headrace::capi {
namespace {

Status read_softmax_options(const headrace_softmax_options* theirs,
                            headrace_softmax_options& ours) {
  ours = default_softmax_options();
  if (theirs == nullptr) return std::nullopt;
  return copy_versioned("options", theirs, sizeof ours, &ours, sizeof ours);
}

template <class Tensors, class Run>
headrace_status run_softmax(const Tensors* tensors, const headrace_softmax_options* options,
                            Run run) {
  return guarded([&] {
    Tensors t{};
    headrace_softmax_options o;
    if (auto bad = copy_versioned("tensors", tensors, sizeof t, &t, sizeof t))
      return fail(std::move(*bad));
    if (auto bad = read_softmax_options(options, o)) return fail(std::move(*bad));
    return status_of(run(t, o));
  });
}

}  // namespace
}  // namespace headrace::capi

using namespace headrace::capi;  // the functions below are the C face of this namespace

extern "C" {

headrace_status headrace_softmax_options_init_sized(headrace_softmax_options* options,
                                                    size_t struct_size) {
  return init("options", headrace::default_softmax_options(), options, struct_size);
}

headrace_status headrace_softmax_tensors_init_sized(headrace_softmax_tensors* tensors,
                                                    size_t struct_size) {
  return init("tensors", {}, tensors, struct_size);
}

headrace_status headrace_softmax_backward_tensors_init_sized(
    headrace_softmax_backward_tensors* tensors, size_t struct_size) {
  return init("tensors", {}, tensors, struct_size);
}

headrace_status headrace_softmax_forward(const headrace_softmax_tensors* tensors,
                                         const headrace_softmax_options* options, void* stream) {
  return run_softmax(tensors, options, [&](const auto& t, const auto& o) {
    return headrace::softmax_forward(t, o, stream);
  });
}

headrace_status headrace_softmax_backward(const headrace_softmax_backward_tensors* tensors,
                                          const headrace_softmax_options* options, void* stream) {
  return run_softmax(tensors, options, [&](const auto& t, const auto& o) {
    return headrace::softmax_backward(t, o, stream);
  });
}

}  // extern "C"
