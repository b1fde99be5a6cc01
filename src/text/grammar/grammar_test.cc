#include "text/grammar/grammar.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/random.h"
#include "tests/support/vocabulary.h"

namespace headrace::text {
namespace {

using headrace::testing::Random;

// Every byte is a token; so are the results of the merges.
const Tokenizer& tokenizer() {
  static const Tokenizer made = [] {
    headrace::testing::Vocabulary vocabulary = headrace::testing::small_vocabulary(
        {"a b",  "ab a", "aba b", "b a", "b b",   "bb b",  "0 1", "1 2", "12 3", "{ \"", "\" :",
         "\" ,", "\" }", "a \"",  "Ã ©", "a \"}", "a \",", "( (", ") )", ") ,",  "] ]",  "[ ["});
    // Longer than Automaton::kClassBytes.
    for (const std::size_t length : {23, 24, 25, 40}) {
      const std::string run(length, 'a');
      for (const char* end : {"", "b", ")", "),", "bb"}) vocabulary.extra.push_back(run + end);
    }
    return std::move(Tokenizer::make(vocabulary.model_file("smollm")).value());
  }();
  return made;
}

Grammar::Vocabulary vocabulary() {
  static const auto made = std::make_shared<const VocabularyTrie>(tokenizer());
  return made;
}

std::shared_ptr<Grammar> value(Result<std::shared_ptr<Grammar>> made) {
  EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.failure().message);
  return made.value();
}
std::shared_ptr<Grammar> regex(std::string_view text) {
  return value(Grammar::from_regex(text, vocabulary()));
}
std::shared_ptr<Grammar> gbnf(std::string_view text) {
  return value(Grammar::from_gbnf(text, vocabulary()));
}

bool matches(const std::shared_ptr<Grammar>& grammar, std::string_view text) {
  Matcher matcher(grammar);
  return !matcher.accept(text) && matcher.can_end();
}

std::string message(Result<std::shared_ptr<Grammar>> made) {
  return made.ok() ? "accepted" : made.failure().message;
}

TEST(Regex, MatchesTheWholeText) {
  const struct {
    std::string_view regex;
    std::vector<std::string_view> matching, others;
  } cases[] = {
      {"abc", {"abc"}, {"", "ab", "abcd"}},
      {"a|bc|", {"a", "bc", ""}, {"b", "abc"}},
      {"a*b+c?", {"b", "aabbc"}, {"a", "ac", "bcc"}},
      {"(ab){2,3}", {"abab", "ababab"}, {"ab", "abababab"}},
      {"a{2}b{2,}", {"aabb", "aabbb"}, {"aab", "abb"}},
      {"a{,2}", {"", "aa"}, {"aaa"}},
      {"[a-c\\d_-]+", {"a1-_"}, {"d", ""}},
      {"[^a-c]", {"d", "é", "\xF0\x9F\x98\x80"}, {"a", "\xC3", "dd"}},
      {".", {"é", "x"}, {"\n", ""}},
      {"[é-ü]", {"é", "ü"}, {"e", "ý", "\xC3"}},
      {"\\x41\\u00e9\\u{1F600}", {"Aé\xF0\x9F\x98\x80"}, {"A"}},
      {"^a$", {"a"}, {"^a$"}},
      {"(?:a|(?<n>b))\\.", {"a.", "b."}, {"ab"}},
      {"\\s\\S\\w\\W", {" aa-"}, {"aaaa"}},
      {"(a*)*b", {"b", "aaab"}, {"a"}},
      {"a+?b", {"aab"}, {"b"}},
  };
  for (const auto& c : cases) {
    const auto grammar = regex(c.regex);
    for (const std::string_view text : c.matching)
      EXPECT_TRUE(matches(grammar, text)) << c.regex << " on " << text;
    for (const std::string_view text : c.others)
      EXPECT_FALSE(matches(grammar, text)) << c.regex << " on " << text;
  }
}

TEST(Regex, ErrorsNameThePlaceAndTheRemedy) {
  const std::pair<std::string_view, std::string_view> cases[] = {
      {"a(b", "regex: line 1, column 4: a group does not end; add ')'"},
      {"ab)", "column 3: ')' without '('"},
      {"*a", "column 1: nothing to repeat"},
      {"[a", "a class does not end"},
      {"[b-a]", "not a range of characters"},
      {"a{3,2}", "not a repetition"},
      {"a{1000000}", "counts of at most 100000"},
      {"(?=a)", "lookaround and flags of groups: not supported"},
      {"(a)\\1", "\\1: not supported"},
      {"\\bword", "\\b: not supported"},
      {"a^b", "^ and $ inside the expression: not supported"},
      {"\xFF", "not valid UTF-8"},
      {"((a{1000}){1000}){1000}", "exceeds 200000 states"},
  };
  for (const auto& [text, expected] : cases)
    EXPECT_NE(message(Grammar::from_regex(text, vocabulary())).find(expected), std::string::npos)
        << text << ": " << message(Grammar::from_regex(text, vocabulary()));
  EXPECT_NE(message(Grammar::from_regex(std::string(300, '('), vocabulary())).find("too deeply"),
            std::string::npos);
}

TEST(Gbnf, RulesCallEachOther) {
  const auto grammar = gbnf(R"~(
# arithmetic
root ::= expr "\n"
expr ::= term ([-+] term)*   # left to right
term ::= num
       | "(" expr ")"
num  ::= [0-9]{1,3} ("." [0-9]+)?
)~");
  for (const std::string_view text : {"1\n", "1+22-(3.5+4)\n", "((((7))))\n"})
    EXPECT_TRUE(matches(grammar, text)) << text;
  for (const std::string_view text : {"1", "1+\n", "(1\n", "1)\n", "1234\n"})
    EXPECT_FALSE(matches(grammar, text)) << text;
}

TEST(Gbnf, BlanksLinesAndCommentsMayStandBetweenThePartsOfAGroup) {
  const std::vector<std::string> parts = {"root ::= (", R"("a")", "*", "[bc]", "{1,2}", "d", "|",
                                          "(",          R"("x")", "+", "y",    ")",     "?", ")"};
  const std::string rules = "\nd ::= \"d\"\ny ::= \"y\"";
  const auto expect_same = [&](std::size_t first, std::size_t last, const std::string& blank) {
    std::string text = parts[0];
    for (std::size_t i = 1; i < parts.size(); ++i)
      text += (first <= i && i <= last ? blank : "") + parts[i];
    Result<std::shared_ptr<Grammar>> made = Grammar::from_gbnf(text + rules, vocabulary());
    ASSERT_TRUE(made.ok()) << text << ": " << made.failure().message;
    for (const std::string_view valid : {"aabd", "bcd", "", "xy", "xxy"})
      EXPECT_TRUE(matches(made.value(), valid)) << text << " on " << valid;
    for (const std::string_view other : {"aad", "bcbd", "y", "x", "bcdxy"})
      EXPECT_FALSE(matches(made.value(), other)) << text << " on " << other;
  };
  for (const std::string blank : {"", " ", "\t", "\n", "\r\n", " \n\n ", "# \"(\n", "\n # x\n"}) {
    for (std::size_t i = 1; i < parts.size(); ++i) expect_same(i, i, blank);
    expect_same(1, parts.size() - 1, blank);
  }
}

TEST(Gbnf, RightRecursionNeedsNoStack) {
  const auto grammar = gbnf("root ::= \"a\" root | \"b\"");
  EXPECT_TRUE(matches(grammar, std::string(100'000, 'a') + "b"));
}

TEST(Gbnf, NestingIsBounded) {
  const auto grammar = gbnf("root ::= \"(\" root \")\" | \"x\"");
  EXPECT_TRUE(matches(grammar, std::string(1000, '(') + "x" + std::string(1000, ')')));
  Matcher matcher(grammar);
  const Status bad = matcher.accept(std::string(5000, '('));
  ASSERT_TRUE(bad);
  EXPECT_NE(bad->message.find("nested more than 1024 levels"), std::string::npos);
}

TEST(Gbnf, ErrorsNameThePlaceAndTheRemedy) {
  const std::pair<std::string_view, std::string_view> cases[] = {
      {"", "no rule 'root'; add root ::= ..."},
      {"root ::= item", "no rule 'item'"},
      {"root = \"a\"", "line 1, column 6: no ::= after the name of a rule"},
      {"root ::= \"a\"\nroot ::= \"b\"", "a second rule 'root'"},
      {"root ::= \"a", "a literal does not end"},
      {"root ::= [a", "a class does not end"},
      {"root ::= \"\\q\"", "not an escape"},
      {"root ::= (\"a\"", "a group does not end"},
      {"root ::= \"a\" $", "not a part of a rule"},
      {"root ::= root \"a\" | \"b\"", "rule 'root' refers to itself"},
      {"root ::= a \"x\" | \"b\"\na ::= \"c\"? root", "left recursion"},
      {"root ::= \"a\" root", "no text matches it"},
  };
  for (const auto& [text, expected] : cases)
    EXPECT_NE(message(Grammar::from_gbnf(text, vocabulary())).find(expected), std::string::npos)
        << text << ": " << message(Grammar::from_gbnf(text, vocabulary()));
}

// ---- masks ----

std::string random_expression(Random& random, int depth) {
  const char* const atoms[] = {"a", "b", "0", "1", "2", "é", "[ab]", "[^a]", "\\(", "\""};
  if (depth == 0 || random.chance(30)) return random.pick(atoms);
  const char* const repetitions[] = {"*", "+", "?", "{1,3}", "{2}"};
  switch (random.between(0, 3)) {
    case 0:
      return random_expression(random, depth - 1) + random_expression(random, depth - 1);
    case 1:
      return "(" + random_expression(random, depth - 1) + "|" +
             random_expression(random, depth - 1) + ")";
    case 2:
      return "(" + random_expression(random, depth - 1) + ")" + random.pick(repetitions);
    default:
      return random_expression(random, depth - 1) + random_expression(random, depth - 1) +
             random_expression(random, depth - 1);
  }
}

// Rules that refer to later ones, and to themselves behind a literal.
std::string random_grammar(Random& random) {
  const int num_rules = static_cast<int>(random.between(1, 4));
  std::string text;
  for (int i = 0; i < num_rules; ++i) {
    text += i == 0 ? "root ::= " : "r" + std::to_string(i) + " ::= ";
    const auto num_alternatives = random.between(1, 3);
    for (std::int64_t k = 0; k < num_alternatives; ++k) {
      if (k > 0) text += " | ";
      const auto num_items = random.between(1, 3);
      for (std::int64_t j = 0; j < num_items; ++j) {
        const char* const literals[] = {"\"a\"",    "\"ab\"", "\"(\"", "\")\"",  "[a-b]",
                                        "\"\\\"\"", "\"b\"*", "[^b]",  "\",\"?", "\"é\""};
        if (random.chance(30) && i + 1 < num_rules)
          text += "r" + std::to_string(random.between(i + 1, num_rules - 1)) + " ";
        else if (random.chance(20))
          text +=
              std::string("(\"(\" ") + (i == 0 ? "root" : "r" + std::to_string(i)) + " \")\")? ";
        else
          text += random.pick(literals) + std::string(" ");
      }
    }
    text += "\n";
  }
  return text;
}

void expect_masks_as_by_brute_force(const std::shared_ptr<Grammar>& grammar, Random& random,
                                    const std::string& text) {
  Matcher matcher(grammar);
  std::vector<std::uint64_t> mask;
  for (int step = 0; step < 12; ++step) {
    const Status bad = matcher.allowed(mask);
    ASSERT_FALSE(bad) << bad->message << "\n" << text;
    std::vector<TokenId> allowed;
    for (TokenId token = 0; token < tokenizer().vocab_size(); ++token) {
      const auto i = static_cast<std::size_t>(token);
      const bool is_allowed = (mask[i / 64] >> i % 64 & 1) != 0;
      const bool is_end = std::ranges::binary_search(tokenizer().end_tokens(), token);
      Matcher copy = matcher;
      const bool expected = is_end ? matcher.can_end() : !copy.accept(token);
      ASSERT_EQ(is_allowed, expected) << "token " << token << " of\n" << text;
      if (is_allowed && !is_end) allowed.push_back(token);
    }
    EXPECT_EQ(allowed.empty(), matcher.is_finished()) << text;
    if (allowed.empty()) return;
    const auto pick = random.between(0, std::ssize(allowed) - 1);
    ASSERT_FALSE(matcher.accept(allowed[static_cast<std::size_t>(pick)]));
  }
}

TEST(GrammarMask, EqualsBruteForceOnRandomGrammars) {
  Random random(1);
  for (int i = 0; i < 300; ++i) {
    const std::string text = random_expression(random, 4);
    expect_masks_as_by_brute_force(regex(text), random, text);
  }
  for (int i = 0; i < 300; ++i) {
    const std::string text = random_grammar(random);
    Result<std::shared_ptr<Grammar>> made = Grammar::from_gbnf(text, vocabulary());
    if (made.ok()) expect_masks_as_by_brute_force(made.value(), random, text);
  }
}

// Nodes that are equal up to kClassBytes bytes share a mask; longer tokens tell them apart.
TEST(GrammarMask, EqualsBruteForceWithLongTokens) {
  Random random(2);
  for (const std::string text : {"a{60}b", "a{10,70}b{0,2}", "(a|b){24}", "a*b",
                                 "(a{30}){2}(\\),)?", "a{23}|a{25}\\)|a{40}bb"})
    for (int i = 0; i < 5; ++i) expect_masks_as_by_brute_force(regex(text), random, text);
  for (const std::string text :
       {"root ::= \"a\" root \")\" | \"b\"?",
        "root ::= x \",\"\nx ::= y \")\"\ny ::= \"a\"{20,50} z\nz ::= \"b\"*"})
    for (int i = 0; i < 5; ++i) expect_masks_as_by_brute_force(gbnf(text), random, text);
}

TEST(GrammarMask, ACopyContinuesOnItsOwn) {
  const auto grammar = regex("ab|ac");
  Matcher first(grammar);
  ASSERT_FALSE(first.accept("a"));
  Matcher second = first;
  ASSERT_FALSE(first.accept("b"));
  EXPECT_TRUE(first.is_finished());
  EXPECT_FALSE(second.is_finished());
  ASSERT_TRUE(second.accept("x"));  // changes nothing
  EXPECT_FALSE(second.accept("c"));
}

}  // namespace
}  // namespace headrace::text
