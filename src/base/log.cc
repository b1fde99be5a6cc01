#include "base/log.h"

#include <mutex>

#include "base/callback.h"

namespace headrace {
namespace {

struct Listener {
  headrace_log_fn fn = nullptr;
  void* user = nullptr;
};

std::mutex listener_mutex;
Listener listener;

Listener current_listener() {
  const std::lock_guard lock(listener_mutex);
  return listener;
}

}  // namespace

void set_log(headrace_log_fn fn, void* user) {
  const std::lock_guard lock(listener_mutex);
  listener = {fn, user};
}

Status log_text(headrace_log_level level, const std::string& text) {
  const Listener to = current_listener();
  if (to.fn == nullptr) return std::nullopt;
  return call_back("log", [&] { to.fn(to.user, level, text.c_str()); });
}

bool is_log_set() { return current_listener().fn != nullptr; }

}  // namespace headrace
