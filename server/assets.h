// The files of server/web, and openapi.yaml, in the program.
#pragma once

#include <string_view>

namespace headrace::server {

struct Asset {
  std::string_view type;  // empty: there is no such file
  std::string_view bytes;
};

// name: "index.html".
Asset find_asset(std::string_view name);

}  // namespace headrace::server
