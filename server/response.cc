#include "response.h"

#include <algorithm>

namespace headrace::server {
namespace {

Json finish_json(const Choice& choice) {
  switch (choice.finish) {
    case HEADRACE_REQUEST_RUNNING:
      return nullptr;
    case HEADRACE_REQUEST_STOP:
      return choice.has_calls ? "tool_calls" : "stop";
    case HEADRACE_REQUEST_LENGTH:
      return "length";
    case HEADRACE_REQUEST_ABORTED:
      return "abort";
    case HEADRACE_REQUEST_ERROR:
      break;
  }
  return "error";
}

Json usage_json(const Usage& usage) {
  return {{"prompt_tokens", usage.num_prompt_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.num_cached_tokens}}},
          {"completion_tokens", usage.num_answer_tokens},
          {"total_tokens", usage.num_prompt_tokens + usage.num_answer_tokens}};
}

Json object_json(const AnswerHead& head, bool is_event) {
  const char* object = head.form == Form::completion ? "text_completion"
                       : is_event                    ? "chat.completion.chunk"
                                                     : "chat.completion";
  return {{"id", head.id}, {"object", object}, {"created", head.created}, {"model", head.model}};
}

// The name is in the first piece of a call.
Json calls_json(const std::vector<ToolCallDelta>& calls, bool is_event) {
  Json list = Json::array();
  for (const ToolCallDelta& call : calls) {
    Json json = {{"function", {{"arguments", call.arguments}}}};
    if (is_event) json["index"] = call.idx;
    if (!call.name.empty()) {
      json["id"] = call.id;
      json["type"] = "function";
      json["function"]["name"] = call.name;
    }
    list.push_back(std::move(json));
  }
  return list;
}

// Of a chat.
Json message_json(const Choice& choice) {
  Json message = {{"role", "assistant"}, {"content", choice.text}};
  if (choice.calls.empty()) return message;
  if (choice.text.empty()) message["content"] = nullptr;
  message["tool_calls"] = calls_json(choice.calls, false);
  return message;
}

std::string event(const Json& json) { return "data: " + dump(json) + "\n\n"; }

// vLLM's place for them: those of a prompt are in the choice of a completion, and beside the
// choices of a chat.
void add_token_ids(const AnswerHead& head, const Choice& choice, Json& json) {
  if (!head.has_token_ids) return;
  json["token_ids"] = choice.tokens;
  if (head.form == Form::completion && !choice.prompt_tokens.empty())
    json["prompt_token_ids"] = choice.prompt_tokens;
}

Json choices_json(const AnswerHead& head, Json choice) {
  Json json = object_json(head, true);
  json["choices"] = Json::array({std::move(choice)});
  if (head.has_usage) json["usage"] = nullptr;
  return json;
}

Json token_json(const Model& model, std::int32_t token, float logprob) {
  const std::string text = model.token_text(token);
  Json bytes = Json::array();
  for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
  return {{"token", text}, {"logprob", logprob}, {"bytes", std::move(bytes)}};
}

// The most likely tokens beside token i.
std::span<const headrace_token_logprob> top_of(const Output& output, std::size_t i) {
  const std::size_t num_top = output.top_logprobs.size() / output.tokens.size();
  return std::span(output.top_logprobs).subspan(i * num_top, num_top);
}

Json chat_logprobs(const Model& model, const Output& output) {
  Json content = Json::array();
  for (std::size_t i = 0; i < output.tokens.size(); ++i) {
    Json token = token_json(model, output.tokens[i], output.logprobs[i]);
    token["top_logprobs"] = Json::array();
    for (const headrace_token_logprob& top : top_of(output, i))
      if (top.token >= 0)
        token["top_logprobs"].push_back(token_json(model, top.token, top.logprob));
    content.push_back(std::move(token));
  }
  return {{"content", std::move(content)}};
}

Json completion_logprobs(const Model& model, const Output& output, std::int64_t& text_offset) {
  Json json = {{"tokens", Json::array()},
               {"token_logprobs", output.logprobs},
               {"top_logprobs", Json::array()},
               {"text_offset", Json::array()}};
  for (std::size_t i = 0; i < output.tokens.size(); ++i) {
    const std::string text = model.token_text(output.tokens[i]);
    Json top = Json::object();
    for (const headrace_token_logprob& likely : top_of(output, i))
      if (likely.token >= 0) top[model.token_text(likely.token)] = likely.logprob;
    json["tokens"].push_back(text);
    json["top_logprobs"].push_back(std::move(top));
    json["text_offset"].push_back(text_offset);
    text_offset += std::ssize(text);
  }
  return json;
}

}  // namespace

