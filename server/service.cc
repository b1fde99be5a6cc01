#include "service.h"

#include <algorithm>
#include <charconv>
#include <ctime>

#include "assets.h"

namespace headrace::server {
namespace {

bool is_equal_in_constant_time(const std::string& a, const std::string& b) {
  if (a.size() != b.size()) return false;
  unsigned char different = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    different = static_cast<unsigned char>(different | (a[i] ^ b[i]));
  return different == 0;
}

// What is no valid escape stays as it is.
std::string percent_decoded(const std::string& text) {
  std::string decoded;
  for (std::size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    const char* digits = text.data() + i + 1;
    const bool is_escape = text[i] == '%' && i + 2 < text.size() &&
                           std::from_chars(digits, digits + 2, value, 16).ptr == digits + 2;
    decoded += is_escape ? static_cast<char>(value) : text[i];
    if (is_escape) i += 2;
  }
  return decoded;
}

std::string id_text(const char* prefix, std::uint64_t number) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text = prefix;
  for (int shift = 60; shift >= 0; shift -= 4) text += kDigits[(number >> shift) & 15];
  return text;
}

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

bool is_public(const std::string& path) {
  return path == "/health" || path == "/metrics" || path == "/" ||
         !find_asset(path.substr(1)).type.empty();
}

}  // namespace

Service::Service(const Model& model, const Engine& engine, std::int64_t max_tokens,
                 const ServiceOptions& options)
    : model_(model),
      engine_(engine),
      max_tokens_(max_tokens),
      options_(options),
      started_(std::time(nullptr)),
      random_(std::random_device{}()) {}

std::int64_t Service::handle(const HttpRequest& request,
                             const std::shared_ptr<Exchange>& exchange) {
  std::int64_t job = 0;
  HttpReply reply;
  try {
    route(request, exchange, job);
    return job;
  } catch (const ApiError& error) {
    reply = error_reply(error);
  } catch (const Error& error) {
    reply = error_reply(api_error(error));
  } catch (const std::bad_alloc&) {
    reply = error_reply({503, "no memory for the request"});
  }
  reply.headers += cors_headers(request);
  exchange->reply(reply);
  return 0;
}

void Service::route(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange,
                    std::int64_t& job) {
  check_origin(request);
  const auto reply = [&](HttpReply answer) {
    answer.headers += cors_headers(request);
    exchange->reply(answer);
  };
  if (request.method == "OPTIONS")
    return reply({.status = 204,
                  .type = {},
                  .headers = "Access-Control-Allow-Methods: GET, POST\r\n"
                             "Access-Control-Allow-Headers: Authorization, Content-Type\r\n"});
  if (!is_public(request.path)) check_key(request);
  const bool is_post = request.path == "/v1/chat/completions" ||
                       request.path == "/v1/completions" || request.path == "/tokenize" ||
                       request.path == "/detokenize";
  if (request.method != (is_post ? "POST" : "GET")) {
    // An unknown path is 404 whatever the method is.
    if (!is_post) get(request.path);
    const std::string allowed = is_post ? "POST" : "GET";
    HttpReply refused = error_reply({405, request.path + " takes " + allowed});
    refused.headers += "Allow: " + allowed + "\r\n";
    return reply(refused);
  }
  if (!is_post) return reply(get(request.path));
  if (request.path == "/tokenize") return reply(tokenize(request.body));
  if (request.path == "/detokenize") return reply(detokenize(request.body));
  const Form form = request.path == "/v1/completions" ? Form::completion : Form::chat;
  job = complete(form, request, exchange);
}

// Without this a page of any site could ask a server that listens on this machine alone.
void Service::check_origin(const HttpRequest& request) const {
  if (request.origin.empty() || !cors_headers(request).empty()) return;
  if (request.origin == "http://" + request.host || request.origin == "https://" + request.host)
    return;
  throw ApiError{403, "pages of " + request.origin + " may not ask; start with --cors-origin"};
}

std::string Service::cors_headers(const HttpRequest& request) const {
  for (const std::string& origin : options_.cors_origins)
    if (!request.origin.empty() && (origin == "*" || origin == request.origin))
      return "Access-Control-Allow-Origin: " + request.origin + "\r\nVary: Origin\r\n";
  return {};
}

void Service::check_key(const HttpRequest& request) const {
  if (options_.api_keys.empty()) return;
  bool is_known = false;
  for (const std::string& key : options_.api_keys)
    is_known |= is_equal_in_constant_time(request.authorization, "Bearer " + key);
  if (!is_known)
    throw ApiError{401, "no valid API key; send Authorization: Bearer KEY", "", "invalid_api_key"};
}

