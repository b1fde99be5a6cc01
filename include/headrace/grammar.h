/** @file
 * Headrace: grammars, for structured output. A grammar describes what a generated text must match,
 * and is compiled for the vocabulary of a model. A generation with a grammar draws only tokens that
 * can lead to a match. It ends where nothing may follow, or with an end-of-text token where the
 * text may end. The conventions are those of headrace.h.
 *
 *   headrace_grammar_create_regex(model, regex, strlen(regex), &grammar);
 *   request.grammar = grammar;                     // of engine.h; or options.grammar of model.h
 *
 * Any number of requests, sessions and threads may share a grammar. It may outlive the model, but
 * is used with that model alone.
 */
#ifndef HEADRACE_GRAMMAR_H_
#define HEADRACE_GRAMMAR_H_

#include "headrace/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/** JSON that is valid under a JSON Schema: num_bytes of UTF-8. Properties come in the order of the
 * schema; an object with `properties` has no others unless additionalProperties says so; {"type":
 * "object"} is any object. invalid_argument: the place in the schema and the rule. unsupported: a
 * keyword, by its name. docs/structured_output.md lists those that are known. */
HEADRACE_API headrace_status headrace_grammar_create_json_schema(const headrace_model* model,
                                                                 const char* schema,
                                                                 size_t num_bytes,
                                                                 headrace_grammar** grammar);
/** Texts that a regular expression matches as a whole, in the syntax that ECMAScript and Python
 * share. regex: num_bytes of UTF-8. invalid_argument: line, column and rule, or too many states.
 * unsupported: the construct, such as lookaround. */
HEADRACE_API headrace_status headrace_grammar_create_regex(const headrace_model* model,
                                                           const char* regex, size_t num_bytes,
                                                           headrace_grammar** grammar);
/** Texts of a grammar in GBNF, the syntax of llama.cpp. They begin with its rule root. Errors as
 * above; left recursion is refused. */
HEADRACE_API headrace_status headrace_grammar_create_gbnf(const headrace_model* model,
                                                          const char* gbnf, size_t num_bytes,
                                                          headrace_grammar** grammar);
/** Generations that use the grammar keep what they need. NULL is allowed. */
HEADRACE_API void headrace_grammar_destroy(headrace_grammar* grammar);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* HEADRACE_GRAMMAR_H_ */
