// Status names, the last error, the log.
#include <cstdio>

#include "base/log.h"
#include "capi/capi_common.h"

namespace headrace::capi {
namespace {

struct LastError {
  std::string text;
  char fixed[256] = "";  // in use when `text` is empty
};

// Thread-local, yet callable from destructors of other thread-locals while a thread exits.
LastError& last_error() noexcept {
  thread_local LastError error;
  return error;
}

}  // namespace

headrace_status fail(Failure failure) noexcept {
  last_error().text = std::move(failure.message);
  last_error().fixed[0] = '\0';
  return static_cast<headrace_status>(failure.code);
}

headrace_status fail_static(headrace_status status, const char* text) noexcept {
  last_error().text.clear();
  std::snprintf(last_error().fixed, sizeof last_error().fixed, "%s", text);
  return status;
}

}  // namespace headrace::capi

extern "C" {

const char* headrace_last_error(void) {
  const auto& error = headrace::capi::last_error();
  return error.text.empty() ? error.fixed : error.text.c_str();
}

const char* headrace_status_name(headrace_status status) {
  switch (status) {
    case HEADRACE_OK:
      return "ok";
    case HEADRACE_INVALID_ARGUMENT:
      return "invalid_argument";
    case HEADRACE_UNSUPPORTED:
      return "unsupported";
    case HEADRACE_OUT_OF_MEMORY:
      return "out_of_memory";
    case HEADRACE_DEVICE_ERROR:
      return "device_error";
    case HEADRACE_IO_ERROR:
      return "io_error";
    case HEADRACE_INTERNAL:
      return "internal";
    case HEADRACE_BUSY:
      return "busy";
  }
  return "unknown";
}

void headrace_set_log(headrace_log_fn fn, void* user) {
  (void)headrace::capi::guarded([&] {
    headrace::set_log(fn, user);
    return HEADRACE_OK;
  });
}

}  // extern "C"
