// One HTTP request and the way to answer it; what serves knows nothing of sockets.
#pragma once

#include <string>

namespace headrace::server {

struct HttpRequest {
  std::string method, path;  // path without the query
  std::string host, origin, authorization;
  std::string body;
};

struct HttpReply {
  int status = 200;
  std::string type = "application/json";
  std::string body = {};
  std::string headers = {};  // more lines, each with its end
};

// Answered by reply(), or by begin_stream(), write() and end_stream().
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual void reply(const HttpReply& reply) = 0;
  virtual void begin_stream(const std::string& headers) = 0;
  // False: the reader is too slow. The connection closes, and cancels the request.
  virtual bool write(const std::string& event) = 0;
  virtual void end_stream() = 0;
};

}  // namespace headrace::server
