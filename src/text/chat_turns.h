// The messages of a conversation as renderers of chat templates read them.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "text/chat_template.h"

namespace headrace::text {

// A message with the id that came before it.
struct Turn {
  Role role;
  std::string_view content, id;
  std::size_t idx;  // of the message
};

// Views of `messages`.
std::vector<Turn> turns_of(std::span<const Message> messages);

bool is_followed_by(std::span<const Turn> turns, std::size_t i, Role role);

// Removes the tools at the beginning; null: there are none.
const Turn* take_tools(std::span<const Turn>& turns);

// Mistral's ids. invalid_argument: not 9 letters or digits; template_name is for the error.
Status check_call_id(const char* template_name, const Turn& turn);

}  // namespace headrace::text