ApiError api_error(const Error& error) {
  const bool is_theirs =
      error.code() == HEADRACE_INVALID_ARGUMENT || error.code() == HEADRACE_UNSUPPORTED;
  return {is_theirs ? 400 : 500, error.what()};
}

HttpReply error_reply(const ApiError& error) {
  HttpReply reply{.status = error.status, .body = error_body(error)};
  if (error.status == 429 || error.status == 503) reply.headers = "Retry-After: 1\r\n";
  if (error.status == 401) reply.headers = "WWW-Authenticate: Bearer\r\n";
  return reply;
}

HttpReply reply_of_exception() {
  try {
    throw;
  } catch (const ApiError& error) {
    return error_reply(error);
  } catch (const Error& error) {
    return error_reply(api_error(error));
  } catch (const std::bad_alloc&) {
    return error_reply({503, "no memory for the request"});
  } catch (const std::exception& error) {
    return error_reply({500, error.what()});
  }
}

Json logprobs_json(Form form, const Model& model, const Output& output, std::int64_t& text_offset) {
  return form == Form::chat ? chat_logprobs(model, output)
                            : completion_logprobs(model, output, text_offset);
}

void append_logprobs(Json& logprobs, const Json& later) {
  if (logprobs.is_null()) {
    logprobs = later;
    return;
  }
  for (const auto& [name, values] : later.items())
    logprobs[name].insert(logprobs[name].end(), values.begin(), values.end());
}

std::vector<Choice> best_choices(std::vector<Choice> samples, std::size_t num_samples,
                                 std::size_t num_choices) {
  const auto mean = [](const Choice& choice) {
    return choice.sum_logprobs / static_cast<double>(std::max<std::int64_t>(choice.num_tokens, 1));
  };
  std::vector<Choice> best;
  for (auto first = samples.begin(); first != samples.end();) {
    const auto last = first + static_cast<std::ptrdiff_t>(num_samples);
    std::stable_sort(first, last,
                     [&](const Choice& a, const Choice& b) { return mean(a) > mean(b); });
    for (std::size_t i = 0; i < num_choices; ++i) {
      first[static_cast<std::ptrdiff_t>(i)].idx = std::ssize(best);
      best.push_back(std::move(first[static_cast<std::ptrdiff_t>(i)]));
    }
    first = last;
  }
  return best;
}

std::string answer_json(const AnswerHead& head, const std::vector<Choice>& choices,
                        const Usage& usage) {
  Json json = object_json(head, false);
  json["choices"] = Json::array();
  for (const Choice& choice : choices) {
    Json one = {{"index", choice.idx},
                {"logprobs", choice.logprobs},
                {"finish_reason", finish_json(choice)}};
    if (head.form == Form::chat)
      one["message"] = message_json(choice);
    else
      one["text"] = choice.text;
    add_token_ids(head, choice, one);
    json["choices"].push_back(std::move(one));
  }
  if (head.form == Form::chat && head.has_token_ids)
    json["prompt_token_ids"] = choices.front().prompt_tokens;
  json["usage"] = usage_json(usage);
  return dump(json);
}

std::string role_event(const AnswerHead& head, const Choice& choice) {
  Json json = choices_json(head, {{"index", choice.idx},
                                  {"delta", {{"role", "assistant"}, {"content", ""}}},
                                  {"logprobs", nullptr},
                                  {"finish_reason", nullptr}});
  if (head.has_token_ids) json["prompt_token_ids"] = choice.prompt_tokens;
  return event(json);
}

std::string choice_event(const AnswerHead& head, const Choice& choice) {
  Json json = {
      {"index", choice.idx}, {"logprobs", choice.logprobs}, {"finish_reason", finish_json(choice)}};
  if (head.form == Form::completion) {
    json["text"] = choice.text;
  } else {
    json["delta"] = Json::object();
    if (!choice.text.empty()) json["delta"]["content"] = choice.text;
    if (!choice.calls.empty()) json["delta"]["tool_calls"] = calls_json(choice.calls, true);
  }
  add_token_ids(head, choice, json);
  return event(choices_json(head, std::move(json)));
}

std::string usage_event(const AnswerHead& head, const Usage& usage) {
  Json json = object_json(head, true);
  json["choices"] = Json::array();
  json["usage"] = usage_json(usage);
  return event(json);
}

std::string error_event(const ApiError& error) { return "data: " + error_body(error) + "\n\n"; }

}  // namespace headrace::server
