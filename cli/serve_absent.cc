#include "command.h"
#include "headrace/headrace.hpp"

namespace headrace::cli {

void add_serve(CLI::App& app, Action& action) {
  CLI::App* serve = app.add_subcommand("serve", "Serve a model over HTTP (not in this build)");
  serve->allow_extras();
  serve->callback([&action] {
    action = []() -> int {
      throw Error(HEADRACE_UNSUPPORTED,
                  "headrace serve: built without Boost.Beast; install Debian's libboost-dev and "
                  "build again");
    };
  });
}

}  // namespace headrace::cli
