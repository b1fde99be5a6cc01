#include "text/chat_template.h"

#include "text/chat_styles.h"

namespace headrace::text {
namespace {

constexpr Role kRoles[] = {Role::system, Role::user,      Role::assistant,
                           Role::tools,  Role::tool_call, Role::tool};

constexpr const char* kToolsBegin =
    "\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are "
    "provided with function signatures within <tools></tools> XML tags:\n<tools>\n";
constexpr const char* kToolsEnd =
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments "
    "within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, "
    "\"arguments\": <args-json-object>}\n</tool_call>";

// The system message and the tools. Returns the other messages.
std::span<const Message> render_chatml_head(const TemplateStyle& style,
                                            std::span<const Message> messages, Prompt& prompt) {
  const Message* tools = messages.front().role == Role::tools ? &messages.front() : nullptr;
  if (tools != nullptr) messages = messages.subspan(1);
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

void render_chatml(const TemplateStyle& style, std::span<const Message> messages, Prompt& prompt) {
  messages = render_chatml_head(style, messages, prompt);
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const auto [role, content] = messages[i];
    const auto follows = [&](Role other) {
      return i + 1 < messages.size() && messages[i + 1].role == other;
    };
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

void render_llama3(const TemplateStyle& style, std::span<const Message> messages,
                   const std::string& date, Prompt& prompt) {
  const auto begin = [&](Role role) {
    prompt.add_template(format_text("<|start_header_id|>{}<|end_header_id|>\n\n", role_name(role)));
  };
  prompt.add_template("<|begin_of_text|>");
  if (style.has_dates) {
    begin(Role::system);
    prompt.add_template(format_text("Cutting Knowledge Date: December 2023\nToday Date: {}\n\n",
                                    date.empty() ? "26 Jul 2024" : date));
    if (messages.front().role == Role::system) {
      prompt.add_content(python_strip(messages.front().content));
      messages = messages.subspan(1);
    }
    prompt.add_template("<|eot_id|>");
  }
  for (const Message& message : messages) {
    begin(message.role);
    prompt.add_content(python_strip(message.content));
    prompt.add_template("<|eot_id|>");
  }
}

// Llama 2 inserts the system message into the first user message and strips the joined text.
void render_llama2(std::span<const Message> messages, const Message* system, Prompt& prompt) {
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

void render_mistral(const TemplateStyle& style, std::span<const Message> messages,
                    const Message* system, Prompt& prompt) {
  prompt.add_template("<s>");
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string& content = messages[i].content;
    const bool is_user = messages[i].role == Role::user;
    prompt.add_template(is_user ? style.user_begin : style.assistant_begin);
    if (is_user && system != nullptr && i == (style.system_is_last ? messages.size() - 1 : 0)) {
      prompt.add_content(system->content);
      prompt.add_template("\n\n");
    }
    prompt.add_content(!is_user && style.trims_assistant ? python_strip(content) : content);
    prompt.add_template(is_user ? style.user_end : style.assistant_end);
  }
}

// The date becomes template text, in which control tokens are parsed: it must not contain any.
bool is_plain_date(std::string_view date) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 ,.-/";
  return date.size() <= 32 && date.find_first_not_of(kPlain) == date.npos;
}

// For templates that require alternating turns: user, assistant, user, ...
Status check_turns(const char* name, std::span<const Message> messages, std::size_t first) {
  if (messages.empty())
    return invalid_argument(
        "messages: no user message; template {} requires one; add a user message", name);
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const Role expected = i % 2 == 0 ? Role::user : Role::assistant;
    if (messages[i].role != expected)
      return invalid_argument(
          "messages[{}].role={}: must be {} with template {}; alternate user and assistant after "
          "an optional system message",
          i + first, role_name(messages[i].role), role_name(expected), name);
  }
  return std::nullopt;
}

Status check_tools(const char* name, bool has_tools, std::span<const Message> messages) {
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const Role role = messages[i].role;
    if (role != Role::tools && role != Role::tool_call && role != Role::tool) continue;
    if (!has_tools)
      return unsupported(
          "messages[{}].role={}: template {} has no tools; use a model with a template of: qwen2.5",
          i, role_name(role), name);
    const bool has_place = role == Role::tools ? i == 0 && messages.size() > 1
                           : role == Role::tool_call
                               ? i > 0 && (messages[i - 1].role == Role::assistant ||
                                           messages[i - 1].role == Role::tool_call)
                               : true;
    if (!has_place)
      return invalid_argument(
          "messages[{}].role={}: {}", i, role_name(role),
          role == Role::tools
              ? "must be the first of several messages; put it before the others"
              : "must follow the assistant or another call; insert a message of the assistant");
  }
  return std::nullopt;
}

Status render_turns(const TemplateStyle& style, std::span<const Message> messages, Prompt& prompt) {
  const bool is_llama2 = style.family == TemplateFamily::llama2;
  const Message* system = nullptr;
  if (messages.front().role == Role::system) {
    if (!is_llama2 && !style.takes_system)
      return invalid_argument(
          "messages[0].role=system: template {} has no system role; put the content into the first "
          "user message",
          style.name);
    system = &messages.front();
    messages = messages.subspan(1);
  }
  if (Status failed = check_turns(style.name, messages, system != nullptr)) return failed;
  // These templates render the system message with the last message, and only if that is a user
  // message.
  if (system != nullptr && style.system_is_last && messages.back().role != Role::user)
    return invalid_argument(
        "messages: the last role is assistant, with which template {} would drop the system "
        "message; end with a user message",
        style.name);
  if (is_llama2)
    render_llama2(messages, system, prompt);
  else
    render_mistral(style, messages, system, prompt);
  return std::nullopt;
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
    return ChatTemplate(*style, style->has_tools && has_tool_text(jinja));
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
  switch (style_->family) {
    case TemplateFamily::chatml:
      render_chatml(*style_, messages, prompt);
      if (options.add_generation_prompt) prompt.add_template("<|im_start|>assistant\n");
      break;
    case TemplateFamily::llama3:
      render_llama3(*style_, messages, options.date, prompt);
      if (options.add_generation_prompt)
        prompt.add_template("<|start_header_id|>assistant<|end_header_id|>\n\n");
      break;
    case TemplateFamily::llama2:
    case TemplateFamily::mistral:
      if (Status failed = render_turns(*style_, messages, prompt)) return *std::move(failed);
      break;
  }
  return prompt;
}

}  // namespace headrace::text
