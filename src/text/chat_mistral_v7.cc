#include "text/chat_mistral_v7.h"

#include <algorithm>

#include "text/chat_tools.h"

namespace headrace::text {
namespace {

// The date in the system prompt that was published with Mistral Small 3.
constexpr std::string_view kDefaultDate = "2025-01-30";

bool is_of_assistant(Role role) { return role == Role::assistant || role == Role::tool_call; }

// Whether turns[i] has a place behind the turns before it. Messages of a role in a row are merged
// by the template, so that here they have none.
bool has_place(std::span<const Turn> turns, std::size_t i) {
  const std::span<const Turn> before = turns.first(i);
  const auto follows = [&](auto... roles) {
    return !before.empty() && ((before.back().role == roles) || ...);
  };
  switch (turns[i].role) {
    case Role::system:
      return i == 0 || follows(Role::system, Role::user);
    case Role::user:
      return !follows(Role::user);
    case Role::assistant:
      return std::ranges::find(before, Role::user, &Turn::role) != before.end() &&
             !is_of_assistant(before.back().role);
    case Role::tool:
      return follows(Role::assistant, Role::tool_call, Role::tool);
    default:
      return true;
  }
}

// What templates with tools require.
Status check_turns(const char* name, std::span<const Turn> turns) {
  for (std::size_t i = 0; i < turns.size(); ++i) {
    const auto& [role, content, id, idx] = turns[i];
    if (!has_place(turns, i))
      return invalid_argument(
          "messages[{}].role={}: has no place {}{} with template {}; alternate user and assistant, "
          "put system messages before the user's and results behind the assistant's",
          idx, role_name(role), i == 0 ? "at the beginning" : "behind ",
          i == 0 ? "" : role_name(turns[i - 1].role), name);
    if (role == Role::assistant && content.empty() && !is_followed_by(turns, i, Role::tool_call))
      return invalid_argument(
          "messages[{}].content: empty, template {} requires a text or a call of the assistant; "
          "remove the message",
          idx, name);
    if (role == Role::tool || role == Role::tool_call) HEADRACE_TRY(check_call_id(name, turns[i]));
  }
  return std::nullopt;
}

// A text between two control tokens. name: "INST" for "[INST]" and "[/INST]".
void add_marked(const TemplateStyle& style, const char* name, std::string_view content,
                Prompt& prompt) {
  prompt.add_template(format_text("[{}]{}", name, style.marker_space));
  prompt.add_content(content);
  prompt.add_template(format_text("[/{}]", name));
}

// The text of the assistant, which calls may follow.
void render_assistant(const TemplateStyle& style, std::span<const Turn> turns, std::size_t i,
                      Prompt& prompt) {
  const bool has_calls = is_followed_by(turns, i, Role::tool_call);
  if (!has_calls || !turns[i].content.empty()) prompt.add_template(style.marker_space);
  prompt.add_content(turns[i].content);
  if (!has_calls) prompt.add_template("</s>");
}

Status render_call(const TemplateStyle& style, std::span<const Turn> turns, std::size_t i,
                   Prompt& prompt) {
  Result<std::string> call = mistral_v7_call(turns[i].idx, turns[i].content, turns[i].id);
  if (!call.ok()) return std::move(call.failure());
  if (turns[i - 1].role != Role::tool_call)
    prompt.add_template(format_text("[TOOL_CALLS]{}[", style.marker_space));
  prompt.add_content(call.value());
  prompt.add_template(is_followed_by(turns, i, Role::tool_call) ? ", " : "]</s>");
  return std::nullopt;
}

void render_result(const TemplateStyle& style, const Turn& result, Prompt& prompt) {
  prompt.add_template(format_text("[TOOL_RESULTS]{}", style.marker_space));
  prompt.add_content(result.id);
  prompt.add_template(format_text("[TOOL_CONTENT]{}", style.marker_space));
  prompt.add_content(result.content);
  prompt.add_template("[/TOOL_RESULTS]");
}

// tools: rendered before the last message of the user; empty: none.
Status render_turns(const TemplateStyle& style, std::span<const Turn> turns, std::string_view tools,
                    Prompt& prompt) {
  const auto last_user = std::ranges::find(turns.rbegin(), turns.rend(), Role::user, &Turn::role);
  for (std::size_t i = 0; i < turns.size(); ++i) {
    const Turn& turn = turns[i];
    if (turn.role == Role::system) {
      add_marked(style, "SYSTEM_PROMPT", turn.content, prompt);
    } else if (turn.role == Role::user) {
      if (!tools.empty() && turn.idx == last_user->idx)
        add_marked(style, "AVAILABLE_TOOLS", tools, prompt);
      add_marked(style, "INST", turn.content, prompt);
    } else if (turn.role == Role::tool_call) {
      HEADRACE_TRY(render_call(style, turns, i, prompt));
    } else if (turn.role == Role::tool) {
      render_result(style, turn, prompt);
    } else {
      render_assistant(style, turns, i, prompt);
    }
  }
  return std::nullopt;
}

}  // namespace

Status render_mistral_v7(const TemplateStyle& style, std::span<const Turn> turns,
                         std::string_view date, Prompt& prompt) {
  const Turn* tools = take_tools(turns);
  if (style.has_tools) HEADRACE_TRY(check_turns(style.name, turns));
  std::string tool_texts;
  if (tools != nullptr) {
    if (std::ranges::find(turns, Role::user, &Turn::role) == turns.end())
      return invalid_argument(
          "messages: no user message, without which template {} would drop the tools; add one",
          style.name);
    Result<std::string> texts = mistral_v7_tools(tools->content);
    if (!texts.ok()) return std::move(texts.failure());
    tool_texts = std::move(texts.value());
  }
  prompt.add_template("<s>");
  const std::string_view system = style.default_system;
  if (!system.empty() && turns.front().role != Role::system) {
    prompt.add_template("[SYSTEM_PROMPT]");
    prompt.add_template(format_text(style.default_system, date.empty() ? kDefaultDate : date));
    prompt.add_template("[/SYSTEM_PROMPT]");
  }
  return render_turns(style, turns, tool_texts, prompt);
}

}  // namespace headrace::text