HttpReply Service::get(const std::string& path) const {
  if (path == "/health") return health();
  if (path == "/metrics")
    return {.type = "text/plain; version=0.0.4; charset=utf-8",
            .body = prometheus_text(metrics_, engine_.stats())};
  if (path == "/v1/models") return models();
  if (path.starts_with("/v1/models/")) return model(path.substr(11));
  if (path == "/v1/engine") {
    Json state = engine_state(metrics_, engine_.stats());
    state["model"] = options_.model_name;
    state["max_tokens"] = max_tokens_;
    return {.body = dump(state)};
  }
  const Asset asset = find_asset(path == "/" ? "index.html" : path.substr(1));
  if (asset.type.empty()) throw ApiError{404, "there is no " + path};
  return {.type = std::string(asset.type),
          .body = std::string(asset.bytes),
          .headers = "Content-Security-Policy: default-src 'self'\r\n"};
}

HttpReply Service::health() const {
  if (!failure_.empty()) throw ApiError{503, failure_};
  if (is_draining_) throw ApiError{503, "the server is ending"};
  return {.body = R"({"status":"ok"})"};
}

Json Service::model_json() const {
  return {{"id", options_.model_name},
          {"object", "model"},
          {"created", started_},
          {"owned_by", "headrace"},
          {"max_model_len", max_tokens_}};
}

HttpReply Service::models() const {
  return {.body = dump({{"object", "list"}, {"data", Json::array({model_json()})}})};
}

HttpReply Service::model(const std::string& encoded_name) const {
  check_model(percent_decoded(encoded_name));
  return {.body = dump(model_json())};
}

void Service::check_model(const std::string& name) const {
  if (name != options_.model_name)
    throw ApiError{404, "the model is \"" + options_.model_name + '"', "model", "model_not_found"};
}

HttpReply Service::tokenize(const std::string& body) const {
  const Json object = parse_object(body);
  const std::optional<std::string> prompt = text_field(object, "prompt");
  if (!prompt) throw ApiError{400, "\"prompt\" must be a string", "prompt", "invalid_value"};
  const bool has_bos = flag_field(object, "add_special_tokens").value_or(true);
  const std::vector<std::int32_t> tokens =
      model_.tokenize(*prompt, has_bos ? HEADRACE_TOKENIZE_BOS : 0);
  return {.body =
              dump({{"count", tokens.size()}, {"max_model_len", max_tokens_}, {"tokens", tokens}})};
}

HttpReply Service::detokenize(const std::string& body) const {
  const auto tokens = tokens_field(parse_object(body), "tokens");
  if (!tokens)
    throw ApiError{400, "\"tokens\" must be a list of tokens", "tokens", "invalid_value"};
  return {.body = dump({{"prompt", model_.detokenize(*tokens)}})};
}

std::vector<std::int32_t> Service::chat_prompt(const CompletionRequest& request) const {
  std::vector<std::int32_t> tokens;
  try {
    tokens = model_.chat_tokens(request.messages, options_.chat_template);
  } catch (const Error& error) {
    ApiError refused = api_error(error);
    refused.param = request.tool_use == ToolUse::none ? "messages" : "tools";
    throw refused;
  }
  if (request.tool_use != ToolUse::forced) return tokens;
  const std::vector<std::int32_t> call =
      model_.tokenize("<tool_call>\n", HEADRACE_TOKENIZE_SPECIAL);
  tokens.insert(tokens.end(), call.begin(), call.end());
  return tokens;
}

