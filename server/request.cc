#include "request.h"

#include <algorithm>
#include <charconv>

#include "chat.h"

namespace headrace::server {
namespace {

constexpr std::size_t kMaxStops = 16, kMaxPrompts = 128, kMaxBias = 1024;
constexpr std::int64_t kMaxSamples = 128, kMaxLogprobs = 20;

void set_sampling(const Json& object, SamplingOptions& sampling) {
  sampling.temperature = 1;
  set_number(object, "temperature", 0, 100, sampling.temperature);
  set_number(object, "top_p", 1e-6, 1, sampling.top_p);
  set_number(object, "min_p", 0, 1, sampling.min_p);
  if (const Json* top_k = find(object, "top_k"))  // -1: off, as in vLLM
    sampling.top_k = std::max<std::int64_t>(whole(*top_k, "top_k", -1, kMost), 0);
  set_number(object, "repetition_penalty", 1e-3, 1e3, sampling.repetition_penalty);
  set_number(object, "presence_penalty", -2, 2, sampling.presence_penalty);
  set_number(object, "frequency_penalty", -2, 2, sampling.frequency_penalty);
  const Json* bias = find(object, "logit_bias");
  if (bias == nullptr) return;
  if (!bias->is_object() || bias->size() > kMaxBias)
    fail("logit_bias", "an object of at most " + std::to_string(kMaxBias) + " tokens");
  for (const auto& [key, value] : bias->items()) {
    std::int32_t token = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), token);
    if (error != std::errc() || end != key.data() + key.size() || token < 0)
      fail("logit_bias", "an object whose names are tokens");
    if (!value.is_number() || !(value.get<double>() >= -100 && value.get<double>() <= 100))
      fail("logit_bias", "an object of numbers from -100 to 100");
    sampling.logit_bias.push_back({token, value.get<float>()});
  }
}

void set_stop(const Json& object, Request& request) {
  const Json* stop = find(object, "stop");
  if (stop == nullptr) return;
  if (stop->is_string()) {
    request.stop = {text(*stop, "stop")};
  } else {
    if (!stop->is_array() || stop->size() > kMaxStops)
      fail("stop", "a string or a list of at most " + std::to_string(kMaxStops) + " strings");
    for (const Json& element : *stop) request.stop.push_back(text(element, "stop"));
  }
  for (const std::string& string : request.stop)
    if (string.empty()) fail("stop", "of strings that are not empty");
}

// best_of samples are computed, and the n likeliest ones are the answer.
void set_samples(const Json& object, CompletionRequest& parsed) {
  std::int64_t& n = parsed.num_choices;
  std::int64_t& best_of = parsed.request.n;
  set_whole(object, "n", 1, kMaxSamples, n);
  best_of = n;
  if (parsed.form == Form::completion) set_whole(object, "best_of", 1, kMaxSamples, best_of);
  if (best_of < n) fail("best_of", "at least \"n\"");
}

// vLLM's: the n best texts of a beam search instead of samples.
void set_beams(const Json& object, CompletionRequest& parsed) {
  Request& request = parsed.request;
  set_number(object, "length_penalty", 0, 10, request.length_penalty);
  if (!flag_field(object, "use_beam_search").value_or(false)) return;
  const std::string rule = " with \"use_beam_search\"";
  if (parsed.is_stream) fail("stream", "false" + rule + ": the best texts are known last");
  if (parsed.grammar) fail(parsed.grammar->param, "absent" + rule);
  if (!request.stop.empty()) fail("stop", "absent" + rule);
  if (request.n != parsed.num_choices) fail("best_of", "equal to \"n\"" + rule);
  if (request.num_logprobs.value_or(0) > 0)
    fail(parsed.form == Form::chat ? "top_logprobs" : "logprobs", "at most 0" + rule);
  request.beam_width = parsed.num_choices;
  request.n = 1;
}

void set_logprobs(const Json& object, CompletionRequest& parsed) {
  std::int64_t count = 0;
  if (parsed.form == Form::completion) {
    if (find(object, "logprobs") == nullptr) return;
    set_whole(object, "logprobs", 0, kMaxLogprobs, count);
  } else {
    const bool wants = flag_field(object, "logprobs").value_or(false);
    set_whole(object, "top_logprobs", 0, kMaxLogprobs, count);
    if (!wants && count > 0) fail("logprobs", "true if \"top_logprobs\" is given");
    if (!wants) return;
  }
  parsed.request.num_logprobs = static_cast<int>(count);
  parsed.has_logprobs = true;
}

void set_prompts(const Json& object, CompletionRequest& parsed) {
  const Json* prompt = find(object, "prompt");
  if (prompt == nullptr) fail("prompt", "a string, a list of tokens or a list of these");
  if (prompt->is_string()) {
    parsed.prompts = {text(*prompt, "prompt")};
    return;
  }
  if (!prompt->is_array() || prompt->empty())
    fail("prompt", "a string, a list of tokens or a list of these, and not empty");
  if (prompt->front().is_number()) {
    parsed.prompts = {tokens(*prompt, "prompt")};
    return;
  }
  if (prompt->size() > kMaxPrompts)
    fail("prompt", "a list of at most " + std::to_string(kMaxPrompts) + " prompts");
  for (const Json& element : *prompt)
    parsed.prompts.push_back(element.is_array() ? Prompt(tokens(element, "prompt"))
                                                : Prompt(text(element, "prompt")));
}

