// headrace generate: one prompt; one answer, streamed, or several.
#include <iostream>
#include <memory>

#include "answer.h"
#include "command.h"
#include "files.h"
#include "grammar_choice.h"
#include "model_options.h"
#include "options.h"

namespace headrace::cli {
namespace {

struct GenerateOptions {
  ModelChoice model;
  SessionChoice session;
  GenerationChoice generation;
  GrammarFiles grammar;
  std::string prompt, prompt_file, system, template_name;
  std::int64_t num_samples = 1;
  std::int64_t beam_width = 0;  // 0: no beam search
  double length_penalty = 1;
  bool is_raw = false;
  bool is_quiet = false;
};

std::vector<std::int32_t> prompt_tokens(const Model& model, const GenerateOptions& options) {
  const std::string prompt =
      options.prompt_file.empty() ? options.prompt : read_text(options.prompt_file);
  if (options.is_raw) return model.tokenize(prompt);
  std::vector<Message> messages;
  if (!options.system.empty()) messages.push_back({"system", options.system});
  messages.push_back({"user", prompt});
  return model.chat_tokens(messages, options.template_name);
}

// Each under a line that names it.
void print_samples(const std::vector<Completion>& samples, std::uint64_t seed) {
  for (std::size_t i = 0; i < samples.size(); ++i)
    std::cout << "--- sample " << i + 1 << " of " << samples.size() << ", seed " << seed + i
              << " ---\n"
              << samples[i].text << '\n';
  std::cout << std::flush;
}

Answer answer_once(const Model& model, const GenerateOptions& options,
                   const GenerationOptions& generation, std::span<const std::int32_t> prompt) {
  Session session = make_session(model, options.session);
  Answer answer = stream_answer(model, session, prompt, generation, [] { return true; });
  std::cout << '\n' << std::flush;
  return answer;
}

Answer answer_with_samples(const Model& model, const GenerateOptions& options,
                           const GenerationOptions& generation,
                           std::span<const std::int32_t> prompt) {
  const std::int64_t n = options.num_samples;
  Session session = make_session(
      model, with_completions(model, options.session, n, static_cast<std::int64_t>(prompt.size()),
                              generation.max_new_tokens));
  const Answers answers =
      compute_answers(model, session, prompt, [&] { return session.generate_n(generation, n); });
  print_samples(answers.completions, generation.sampling.seed);
  return answers.speed;
}

Answer answer_with_beams(const Model& model, const GenerateOptions& options,
                         const GenerationOptions& generation,
                         std::span<const std::int32_t> prompt) {
  Session session = make_session(
      model, with_completions(model, options.session, options.beam_width,
                              static_cast<std::int64_t>(prompt.size()), generation.max_new_tokens));
  const Answers answers = compute_answers(model, session, prompt, [&] {
    return session.beam_search({.beam_width = options.beam_width,
                                .length_penalty = options.length_penalty,
                                .max_new_tokens = generation.max_new_tokens,
                                .ignore_end = generation.ignore_end});
  });
  const std::vector<Completion>& beams = answers.completions;
  for (std::size_t i = 0; i < beams.size(); ++i)
    std::cout << "--- beam " << i + 1 << " of " << beams.size() << ", score " << beams[i].score
              << " ---\n"
              << beams[i].text << '\n';
  std::cout << std::flush;
  return answers.speed;
}

int run_generate(const GenerateOptions& options) {
  GenerationOptions generation = generation_options(options.generation);
  const GrammarChoice grammar = read_grammar(options.grammar);
  const Model model = load_model(options.model);
  generation.grammar = make_grammar(model, grammar);
  const std::vector<std::int32_t> tokens = prompt_tokens(model, options);
  if (tokens.empty())
    throw Error(HEADRACE_INVALID_ARGUMENT, "the prompt is empty; pass a non-empty text");
  check_fits(model, options.session, static_cast<std::int64_t>(tokens.size()), "prompt");
  const auto run = options.beam_width > 0    ? answer_with_beams
                   : options.num_samples > 1 ? answer_with_samples
                                             : answer_once;
  const Answer answer = run(model, options, generation, tokens);
  if (!options.is_quiet) print_note(speed_text(answer));
  return kExitOk;
}

// Beam search takes the length of the answer, and no option that samples have.
void add_beam_options(CLI::App& generate, GenerateOptions& options) {
  CLI::Option* width =
      generate
          .add_option("--beam-width", options.beam_width,
                      "beam search: print the N best answers that a search of N beams finds")
          ->transform(whole_number({1, 1024}))
          ->option_text("N");
  generate
      .add_option("--length-penalty", options.length_penalty,
                  "beams are ranked by log-probability / length^X")
      ->transform(real_number({0, 10}))
      ->option_text("X [1]")
      ->needs(width);
  for (CLI::Option* option : generate.get_options()) {
    const bool is_of_samples = option->get_group() == "Sampling" ||
                               option->get_group() == "Structured output" ||
                               option->check_lname("samples");
    const bool is_common = option->check_lname("max-tokens") || option->check_lname("ignore-end");
    if (is_of_samples && !is_common) width->excludes(option);
  }
}

}  // namespace

void add_generate(CLI::App& app, Action& action) {
  CLI::App* generate = app.add_subcommand(
      "generate", "Answer one prompt in the model's chat template (not with --raw)");
  auto options = std::make_shared<GenerateOptions>();
  CLI::Option* prompt = generate->add_option("prompt,-p,--prompt", options->prompt, "prompt text");
  CLI::Option* file = generate
                          ->add_option("-f,--file", options->prompt_file,
                                       "file with the prompt; - is standard input")
                          ->option_text("FILE")
                          ->excludes(prompt);
  generate->add_option("-s,--system,--system-prompt", options->system, "system prompt")
      ->option_text("TEXT");
  generate
      ->add_option("--template,--chat-template", options->template_name,
                   "chat template to use instead of the file's own")
      ->option_text("NAME");
  generate->add_flag("--raw", options->is_raw, "continue the text as is, without a chat template");
  generate
      ->add_option("--samples", options->num_samples,
                   "answers to the prompt; answer i is that of --seed + i - 1")
      ->transform(whole_number({1, 1024}))
      ->option_text("N [1]");
  generate->add_flag("-q,--quiet", options->is_quiet, "do not print the speed");
  add_generation_options(*generate, options->generation);
  add_grammar_options(*generate, options->grammar);
  add_beam_options(*generate, *options);
  add_session_options(*generate, options->session);
  add_sparq_options(*generate, options->session);
  add_model_options(*generate, options->model);
  generate->callback([&action, prompt, file, options] {
    if (prompt->count() + file->count() == 0) throw CLI::RequiredError("A prompt or --file FILE");
    if (options->num_samples > 1 && options->generation.options.sampling.temperature == 0)
      throw CLI::ValidationError("--samples",
                                 "answers at temperature 0 would be equal; pass --temp above 0");
    action = [options] { return run_generate(*options); };
  });
}

}  // namespace headrace::cli
