#include "text/chat_template.h"

#include <algorithm>

#include "text/chat_mistral_v7.h"
#include "text/chat_styles.h"
#include "text/chat_tools.h"
#include "text/chat_turns.h"
#include "text/grammar/json.h"

namespace headrace::text {
namespace {

constexpr Role kRoles[] = {Role::system,    Role::user, Role::assistant,   Role::tools,
                           Role::tool_call, Role::tool, Role::tool_call_id};

constexpr const char* kToolsBegin =
    "\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are "
    "provided with function signatures within <tools></tools> XML tags:\n<tools>\n";
constexpr const char* kToolsEnd =
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments "
    "within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, "
    "\"arguments\": <args-json-object>}\n</tool_call>";

// The system message and the tools. Returns the other messages.
std::span<const Turn> render_chatml_head(const TemplateStyle& style, std::span<const Turn> messages,
                                         Prompt& prompt) {
  const Turn* tools = take_tools(messages);
  const bool has_system = messages.front().role == Role::system;
  const std::string_view default_system = style.default_system;
  if (!has_system && tools == nullptr && default_system.empty()) return messages;
  prompt.add_template("<|im_start|>system\n");
  if (has_system)
    prompt.add_content(messages.front().content);
  else
    prompt.add_template(default_system);
  if (tools != nullptr) {
    prompt.add_template(kToolsBegin);
    prompt.add_content(tools->content);
    prompt.add_template(kToolsEnd);
  }
  prompt.add_template("<|im_end|>\n");
  return messages.subspan(has_system ? 1 : 0);
}

void render_chatml(const TemplateStyle& style, std::span<const Turn> messages, Prompt& prompt) {
  messages = render_chatml_head(style, messages, prompt);
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const auto [role, content, id, idx] = messages[i];
    const auto follows = [&](Role other) { return is_followed_by(messages, i, other); };
    if (role == Role::tool_call) {
      prompt.add_template("\n<tool_call>\n");
      prompt.add_content(content);
      prompt.add_template(follows(Role::tool_call) ? "\n</tool_call>"
                                                   : "\n</tool_call><|im_end|>\n");
    } else if (role == Role::tool) {  // the results in a row are one turn of the user
      if (i == 0 || messages[i - 1].role != Role::tool) prompt.add_template("<|im_start|>user");
      prompt.add_template("\n<tool_response>\n");
      prompt.add_content(content);
      prompt.add_template(follows(Role::tool) ? "\n</tool_response>"
                                              : "\n</tool_response><|im_end|>\n");
    } else {
      const bool has_calls = follows(Role::tool_call);
      prompt.add_template(format_text("<|im_start|>{}", role_name(role)));
      if (!has_calls || !content.empty()) prompt.add_template("\n");
      prompt.add_content(content);
      if (!has_calls) prompt.add_template("<|im_end|>\n");
    }
  }
}

constexpr const char* kLlama3Tools =
    "Given the following functions, please respond with a JSON for a function call with its proper "
    "arguments that best answers the given prompt.\n\nRespond in the format {\"name\": function "
    "name, \"parameters\": dictionary of argument name and its value}.Do not use variables.\n\n";

void begin_llama3(std::string_view role, Prompt& prompt) {
  prompt.add_template(format_text("<|start_header_id|>{}<|end_header_id|>\n\n", role));
}

// The first message of the user, behind the tools.
Status render_llama3_tools(const char* name, const Turn& tools, std::span<const Turn> messages,
                           Prompt& prompt) {
  if (messages.empty() || messages.front().role != Role::user)
    return invalid_argument(
        "messages: template {} renders the tools in a message of the user, which must be the first "
        "but for the system message; put one there",
        name);
  Result<std::string> texts = llama3_tools(tools.content);
  if (!texts.ok()) return std::move(texts.failure());
  begin_llama3("user", prompt);
  prompt.add_template(kLlama3Tools);
  prompt.add_content(texts.value());
  prompt.add_content(python_strip(messages.front().content));
  prompt.add_template("<|eot_id|>");
  return std::nullopt;
}

Status render_llama3_call(const char* name, std::span<const Turn> messages, std::size_t i,
                          Prompt& prompt) {
  if (is_followed_by(messages, i, Role::tool_call))
    return invalid_argument(
        "messages[{}].role=tool_call: template {} has one call in a message; insert the result and "
        "a message of the assistant before it",
        messages[i + 1].idx, name);
  Result<std::string> call = llama3_call(messages[i].idx, messages[i].content);
  if (!call.ok()) return std::move(call.failure());
  begin_llama3("assistant", prompt);
  prompt.add_content(call.value());
  return std::nullopt;
}

Status render_llama3(const TemplateStyle& style, std::span<const Turn> messages,
                     const std::string& date, Prompt& prompt) {
  const Turn* tools = take_tools(messages);
  prompt.add_template("<|begin_of_text|>");
  if (style.has_dates) {
    begin_llama3("system", prompt);
    if (tools != nullptr) prompt.add_template("Environment: ipython\n");
    prompt.add_template(format_text("Cutting Knowledge Date: December 2023\nToday Date: {}\n\n",
                                    date.empty() ? "26 Jul 2024" : date));
    if (messages.front().role == Role::system) {
      prompt.add_content(python_strip(messages.front().content));
      messages = messages.subspan(1);
    }
    prompt.add_template("<|eot_id|>");
  }
  if (tools != nullptr) {
    HEADRACE_TRY(render_llama3_tools(style.name, *tools, messages, prompt));
    messages = messages.subspan(1);
  }
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const Turn& message = messages[i];
    if (is_followed_by(messages, i, Role::tool_call) && message.role != Role::tool_call) continue;
    if (message.role == Role::tool_call) {
      HEADRACE_TRY(render_llama3_call(style.name, messages, i, prompt));
    } else if (message.role == Role::tool) {  // a string is iterable: the template quotes it
      begin_llama3("ipython", prompt);
      prompt.add_content(quoted(message.content));
    } else {
      begin_llama3(role_name(message.role), prompt);
      prompt.add_content(python_strip(message.content));
    }
    prompt.add_template("<|eot_id|>");
  }
  return std::nullopt;
}

