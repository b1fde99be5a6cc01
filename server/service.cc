#include "service.h"

#include <algorithm>
#include <charconv>
#include <ctime>
#include <numeric>
#include <utility>

#include "assets.h"

namespace headrace::server {
namespace {

constexpr const char* kEnded = "the server has ended the request";

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

// Mistral's templates render ids of 9 letters and digits alone.
std::string call_id(CallFormat format, std::uint64_t number) {
  const std::string id = id_text("call_", number);
  return format == CallFormat::list ? id.substr(id.size() - 9) : id;
}

bool is_completion(const std::string& path) {
  return path == "/v1/chat/completions" || path == "/v1/completions";
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
      random_(options.seed) {}

std::int64_t Service::handle(HttpRequest request, const std::shared_ptr<Exchange>& exchange) {
  const std::string headers = cors_headers(request);
  HttpReply reply;
  try {
    std::optional<HttpReply> answer = route(request);
    if (!answer) return prepare_later(std::move(request), {exchange, headers, Clock::now()});
    reply = std::move(*answer);
  } catch (...) {
    reply = reply_of_exception();
  }
  reply.headers += headers;
  exchange->reply(reply);
  return 0;
}

std::optional<HttpReply> Service::route(const HttpRequest& request) {
  check_origin(request);
  if (request.method == "OPTIONS")
    return HttpReply{.status = 204,
                     .type = {},
                     .headers =
                         "Access-Control-Allow-Methods: GET, POST\r\n"
                         "Access-Control-Allow-Headers: Authorization, Content-Type\r\n"};
  if (!is_public(request.path)) check_key(request);
  const bool is_post =
      is_completion(request.path) || request.path == "/tokenize" || request.path == "/detokenize";
  if (request.method != (is_post ? "POST" : "GET")) {
    // An unknown path is 404 whatever the method is.
    if (!is_post) get(request.path);
    const std::string allowed = is_post ? "POST" : "GET";
    HttpReply refused = error_reply({405, request.path + " takes " + allowed});
    refused.headers += "Allow: " + allowed + "\r\n";
    return refused;
  }
  if (!is_post) return get(request.path);
  return std::nullopt;
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

HttpReply Service::get(const std::string& path) {
  metrics_.num_preparing = preparing_.size();
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
  check_model(percent_decoded(encoded_name), options_.model_name);
  return {.body = dump(model_json())};
}

void Service::check_capacity(std::int64_t num_prompts) {
  if (!failure_.empty()) throw ApiError{503, failure_};
  // What is being prepared may have one prompt or many.
  const std::int64_t num_now = std::ssize(job_of_request_) + std::ssize(preparing_);
  if (num_now + num_prompts <= options_.max_requests) return;
  if (num_prompts > options_.max_requests)
    throw ApiError{400, "more prompts than " + std::to_string(options_.max_requests), "prompt"};
  refuse_busy(std::to_string(num_now) + " requests are under way");
}

void Service::refuse_busy(const std::string& reason) {
  ++metrics_.num_refused;
  throw ApiError{429, reason + "; try again later", "", "queue_full"};
}

std::int64_t Service::prepare_later(HttpRequest request, Caller caller) {
  if (is_completion(request.path)) {
    if (is_draining_) throw ApiError{503, "the server is ending"};
    check_capacity(1);
  }
  const std::int64_t id = ++last_job_;
  if (!prepare_thread_->add(id, std::move(request)))
    refuse_busy("too many bytes wait to be tokenized");
  preparing_.emplace(id, std::move(caller));
  return id;
}

void Service::take_prepared(std::int64_t id, Prepared prepared) {
  const auto found = preparing_.find(id);
  if (found == preparing_.end()) return;  // cancelled
  const Caller caller = std::move(found->second);
  preparing_.erase(found);
  HttpReply reply;
  try {
    if (prepared.completion) return begin(id, caller, std::move(*prepared.completion));
    reply = std::move(prepared.reply);
  } catch (...) {
    reply = reply_of_exception();
  }
  reply.headers += caller.headers;
  caller.exchange->reply(reply);
}

void Service::begin(std::int64_t id, const Caller& caller, Completion completion) {
  check_capacity(std::ssize(completion.prompts));
  CompletionRequest& parsed = completion.parsed;
  if (!parsed.has_seed) parsed.request.sampling.seed = random_();
  const Form form = parsed.form;
  const std::int64_t samples = num_samples(parsed.request);
  const std::size_t num_choices = completion.prompts.size() * static_cast<std::size_t>(samples);
  Job job{.head = {form, id_text(form == Form::chat ? "chatcmpl-" : "cmpl-", random_()),
                   options_.model_name, std::time(nullptr), parsed.has_usage, parsed.has_token_ids},
          .caller = caller,
          .is_stream = parsed.is_stream,
          .has_logprobs = parsed.has_logprobs,
          .readers = {},
          .num_samples = samples,
          .num_choices = parsed.num_choices,
          .requests = {},
          .choices = std::vector<Choice>(num_choices),
          .latest = std::vector<Clock::time_point>(num_choices),
          .num_open = static_cast<std::int64_t>(num_choices),
          .usage = {},
          .error = {}};
  begin_choices(job, completion);
  if (parsed.tool_use != ToolUse::none)
    job.readers.assign(num_choices,
                       ToolCallReader(parsed.call_format, parsed.tool_use == ToolUse::forced,
                                      parsed.has_one_call));
  add_prompts(job, id, std::move(parsed.request), std::move(completion.prompts));
  if (job.is_stream) {
    caller.exchange->begin_stream(caller.headers);
    for (const Choice& choice : job.choices) {
      if (form == Form::chat)
        caller.exchange->write(role_event(job.head, choice));
      else if (!choice.text.empty() || !choice.prompt_tokens.empty())
        caller.exchange->write(choice_event(job.head, choice));
    }
  }
  jobs_.emplace(id, std::move(job));
}

void Service::begin_choices(Job& job, const Completion& completion) {
  for (std::size_t i = 0; i < job.choices.size(); ++i) {
    Choice& choice = job.choices[i];
    choice.idx = static_cast<std::int64_t>(i);
    const std::size_t prompt = i / static_cast<std::size_t>(job.num_samples);
    if (job.head.has_token_ids) choice.prompt_tokens = completion.prompts[prompt];
    if (completion.parsed.has_echo) choice.text = completion.prompt_texts[prompt];
  }
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
  if (preparing_.erase(id) != 0) return prepare_thread_->cancel(id);
  const auto job = jobs_.find(id);
  if (job == jobs_.end()) return;
  job->second.caller.exchange = nullptr;  // the job ends with the last output of its requests
  abort(job->second);
}

void Service::abort_all() {
  for (const auto& [id, job] : jobs_) abort(job);
  for (const auto& [id, caller] : std::exchange(preparing_, {})) {
    prepare_thread_->cancel(id);
    caller.exchange->reply(error_reply({503, kEnded}));
  }
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
  choice.num_tokens += std::ssize(output.tokens);
  choice.sum_logprobs =
      std::accumulate(output.logprobs.begin(), output.logprobs.end(), choice.sum_logprobs);
  if (!output.error.empty()) job.error = output.error;

  Choice part = part_of(job, idx, output);
  choice.finish = output.finish;
  choice.has_calls = part.has_calls;
  const bool has_ended = output.finish != HEADRACE_REQUEST_RUNNING;
  if (job.is_stream) {
    // Bytes of an unfinished character make no event, nor does what may begin a call.
    const bool is_empty = part.text.empty() && part.calls.empty() && part.logprobs.is_null() &&
                          part.tokens.empty() && !has_ended;
    if (job.caller.exchange && !is_empty) job.caller.exchange->write(choice_event(job.head, part));
  } else if (job.caller.exchange) {
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
    part.logprobs = logprobs_json(job.head.form, model_, output, job.choices[choice].text_offset);
  if (job.head.has_token_ids) part.tokens = output.tokens;
  if (job.readers.empty()) {
    part.text = std::move(output.text);
    return part;
  }
  ToolCallReader& reader = job.readers[choice];
  auto [text, calls] = reader.read(output.text, output.finish != HEADRACE_REQUEST_RUNNING);
  for (ToolCallDelta& call : calls)
    if (!call.name.empty()) call.id = call_id(reader.format(), random_());
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
    metrics_.first_token.add(now, seconds_since(job.caller.begin));
  else
    metrics_.between_tokens.add(now,
                                seconds_since(latest) / static_cast<double>(output.tokens.size()));
  latest = now;
}

void Service::finish(std::int64_t id, Job& job, Clock::time_point now) {
  metrics_.whole.add(now, std::chrono::duration<double>(now - job.caller.begin).count());
  const bool has_aborted =
      std::any_of(job.choices.begin(), job.choices.end(),
                  [](const Choice& choice) { return choice.finish == HEADRACE_REQUEST_ABORTED; });
  if (has_aborted && job.error.empty()) job.error = kEnded;
  const std::shared_ptr<Exchange> exchange = job.caller.exchange;
  Job ended = std::move(job);
  for (const std::int64_t request : ended.requests) job_of_request_.erase(request);
  jobs_.erase(id);
  if (!exchange) return;
  const ApiError error{has_aborted ? 503 : 500, ended.error};
  if (!ended.is_stream) {
    HttpReply reply = error_reply(error);
    if (ended.error.empty()) {
      if (ended.num_choices < ended.num_samples)
        ended.choices =
            best_choices(std::move(ended.choices), static_cast<std::size_t>(ended.num_samples),
                         static_cast<std::size_t>(ended.num_choices));
      reply = {.body = answer_json(ended.head, ended.choices, ended.usage)};
    }
    reply.headers += ended.caller.headers;
    exchange->reply(reply);
    return;
  }
  if (!ended.error.empty()) exchange->write(error_event(error));
  if (ended.head.has_usage) exchange->write(usage_event(ended.head, ended.usage));
  exchange->write(kDoneEvent);
  exchange->end_stream();
}

}  // namespace headrace::server
