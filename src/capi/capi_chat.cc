// Chat templates: conversations to tokens.
#include "capi/model_common.h"

namespace headrace::capi {
namespace {

Result<std::vector<text::Message>> read_messages(const headrace_message* messages,
                                                 std::size_t num_messages) {
  if (messages == nullptr && num_messages > 0)
    return null_argument("messages", "pass an array of num_messages elements");
  std::vector<text::Message> read;
  for (std::size_t i = 0; i < num_messages; ++i) {
    if (messages[i].role == nullptr || messages[i].content == nullptr)
      return invalid_argument("messages[{}]: role and content must not be NULL; pass strings", i);
    const auto role = text::role_by_name(messages[i].role);
    if (!role)
      return invalid_argument(
          "messages[{}].role='{}': must be system, user, assistant, tools, tool_call, tool or "
          "tool_call_id; pass one of these",
          i, messages[i].role);
    read.push_back({*role, messages[i].content});
  }
  return read;
}

Result<std::vector<std::int32_t>> chat_tokens(const engine::LanguageModel& model,
                                              const char* template_name,
                                              std::span<const text::Message> messages,
                                              bool add_generation_prompt) {
  const Result<text::ChatTemplate> chosen =
      template_name == nullptr ? model.chat_template : text::ChatTemplate::by_name(template_name);
  if (!chosen.ok()) return chosen.failure();
  Result<text::Prompt> prompt =
      chosen.value().render(messages, {.add_generation_prompt = add_generation_prompt, .date = {}});
  if (!prompt.ok()) return std::move(prompt.failure());
  return model.tokenizer.encode(prompt.value().tokenizer_parts());
}

}  // namespace
}  // namespace headrace::capi

using namespace headrace::capi;  // the functions below are the C face of this namespace

extern "C" {

headrace_status headrace_chat_tokens(const headrace_model* model, const char* template_name,
                                     const headrace_message* messages, size_t num_messages,
                                     int add_generation_prompt, int32_t* tokens, size_t capacity,
                                     size_t* count) {
  return guarded([&] {
    if (model == nullptr) return fail(null_argument("model", "load one first"));
    auto read = read_messages(messages, num_messages);
    if (!read.ok()) return fail(std::move(read.failure()));
    auto made = chat_tokens(model->model, template_name, read.value(), add_generation_prompt != 0);
    if (!made.ok()) return fail(std::move(made.failure()));
    return give_list(made.value(), "tokens", tokens, capacity, count);
  });
}

}  // extern "C"
