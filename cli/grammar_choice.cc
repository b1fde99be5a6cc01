#include "grammar_choice.h"

#include "files.h"

namespace headrace::cli {

std::optional<Grammar> make_grammar(const Model& model, const GrammarChoice& choice) {
  if (choice.json_schema) return Grammar::json_schema(model, *choice.json_schema);
  if (choice.regex) return Grammar::regex(model, *choice.regex);
  if (choice.gbnf) return Grammar::gbnf(model, *choice.gbnf);
  return std::nullopt;
}

void add_grammar_options(CLI::App& app, GrammarFiles& files) {
  CLI::Option* schema = app.add_option("--json-schema", files.json_schema,
                                       "the answer is JSON that is valid under this JSON Schema")
                            ->option_text("FILE");
  CLI::Option* regex =
      app.add_option("--regex", files.regex, "the whole answer matches this regular expression")
          ->option_text("REGEX");
  CLI::Option* gbnf =
      app.add_option("--grammar", files.gbnf, "the answer matches this grammar in GBNF")
          ->option_text("FILE");
  schema->excludes(regex)->excludes(gbnf)->group("Structured output");
  regex->excludes(gbnf)->group("Structured output");
  gbnf->group("Structured output");
}

GrammarChoice read_grammar(const GrammarFiles& files) {
  GrammarChoice choice{.json_schema = {}, .regex = files.regex, .gbnf = {}};
  if (files.json_schema) choice.json_schema = read_text(*files.json_schema);
  if (files.gbnf) choice.gbnf = read_text(*files.gbnf);
  return choice;
}

}  // namespace headrace::cli
