// First byte even: the rest is a Jinja template. Odd: which known template, then messages, each a
// digit for the role and a content, with a byte 0 between them.
#include <algorithm>

#include "model/chat_styles.h"
#include "model/chat_template.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/vocabulary.h"

using namespace headrace;
using testing::require;

namespace {

const model::Tokenizer& tokenizer() {
  static const model::Tokenizer made = [] {
    auto vocabulary = testing::small_vocabulary({"Ċ Ċ"});
    vocabulary.specials = {
        {"<|im_start|>", 3}, {"<|im_end|>", 3}, {"<|eot_id|>", 3}, {"<s>", 3}, {"</s>", 3}};
    return std::move(model::Tokenizer::make(vocabulary.model_file("smollm")).value());
  }();
  return made;
}

std::size_t num_control_tokens(const model::Prompt& prompt) {
  auto tokens = tokenizer().encode(prompt.tokenizer_parts());
  require(tokens.ok(), "any prompt is encoded");
  require(tokenizer().decode(tokens.value()).value() == prompt.text(), "tokens give the prompt");
  return static_cast<std::size_t>(
      std::count_if(tokens.value().begin(), tokens.value().end(), [](model::TokenId token) {
        return tokenizer().kind_of(token) == model::TokenKind::control;
      }));
}

void check_messages(const model::TemplateStyle& style, std::string_view input) {
  std::vector<model::Message> messages, plain;
  while (!input.empty()) {
    const std::string_view item = testing::take_until(input, '\0');
    if (item.empty()) continue;
    const auto role = static_cast<model::Role>(static_cast<unsigned char>(item.front()) % 3U);
    messages.push_back({role, std::string(item.substr(1))});
    plain.push_back({role, "x"});
  }
  auto chat_template = model::ChatTemplate::by_name(style.name);
  require(chat_template.ok(), "the names of the list are known");
  auto prompt = chat_template.value().render(messages);
  auto plain_prompt = chat_template.value().render(plain);
  require(prompt.ok() == plain_prompt.ok(), "roles alone decide what is refused");
  if (prompt.ok())
    require(num_control_tokens(prompt.value()) == num_control_tokens(plain_prompt.value()),
            "contents bring no control tokens");
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  if (data[0] % 2 == 0) {
    const std::string_view jinja = testing::as_text(data + 1, size - 1);
    auto known = model::ChatTemplate::recognise(jinja);
    require(known.ok() || known.failure().code == ErrorCode::unsupported, "known or unsupported");
    static_cast<void>(model::template_form(jinja));
    return 0;
  }
  const auto styles = model::template_styles();
  check_messages(styles[data[1] % styles.size()], testing::as_text(data + 2, size - 2));
  return 0;
}
