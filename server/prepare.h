// What comes before the engine: bodies are parsed, prompts become tokens, grammars are compiled.
#pragma once

#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "exchange.h"
#include "request.h"

namespace headrace::server {

// A completion that the engine can compute.
struct Completion {
  CompletionRequest parsed;  // its request has the grammar
  std::vector<std::vector<std::int32_t>> prompts;
  std::vector<std::string> prompt_texts;  // with has_echo
};

struct Prepared {
  HttpReply reply = {};
  std::unique_ptr<Completion> completion = {};  // null: the reply is the answer
};

// Throws ApiError: another model than the one that is served.
void check_model(const std::string& name, const std::string& served_name);

// Takes POST requests. Used on one thread.
class Preparer {
 public:
  // An empty chat_template: the model's own.
  Preparer(const Model& model, std::int64_t max_tokens, std::string model_name,
           std::string chat_template);

  Prepared prepare(const HttpRequest& request);

 private:
  HttpReply tokenize(const std::string& body) const;
  HttpReply detokenize(const std::string& body) const;
  Completion complete(Form form, const std::string& body);
  std::vector<std::int32_t> chat_prompt(const CompletionRequest& request) const;
  std::vector<std::vector<std::int32_t>> prompts_of(const CompletionRequest& request) const;
  Grammar compiled(const GrammarText& text);

  const Model& model_;
  std::int64_t max_tokens_;
  std::string model_name_, chat_template_;
  CallFormat call_format_;
  // Compiled last, the latest first.
  std::list<std::pair<GrammarText, Grammar>> grammars_;
};

}  // namespace headrace::server
