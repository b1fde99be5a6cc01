// headrace batch: the prompts of a JSON Lines file, many at a time; the answers as JSON Lines.
#include <algorithm>
#include <chrono>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <tuple>

#include "command.h"
#include "files.h"
#include "grammar_choice.h"
#include "headrace/engine.hpp"
#include "model_options.h"
#include "options.h"

namespace headrace::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kMaxNewTokens = 128;  // of a line that does not say it

struct BatchOptions {
  ModelChoice model;
  SessionChoice session;
  std::string path;
  std::vector<std::int64_t> streams = {32};
  bool is_raw = false;
  bool is_quiet = false;
};

// A line of the file.
struct Item {
  std::int64_t line;
  Json id;  // as the file has it, or the line
  std::string prompt;
  GrammarChoice grammar;
  Request request;
};

std::int64_t whole(const Json& value) {
  if (!value.is_number_integer()) throw std::invalid_argument("a whole number");
  return value.get<std::int64_t>();
}
double number(const Json& value) {
  if (!value.is_number()) throw std::invalid_argument("a number");
  return value.get<double>();
}
std::string text(const Json& value) {
  if (!value.is_string()) throw std::invalid_argument("a string");
  return value.get<std::string>();
}
std::vector<std::string> texts(const Json& value) {
  if (value.is_string()) return {text(value)};
  if (!value.is_array()) throw std::invalid_argument("a string or a list of strings");
  std::vector<std::string> all;
  for (const Json& element : value) all.push_back(text(element));
  return all;
}

// What a line may say.
const std::map<std::string, void (*)(const Json&, Item&)>& fields() {
  static const std::map<std::string, void (*)(const Json&, Item&)> kFields = {
      {"grammar", [](const Json& v, Item& i) { i.grammar.gbnf = text(v); }},
      {"id", [](const Json& v, Item& i) { i.id = v; }},
      {"ignore_end", [](const Json& v, Item& i) { i.request.ignore_end = v.get<bool>(); }},
      {"json_schema", [](const Json& v, Item& i) { i.grammar.json_schema = v.dump(); }},
      {"max_tokens", [](const Json& v, Item& i) { i.request.max_new_tokens = whole(v); }},
      {"min_p", [](const Json& v, Item& i) { i.request.sampling.min_p = number(v); }},
      {"n", [](const Json& v, Item& i) { i.request.n = whole(v); }},
      {"priority", [](const Json& v, Item& i) { i.request.priority = whole(v); }},
      {"prompt", [](const Json& v, Item& i) { i.prompt = text(v); }},
      {"regex", [](const Json& v, Item& i) { i.grammar.regex = text(v); }},
      {"seed", [](const Json& v,
                  Item& i) { i.request.sampling.seed = static_cast<std::uint64_t>(whole(v)); }},
      {"stop", [](const Json& v, Item& i) { i.request.stop = texts(v); }},
      {"temperature", [](const Json& v, Item& i) { i.request.sampling.temperature = number(v); }},
      {"top_k", [](const Json& v, Item& i) { i.request.sampling.top_k = whole(v); }},
      {"top_p", [](const Json& v, Item& i) { i.request.sampling.top_p = number(v); }},
  };
  return kFields;
}

[[noreturn]] void fail_line(const BatchOptions& options, std::int64_t line,
                            const std::string& reason) {
  throw Error(HEADRACE_INVALID_ARGUMENT, options.path + ':' + std::to_string(line) + ": " + reason);
}

