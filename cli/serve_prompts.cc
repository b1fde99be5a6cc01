#include "serve_prompts.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "files.h"
#include "headrace/headrace.hpp"

namespace headrace::cli {
namespace {

using Json = nlohmann::ordered_json;

// Chats are texts: words that are one token in most vocabularies.
constexpr std::array kWords = {
    "the",   "of",    "and",   "to",   "in",    "is",   "that", "for",   "was",   "on",   "are",
    "with",  "they",  "at",    "be",   "this",  "have", "from", "or",    "one",   "had",  "by",
    "word",  "but",   "not",   "what", "all",   "were", "we",   "when",  "your",  "can",  "said",
    "there", "use",   "an",    "each", "which", "she",  "do",   "how",   "their", "if",   "will",
    "up",    "other", "about", "out",  "many",  "then", "them", "these", "so",    "some", "her",
    "would", "make",  "like",  "him",  "into",  "time", "has",  "look",  "two"};

constexpr std::int64_t kPrefixStream = -1;
constexpr std::int64_t kShuffleStream = -2;

std::string words_of(const std::vector<std::int64_t>& tokens) {
  std::string text;
  for (const std::int64_t token : tokens) {
    if (!text.empty()) text += ' ';
    text += kWords[static_cast<std::size_t>(token) % kWords.size()];
  }
  return text;
}

[[noreturn]] void fail_file(const std::string& where, const std::string& reason) {
  throw Error(HEADRACE_INVALID_ARGUMENT,
              where + ": " + reason +
                  "; expected [{\"conversations\": [{\"from\": \"human\", \"value\": \"...\"}]}]");
}

// The text of a conversation's first turn; empty if it is not a human's.
std::string first_prompt(const Json& conversation, const std::string& where) {
  const auto turns =
      conversation.is_object() ? conversation.find("conversations") : Json::const_iterator();
  if (!conversation.is_object() || turns == conversation.end() || !turns->is_array())
    fail_file(where, "no array \"conversations\"");
  if (turns->empty()) return {};
  const Json& turn = turns->front();
  const auto string_of = [&](const char* key) {
    if (!turn.is_object() || !turn.contains(key) || !turn[key].is_string())
      fail_file(where, "the first turn has no string \"" + std::string(key) + '"');
    return turn[key].get<std::string>();
  };
  const std::string from = string_of("from");
  return from == "human" || from == "user" ? string_of("value") : std::string();
}

}  // namespace

// SplitMix64 (Steele, Lea, Flood, 2014); each stream starts at its own place.
RandomNumbers::RandomNumbers(std::int64_t seed, std::int64_t stream)
    : state_(static_cast<std::uint64_t>(seed)) {
  state_ = next() + static_cast<std::uint64_t>(stream);
  state_ = next();
}

std::uint64_t RandomNumbers::next() {
  std::uint64_t bits = state_ += 0x9e3779b97f4a7c15u;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
  return bits ^ (bits >> 31);
}

std::int64_t RandomNumbers::below(std::int64_t limit) {
  return static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(limit));
}

double RandomNumbers::unit() { return (static_cast<double>(next() >> 11) + 1) * 0x1p-53; }

ServePrompts::ServePrompts(const PromptOptions& options) : options_(options) {
  if (options.kind != PromptKind::sharegpt) return;
  texts_ = sharegpt_prompts(read_text(options.file), options.file);
  RandomNumbers random(options.seed, kShuffleStream);
  for (std::size_t i = texts_.size(); i > 1; --i)
    std::swap(texts_[i - 1],
              texts_[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(i)))]);
}

std::vector<std::int64_t> ServePrompts::tokens(std::int64_t idx) const {
  RandomNumbers shared(options_.seed, kPrefixStream), own(options_.seed, idx);
  std::vector<std::int64_t> tokens;
  for (std::int64_t i = 0; i < options_.prompt_tokens; ++i)
    tokens.push_back((i < options_.prefix_tokens ? shared : own).below(options_.vocab));
  return tokens;
}

std::string ServePrompts::body(std::int64_t idx) const {
  Json prompt;
  if (options_.kind == PromptKind::sharegpt)
    prompt = texts_[static_cast<std::size_t>(idx) % texts_.size()];
  else if (options_.is_chat)
    prompt = words_of(tokens(idx));
  else
    prompt = tokens(idx);
  Json body = {{"model", options_.model}};
  if (options_.is_chat)
    body["messages"] = Json::array({{{"role", "user"}, {"content", std::move(prompt)}}});
  else
    body["prompt"] = std::move(prompt);
  body["max_tokens"] = options_.answer_tokens;
  body["temperature"] = options_.temperature;
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  if (options_.ignore_eos) body["ignore_eos"] = true;
  // The name of the model comes from the command line and may be invalid UTF-8.
  return body.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::vector<std::string> sharegpt_prompts(const std::string& text, const std::string& path) {
  Json conversations;
  try {
    conversations = Json::parse(text);
  } catch (const Json::parse_error& error) {
    const auto end = text.begin() + static_cast<std::ptrdiff_t>(std::min(error.byte, text.size()));
    fail_file(path + ':' + std::to_string(1 + std::count(text.begin(), end, '\n')), "invalid JSON");
  }
  if (!conversations.is_array()) fail_file(path, "not a JSON array");
  std::vector<std::string> prompts;
  for (std::size_t i = 0; i < conversations.size(); ++i) {
    std::string prompt =
        first_prompt(conversations[i], path + ": conversation " + std::to_string(i + 1));
    if (!prompt.empty() && prompt.size() <= kMaxPromptBytes) prompts.push_back(std::move(prompt));
  }
  if (prompts.empty())
    fail_file(path, "no conversation begins with a human turn of 1 to " +
                        std::to_string(kMaxPromptBytes) + " bytes");
  return prompts;
}

}  // namespace headrace::cli
