// headrace tokenize: a text split into tokens.
#include <iostream>
#include <memory>

#include "command.h"
#include "files.h"
#include "model_options.h"
#include "printable.h"
#include "table.h"

namespace headrace::cli {
namespace {

struct TokenizeOptions {
  std::string path, text, text_file;
  bool reads_stdin = false;
  bool has_specials = false;
  bool no_bos = false;
  bool ids_only = false;
  Format format = Format::text;
};

int run_tokenize(const TokenizeOptions& options) {
  const Model model = load_vocabulary(options.path);
  const std::string file = options.reads_stdin ? "-" : options.text_file;
  const std::string text = file.empty() ? options.text : read_text(file);
  std::uint32_t flags = options.no_bos ? 0u : std::uint32_t{HEADRACE_TOKENIZE_BOS};
  if (options.has_specials) flags |= HEADRACE_TOKENIZE_SPECIAL;
  const std::vector<std::int32_t> tokens = model.tokenize(text, flags);
  if (options.ids_only) {
    for (std::size_t i = 0; i < tokens.size(); ++i) std::cout << (i > 0 ? " " : "") << tokens[i];
    std::cout << '\n';
    return kExitOk;
  }
  Table table{.key = "tokens", .columns = {{"id", "id"}, {"text", "text"}}, .rows = {}};
  for (const std::int32_t token : tokens)
    table.rows.push_back({std::int64_t{token}, printable(model.token_text(token))});
  Report report;
  report.notes = {{"bytes", static_cast<std::int64_t>(text.size())},
                  {"tokens", static_cast<std::int64_t>(tokens.size())}};
  report.tables.push_back(std::move(table));
  print_report(report, options.format);
  return kExitOk;
}

}  // namespace

void add_tokenize(CLI::App& app, Action& action) {
  CLI::App* tokenize = app.add_subcommand("tokenize", "Split a text into the tokens of a model");
  auto options = std::make_shared<TokenizeOptions>();
  add_model_path(*tokenize, options->path);
  CLI::Option* text = tokenize->add_option("text,-p,--prompt", options->text, "the text");
  CLI::Option* from_file =
      tokenize->add_option("-f,--file", options->text_file, "file with the text; - is stdin")
          ->option_text("FILE")
          ->excludes(text);
  CLI::Option* from_stdin =
      tokenize->add_flag("--stdin", options->reads_stdin, "the same as --file -")
          ->excludes(text)
          ->excludes(from_file);
  tokenize->add_flag("--special", options->has_specials, "parse special tokens in the text");
  tokenize->add_flag("--no-bos", options->no_bos, "do not add the beginning-of-text token");
  tokenize->add_flag("--ids", options->ids_only, "print only the ids, on one line");
  add_format_option(*tokenize, options->format);
  tokenize->callback([&action, text, from_file, from_stdin, options] {
    if (text->count() + from_file->count() + from_stdin->count() == 0)
      throw CLI::RequiredError("A text, --file FILE or --stdin");
    action = [options] { return run_tokenize(*options); };
  });
}

}  // namespace headrace::cli
