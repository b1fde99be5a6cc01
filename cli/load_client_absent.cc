#include "headrace/headrace.hpp"
#include "load_client.h"

namespace headrace::cli {

std::vector<LoadResult> run_load(const Load&) {
  throw Error(HEADRACE_UNSUPPORTED,
              "headrace bench serve: built without Boost.Beast; install Debian's libboost-dev and "
              "build again");
}

}  // namespace headrace::cli
