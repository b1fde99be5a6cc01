// headrace serve: an OpenAI-compatible HTTP server. The options; server/ has the rest.
#include <filesystem>
#include <memory>
#include <sstream>

#include "command.h"
#include "files.h"
#include "model_options.h"
#include "options.h"
#include "server.h"

namespace headrace::cli {
namespace {

struct ServeOptions {
  ModelChoice model;
  SessionChoice session;
  server::ServerOptions server;
  std::int64_t streams = 0;        // 0: the engine's default
  std::int64_t num_pages = 0;      // 0: the engine's default
  std::int64_t prompt_tokens = 0;  // 0: the engine's default
  std::string key_file;
};

std::vector<std::string> keys_of(const std::string& path) {
  std::istringstream file(read_text(path));
  std::vector<std::string> keys;
  for (std::string line; std::getline(file, line);)
    if (!line.empty()) keys.push_back(line);
  if (keys.empty())
    throw Error(HEADRACE_INVALID_ARGUMENT, path + ": has no lines; write an API key per line");
  return keys;
}

int run_serve(ServeOptions options) {
  server::ServiceOptions& service = options.server.service;
  if (!options.key_file.empty())
    for (std::string& key : keys_of(options.key_file)) service.api_keys.push_back(std::move(key));
  if (service.model_name.empty())
    service.model_name = std::filesystem::path(options.model.path).stem().string();
  service.seed = random_seed();
  const Model model = load_model(options.model);
  EngineOptions wanted = engine_options(model, options.session);
  wanted.max_requests = service.max_requests;
  wanted.max_num_seqs = options.streams;
  wanted.num_pages = options.num_pages;
  wanted.max_prompt_tokens = options.prompt_tokens;
  Engine engine(model, wanted);
  server::serve(model, engine, wanted.max_tokens, options.server, [](const std::string& address) {
    print_note("ready at " + address + " (Ctrl-C ends it)");
  });
  return kExitOk;
}

void add_limits(CLI::App& app, ServeOptions& options) {
  server::ServerOptions& limits = options.server;
  const auto add = [&](const char* name, auto& value, const Range<std::int64_t>& range,
                       const char* text) {
    app.add_option(name, value, text)
        ->transform(whole_number(range))
        ->option_text("N [" + std::to_string(value) + ']');
  };
  constexpr std::int64_t kMost = 1 << 30;
  add("--max-requests", limits.service.max_requests, {1, 1 << 20},
      "requests at once; more are answered with 429");
  add("--max-connections", limits.max_connections, {1, 1 << 20}, "open connections");
  add("--max-body-bytes", limits.max_body_bytes, {1, kMost}, "of a request");
  add("--max-header-bytes", limits.max_header_bytes, {256, kMost}, "of a request");
  add("--max-queued-bytes", limits.max_queued_bytes, {1, kMost},
      "of bodies that wait to be tokenized; more are answered with 429");
  add("--max-output-bytes", limits.max_output_bytes, {4096, kMost},
      "that wait for the reader of a stream; more end it");
  add("--header-seconds", limits.header_seconds, {1, 86400}, "until a request's header is there");
  add("--body-seconds", limits.body_seconds, {1, 86400}, "until a request's body is there");
  add("--idle-seconds", limits.idle_seconds, {1, 86400}, "between requests of a connection");
  add("--write-seconds", limits.write_seconds, {1, 86400}, "without progress of a reader");
  add("--drain-seconds", limits.drain_seconds, {0, 86400},
      "for running requests after SIGTERM or Ctrl-C");
}

}  // namespace

void add_serve(CLI::App& app, Action& action) {
  CLI::App* serve = app.add_subcommand("serve", "Serve a model over HTTP, as OpenAI's API does");
  auto options = std::make_shared<ServeOptions>();
  server::ServerOptions& http = options->server;
  serve->add_option("--host", http.host, "address to listen on")->option_text("HOST [127.0.0.1]");
  serve->add_option("--port", http.port, "0: a free one")
      ->transform(whole_number({0, 65535}))
      ->option_text("N [8000]");
  serve
      ->add_option("--served-model-name", http.service.model_name,
                   "name of the model in requests (default: of the file)")
      ->option_text("NAME");
  add_list(*serve, "--api-key", http.service.api_keys, "that requests must have; repeatable")
      ->option_text("KEY");
  serve
      ->add_option("--template,--chat-template", http.service.chat_template,
                   "chat template to use instead of the file's own")
      ->option_text("NAME");
  serve->add_option("--api-key-file", options->key_file, "a key per line")->option_text("FILE");
  add_list(*serve, "--cors-origin", http.service.cors_origins,
           "pages that may ask, or *; repeatable")
      ->option_text("ORIGIN");
  serve->add_option("--streams", options->streams, "sequences computed at once")
      ->transform(whole_number({1, 4096}))
      ->option_text("N");
  serve
      ->add_option("--pages", options->num_pages,
                   "of the KV cache (default: 4 contexts; cuda: --streams, or what fits)")
      ->transform(whole_number({1, 1 << 30}))
      ->option_text("N");
  serve
      ->add_option("--prompt-tokens", options->prompt_tokens,
                   "of prompts in a step beside answers (default: few; cuda: --batch)")
      ->transform(whole_number({1, 65536}))
      ->option_text("N");
  add_limits(*serve, *options);
  add_session_options(*serve, options->session);
  add_model_options(*serve, options->model);
  serve->callback([&action, options] { action = [options] { return run_serve(*options); }; });
}

}  // namespace headrace::cli
