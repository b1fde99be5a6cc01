// The HTTP server: one thread for all connections, one for the engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "headrace/engine.hpp"
#include "service.h"

namespace headrace::server {

struct ServerOptions {
  ServiceOptions service;
  std::string host = "127.0.0.1";
  int port = 8000;  // 0: a free one
  std::size_t max_connections = 8192;
  std::size_t max_header_bytes = 16 << 10;
  std::size_t max_body_bytes = 4 << 20;
  // Of bodies that wait to be tokenized. More are answered with 429.
  std::size_t max_queued_bytes = 16 << 20;
  // That wait for a reader. A stream beyond it is ended.
  std::size_t max_output_bytes = 4 << 20;
  int header_seconds = 10, body_seconds = 60, idle_seconds = 75, write_seconds = 60;
  int drain_seconds = 30;
};

// Serves until SIGINT or SIGTERM, then ends what is under way. on_ready: with the page's address.
// The engine has options.service.max_requests and max_tokens. Throws Error(HEADRACE_IO_ERROR): the
// address cannot be listened on.
void serve(const Model& model, Engine& engine, std::int64_t max_tokens,
           const ServerOptions& options, const std::function<void(const std::string&)>& on_ready);

}  // namespace headrace::server
