// SparQ attention.
#include <cstddef>

#include "capi/capi_common.h"
#include "ops/sparq.h"

namespace headrace::capi {
namespace {

struct SparqCall {
  headrace_sparq_tensors tensors{};
  headrace_quantised_kv quantised{};
  headrace_sparq_options options = default_sparq_options();
};

Status read_call(const headrace_sparq_tensors* tensors, const headrace_sparq_options* options,
                 SparqCall& call) {
  HEADRACE_TRY(copy_versioned("tensors", tensors, offsetof(headrace_sparq_tensors, quantised),
                              &call.tensors, sizeof call.tensors));
  if (call.tensors.quantised != nullptr) {
    HEADRACE_TRY(copy_versioned("tensors.quantised", call.tensors.quantised, sizeof call.quantised,
                                &call.quantised, sizeof call.quantised));
    call.tensors.quantised = &call.quantised;
  }
  return copy_versioned("options", options, sizeof call.options, &call.options,
                        sizeof call.options);
}

Status query_workspace(const headrace_sparq_tensors* tensors, const headrace_sparq_options* options,
                       std::size_t* bytes) {
  if (bytes == nullptr) return null_argument("bytes", "pass the address of a size_t");
  SparqCall call;
  HEADRACE_TRY(read_call(tensors, options, call));
  Result<std::size_t> needed = sparq_workspace_bytes(call.tensors, call.options);
  if (!needed.ok()) return std::move(needed.failure());
  *bytes = needed.value();
  return std::nullopt;
}

Status run_call(const headrace_sparq_tensors* tensors, const headrace_sparq_options* options,
                Workspace workspace, Stream stream) {
  SparqCall call;
  HEADRACE_TRY(read_call(tensors, options, call));
  return sparq_attention(call.tensors, call.options, workspace, stream);
}

}  // namespace
}  // namespace headrace::capi

using namespace headrace::capi;  // the functions below are the C face of this namespace

extern "C" {

headrace_status headrace_sparq_options_init_sized(headrace_sparq_options* options,
                                                  size_t struct_size) {
  return init("options", headrace::default_sparq_options(), options, struct_size);
}

headrace_status headrace_sparq_tensors_init_sized(headrace_sparq_tensors* tensors,
                                                  size_t struct_size) {
  return init("tensors", {}, tensors, struct_size);
}

headrace_status headrace_sparq_append_tensors_init_sized(headrace_sparq_append_tensors* tensors,
                                                         size_t struct_size) {
  return init("tensors", {}, tensors, struct_size);
}

headrace_status headrace_sparq_workspace_bytes(const headrace_sparq_tensors* tensors,
                                               const headrace_sparq_options* options,
                                               size_t* bytes) {
  return guarded([&] { return status_of(query_workspace(tensors, options, bytes)); });
}

headrace_status headrace_sparq_attention(const headrace_sparq_tensors* tensors,
                                         const headrace_sparq_options* options, void* workspace,
                                         size_t workspace_bytes, void* stream) {
  return guarded([&] {
    return status_of(run_call(tensors, options, {workspace, workspace_bytes}, stream));
  });
}

int64_t headrace_sparq_bytes(int64_t seqlen_k, int64_t head_dim, int64_t head_dim_v,
                             int64_t num_components, int64_t num_keys, int64_t element_bytes) {
  return headrace::sparq_bytes(seqlen_k, head_dim, head_dim_v, num_components, num_keys,
                               element_bytes);
}

headrace_status headrace_sparq_append(const headrace_sparq_append_tensors* tensors, void* stream) {
  return guarded([&] {
    headrace_sparq_append_tensors t{};
    if (auto bad = headrace::copy_versioned(
            "tensors", tensors, offsetof(headrace_sparq_append_tensors, k_slots), &t, sizeof t))
      return fail(std::move(*bad));
    return status_of(headrace::sparq_append(t, stream));
  });
}

}  // extern "C"
