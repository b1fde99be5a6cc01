#include "text/chat_turns.h"

#include <algorithm>

namespace headrace::text {

std::vector<Turn> turns_of(std::span<const Message> messages) {
  std::vector<Turn> turns;
  std::string_view id;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const Message& message = messages[i];
    if (message.role != Role::tool_call_id) turns.push_back({message.role, message.content, id, i});
    id = message.role == Role::tool_call_id ? std::string_view(message.content) : "";
  }
  return turns;
}

bool is_followed_by(std::span<const Turn> turns, std::size_t i, Role role) {
  return i + 1 < turns.size() && turns[i + 1].role == role;
}

const Turn* take_tools(std::span<const Turn>& turns) {
  if (turns.front().role != Role::tools) return nullptr;
  const Turn* tools = &turns.front();
  turns = turns.subspan(1);
  return tools;
}

Status check_call_id(const char* template_name, const Turn& turn) {
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  };
  if (turn.id.size() == 9 && std::ranges::all_of(turn.id, is_plain)) return std::nullopt;
  return invalid_argument(
      "messages[{}].role={}: its id has {} characters, template {} requires 9 letters or digits; "
      "insert a tool_call_id of that form before it",
      turn.idx, role_name(turn.role), turn.id.size(), template_name);
}

}  // namespace headrace::text
