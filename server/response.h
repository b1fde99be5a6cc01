// Answers to completion requests, as OpenAI writes them.
#pragma once

#include "exchange.h"
#include "request.h"
#include "tool_calls.h"

namespace headrace::server {

ApiError api_error(const Error& error);
HttpReply error_reply(const ApiError& error);
// Of the exception that is being handled.
HttpReply reply_of_exception();

// What the answers to a request have in common.
struct AnswerHead {
  Form form;
  std::string id;          // "chatcmpl-..."
  std::string model;       // the served name
  std::int64_t created;    // Unix time, s
  bool has_usage = false;  // in the stream
  bool has_token_ids = false;
};

struct Usage {
  std::int64_t num_prompt_tokens = 0, num_cached_tokens = 0, num_answer_tokens = 0;
};

// A sample of a prompt.
struct Choice {
  std::int64_t idx = 0;
  std::string text = {};
  std::vector<ToolCallDelta> calls = {};  // of a whole answer: one for each call
  bool has_calls = false;                 // here or before
  std::vector<std::int32_t> prompt_tokens = {}, tokens = {};  // with has_token_ids
  std::int64_t text_offset = 0;  // bytes of the tokens before it, with logprobs
  double sum_logprobs = 0;       // of num_tokens tokens, with logprobs
  std::int64_t num_tokens = 0;
  Json logprobs = {};  // null: none
  headrace_request_finish finish = HEADRACE_REQUEST_RUNNING;
};

// In the form that `form` has. text_offset: of the first token; becomes that of the next one.
Json logprobs_json(Form form, const Model& model, const Output& output, std::int64_t& text_offset);
// Adds what a later output has.
void append_logprobs(Json& logprobs, const Json& later);

// The num_choices of each num_samples with the highest mean logprob, best first, counted anew.
std::vector<Choice> best_choices(std::vector<Choice> samples, std::size_t num_samples,
                                 std::size_t num_choices);

std::string answer_json(const AnswerHead& head, const std::vector<Choice>& choices,
                        const Usage& usage);
// Events of a stream: "data: {...}\n\n".
std::string role_event(const AnswerHead& head, const Choice& choice);  // a chat's first
std::string choice_event(const AnswerHead& head, const Choice& choice);
std::string usage_event(const AnswerHead& head, const Usage& usage);
std::string error_event(const ApiError& error);
inline constexpr const char* kDoneEvent = "data: [DONE]\n\n";

}  // namespace headrace::server
