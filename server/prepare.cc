#include "prepare.h"

#include <algorithm>

#include "response.h"

namespace headrace::server {

void check_model(const std::string& name, const std::string& served_name) {
  if (name != served_name)
    throw ApiError{404, "the model is \"" + served_name + '"', "model", "model_not_found"};
}

Preparer::Preparer(const Model& model, std::int64_t max_tokens, std::string model_name,
                   std::string chat_template)
    : model_(model),
      max_tokens_(max_tokens),
      model_name_(std::move(model_name)),
      chat_template_(std::move(chat_template)),
      call_format_(
          call_format(chat_template_.empty() ? model.info().chat_template : chat_template_)) {}

Prepared Preparer::prepare(const HttpRequest& request) {
  Prepared prepared;
  try {
    if (request.path == "/tokenize") {
      prepared.reply = tokenize(request.body);
    } else if (request.path == "/detokenize") {
      prepared.reply = detokenize(request.body);
    } else {
      const Form form = request.path == "/v1/completions" ? Form::completion : Form::chat;
      prepared.completion = std::make_unique<Completion>(complete(form, request.body));
    }
  } catch (...) {
    prepared.reply = reply_of_exception();
  }
  return prepared;
}

HttpReply Preparer::tokenize(const std::string& body) const {
  const Json object = parse_object(body);
  const std::optional<std::string> prompt = text_field(object, "prompt");
  if (!prompt) throw ApiError{400, "\"prompt\" must be a string", "prompt", "invalid_value"};
  const bool has_bos = flag_field(object, "add_special_tokens").value_or(true);
  const std::vector<std::int32_t> tokens =
      model_.tokenize(*prompt, has_bos ? HEADRACE_TOKENIZE_BOS : 0);
  return {.body =
              dump({{"count", tokens.size()}, {"max_model_len", max_tokens_}, {"tokens", tokens}})};
}

HttpReply Preparer::detokenize(const std::string& body) const {
  const auto tokens = tokens_field(parse_object(body), "tokens");
  if (!tokens)
    throw ApiError{400, "\"tokens\" must be a list of tokens", "tokens", "invalid_value"};
  return {.body = dump({{"prompt", model_.detokenize(*tokens)}})};
}

Completion Preparer::complete(Form form, const std::string& body) {
  Completion completion{
      .parsed = parse_completion(form, body, call_format_), .prompts = {}, .prompt_texts = {}};
  CompletionRequest& parsed = completion.parsed;
  if (!parsed.model.empty()) check_model(parsed.model, model_name_);
  if (parsed.grammar) parsed.request.grammar = compiled(*parsed.grammar);
  completion.prompts = prompts_of(parsed);
  for (std::size_t i = 0; parsed.has_echo && i < parsed.prompts.size(); ++i) {
    const auto* text = std::get_if<std::string>(&parsed.prompts[i]);
    completion.prompt_texts.push_back(text ? *text : model_.detokenize(completion.prompts[i]));
  }
  return completion;
}

std::vector<std::int32_t> Preparer::chat_prompt(const CompletionRequest& request) const {
  std::vector<std::int32_t> tokens;
  try {
    tokens = model_.chat_tokens(request.messages, chat_template_);
  } catch (const Error& error) {
    ApiError refused = api_error(error);
    refused.param = request.tool_use == ToolUse::none ? "messages" : "tools";
    throw refused;
  }
  if (request.tool_use != ToolUse::forced) return tokens;
  const std::vector<std::int32_t> call =
      model_.tokenize(call_beginning(call_format_), HEADRACE_TOKENIZE_SPECIAL);
  tokens.insert(tokens.end(), call.begin(), call.end());
  return tokens;
}

std::vector<std::vector<std::int32_t>> Preparer::prompts_of(
    const CompletionRequest& request) const {
  std::vector<std::vector<std::int32_t>> prompts;
  if (request.form == Form::chat) prompts.push_back(chat_prompt(request));
  for (const Prompt& prompt : request.prompts) {
    const auto* text = std::get_if<std::string>(&prompt);
    prompts.push_back(text ? model_.tokenize(*text) : std::get<1>(prompt));
  }
  for (const auto& prompt : prompts) {
    if (prompt.empty()) throw ApiError{400, "\"prompt\" has no tokens", "prompt", "invalid_value"};
    if (std::ssize(prompt) >= max_tokens_)
      throw ApiError{400,
                     "the prompt has " + std::to_string(prompt.size()) +
                         " tokens, and prompt and answer have at most " +
                         std::to_string(max_tokens_),
                     request.form == Form::chat ? "messages" : "prompt", "context_length_exceeded"};
  }
  return prompts;
}

// Applications send the same few schemas again and again.
Grammar Preparer::compiled(const GrammarText& text) {
  constexpr std::size_t kMaxGrammars = 64;
  const auto found = std::ranges::find(grammars_, text, &std::pair<GrammarText, Grammar>::first);
  if (found != grammars_.end()) {
    grammars_.splice(grammars_.begin(), grammars_, found);
    return grammars_.front().second;
  }
  using Kind = GrammarText::Kind;
  try {
    grammars_.emplace_front(text, text.kind == Kind::json_schema
                                      ? Grammar::json_schema(model_, text.text)
                                  : text.kind == Kind::regex ? Grammar::regex(model_, text.text)
                                                             : Grammar::gbnf(model_, text.text));
  } catch (const Error& error) {
    ApiError refused = api_error(error);
    refused.param = text.param;
    throw refused;
  }
  if (grammars_.size() > kMaxGrammars) grammars_.pop_back();
  return grammars_.front().second;
}

}  // namespace headrace::server