// Llama 2 inserts the system message into the first user message and strips the joined text.
void render_llama2(std::span<const Turn> messages, const Turn* system, Prompt& prompt) {
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string_view content = python_strip(messages[i].content);
    if (messages[i].role == Role::assistant) {
      prompt.add_template(" ");
      prompt.add_content(content);
      prompt.add_template(" </s>");
      continue;
    }
    prompt.add_template("<s>[INST] ");
    if (i == 0 && system != nullptr) {
      prompt.add_template("<<SYS>>\n");
      prompt.add_content(system->content);
      // The joined text starts with "<<SYS>>": only its end can be whitespace.
      prompt.add_template(content.empty() ? "\n<</SYS>>" : "\n<</SYS>>\n\n");
      prompt.add_content(python_rstrip(messages[i].content));
    } else {
      prompt.add_content(content);
    }
    prompt.add_template(" [/INST]");
  }
}

void render_zephyr(std::span<const Turn> messages, Prompt& prompt) {
  for (const Turn& message : messages) {
    prompt.add_template(format_text("<|{}|>\n", role_name(message.role)));
    prompt.add_content(message.content);
    prompt.add_template("</s>\n");
  }
}

// What Mistral's templates render with the messages.
struct MistralHead {
  const Turn* system;
  const Turn* tools;
  std::string tool_texts;
};

void render_mistral_user(const TemplateStyle& style, std::span<const Turn> messages, std::size_t i,
                         const MistralHead& head, Prompt& prompt) {
  // The template compares messages, so that one that equals the last one has the tools too.
  const auto last = std::ranges::find(messages.rbegin(), messages.rend(), Role::user, &Turn::role);
  if (head.tools != nullptr && messages[i].content == last->content) {
    prompt.add_template(format_text("[AVAILABLE_TOOLS]{}[", style.marker_space));
    prompt.add_content(head.tool_texts);
    prompt.add_template("[/AVAILABLE_TOOLS]");
  }
  prompt.add_template(style.user_begin);
  if (head.system != nullptr && i == (style.system_is_last ? messages.size() - 1 : 0)) {
    prompt.add_content(head.system->content);
    prompt.add_template("\n\n");
  }
  prompt.add_content(messages[i].content);
  prompt.add_template(style.user_end);
}

Status render_mistral_call(const TemplateStyle& style, std::span<const Turn> messages,
                           std::size_t i, Prompt& prompt) {
  HEADRACE_TRY(check_call_id(style.name, messages[i]));
  Result<std::string> call = mistral_call(messages[i].idx, messages[i].content, messages[i].id);
  if (!call.ok()) return std::move(call.failure());
  if (messages[i - 1].role != Role::tool_call)
    prompt.add_template(format_text("[TOOL_CALLS]{}[", style.marker_space));
  prompt.add_content(call.value());
  prompt.add_template(is_followed_by(messages, i, Role::tool_call) ? ", " : "]</s>");
  return std::nullopt;
}

