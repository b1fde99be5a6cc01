#include "text/chat_styles.h"

#include <algorithm>
#include <array>
#include <iterator>

namespace headrace::text {
namespace {

// Of Mistral Small 3 and 3.1; "{}": the date.
constexpr const char* kMistralSmall3System =
    "You are Mistral Small 3, a Large Language Model (LLM) created by Mistral AI, a French startup "
    "headquartered in Paris.\nYour knowledge base was last updated on 2023-10-01. The current date "
    "is {}.\n\nWhen you're not sure about some information, you say that you don't have the "
    "information and don't make up anything.\nIf the user's question is not clear, ambiguous, or "
    "does not provide enough context for you to accurately answer the question, you do not try to "
    "answer it right away and you rather ask the user to clarify their request (e.g. \"What are "
    "some good restaurants around me?\" => \"Where are you?\" or \"When is the next flight to "
    "Tokyo\" => \"Where do you travel from?\")";

constexpr TemplateStyle kStyles[] = {
    {.name = "chatml", .family = TemplateFamily::chatml},
    {.name = "smollm2",
     .family = TemplateFamily::chatml,
     .default_system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"},
    {.name = "qwen2",
     .family = TemplateFamily::chatml,
     .default_system = "You are a helpful assistant."},
    {.name = "qwen2.5",
     .family = TemplateFamily::chatml,
     .default_system = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
     .has_tools = true},
    {.name = "llama2", .family = TemplateFamily::llama2},
    {.name = "llama3", .family = TemplateFamily::llama3},
    {.name = "llama3.1", .family = TemplateFamily::llama3, .has_tools = true, .has_dates = true},
    {.name = "llama3.2", .family = TemplateFamily::llama3, .has_tools = true, .has_dates = true},
    {.name = "mistral-v0.1",
     .family = TemplateFamily::mistral,
     .user_begin = "[INST] ",
     .user_end = " [/INST]",
     .assistant_end = "</s> "},
    {.name = "mistral-v0.2",
     .family = TemplateFamily::mistral,
     .user_begin = "[INST] ",
     .user_end = " [/INST]",
     .assistant_end = "</s>"},
    // The template of October 2024 for v0.1 and v0.2.
    {.name = "mistral-system",
     .family = TemplateFamily::mistral,
     .user_begin = " [INST] ",
     .user_end = " [/INST]",
     .assistant_begin = " ",
     .assistant_end = "</s>",
     .takes_system = true},
    {.name = "mistral-v0.3",
     .family = TemplateFamily::mistral,
     .has_tools = true,
     .user_begin = "[INST] ",
     .user_end = "[/INST]",
     .assistant_begin = " ",
     .assistant_end = "</s>",
     .trims_assistant = true,
     .takes_system = true,
     .system_is_last = true,
     .marker_space = " "},
    {.name = "mistral-nemo",
     .family = TemplateFamily::mistral,
     .has_tools = true,
     .user_begin = "[INST]",
     .user_end = "[/INST]",
     .assistant_end = "</s>",
     .takes_system = true,
     .system_is_last = true},
    // The template of Mistral-Large-Instruct-2411.
    {.name = "mistral-v7", .family = TemplateFamily::mistral_v7, .marker_space = " "},
    // The first template of Mistral-Small-24B-Instruct-2501; later ones insert a system message.
    {.name = "mistral-v7-tekken", .family = TemplateFamily::mistral_v7},
    {.name = "mistral-small-3",
     .family = TemplateFamily::mistral_v7,
     .default_system = kMistralSmall3System},
    // The templates that mistral_common generates for its tokenizers v7.
    {.name = "mistral-v7-tools",
     .family = TemplateFamily::mistral_v7,
     .has_tools = true,
     .marker_space = " "},
    {.name = "mistral-v7-tekken-tools", .family = TemplateFamily::mistral_v7, .has_tools = true},
    {.name = "zephyr", .family = TemplateFamily::zephyr},
};

// Short templates are recognised by their whole canonical form.
struct ExactTemplate {
  const char* name;
  const char* jinja;
};
constexpr ExactTemplate kExactTemplates[] = {
    {"chatml", R"({% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + )"
               R"(message['content'])"
               R"( + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %})"
               R"({{ '<|im_start|>assistant\n' }}{% endif %})"},
    {"chatml",
     R"({% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %})"
     R"({% endif %}{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + )"
     R"(message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %})"
     R"({{ '<|im_start|>assistant\n' }}{% endif %})"},
    {"smollm2",
     R"({% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %})"
     R"({{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging )"
     R"(Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + )"
     R"(message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %})"
     R"({{ '<|im_start|>assistant\n' }}{% endif %})"},
    {"qwen2",
     R"({% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %})"
     R"({{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{% endif %})"
     R"({{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}})"
     R"({% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %})"},
    {"llama3",
     R"({% set loop_messages = messages %}{% for message in loop_messages %}{% set content = )"
     R"('<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] )"
     R"(| trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %})"
     R"({% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %})"
     R"({{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %})"},
    {"llama2",
     R"({% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %})"
     R"({% set system_message = messages[0]['content'] %}{% else %})"
     R"({% set loop_messages = messages %}{% set system_message = false %}{% endif %})"
     R"({% for message in loop_messages %})"
     R"({% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %})"
     R"({{ raise_exception('Conversation roles must alternate )"
     R"(user/assistant/user/assistant/...') }})"
     R"({% endif %}{% if loop.index0 == 0 and system_message != false %}{% set content = )"
     R"('<<SYS>>\n' + system_message + '\n<</SYS>>\n\n' + message['content'] %}{% else %})"
     R"({% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %})"
     R"({{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }})"
     R"({% elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }})"
     R"({% endif %}{% endfor %})"},
    {"mistral-v0.1",
     R"({{ bos_token }}{% for message in messages %})"
     R"({% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %})"
     R"({{ raise_exception('Conversation roles must alternate )"
     R"(user/assistant/user/assistant/...') }})"
     R"({% endif %}{% if message['role'] == 'user' %})"
     R"({{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %})"
     R"({{ message['content'] + eos_token + ' ' }}{% else %})"
     R"({{ raise_exception('Only user and assistant roles are supported!') }})"
     R"({% endif %}{% endfor %})"},
    {"mistral-v0.2",
     R"({{ bos_token }}{% for message in messages %})"
     R"({% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %})"
     R"({{ raise_exception('Conversation roles must alternate )"
     R"(user/assistant/user/assistant/...') }})"
     R"({% endif %}{% if message['role'] == 'user' %})"
     R"({{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %})"
     R"({{ message['content'] + eos_token}}{% else %})"
     R"({{ raise_exception('Only user and assistant roles are supported!') }})"
     R"({% endif %}{% endfor %})"},
    {"mistral-system",
     R"({%- if messages[0]["role"] == "system" %})"
     R"({%- set system_message = messages[0]["content"] %})"
     R"({%- set loop_messages = messages[1:] %}{%- else %}{%- set loop_messages = messages %})"
     R"({%- endif %}{{- bos_token }}{%- for message in loop_messages %})"
     R"({%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %})"
     R"({{- raise_exception('After the optional system message, conversation roles must alternate )"
     R"(user/assistant/user/assistant/...') }}{%- endif %}{%- if message["role"] == "user" %})"
     R"({%- if loop.first and system_message is defined %})"
     R"({{- " [INST] " + system_message + "\n\n" + message["content"] + " [/INST]" }}{%- else %})"
     R"({{- " [INST] " + message["content"] + " [/INST]" }}{%- endif %})"
     R"({%- elif message["role"] == "assistant" %}{{- " " + message["content"] + eos_token}})"
     R"({%- else %}{{- raise_exception("Only user and assistant roles are supported, with the )"
     R"(exception of an initial optional system message!") }}{%- endif %}{%- endfor %})"},
    {"mistral-v7",
     R"({{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %})"
     R"({{ '[INST] ' + message['content'] + '[/INST]' }}{% elif message['role'] == 'system' %})"
     R"({{ '[SYSTEM_PROMPT] ' + message['content'] + '[/SYSTEM_PROMPT]' }})"
     R"({% elif message['role'] == 'assistant' %}{{ ' ' + message['content'] + eos_token }})"
     R"({% else %})"
     R"({{ raise_exception('Only user, system and assistant roles are supported!') }})"
     R"({% endif %}{% endfor %})"},
    {"mistral-v7-tekken",
     R"({{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %})"
     R"({{ '[INST]' + message['content'] + '[/INST]' }}{% elif message['role'] == 'system' %})"
     R"({{ '[SYSTEM_PROMPT]' + message['content'] + '[/SYSTEM_PROMPT]' }})"
     R"({% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token }}{% else %})"
     R"({{ raise_exception('Only user, system and assistant roles are supported!') }})"
     R"({% endif %}{% endfor %})"},
    // Zephyr, TinyLlama.
    {"zephyr",
     "{% for message in messages %}\n{% if message['role'] == 'user' %}\n"
     R"({{ '<|user|>\n' + message['content'] + eos_token }})"
     "\n{% elif message['role'] == 'system' %}\n"
     R"({{ '<|system|>\n' + message['content'] + eos_token }})"
     "\n{% elif message['role'] == 'assistant' %}\n"
     R"({{ '<|assistant|>\n'  + message['content'] + eos_token }})"
     "\n{% endif %}\n{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n"
     "{% endif %}\n{% endfor %}"},
};

