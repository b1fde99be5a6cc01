// Merge of attention states.
#include "capi/capi_common.h"
#include "ops/merge_states.h"

using namespace headrace::capi;  // the functions below are the C face of this namespace

extern "C" {

headrace_status headrace_merge_states_tensors_init_sized(headrace_merge_states_tensors* tensors,
                                                         size_t struct_size) {
  return init("tensors", {}, tensors, struct_size);
}

headrace_status headrace_merge_states(const headrace_merge_states_tensors* tensors, void* stream) {
  return guarded([&] {
    headrace_merge_states_tensors t{};
    if (auto bad = headrace::copy_versioned("tensors", tensors, sizeof t, &t, sizeof t))
      return fail(std::move(*bad));
    return status_of(headrace::merge_states(t, stream));
  });
}

}  // extern "C"
