// Shared by the functions of the C ABI: no exception crosses it, and every failure stores a
// message for headrace_last_error().
#pragma once

#include <algorithm>
#include <cstring>
#include <exception>
#include <mutex>
#include <new>
#include <string>
#include <vector>

#include "attention/validate.h"
#include "base/error.h"
#include "core/args.h"
#include "core/plan.h"
#include "headrace/roofline.h"
#include "probes/ceiling.h"

struct headrace_plan {
  headrace::Plan plan;
  std::string kernel_name;
  // Built on first use: building it costs more than planning.
  mutable std::once_flag is_explained;
  mutable std::string explain;
};

namespace headrace::capi {

// Stores the message for this thread's headrace_last_error().
headrace_status fail(Failure failure) noexcept;
// For messages that must not allocate.
headrace_status fail_static(headrace_status status, const char* text) noexcept;

inline headrace_status status_of(Status status) noexcept {
  return status ? fail(std::move(*status)) : HEADRACE_OK;
}

// Runs the body of an API function; an exception becomes a status.
template <class Body>
headrace_status guarded(Body body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return fail_static(
        HEADRACE_OUT_OF_MEMORY,
        "out of memory: a host allocation failed; pass smaller inputs or free memory");
  } catch (const std::exception& error) {
    return fail_static(HEADRACE_INTERNAL, error.what());
  } catch (...) {
    return fail_static(HEADRACE_INTERNAL, "internal: an unknown exception was caught at the ABI");
  }
}

inline Failure null_argument(const char* name, const char* remedy) {
  return invalid_argument("{}=NULL: must not be null; {}", name, remedy);
}

// Writes a caller's struct of `bytes` bytes (its header's sizeof): a prefix of ours, and no byte
// past it.
Status write_versioned(const char* name, const void* ours, std::size_t our_bytes, void* theirs,
                       std::size_t bytes);

// Fills an output struct; the caller has set its struct_size.
template <class T>
headrace_status give(const char* name, const T& ours, T* theirs) {
  if (theirs == nullptr) return fail(null_argument(name, "pass a struct to fill"));
  return status_of(write_versioned(name, &ours, sizeof ours, theirs, theirs->struct_size));
}

// The body of an init function. On failure struct_size is 0, which later calls refuse, even if the
// caller ignores the status.
template <class T>
headrace_status init(const char* name, const T& defaults, T* theirs, std::size_t bytes) noexcept {
  return guarded([&] {
    if (theirs == nullptr) return fail(null_argument(name, "pass a struct to fill"));
    if (bytes >= sizeof theirs->struct_size) theirs->struct_size = 0;
    return status_of(write_versioned(name, &defaults, sizeof defaults, theirs, bytes));
  });
}

// Reads the caller's structs of any header version. Null `options`: the defaults.
Status read_tensors(const headrace_attention_tensors* theirs, headrace_attention_tensors& ours);
Status read_gradients(const headrace_attention_gradients* theirs,
                      headrace_attention_gradients& ours);
Status read_options(const headrace_attention_options* theirs, headrace_attention_options& ours);
Status read_run_options(const headrace_run_options* theirs, headrace_run_options& ours);
Status read_problem(const headrace_problem* theirs, headrace_problem& ours);
Status read_device(const headrace_device_info* theirs, headrace_device_info& ours);
// The caller's ceilings, an array of structs of one version.
Result<std::vector<probes::Ceiling>> read_ceilings(const headrace_ceiling* theirs,
                                                   std::int64_t num_ceilings);

// The caller's tensors. gradients is null for a forward.
struct TensorsFromC {
  const headrace_attention_tensors* tensors;
  const headrace_attention_gradients* gradients;
  headrace_phase phase;
};
// Validates the tensors of a run of the plan.
Result<AttentionArgs> args_of_run(const Plan& plan, const TensorsFromC& from,
                                  const headrace_run_options* options);

}  // namespace headrace::capi
