// The messages of a chat and its tools.
#pragma once

#include "request.h"

namespace headrace::server {

// Comes before set_messages(): the tools are the first message. Throws ApiError.
void set_tools(const Json& object, std::string_view body, CompletionRequest& parsed);
void set_messages(const Json& object, CompletionRequest& parsed);

}  // namespace headrace::server