// What would change the answer and is not computed is refused, not ignored.
void refuse_unsupported(const Json& object) {
  if (find(object, "suffix") != nullptr) refuse("suffix", "nothing is inserted before a text");
}

// The JSON Schema at this place of the body: the order of its properties is that of the answer.
std::string schema_at(std::string_view body, const char* path) {
  using Ordered = nlohmann::ordered_json;
  return Ordered::parse(body).at(Ordered::json_pointer(path)).dump();
}

// OpenAI's.
std::optional<GrammarText> response_format(const Json& object, std::string_view body) {
  const Json* format = find(object, "response_format");
  if (format == nullptr) return std::nullopt;
  const Json* type = format->is_object() ? find(*format, "type") : nullptr;
  if (type == nullptr || (*type != "text" && *type != "json_object" && *type != "json_schema"))
    fail("response_format", "an object whose type is text, json_object or json_schema");
  if (*type == "text") return std::nullopt;
  GrammarText grammar{.text = R"({"type": "object"})", .param = "response_format"};
  if (*type == "json_object") return grammar;
  const Json* named = find(*format, "json_schema");
  if (named == nullptr || !named->is_object() || find(*named, "schema") == nullptr)
    fail("response_format", "{\"type\": \"json_schema\", \"json_schema\": {\"schema\": ...}}");
  grammar.text = schema_at(body, "/response_format/json_schema/schema");
  return grammar;
}

// vLLM's.
std::optional<GrammarText> structured_outputs(const Json& object, std::string_view body) {
  constexpr const char* kName = "structured_outputs";
  constexpr const char* kRule = "an object with one of json, regex and grammar";
  const Json* structured = find(object, "structured_outputs");
  if (structured == nullptr) return std::nullopt;
  if (!structured->is_object() || structured->size() != 1) fail(kName, kRule);
  if (const Json* json = find(*structured, "json"))
    return GrammarText{.text = json->is_string() ? json->get<std::string>()
                                                 : schema_at(body, "/structured_outputs/json"),
                       .param = kName};
  if (const Json* regex = find(*structured, "regex"))
    return GrammarText{GrammarText::Kind::regex, text(*regex, kName), kName};
  if (const Json* gbnf = find(*structured, "grammar"))
    return GrammarText{GrammarText::Kind::gbnf, text(*gbnf, kName), kName};
  fail(kName, kRule);
}

std::optional<GrammarText> grammar_of(const Json& object, std::string_view body) {
  std::optional<GrammarText> format = response_format(object, body);
  std::optional<GrammarText> structured = structured_outputs(object, body);
  if (format && structured) fail("structured_outputs", "absent beside a \"response_format\"");
  return structured ? structured : format;
}

void set_length(const Json& object, CompletionRequest& parsed) {
  std::int64_t& length = parsed.request.max_new_tokens;
  if (parsed.form == Form::completion) length = 16;  // OpenAI's default
  set_whole(object, "max_tokens", 1, kMost, length);
  if (parsed.form == Form::chat) set_whole(object, "max_completion_tokens", 1, kMost, length);
}

}  // namespace

CompletionRequest parse_completion(Form form, std::string_view body, CallFormat call_format) {
  const Json object = parse_object(body);
  CompletionRequest parsed{.form = form, .model = {}, .messages = {}, .prompts = {}, .request = {}};
  parsed.call_format = call_format;
  parsed.model = text_field(object, "model").value_or("");
  parsed.grammar = grammar_of(object, body);
  set_sampling(object, parsed.request.sampling);
  set_samples(object, parsed);
  set_length(object, parsed);
  set_stop(object, parsed.request);
  set_logprobs(object, parsed);
  if (form == Form::chat) {
    set_tools(object, body, parsed);
    set_messages(object, parsed);
  } else {
    refuse_unsupported(object);
    parsed.has_echo = flag_field(object, "echo").value_or(false);
    if (parsed.has_echo && parsed.has_logprobs)
      refuse("echo", "tokens of a prompt have no logprobs; send one of the two");
    set_prompts(object, parsed);
  }
  set_whole(object, "priority", -kMost, kMost, parsed.request.priority);
  parsed.request.ignore_end = flag_field(object, "ignore_eos").value_or(false);
  if (const Json* seed = find(object, "seed")) {
    parsed.has_seed = true;
    parsed.request.sampling.seed =
        static_cast<std::uint64_t>(whole(*seed, "seed", std::numeric_limits<std::int64_t>::min(),
                                         std::numeric_limits<std::int64_t>::max()));
  }
  parsed.has_token_ids = flag_field(object, "return_token_ids").value_or(false);
  parsed.is_stream = flag_field(object, "stream").value_or(false);
  set_beams(object, parsed);
  if (parsed.request.n > parsed.num_choices) {
    if (parsed.is_stream)
      fail("best_of", "equal to \"n\" in a stream: the best ones are known last");
    if (!parsed.has_logprobs) parsed.request.num_logprobs = 0;  // to compare the samples
  }
  if (const Json* options = find(object, "stream_options")) {
    if (!options->is_object()) fail("stream_options", "an object");
    if (!parsed.is_stream) fail("stream_options", "absent without \"stream\"");
    parsed.has_usage = flag_field(*options, "include_usage").value_or(false);
  }
  return parsed;
}

}  // namespace headrace::server
