// Tools and calls as the chat templates of Llama 3 and Mistral write them: JSON as Python's
// json.dumps writes it. Numbers stay as they were written.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/error.h"

namespace headrace::text {

// All have a JSON object per line of `lines`. invalid_argument: a line is none, or the text would
// have more than 16 MiB.
Result<std::string> llama3_tools(std::string_view lines);   // indented, a blank line behind each
Result<std::string> mistral_tools(std::string_view lines);  // behind the bracket of their list

Result<std::string> mistral_v7_tools(std::string_view lines);  // their list

// Of message i, a JSON object with name and arguments. invalid_argument: it is none.
Result<std::string> llama3_call(std::size_t i, std::string_view call);
Result<std::string> mistral_call(std::size_t i, std::string_view call, std::string_view id);
Result<std::string> mistral_v7_call(std::size_t i, std::string_view call, std::string_view id);

}  // namespace headrace::text