Status render_mistral(const TemplateStyle& style, std::span<const Turn> messages,
                      const MistralHead& head, Prompt& prompt) {
  prompt.add_template("<s>");
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const auto [role, content, id, idx] = messages[i];
    if (role == Role::user) {
      render_mistral_user(style, messages, i, head, prompt);
    } else if (role == Role::tool_call) {
      HEADRACE_TRY(render_mistral_call(style, messages, i, prompt));
    } else if (role == Role::tool) {
      HEADRACE_TRY(check_call_id(style.name, messages[i]));
      prompt.add_template(format_text("[TOOL_RESULTS]{}", style.marker_space));
      prompt.add_content(format_text(R"({"content": {}, "call_id": "{}"})", content, id));
      prompt.add_template("[/TOOL_RESULTS]");
    } else if (!is_followed_by(messages, i, Role::tool_call)) {
      prompt.add_template(style.assistant_begin);
      prompt.add_content(style.trims_assistant ? python_strip(content) : content);
      prompt.add_template(style.assistant_end);
    }
  }
  return std::nullopt;
}

// The date becomes template text, in which control tokens are parsed: it must not contain any.
bool is_plain_date(std::string_view date) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 ,.-/";
  return date.size() <= 32 && date.find_first_not_of(kPlain) == date.npos;
}

// For templates that require alternating turns: user, assistant, user, ... Calls and results are no
// turns.
Status check_turns(const char* name, std::span<const Turn> messages) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const Role role = messages[i].role;
    if (role == Role::tool || role == Role::tool_call ||
        is_followed_by(messages, i, Role::tool_call))
      continue;
    const Role expected = count++ % 2 == 0 ? Role::user : Role::assistant;
    if (role != expected)
      return invalid_argument(
          "messages[{}].role={}: must be {} with template {}; alternate user and assistant after "
          "an optional system message",
          messages[i].idx, role_name(role), role_name(expected), name);
  }
  if (count == 0)
    return invalid_argument(
        "messages: no user message; template {} requires one; add a user message", name);
  return std::nullopt;
}

std::string names_with_tools() {
  std::string all;
  for (const TemplateStyle& style : template_styles())
    if (style.has_tools) all += (all.empty() ? "" : ", ") + std::string(style.name);
  return all;
}

Status check_tools(const char* name, bool has_tools, std::span<const Message> messages) {
  const auto is_a = [&](std::size_t i, std::initializer_list<Role> roles) {
    return i < messages.size() && std::ranges::find(roles, messages[i].role) != roles.end();
  };
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const Role role = messages[i].role;
    if (!is_a(i, {Role::tools, Role::tool_call, Role::tool, Role::tool_call_id})) continue;
    if (!has_tools)
      return unsupported(
          "messages[{}].role={}: template {} has no tools; use a model with a template of: {}", i,
          role_name(role), name, names_with_tools());
    const char* rule = nullptr;
    const std::size_t before = i - (is_a(i - 1, {Role::tool_call_id}) ? 2 : 1);
    if (role == Role::tools && (i > 0 || messages.size() == 1))
      rule = "must be the first of several messages; put it before the others";
    else if (role == Role::tool_call && !is_a(before, {Role::assistant, Role::tool_call}))
      rule = "must follow the assistant or another call; insert a message of the assistant";
    else if (role == Role::tool_call_id && !is_a(i + 1, {Role::tool_call, Role::tool}))
      rule = "must precede a call or a result; put it there";
    if (rule != nullptr)
      return invalid_argument("messages[{}].role={}: {}", i, role_name(role), rule);
  }
  return std::nullopt;
}

Status render_turns(const TemplateStyle& style, std::span<const Turn> messages, Prompt& prompt) {
  const bool is_llama2 = style.family == TemplateFamily::llama2;
  MistralHead head{.system = nullptr, .tools = take_tools(messages), .tool_texts = {}};
  if (messages.front().role == Role::system) {
    if (!is_llama2 && !style.takes_system)
      return invalid_argument(
          "messages[0].role=system: template {} has no system role; put the content into the first "
          "user message",
          style.name);
    head.system = &messages.front();
    messages = messages.subspan(1);
  }
  HEADRACE_TRY(check_turns(style.name, messages));
  // These templates render the system message with the last message, and only if that is a user
  // message. A conversation goes on behind a result, where they drop it.
  if (head.system != nullptr && style.system_is_last && messages.back().role != Role::user &&
      messages.back().role != Role::tool)
    return invalid_argument(
        "messages: the last role is {}, with which template {} would drop the system "
        "message; end with a user message",
        role_name(messages.back().role), style.name);
  if (is_llama2) {
    render_llama2(messages, head.system, prompt);
    return std::nullopt;
  }
  if (head.tools != nullptr) {
    Result<std::string> texts = mistral_tools(head.tools->content);
    if (!texts.ok()) return std::move(texts.failure());
    head.tool_texts = std::move(texts.value());
  }
  return render_mistral(style, messages, head, prompt);
}

}  // namespace