// Long templates, which are mostly tool handling, are recognised by substrings that they contain
// and substrings that they lack.
struct TemplateMarkers {
  const char* name;
  const char* contains[6];
  const char* lacks[4];
};
constexpr TemplateMarkers kTemplateMarkers[] = {
    {"qwen2.5",
     {"{{- '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a helpful "
      "assistant.<|im_end|>\\n' }}",
      "(message.role == \"system\" and not loop.first)", "'\\n<tool_response>\\n'",
      "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}"},
     {"think", "vision", "trim", "strftime"}},
    {"llama3.1",
     {"set date_string = \"26 Jul 2024\"", "\"Cutting Knowledge Date: December 2023\\n\"",
      "\"Today Date: \" + date_string + \"\\n\\n\"",
      "'<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | "
      "trim + '<|eot_id|>'"},
     {"think", "image", "strftime"}},
    {"llama3.2",
     {"strftime_now(\"%d %b %Y\")", "\"Cutting Knowledge Date: December 2023\\n\"",
      "\"Today Date: \" + date_string + \"\\n\\n\"",
      "'<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | "
      "trim + '<|eot_id|>'"},
     {"think", "image"}},
    {"mistral-v0.3",
     {"{{- \"[INST] \" + system_message + \"\\n\\n\" + message[\"content\"] + \"[/INST]\" }}",
      "{{- \"[INST] \" + message[\"content\"] + \"[/INST]\" }}", "loop.last and system_message",
      "{{- \" \" + message[\"content\"]|trim + eos_token}}"},
     {"think", "image", "strftime", "[SYSTEM_PROMPT]"}},
    {"mistral-nemo",
     {"{{- \"[INST]\" + system_message + \"\\n\\n\" + message[\"content\"] + \"[/INST]\" }}",
      "{{- \"[INST]\" + message[\"content\"] + \"[/INST]\" }}", "loop.last and system_message",
      "{{- message[\"content\"] + eos_token}}"},
     {"think", "image", "strftime", "[SYSTEM_PROMPT]"}},
    {"mistral-small-3",
     {R"(set today = strftime_now("%Y-%m-%d"))",
      R"("You are Mistral Small 3, a Large Language Model (LLM) created by Mistral AI, a French )"
      R"(startup headquartered in Paris.\nYour knowledge base was last updated on 2023-10-01. The )"
      R"(current date is " + today + ".\n\nWhen you're not sure about some information, you say )"
      R"(that you don't have the information and don't make up anything.\nIf the user's question )"
      R"(is not clear, ambiguous, or does not provide enough context for you to accurately answer )"
      R"(the question, you do not try to answer it right away and you rather ask the user to )"
      R"(clarify their request (e.g. \"What are some good restaurants around me?\" => \"Where are )"
      R"-(you?\" or \"When is the next flight to Tokyo\" => \"Where do you travel from?\")")-",
      "{{- '[SYSTEM_PROMPT]' + system_message + '[/SYSTEM_PROMPT]' }}",
      "{{- '[SYSTEM_PROMPT]' + message['content'] + '[/SYSTEM_PROMPT]' }}",
      "{{- '[INST]' + message['content'] + '[/INST]' }}", "{{- message['content'] + eos_token }}"},
     {"think", "tool", "trim"}},
    {"mistral-v7-tools",
     {"set default_system_message = '' ", "'__sentinel__'", "ns_order.previous_role == 'system'",
      "{{- '[SYSTEM_PROMPT] ' -}}", "{{- '[INST] ' -}}", "{{- '[/INST]' }}"},
     {"think", "audio", "[ARGS]", "strftime"}},
    {"mistral-v7-tekken-tools",
     {"set default_system_message = '' ", "'__sentinel__'", "ns_order.previous_role == 'system'",
      "{{- '[SYSTEM_PROMPT]' -}}", "{{- '[INST]' -}}", "{{- '[/INST]' }}"},
     {"think", "audio", "[ARGS]", "strftime"}},
};

