// First byte even: the rest is a Jinja template. Odd: which known template, then messages, each a
// digit for the role and a content, with a byte 0 between them.
#include <algorithm>

#include "tests/fuzz/fuzz.h"
#include "tests/support/vocabulary.h"
#include "text/chat_styles.h"
#include "text/chat_template.h"

using namespace headrace;
using testing::require;

namespace {

const text::Tokenizer& tokenizer() {
  static const text::Tokenizer made = [] {
    auto vocabulary = testing::small_vocabulary({"Ċ Ċ"});
    vocabulary.specials = {
        {"<|im_start|>", 3}, {"<|im_end|>", 3}, {"<|eot_id|>", 3}, {"<s>", 3}, {"</s>", 3}};
    return std::move(text::Tokenizer::make(vocabulary.model_file("smollm")).value());
  }();
  return made;
}

std::size_t num_control_tokens(const text::Prompt& prompt) {
  auto tokens = tokenizer().encode(prompt.tokenizer_parts());
  require(tokens.ok(), "any prompt is encoded");
  require(tokenizer().decode(tokens.value()).value() == prompt.text(), "tokens give the prompt");
  return static_cast<std::size_t>(std::count_if(
      tokens.value().begin(), tokens.value().end(),
      [](text::TokenId token) { return tokenizer().kind_of(token) == text::TokenKind::control; }));
}

const char* valid_content(text::Role role) {
  if (role == text::Role::tools) return R"({"function": {"name": "f"}})";
  if (role == text::Role::tool_call) return R"({"name": "f", "arguments": {}})";
  return role == text::Role::tool_call_id ? "123456789" : "x";
}

void check_messages(const text::TemplateStyle& style, std::string_view input) {
  std::vector<text::Message> messages, plain;
  while (!input.empty()) {
    const std::string_view item = testing::take_until(input, '\0');
    if (item.empty()) continue;
    const auto role = static_cast<text::Role>(static_cast<unsigned char>(item.front() - '0') % 7U);
    messages.push_back({role, std::string(item.substr(1))});
    plain.push_back({role, valid_content(role)});
  }
  auto chat_template = text::ChatTemplate::by_name(style.name);
  require(chat_template.ok(), "the names of the list are known");
  auto prompt = chat_template.value().render(messages);
  auto plain_prompt = chat_template.value().render(plain);
  require(!prompt.ok() || plain_prompt.ok(), "roles and invalid JSON decide what is refused");
  if (prompt.ok())
    require(num_control_tokens(prompt.value()) == num_control_tokens(plain_prompt.value()),
            "contents bring no control tokens");
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  if (data[0] % 2 == 0) {
    const std::string_view jinja = testing::as_text(data + 1, size - 1);
    auto known = text::ChatTemplate::recognise(jinja);
    require(known.ok() || known.failure().code == ErrorCode::unsupported, "known or unsupported");
    static_cast<void>(text::template_form(jinja));
    return 0;
  }
  const auto styles = text::template_styles();
  check_messages(styles[data[1] % styles.size()], testing::as_text(data + 2, size - 2));
  return 0;
}