const char* role_name(Role role) {
  switch (role) {
    case Role::system:
      return "system";
    case Role::user:
      return "user";
    case Role::assistant:
      return "assistant";
    case Role::tools:
      return "tools";
    case Role::tool_call:
      return "tool_call";
    case Role::tool_call_id:
      return "tool_call_id";
    case Role::tool:
      break;
  }
  return "tool";
}

std::optional<Role> role_by_name(std::string_view name) {
  for (const Role role : kRoles)
    if (name == role_name(role)) return role;
  return std::nullopt;
}

void Prompt::add(std::string_view text, bool is_template) {
  if (text.empty()) return;
  if (parts_.empty() || parts_.back().is_template != is_template)
    parts_.push_back({{}, is_template});
  parts_.back().text += text;
}

std::string Prompt::text() const {
  std::string all;
  for (const Part& part : parts_) all += part.text;
  return all;
}

std::vector<TextPart> Prompt::tokenizer_parts() const {
  std::vector<TextPart> parts;
  for (const Part& part : parts_)
    parts.push_back({part.text, part.is_template ? ParseSpecial::all : ParseSpecial::user_defined});
  return parts;
}

Result<ChatTemplate> ChatTemplate::from_file(const ModelFile& file) {
  Result<std::string> jinja = file.text("tokenizer.chat_template");
  if (!jinja.ok()) return std::move(jinja.failure());
  Result<ChatTemplate> known = recognise(jinja.value());
  if (!known.ok()) known.failure().message = file.path + ": " + known.failure().message;
  return known;
}

Result<ChatTemplate> ChatTemplate::recognise(std::string_view jinja) {
  if (const TemplateStyle* style = recognise_template(jinja))
    return ChatTemplate(*style, style->has_tools && has_tool_text(*style, jinja));
  return unsupported(
      "tokenizer.chat_template: its {} bytes match no supported template, and Jinja is not run; "
      "name a template that renders the same: {}",
      jinja.size(), names());
}

Result<ChatTemplate> ChatTemplate::by_name(std::string_view name) {
  for (const TemplateStyle& style : template_styles())
    if (name == style.name) return ChatTemplate(style, style.has_tools);
  return invalid_argument("template='{}': unknown; pass one of {}", name, names());
}

std::string ChatTemplate::names() {
  std::string all;
  for (const TemplateStyle& style : template_styles())
    all += (all.empty() ? "" : ", ") + std::string(style.name);
  return all;
}

const char* ChatTemplate::name() const { return style_->name; }

Result<Prompt> ChatTemplate::render(std::span<const Message> messages,
                                    const RenderOptions& options) const {
  if (messages.empty()) return invalid_argument("messages: empty; pass at least one message");
  if (!is_plain_date(options.date))
    return invalid_argument(
        "date='{}': must be at most 32 letters, digits, blanks and ,.-/; pass, for example, '21 "
        "Nov 2026'",
        options.date);
  if (Status failed = check_tools(style_->name, has_tools_, messages)) return *std::move(failed);
  Prompt prompt;
  const std::vector<Turn> turns = turns_of(messages);
  switch (style_->family) {
    case TemplateFamily::chatml:
      render_chatml(*style_, turns, prompt);
      if (options.add_generation_prompt) prompt.add_template("<|im_start|>assistant\n");
      break;
    case TemplateFamily::llama3:
      if (Status failed = render_llama3(*style_, turns, options.date, prompt))
        return *std::move(failed);
      if (options.add_generation_prompt) begin_llama3("assistant", prompt);
      break;
    case TemplateFamily::llama2:
    case TemplateFamily::mistral:
      if (Status failed = render_turns(*style_, turns, prompt)) return *std::move(failed);
      break;
    case TemplateFamily::mistral_v7:
      if (Status failed = render_mistral_v7(*style_, turns, options.date, prompt))
        return *std::move(failed);
      break;
    case TemplateFamily::zephyr:
      render_zephyr(turns, prompt);
      if (options.add_generation_prompt) prompt.add_template("<|assistant|>\n");
      break;
  }
  return prompt;
}

}  // namespace headrace::text
