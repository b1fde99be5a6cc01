// RoPE's frequencies, and the append to a paged KV cache.
#include "capi/capi_common.h"
#include "ops/kv_append.h"
#include "ops/rope_options.h"

namespace headrace::capi {
namespace {

// `name`: of the caller's argument.
Status read_rope(const char* name, const headrace_rope_options* theirs,
                 headrace_rope_options& ours) {
  ours = default_rope_options();
  return copy_versioned(name, theirs, sizeof(std::size_t), &ours, sizeof ours);
}

Status give_frequencies(const headrace_rope_options& options, double* frequencies,
                        std::size_t num_frequencies, double* attention_factor) {
  if (frequencies == nullptr && num_frequencies > 0)
    return null_argument("frequencies", "pass an array of num_frequencies numbers");
  if (options.rot_dim < 2 || options.rot_dim % 2 != 0 || options.rot_dim > kMaxHeadDim)
    return invalid_argument("rot_dim={}: must be even and 2 to {}; pass at most head_dim",
                            options.rot_dim, kMaxHeadDim);
  if (static_cast<std::size_t>(options.rot_dim / 2) != num_frequencies)
    return invalid_argument(
        "num_frequencies={}: must be {}, rot_dim / 2; pass an array of that size", num_frequencies,
        options.rot_dim / 2);
  return fill_rope(options, options.rot_dim, frequencies, attention_factor);
}

Status run_append(const headrace_kv_append_tensors* tensors,
                  const headrace_kv_append_options* options, void* stream) {
  headrace_kv_append_tensors t{};
  headrace_kv_append_options o = default_kv_append_options();
  headrace_rope_options rope;
  HEADRACE_TRY(copy_versioned("tensors", tensors, sizeof(std::size_t), &t, sizeof t));
  if (t.quantised != nullptr) {
    // It is used in place: no older version is shorter.
    headrace_quantised_kv copy;
    HEADRACE_TRY(copy_versioned("tensors.quantised", t.quantised, sizeof copy, &copy, sizeof copy));
  }
  if (options != nullptr)
    HEADRACE_TRY(copy_versioned("options", options, sizeof(std::size_t), &o, sizeof o));
  if (o.rope != nullptr) HEADRACE_TRY(read_rope("rope", o.rope, rope));
  return kv_append(t, o, o.rope == nullptr ? nullptr : &rope, stream);
}

}  // namespace
}  // namespace headrace::capi

using namespace headrace::capi;  // the functions below are the C face of this namespace

extern "C" {

headrace_status headrace_rope_options_init_sized(headrace_rope_options* options,
                                                 size_t struct_size) {
  return init("options", headrace::default_rope_options(), options, struct_size);
}

headrace_status headrace_rope_frequencies(const headrace_rope_options* options, double* frequencies,
                                          size_t num_frequencies, double* attention_factor) {
  return guarded([&] {
    headrace_rope_options ours;
    if (auto bad = read_rope("options", options, ours)) return fail(std::move(*bad));
    return status_of(give_frequencies(ours, frequencies, num_frequencies, attention_factor));
  });
}

headrace_status headrace_kv_append_options_init_sized(headrace_kv_append_options* options,
                                                      size_t struct_size) {
  return init("options", headrace::default_kv_append_options(), options, struct_size);
}

headrace_status headrace_kv_append_tensors_init_sized(headrace_kv_append_tensors* tensors,
                                                      size_t struct_size) {
  return init("tensors", {}, tensors, struct_size);
}

headrace_status headrace_kv_append(const headrace_kv_append_tensors* tensors,
                                   const headrace_kv_append_options* options, void* stream) {
  return guarded([&] { return status_of(run_append(tensors, options, stream)); });
}

}  // extern "C"