Item parse(const BatchOptions& options, const std::string& line, std::int64_t number_of_line) {
  Item item{
      .line = number_of_line, .id = number_of_line, .prompt = {}, .grammar = {}, .request = {}};
  item.request.max_new_tokens = kMaxNewTokens;
  const Json json = Json::parse(line, nullptr, false);
  if (!json.is_object())
    fail_line(options, number_of_line, "not a JSON object; write one object per line");
  for (const auto& [key, value] : json.items()) {
    const auto field = fields().find(key);
    if (field == fields().end()) {
      std::string names;
      for (const auto& [name, set] : fields()) names += (names.empty() ? "" : ", ") + name;
      fail_line(options, number_of_line, "unknown field \"" + key + "\"; choose from " + names);
    }
    try {
      field->second(value, item);
    } catch (const Json::exception&) {
      fail_line(options, number_of_line, '"' + key + "\" must be true or false");
    } catch (const std::invalid_argument& expected) {
      fail_line(options, number_of_line, '"' + key + "\" must be " + expected.what());
    }
  }
  if (!json.contains("prompt"))
    fail_line(options, number_of_line, "no \"prompt\"; each line needs one");
  if (json.contains("json_schema") + json.contains("regex") + json.contains("grammar") > 1)
    fail_line(options, number_of_line,
              "several of json_schema, regex and grammar; write one of them");
  return item;
}

std::vector<Item> read_items(const BatchOptions& options, const Model& model) {
  std::istringstream file(read_text(options.path));
  std::vector<Item> items;
  // Lines with equal grammars share one.
  using Key = std::tuple<std::optional<std::string>, std::optional<std::string>,
                         std::optional<std::string>>;
  std::map<Key, std::optional<Grammar>> grammars;
  std::int64_t number_of_line = 0;
  for (std::string line; std::getline(file, line);) {
    ++number_of_line;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    Item item = parse(options, line, number_of_line);
    item.request.prompt =
        options.is_raw ? model.tokenize(item.prompt) : model.chat_tokens({{"user", item.prompt}});
    const Key key = {item.grammar.json_schema, item.grammar.regex, item.grammar.gbnf};
    try {
      if (!grammars.contains(key)) grammars[key] = make_grammar(model, item.grammar);
    } catch (const Error& error) {
      fail_line(options, number_of_line, error.what());
    }
    item.request.grammar = grammars[key];
    items.push_back(std::move(item));
  }
  if (items.empty())
    throw Error(HEADRACE_INVALID_ARGUMENT,
                options.path + ": has no lines; write a JSON object with a \"prompt\" per line");
  return items;
}

// With pages for the longest requests, as many at once as there are streams.
Engine make_batch_engine(const Model& model, const BatchOptions& options,
                         const std::vector<Item>& items, std::int64_t num_streams) {
  EngineOptions wanted = engine_options(model, options.session);
  std::int64_t longest = 1, num_samples = 0;
  for (const Item& item : items) {
    longest = std::max(longest, std::ssize(item.request.prompt) +
                                    std::min(item.request.max_new_tokens, wanted.max_tokens));
    num_samples += item.request.n;
  }
  const std::int64_t pages =
      (std::min(longest, wanted.max_tokens) + wanted.page_size - 1) / wanted.page_size;
  const std::int64_t whole_context = (wanted.max_tokens + wanted.page_size - 1) / wanted.page_size;
  wanted.num_pages = std::max(whole_context, pages * std::min(num_samples, num_streams));
  wanted.max_num_seqs = num_streams;
  wanted.max_requests = std::ssize(items);
  return Engine(model, wanted);
}

const char* finish_name(headrace_request_finish finish) {
  switch (finish) {
    case HEADRACE_REQUEST_STOP:
      return "stop";
    case HEADRACE_REQUEST_LENGTH:
      return "length";
    case HEADRACE_REQUEST_ABORTED:
      return "aborted";
    default:
      return "error";
  }
}

// The answers of an engine: a line for each that has ended.
class Answers {
 public:
  Answers(const std::vector<Item>& items, bool is_printed)
      : items_(items), is_printed_(is_printed) {}