std::vector<std::vector<std::int32_t>> Service::prompts_of(const CompletionRequest& request) const {
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

void Service::check_capacity(std::int64_t num_prompts) {
  if (!failure_.empty()) throw ApiError{503, failure_};
  if (is_draining_) throw ApiError{503, "the server is ending"};
  const std::int64_t num_now = std::ssize(job_of_request_);
  if (num_now + num_prompts <= options_.max_requests) return;
  if (num_prompts > options_.max_requests)
    throw ApiError{400, "more prompts than " + std::to_string(options_.max_requests), "prompt"};
  ++metrics_.num_refused;
  throw ApiError{429, std::to_string(num_now) + " requests are under way; try again later", "",
                 "queue_full"};
}

std::int64_t Service::complete(Form form, const HttpRequest& request,
                               const std::shared_ptr<Exchange>& exchange) {
  const Clock::time_point begin = Clock::now();
  check_capacity(1);  // before any work
  CompletionRequest parsed = parse_completion(form, request.body);
  if (!parsed.model.empty()) check_model(parsed.model);
  if (!parsed.has_seed) parsed.request.sampling.seed = random_();
  if (parsed.grammar) parsed.request.grammar = compiled(*parsed.grammar);
  std::vector<std::vector<std::int32_t>> prompts = prompts_of(parsed);
  check_capacity(std::ssize(prompts));

  const std::int64_t id = ++last_job_;
  const std::size_t num_choices = prompts.size() * static_cast<std::size_t>(parsed.request.n);
  Job job{.head = {form, id_text(form == Form::chat ? "chatcmpl-" : "cmpl-", random_()),
                   options_.model_name, std::time(nullptr), parsed.has_usage, parsed.has_token_ids},
          .exchange = exchange,
          .headers = cors_headers(request),
          .is_stream = parsed.is_stream,
          .has_logprobs = parsed.request.num_logprobs.has_value(),
          .readers = {},
          .begin = begin,
          .num_samples = parsed.request.n,
          .requests = {},
          .choices = std::vector<Choice>(num_choices),
          .latest = std::vector<Clock::time_point>(num_choices),
          .num_open = static_cast<std::int64_t>(num_choices),
          .usage = {},
          .error = {}};
  begin_choices(job, parsed, prompts);
  if (parsed.tool_use != ToolUse::none)
    job.readers.assign(num_choices, ToolCallReader(parsed.tool_use == ToolUse::forced));
  add_prompts(job, id, std::move(parsed.request), std::move(prompts));
  if (job.is_stream) {
    exchange->begin_stream(job.headers);
    for (const Choice& choice : job.choices) {
      if (form == Form::chat)
        exchange->write(role_event(job.head, choice));
      else if (!choice.text.empty() || !choice.prompt_tokens.empty())
        exchange->write(choice_event(job.head, choice));
    }
  }
  jobs_.emplace(id, std::move(job));
  return id;
}

void Service::begin_choices(Job& job, const CompletionRequest& parsed,
                            const std::vector<std::vector<std::int32_t>>& prompts) {
  for (std::size_t i = 0; i < job.choices.size(); ++i) {
    Choice& choice = job.choices[i];
    choice.idx = static_cast<std::int64_t>(i);
    const std::size_t prompt = i / static_cast<std::size_t>(job.num_samples);
    if (parsed.has_token_ids) choice.prompt_tokens = prompts[prompt];
    if (!parsed.has_echo) continue;
    const auto* text = std::get_if<std::string>(&parsed.prompts[prompt]);
    choice.text = text != nullptr ? *text : model_.detokenize(prompts[prompt]);
  }
}

// Applications send the same few schemas again and again.
Grammar Service::compiled(const GrammarText& text) {
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

void Service::add_prompts(Job& job, std::int64_t id, Request request,
                          std::vector<std::vector<std::int32_t>> prompts) {
  try {
    for (std::vector<std::int32_t>& prompt : prompts) {
      job.usage.num_prompt_tokens += std::ssize(prompt);
      request.prompt = std::move(prompt);
      job.requests.push_back(engine_thread_->add(request));
      job_of_request_.emplace(job.requests.back(), id);
    }
  } catch (const Error&) {
    for (const std::int64_t added : job.requests) job_of_request_.erase(added);
    abort(job);
    throw;
  }
}

void Service::abort(const Job& job) {
  for (const std::int64_t request : job.requests) {
    try {
      engine_thread_->abort(request);
    } catch (const Error&) {  // the engine has ended, and the request with it
    }
  }
}

void Service::cancel(std::int64_t id) {
  const auto job = jobs_.find(id);
  if (job == jobs_.end()) return;
  job->second.exchange = nullptr;  // the job ends with the last output of its requests
  abort(job->second);
}

void Service::abort_all() {
  for (const auto& [id, job] : jobs_) abort(job);
}

void Service::deliver(StepOutputs outputs) {
  const Clock::time_point now = Clock::now();
  for (StepOutputs::Step& step : outputs.steps) {
    if (metrics_.steps.size() == Metrics::kMaxSteps) metrics_.steps.pop_front();
    metrics_.steps.push_back(step);
  }
  if (!outputs.failure.empty()) failure_ = outputs.failure;
  for (Output& output : outputs.outputs) take(std::move(output), now);
}

void Service::take(Output output, Clock::time_point now) {
  const auto owner = job_of_request_.find(output.id);
  if (owner == job_of_request_.end()) return;
  const std::int64_t id = owner->second;
  Job& job = jobs_.at(id);
  const auto prompt = static_cast<std::size_t>(
      std::find(job.requests.begin(), job.requests.end(), output.id) - job.requests.begin());
  const std::size_t idx =
      prompt * static_cast<std::size_t>(job.num_samples) + static_cast<std::size_t>(output.sample);
  Choice& choice = job.choices[idx];
  const bool is_first = job.latest[idx] == Clock::time_point() && !output.tokens.empty();
  if (is_first && output.sample == 0) job.usage.num_cached_tokens += output.num_cached_tokens;
  measure(job, idx, output, now);
  job.usage.num_answer_tokens += std::ssize(output.tokens);
  if (!output.error.empty()) job.error = output.error;

  Choice part = part_of(job, idx, output);
  choice.num_bytes += std::ssize(part.text);
  choice.finish = output.finish;
  choice.has_calls = part.has_calls;
  const bool has_ended = output.finish != HEADRACE_REQUEST_RUNNING;
  if (job.is_stream) {
    // Bytes of an unfinished character make no event, nor does what may begin a call.
    const bool is_empty = part.text.empty() && part.calls.empty() && part.logprobs.is_null() &&
                          part.tokens.empty() && !has_ended;
    if (job.exchange && !is_empty) job.exchange->write(choice_event(job.head, part));
  } else if (job.exchange) {
    choice.text += part.text;
    choice.tokens.insert(choice.tokens.end(), part.tokens.begin(), part.tokens.end());
    for (ToolCallDelta& call : part.calls) {
      if (!call.name.empty())
        choice.calls.push_back(std::move(call));
      else
        choice.calls.back().arguments += call.arguments;
    }
    if (!part.logprobs.is_null()) append_logprobs(choice.logprobs, part.logprobs);
  }
  if (has_ended && --job.num_open == 0) finish(id, job, now);
}

// What the choice gained.
Choice Service::part_of(Job& job, std::size_t choice, Output& output) {
  Choice part{.idx = job.choices[choice].idx, .finish = output.finish};
  if (job.has_logprobs && !output.tokens.empty())
    part.logprobs = logprobs_json(job.head.form, model_, output, job.choices[choice].num_bytes);
  if (job.head.has_token_ids) part.tokens = output.tokens;
  if (job.readers.empty()) {
    part.text = std::move(output.text);
    return part;
  }
  ToolCallReader& reader = job.readers[choice];
  auto [text, calls] = reader.read(output.text, output.finish != HEADRACE_REQUEST_RUNNING);
  for (ToolCallDelta& call : calls)
    if (!call.name.empty()) call.id = id_text("call_", random_());
  part.text = std::move(text);
  part.calls = std::move(calls);
  part.has_calls = reader.has_calls();
  return part;
}

void Service::measure(Job& job, std::size_t choice, const Output& output, Clock::time_point now) {
  const auto seconds_since = [&](Clock::time_point then) {
    return std::chrono::duration<double>(now - then).count();
  };
  if (output.finish != HEADRACE_REQUEST_RUNNING)
    ++metrics_.num_finished[static_cast<std::size_t>(output.finish)];
  if (output.tokens.empty()) return;
  Clock::time_point& latest = job.latest[choice];
  if (latest == Clock::time_point())
    metrics_.first_token.add(now, seconds_since(job.begin));
  else
    metrics_.between_tokens.add(now,
                                seconds_since(latest) / static_cast<double>(output.tokens.size()));
  latest = now;
}

void Service::finish(std::int64_t id, Job& job, Clock::time_point now) {
  metrics_.whole.add(now, std::chrono::duration<double>(now - job.begin).count());
  const bool has_aborted =
      std::any_of(job.choices.begin(), job.choices.end(),
                  [](const Choice& choice) { return choice.finish == HEADRACE_REQUEST_ABORTED; });
  if (has_aborted && job.error.empty()) job.error = "the server has ended the request";
  const std::shared_ptr<Exchange> exchange = job.exchange;
  const Job ended = std::move(job);
  for (const std::int64_t request : ended.requests) job_of_request_.erase(request);
  jobs_.erase(id);
  if (!exchange) return;
  const ApiError error{has_aborted ? 503 : 500, ended.error};
  if (!ended.is_stream) {
    HttpReply reply = error_reply(error);
    if (ended.error.empty()) reply = {.body = answer_json(ended.head, ended.choices, ended.usage)};
    reply.headers += ended.headers;
    exchange->reply(reply);
    return;
  }
  if (!ended.error.empty()) exchange->write(error_event(error));
  if (ended.head.has_usage) exchange->write(usage_event(ended.head, ended.usage));
  exchange->write(kDoneEvent);
  exchange->end_stream();
}

}  // namespace headrace::server
