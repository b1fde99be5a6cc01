// headrace generate: one prompt, one answer, streamed.
#include <chrono>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>

#include "answer.h"
#include "command.h"
#include "model_options.h"

namespace headrace::cli {
namespace {

struct GenerateOptions {
  ModelChoice model;
  SessionChoice session;
  GenerationChoice generation;
  std::string prompt, prompt_file, system, template_name;
  bool is_raw = false;
  bool is_quiet = false;
};

std::string read_prompt(const GenerateOptions& options) {
  if (options.prompt_file.empty()) return options.prompt;
  if (options.prompt_file == "-")
    return {std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
  std::ifstream file(options.prompt_file, std::ios::binary);
  if (!file) throw Error(HEADRACE_IO_ERROR, options.prompt_file + ": cannot be opened for reading");
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::vector<std::int32_t> prompt_tokens(const Model& model, const GenerateOptions& options) {
  const std::string prompt = read_prompt(options);
  if (options.is_raw) return model.tokenize(prompt);
  std::vector<Message> messages;
  if (!options.system.empty()) messages.push_back({"system", options.system});
  messages.push_back({"user", prompt});
  return model.chat_tokens(messages, options.template_name);
}

int run_generate(const GenerateOptions& options) {
  const GenerationOptions generation = generation_options(options.generation);
  const Model model = load_model(options.model);
  const std::vector<std::int32_t> tokens = prompt_tokens(model, options);
  if (tokens.empty())
    throw Error(HEADRACE_INVALID_ARGUMENT, "the prompt is empty: nothing to continue");
  Session session = make_session(model, options.session);
  const Answer answer = stream_answer(session, tokens, generation, [] { return true; });
  std::cout << '\n' << std::flush;
  if (!options.is_quiet) print_note(speed_text(answer));
  return kExitOk;
}

}  // namespace

void add_generate(CLI::App& app, Action& action) {
  CLI::App* generate = app.add_subcommand("generate", "Answer one prompt, as a chat model does");
  auto options = std::make_shared<GenerateOptions>();
  CLI::Option* prompt =
      generate->add_option("prompt,-p,--prompt", options->prompt, "what to answer");
  CLI::Option* file = generate
                          ->add_option("-f,--file", options->prompt_file,
                                       "file with the prompt; - is standard input")
                          ->option_text("FILE")
                          ->excludes(prompt);
  generate->add_option("-s,--system", options->system, "what the model is told before it")
      ->option_text("TEXT");
  generate
      ->add_option("--template", options->template_name,
                   "chat template, where the file's own is not known")
      ->option_text("NAME");
  generate->add_flag("--raw", options->is_raw, "continue the text as it is, without a template");
  generate->add_flag("-q,--quiet", options->is_quiet, "no line about the speed");
  add_generation_options(*generate, options->generation);
  add_session_options(*generate, options->session);
  add_model_options(*generate, options->model);
  generate->callback([&action, prompt, file, options] {
    if (prompt->count() + file->count() == 0)
      throw CLI::RequiredError("prompt: pass a text, or --file");
    action = [options] { return run_generate(*options); };
  });
}

}  // namespace headrace::cli
