// The grammar that a command's answers must match.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "headrace/model.hpp"

namespace headrace::cli {

// Texts of grammars; at most one is present.
struct GrammarChoice {
  std::optional<std::string> json_schema, regex, gbnf;
};

std::optional<Grammar> make_grammar(const Model& model, const GrammarChoice& choice);

// --json-schema FILE, --regex R, --grammar FILE.
struct GrammarFiles {
  std::optional<std::string> json_schema, regex, gbnf;
};
void add_grammar_options(CLI::App& app, GrammarFiles& files);
GrammarChoice read_grammar(const GrammarFiles& files);

}  // namespace headrace::cli
