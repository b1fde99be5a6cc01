// Grammars of structured output.
#include "capi/model_common.h"
#include "headrace/grammar.h"

namespace headrace::capi {
namespace {

using Compile = Result<std::shared_ptr<text::Grammar>> (*)(std::string_view,
                                                           text::Grammar::Vocabulary);

// `name` is that of the text's argument.
headrace_status create(const headrace_model* model, const char* name, const char* text,
                       size_t num_bytes, Compile compile, headrace_grammar** grammar) {
  return guarded([&] {
    if (grammar == nullptr)
      return fail(null_argument("grammar", "pass the address of a pointer to a grammar"));
    *grammar = nullptr;
    if (model == nullptr) return fail(null_argument("model", "load one first"));
    if (text == nullptr) return fail(null_argument(name, "pass a text of num_bytes bytes"));
    std::call_once(model->has_vocabulary, [&] {
      model->vocabulary = std::make_shared<const text::VocabularyTrie>(model->model.tokenizer);
    });
    auto compiled = compile({text, num_bytes}, model->vocabulary);
    if (!compiled.ok()) return fail(std::move(compiled.failure()));
    *grammar = new headrace_grammar{std::move(compiled.value())};
    return HEADRACE_OK;
  });
}

}  // namespace
}  // namespace headrace::capi

using namespace headrace::capi;  // the functions below are the C face of this namespace

extern "C" {

headrace_status headrace_grammar_create_json_schema(const headrace_model* model, const char* schema,
                                                    size_t num_bytes, headrace_grammar** grammar) {
  return create(model, "schema", schema, num_bytes, headrace::text::Grammar::from_json_schema,
                grammar);
}

headrace_status headrace_grammar_create_regex(const headrace_model* model, const char* regex,
                                              size_t num_bytes, headrace_grammar** grammar) {
  return create(model, "regex", regex, num_bytes, headrace::text::Grammar::from_regex, grammar);
}

headrace_status headrace_grammar_create_gbnf(const headrace_model* model, const char* gbnf,
                                             size_t num_bytes, headrace_grammar** grammar) {
  return create(model, "gbnf", gbnf, num_bytes, headrace::text::Grammar::from_gbnf, grammar);
}

void headrace_grammar_destroy(headrace_grammar* grammar) { delete grammar; }

}  // extern "C"