  void take(Output output) {
    Output& answer = answers_[{output.id, output.sample}];
    answer.text += output.text;
    answer.tokens.insert(answer.tokens.end(), output.tokens.begin(), output.tokens.end());
    if (output.finish == HEADRACE_REQUEST_RUNNING) return;
    has_failed_ |= output.finish == HEADRACE_REQUEST_ERROR;
    if (!is_printed_) return;
    Json line = {{"id", items_[static_cast<std::size_t>(output.id - 1)].id},
                 {"sample", output.sample},
                 {"text", answer.text},
                 {"num_tokens", answer.tokens.size()},
                 {"finish", finish_name(output.finish)}};
    if (!output.error.empty()) line["error"] = output.error;
    std::cout << line.dump(-1, ' ', false, Json::error_handler_t::replace) << std::endl;
  }
  bool has_failed() const { return has_failed_; }

 private:
  const std::vector<Item>& items_;
  bool is_printed_;
  std::map<std::pair<std::int64_t, std::int64_t>, Output> answers_;
  bool has_failed_ = false;
};

std::string speed_text(const Engine& engine, std::int64_t num_streams, double seconds) {
  const headrace_engine_stats stats = engine.stats();
  const auto rate = [seconds](std::int64_t tokens) {
    return seconds > 0 ? static_cast<double>(tokens) / seconds : 0.0;
  };
  char text[200];
  std::snprintf(
      text, sizeof text,
      "%lld streams: %lld requests in %.2f s; answers %lld tokens, %.1f tokens/s; prompts "
      "%lld tokens, %lld cached; %.1f tokens per step",
      static_cast<long long>(num_streams), static_cast<long long>(stats.num_finished), seconds,
      static_cast<long long>(stats.num_generated_tokens), rate(stats.num_generated_tokens),
      static_cast<long long>(stats.num_prompt_tokens),
      static_cast<long long>(stats.num_cached_tokens),
      static_cast<double>(stats.num_scheduled_tokens) /
          static_cast<double>(std::max<std::int64_t>(stats.num_steps, 1)));
  return text;
}

int run_batch(const BatchOptions& options) {
  const Model model = load_model(options.model);
  const std::vector<Item> items = read_items(options, model);
  bool has_failed = false;
  for (const std::int64_t num_streams : options.streams) {
    Engine engine = make_batch_engine(model, options, items, num_streams);
    for (const Item& item : items) {
      try {
        engine.add(item.request);
      } catch (const Error& error) {
        fail_line(options, item.line, error.what());
      }
    }
    // The answers of the other runs are the same.
    Answers answers(items, num_streams == options.streams.front());
    const auto begin = std::chrono::steady_clock::now();
    while (engine.step())
      while (std::optional<Output> output = engine.poll()) answers.take(std::move(*output));
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    if (!options.is_quiet) print_note(speed_text(engine, num_streams, seconds.count()));
    has_failed |= answers.has_failed();
  }
  return has_failed ? kExitFailure : kExitOk;
}

}  // namespace

void add_batch(CLI::App& app, Action& action) {
  CLI::App* batch =
      app.add_subcommand("batch", "Answer the prompts of a JSON Lines file, many at a time");
  auto options = std::make_shared<BatchOptions>();
  batch
      ->add_option("-f,--file", options->path,
                   "file with a JSON object per line; - is standard input")
      ->required()
      ->option_text("FILE REQUIRED");
  add_numbers(*batch, "--streams", options->streams, {1, 4096},
              "sequences computed at once; several: a run with each, for the speed")
      ->option_text("N,... [32]");
  batch->add_flag("--raw", options->is_raw, "continue the prompts as they are, without a template");
  batch->add_flag("-q,--quiet", options->is_quiet, "do not print the speed");
  add_session_options(*batch, options->session);
  add_model_options(*batch, options->model);
  batch->footer(
      "A line has a \"prompt\" and may have: id, max_tokens (128), temperature, top_k, top_p, "
      "min_p,\n"
      "seed, n, stop, priority (the lowest runs first), ignore_end; json_schema (a schema), regex "
      "or\n"
      "grammar (GBNF): what the answer must match.");
  batch->callback([&action, options] { action = [options] { return run_batch(*options); }; });
}

}  // namespace headrace::cli
