// Grammars as a filter, for comparisons with other implementations and for timing (grammar.py). A
// line of standard input is a JSON object; the output is a line for each.
//
//   in   {"form": "json_schema", "source": "...", "texts": [...], "walks": 5, "seed": 1}
//   out  {"accepted": [...], "walks": [...], "compile_ms": ..., "mask_us": ..., "longest_us": ...}
//        or {"error": "..."}
//
// accepted: whether each text matches. walks: texts of random tokens that the masks allow, those
// that end within 400 tokens. mask_us: the mean time of a mask.
//
//   headrace_grammar_pipe VOCABULARY   a .gguf, a vocabulary of tests/golden/ (.json), or a number
//                                      of random tokens
#include <algorithm>
#include <chrono>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/support/random.h"
#include "tests/support/vocabulary.h"
#include "text/grammar/grammar.h"
#include "weights/gguf.h"

using namespace headrace;
using Clock = std::chrono::steady_clock;
using Json = nlohmann::json;

namespace {

constexpr int kMaxTokens = 400;

// Words of syllables, some after a space or beside punctuation, some in Chinese; runs of spaces.
ModelFile random_vocabulary(std::size_t num_tokens) {
  const char* const syllables[] = {"a",  "e",  "i",  "o",  "u",    "th", "er", "in",
                                   "on", "re", "st", "le", "ing",  "t",  "s",  "n",
                                   "co", "de", "ex", "ly", "tion", "pre"};
  const char* const marks[] = {"\"",  "\",", "\":", "\"}", "\"]", "\\\"",
                               "{\"", "}",   "},",  "[\"", "'"};
  testing::Vocabulary vocabulary = testing::small_vocabulary({});
  std::set<std::string> known(vocabulary.bytes.begin(), vocabulary.bytes.end());
  const auto add = [&](const std::string& token) {
    if (known.insert(token).second) vocabulary.extra.push_back(token);
  };
  std::string spaces;
  for (int i = 0; i < 80; ++i) {
    spaces += "Ġ";
    add(spaces);
    add("Ċ" + spaces);
  }
  testing::Random random(1);
  while (vocabulary.extra.size() + 258 < num_tokens) {
    std::string word = random.chance(60) ? "Ġ" : "";
    const bool is_chinese = random.chance(8);
    for (auto i = random.between(1, 5); i > 0; --i)
      word += is_chinese ? "æĹ¥" : random.pick(syllables);
    if (random.chance(6)) word += random.pick(marks);
    if (random.chance(6)) word = random.pick(marks) + word;
    add(word);
  }
  return vocabulary.model_file("smollm");
}

Result<ModelFile> read_file(const std::string& path) {
  if (path.find_first_not_of("0123456789") == path.npos) return random_vocabulary(std::stoul(path));
  if (path.ends_with(".json")) return testing::read_vocabulary(path).model_file("smollm");
  return read_gguf(path);
}

double microseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

struct Times {
  double total = 0, longest = 0;
  int count = 0;
  void add(double time) {
    total += time;
    longest = std::max(longest, time);
    ++count;
  }
};

class Walker {
 public:
  Walker(text::Grammar::Vocabulary vocabulary, std::shared_ptr<text::Grammar> grammar,
         std::uint64_t seed)
      : vocabulary_(std::move(vocabulary)), grammar_(std::move(grammar)), random_(seed) {}

  // Empty: the walk did not end.
  std::optional<std::string> walk() {
    text::Matcher matcher(grammar_);
    std::string text;
    for (int i = 0; i < kMaxTokens && !matcher.is_finished(); ++i) {
      const Clock::time_point begin = Clock::now();
      if (const Status bad = matcher.allowed(mask_)) return bad->message;
      times_.add(microseconds_since(begin));
      if (matcher.can_end() && random_.chance(50)) return text;
      const text::TokenId token = pick();
      if (vocabulary_->bytes_of(token).empty()) return text;  // an end token
      if (const Status bad = matcher.accept(token)) return bad->message;
      text += vocabulary_->bytes_of(token);
    }
    if (!matcher.is_finished()) return std::nullopt;
    return text;
  }
  const Times& times() const { return times_; }

 private:
  // Prefers what closes strings, lists and objects, so that walks end.
  text::TokenId pick() {
    std::vector<text::TokenId> allowed;
    for (text::TokenId token = 0; token < vocabulary_->vocab_size(); ++token)
      if ((mask_[static_cast<std::size_t>(token) / 64] >> token % 64 & 1) != 0)
        allowed.push_back(token);
    const auto any = [&] {
      return allowed[static_cast<std::size_t>(random_.between(0, std::ssize(allowed) - 1))];
    };
    text::TokenId token = any();
    for (int i = 0; i < 30 && random_.chance(80); ++i) {
      if (vocabulary_->bytes_of(token).find_first_of("\"]}") != std::string_view::npos)
        return token;
      token = any();
    }
    return token;
  }

  text::Grammar::Vocabulary vocabulary_;
  std::shared_ptr<text::Grammar> grammar_;
  testing::Random random_;
  std::vector<std::uint64_t> mask_;
  Times times_;
};

Json answer(const Json& request, const text::Grammar::Vocabulary& vocabulary) {
  const std::map<std::string, decltype(&text::Grammar::from_regex)> forms = {
      {"json_schema", text::Grammar::from_json_schema},
      {"regex", text::Grammar::from_regex},
      {"gbnf", text::Grammar::from_gbnf}};
  const Clock::time_point begin = Clock::now();
  const auto made =
      forms.at(request.at("form"))(request.at("source").get<std::string>(), vocabulary);
  const double compile = microseconds_since(begin);
  if (!made.ok()) return {{"error", made.failure().message}};
  Json accepted = Json::array(), walks = Json::array();
  for (const Json& text : request.value("texts", Json::array())) {
    text::Matcher matcher(made.value());
    accepted.push_back(!matcher.accept(text.get<std::string>()) && matcher.can_end());
  }
  Walker walker(vocabulary, made.value(), request.value("seed", 0));
  for (int i = request.value("walks", 0); i > 0; --i)
    if (const auto text = walker.walk()) walks.push_back(*text);
  const Times& times = walker.times();
  return {{"accepted", accepted},
          {"walks", walks},
          {"compile_ms", compile / 1000},
          {"num_masks", times.count},
          {"mask_us", times.total / std::max(times.count, 1)},
          {"longest_us", times.longest}};
}

}  // namespace

int main(int argc, char** argv) {
  Result<ModelFile> file =
      argc == 2 ? read_file(argv[1]) : Failure{ErrorCode::invalid_argument, "expected VOCABULARY"};
  Result<text::Tokenizer> tokenizer =
      file.ok() ? text::Tokenizer::make(file.value()) : std::move(file.failure());
  if (!tokenizer.ok()) {
    std::cerr << "headrace_grammar_pipe: " << tokenizer.failure().message << '\n';
    return 1;
  }
  const Clock::time_point begin = Clock::now();
  const auto vocabulary = std::make_shared<const text::VocabularyTrie>(tokenizer.value());
  std::cerr << vocabulary->vocab_size() << " tokens, trie of " << vocabulary->nodes().size()
            << " nodes in " << microseconds_since(begin) / 1000 << " ms\n";
  for (std::string line; std::getline(std::cin, line);)
    std::cout << answer(Json::parse(line), vocabulary)
                     .dump(-1, ' ', false, Json::error_handler_t::replace)
              << std::endl;
}