// What templates write around tools, calls and results.
struct ToolTexts {
  TemplateFamily family;
  std::string_view marker_space;
  const char* texts[8];
};
constexpr ToolTexts kToolTexts[] = {
    {TemplateFamily::chatml,
     "",
     {R"("\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou )"
      R"(are provided with function signatures within <tools></tools> XML tags:\n<tools>")",
      R"("\n</tools>\n\nFor each function call, return a json object with function name and )"
      R"(arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": )"
      R"(<function-name>, \"arguments\": <args-json-object>}\n</tool_call><|im_end|>\n")",
      R"('\n<tool_call>\n{"name": "')", R"('}\n</tool_call>')", R"('\n<tool_response>\n')"}},
    {TemplateFamily::llama3,
     "",
     {R"("Environment: ipython\n")",
      R"("Given the following functions, please respond with a JSON )"
      R"(for a function call ")",
      R"("with its proper arguments that best answers the given prompt.\n\n")",
      R"('Respond in the format {"name": function name, "parameters": dictionary of argument name )"
      R"(and its value}.')",
      R"("Do not use variables.\n\n")", R"(tojson(indent=4))", R"('"parameters": ')",
      R"("<|start_header_id|>ipython<|end_header_id|>\n\n")"}},
    {TemplateFamily::mistral,
     " ",
     {R"("[AVAILABLE_TOOLS] [")", R"("[/AVAILABLE_TOOLS]")", R"("[TOOL_CALLS] [")",
      R"('[TOOL_RESULTS] {"content": ')", R"('"call_id": "')", R"('"}[/TOOL_RESULTS]')",
      R"((message == user_messages[-1]))", R"(if key != "return")"}},
    {TemplateFamily::mistral,
     "",
     {R"("[AVAILABLE_TOOLS][")", R"("[/AVAILABLE_TOOLS]")", R"("[TOOL_CALLS][")",
      R"('[TOOL_RESULTS]{"content": ')", R"('"call_id": "')", R"('"}[/TOOL_RESULTS]')",
      R"((message == user_messages[-1]))", R"(if key != "return")"}},
    {TemplateFamily::mistral_v7,
     " ",
     {"'[AVAILABLE_TOOLS] ' ~ (tools| tojson) ~ '[/AVAILABLE_TOOLS]'",
      "(ns.index == ns.max_idx_user) and has_tools", "'[TOOL_CALLS] ['",
      R"('{"name": "' ~ name ~ '", "arguments": ' ~ arguments ~ ', "id": "' ~ id ~ '"}')",
      "arguments|tojson|safe",
      "'[TOOL_RESULTS] ' ~ tool_id ~ '[TOOL_CONTENT] ' ~ message['content']|string ~ "
      "'[/TOOL_RESULTS]'"}},
    {TemplateFamily::mistral_v7,
     "",
     {"'[AVAILABLE_TOOLS]' ~ (tools| tojson) ~ '[/AVAILABLE_TOOLS]'",
      "(ns.index == ns.max_idx_user) and has_tools", "'[TOOL_CALLS]['",
      R"('{"name": "' ~ name ~ '", "arguments": ' ~ arguments ~ ', "id": "' ~ id ~ '"}')",
      "arguments|tojson|safe",
      "'[TOOL_RESULTS]' ~ tool_id ~ '[TOOL_CONTENT]' ~ message['content']|string ~ "
      "'[/TOOL_RESULTS]'"}},
};

bool has_markers(const TemplateMarkers& markers, std::string_view jinja) {
  for (const char* text : markers.contains)
    if (text != nullptr && jinja.find(text) == jinja.npos) return false;
  for (const char* text : markers.lacks)
    if (text != nullptr && jinja.find(text) != jinja.npos) return false;
  return true;
}

const TemplateStyle* style_by_name(std::string_view name) {
  for (const TemplateStyle& style : kStyles)
    if (name == style.name) return &style;
  return nullptr;
}

// Length of the whitespace character at the start of `text`; 0: none.
std::size_t leading_space_bytes(std::string_view text) {
  constexpr std::string_view kAscii("\t\n\v\f\r\x1c\x1d\x1e\x1f ");
  if (text.empty()) return 0;
  if (kAscii.find(text.front()) != kAscii.npos) return 1;
  for (const std::string_view space :
       {"\xC2\x85", "\xC2\xA0", "\xE1\x9A\x80", "\xE2\x80\xA8", "\xE2\x80\xA9", "\xE2\x80\xAF",
        "\xE2\x81\x9F", "\xE3\x80\x80"})
    if (text.starts_with(space)) return space.size();
  const bool is_wide = text.size() >= 3 && text.starts_with("\xE2\x80") &&  // U+2000 to U+200A
                       static_cast<unsigned char>(text[2]) >= 0x80 &&
                       static_cast<unsigned char>(text[2]) <= 0x8A;
  return is_wide ? 3 : 0;
}

}  // namespace

std::span<const TemplateStyle> template_styles() { return kStyles; }

const TemplateStyle* recognise_template(std::string_view jinja) {
  static const auto known_forms = [] {
    std::array<std::string, std::size(kExactTemplates)> forms;
    for (std::size_t i = 0; i < forms.size(); ++i)
      forms[i] = template_form(kExactTemplates[i].jinja);
    return forms;
  }();
  const std::string form = template_form(jinja);
  for (std::size_t i = 0; i < known_forms.size(); ++i)
    if (form == known_forms[i]) return style_by_name(kExactTemplates[i].name);
  for (const TemplateMarkers& markers : kTemplateMarkers)
    if (has_markers(markers, jinja)) return style_by_name(markers.name);
  return nullptr;
}

bool has_tool_text(const TemplateStyle& style, std::string_view jinja) {
  for (const ToolTexts& known : kToolTexts)
    if (known.family == style.family && known.marker_space == style.marker_space)
      return std::ranges::all_of(known.texts, [&](const char* text) {
        return text == nullptr || jinja.find(text) != jinja.npos;
      });
  return false;
}

std::string_view python_rstrip(std::string_view text) {
  for (std::size_t bytes = 1; bytes <= text.size() && bytes <= 3;) {
    if (leading_space_bytes(text.substr(text.size() - bytes)) == bytes) {
      text.remove_suffix(bytes);
      bytes = 1;
    } else {
      ++bytes;
    }
  }
  return text;
}

std::string_view python_strip(std::string_view text) {
  while (const std::size_t bytes = leading_space_bytes(text)) text.remove_prefix(bytes);
  return python_rstrip(text);
}

}  // namespace headrace::text
