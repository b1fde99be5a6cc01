#include "text/grammar/json_schema.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/random.h"
#include "tests/support/vocabulary.h"
#include "text/grammar/grammar.h"

namespace headrace::text {
namespace {

using headrace::testing::Random;
using Texts = std::vector<std::string_view>;

const Tokenizer& tokenizer() {
  static const Tokenizer made = [] {
    headrace::testing::Vocabulary vocabulary = headrace::testing::small_vocabulary(
        {"t r", "tr u", "tru e", "{ \"", "\" :", "\" ,", "\" }", "\" ]", "[ \"", "0 1", "} ,"});
    return std::move(Tokenizer::make(vocabulary.model_file("smollm")).value());
  }();
  return made;
}

Grammar::Vocabulary vocabulary() {
  static const auto made = std::make_shared<const VocabularyTrie>(tokenizer());
  return made;
}

std::shared_ptr<Grammar> schema(std::string_view text) {
  Result<std::shared_ptr<Grammar>> made = Grammar::from_json_schema(text, vocabulary());
  EXPECT_TRUE(made.ok()) << text << ": " << (made.ok() ? "" : made.failure().message);
  return made.value();
}

void expect_matches(std::string_view text, const Texts& valid, const Texts& others) {
  const auto grammar = schema(text);
  for (const bool is_valid : {true, false})
    for (const std::string_view value : is_valid ? valid : others) {
      Matcher matcher(grammar);
      EXPECT_EQ(!matcher.accept(value) && matcher.can_end(), is_valid) << text << " on " << value;
    }
}

TEST(JsonSchema, Types) {
  expect_matches("true", {"null", "[]", "{}", "1", "\"a\"", R"({"a": [1, {"b": null}]})"},
                 {"", "nul", "[1,]", "{a:1}", "01", "\"", "[", "1 "});
  expect_matches(R"({"type": "null"})", {"null"}, {"true"});
  expect_matches(R"({"type": ["boolean", "null"]})", {"true", "false", "null"}, {"1"});
  expect_matches(R"({"type": "integer"})", {"0", "-12", "9999999999999999999"},
                 {"01", "1.0", "1e2", "+1", "-", "10000000000000000000"});
  expect_matches(R"({"type": "number"})", {"0", "-1.50", "2e10", "1E-9", "1.5e+199"},
                 {"1.", ".5", "1e", "1e200", "1e1000"});
  expect_matches(R"({"type": "object"})", {"{}", R"({"a":1,"b":{}})"}, {"[]", R"({"a"})"});
}

TEST(JsonSchema, Strings) {
  expect_matches(R"({"type": "string"})",
                 {R"("")", R"("é\n\"\\\u00e9\ud83d\ude00")", "\"\xF0\x9F\x98\x80\""},
                 {R"("\x")", "\"\n\"", R"("\ud83d")", R"("\ude00")", R"("\u12")", "\"\xC3\""});
  expect_matches(R"({"type": "string", "minLength": 2, "maxLength": 3})",
                 {R"("ab")", R"("\nbé")", R"("\ud83d\ude00b")"}, {R"("a")", R"("abcd")"});
  expect_matches(R"({"type": "string", "pattern": "^a.\"[\\d\\n]$"})",
                 {R"("ax\"7")", R"("ax\"\n")"}, {R"("ax"7")", R"("ax\"77")", R"("bax\"7")"});
  expect_matches(R"({"type": "string", "pattern": "b|^c"})", {R"("b")", R"("abc")", R"("cd")"},
                 {R"("a")", R"("ac")"});
}

TEST(JsonSchema, Formats) {
  const struct {
    std::string_view format;
    Texts valid, others;
  } cases[] = {
      {"date",
       {"2024-01-31", "1999-11-30", "0001-01-01", "0010-01-01", "0100-01-01", "1000-01-01"},
       {"2024-13-01", "2023-02-30", "2023-04-31", "23-1-1", "0000-01-01"}},
      {"time", {"23:59:59Z", "00:00:00.5+02:00"}, {"24:00:00Z", "12:00:00"}},
      {"date-time", {"2024-02-28T10:00:00Z"}, {"2024-02-28", "2024-02-28 10:00:00Z"}},
      {"duration", {"P1Y2M", "PT5S", "P3W", "P1DT2H"}, {"P", "PT", "1D"}},
      {"email", {"a.b+c@x-y.org"}, {"a@", "@b", "a b@c"}},
      {"hostname", {"a", "a-b.example"}, {"-a", "a-", "a..b"}},
      {"ipv4", {"0.0.0.0", "255.249.10.1"}, {"256.1.1.1", "1.1.1", "01.1.1.1"}},
      {"uuid", {"123e4567-e89b-12d3-a456-426614174000"}, {"123e4567"}},
  };
  for (const auto& c : cases) {
    const std::string text = R"({"type": "string", "format": ")" + std::string(c.format) + "\"}";
    for (const bool is_valid : {true, false})
      for (const std::string_view value : is_valid ? c.valid : c.others) {
        const std::string quoted = '"' + std::string(value) + '"';
        is_valid ? expect_matches(text, {quoted}, {}) : expect_matches(text, {}, {quoted});
      }
  }
}

TEST(JsonSchema, Objects) {
  const std::string_view text = R"({"type": "object", "required": ["b"],
      "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}, "c": {"type": "null"}}})";
  expect_matches(text,
                 {R"({"b":true})", R"({"a": 1, "b": false, "c": null})", R"({"b":true,"c":null})",
                  "{\n  \"a\": 1,\n  \"b\": true\n}"},
                 {"{}", R"({"a":1})", R"({"b":true,"a":1})", R"({"b":true,})", R"({"b":1})",
                  R"({"b":true,"d":1})", R"({"b":true,"b":true})"});
  expect_matches(
      R"({"type": "object", "properties": {"a": {"type": "null"}, "ab": {"type": "null"}},
                     "additionalProperties": {"type": "integer"}})",
      {"{}", R"({"a":null})", R"({"x":1})", R"({"a":null,"ab":null,"abc":1,"b":2,"":3})"},
      {R"({"x":null})", R"({"a":1})", R"({"ab":1})", R"({"x":1,"a":1})", R"({"\u0061":1})"});
  expect_matches(R"({"type": "object", "properties": {}, "additionalProperties": false})",
                 {"{}", "{ }"}, {R"({"a":1})"});
}

TEST(JsonSchema, Arrays) {
  expect_matches(R"({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3})",
                 {"[1]", "[1, 2,3]", "[\n  1,\n  2\n]"}, {"[]", "[1,2,3,4]", "[true]", "[1,]"});
  expect_matches(R"({"type": "array", "items": {"type": "null"}, "maxItems": 0})", {"[]", "[ ]"},
                 {"[null]"});
  expect_matches(R"({"type": "array", "minItems": 2})", {"[1,{}]", "[[],[],[]]"}, {"[1]"});
}

TEST(JsonSchema, ValuesAndChoices) {
  expect_matches(R"({"enum": ["a", 1, null, {"x": [1]}, "\"\n"]})",
                 {R"("a")", "1", "null", R"({"x": [1]})", R"({"x":[1]})", R"("\"\n")"},
                 {"a", "2", R"({"x":[2]})", R"("b")"});
  expect_matches(R"({"type": "string", "enum": ["a", 1]})", {R"("a")"}, {"1"});
  expect_matches(R"({"const": true})", {"true"}, {"false"});
  expect_matches(R"({"anyOf": [{"type": "integer"}, {"type": "array", "items": {"const": 1}}]})",
                 {"5", "[1]"}, {"[5]", "true"});
}

TEST(JsonSchema, References) {
  expect_matches(R"({"$ref": "#/$defs/node", "$defs": {"node": {"type": "object",
      "properties": {"value": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/node"},
      {"type": "null"}]}}, "required": ["value", "next"]}}})",
                 {R"({"value":1,"next":null})", R"({"value":1,"next":{"value":2,"next":null}})"},
                 {R"({"value":1})", R"({"value":1,"next":{}})"});
  expect_matches(R"({"type": "array", "items": {"$ref": "#"}})", {"[]", "[[],[[]]]"}, {"[1]"});
  expect_matches(R"({"allOf": [{"$ref": "#/$defs/a~1b"}], "$defs": {"a/b": {"type": "null"}}})",
                 {"null"}, {"1"});
}

// Every number near the bounds, of every kind of range.
TEST(JsonSchema, Ranges) {
  for (const std::int64_t low : {-120, -12, -1, 0, 1, 7, 99, 105})
    for (const std::int64_t high : {-121, -13, -1, 0, 1, 8, 100, 1234}) {
      for (const bool is_exclusive : {false, true}) {
        const std::string keys = is_exclusive
                                     ? R"("exclusiveMinimum": )" + std::to_string(low) +
                                           R"(, "exclusiveMaximum": )" + std::to_string(high)
                                     : R"("minimum": )" + std::to_string(low) + R"(, "maximum": )" +
                                           std::to_string(high);
        for (const std::string type : {"integer", "number"}) {
          const std::string text = R"({"type": ")" + type + "\", " + keys + "}";
          Result<std::shared_ptr<Grammar>> made = Grammar::from_json_schema(text, vocabulary());
          bool has_any = false;
          for (std::int64_t tenths = -13000; tenths <= 13000; ++tenths) {
            if (type == "integer" && tenths % 10 != 0) continue;
            const bool is_valid = is_exclusive ? low * 10 < tenths && tenths < high * 10
                                               : low * 10 <= tenths && tenths <= high * 10;
            has_any |= is_valid;
            const std::int64_t near =
                std::min(std::abs(tenths - low * 10), std::abs(tenths - high * 10));
            if (!made.ok() || (near > 25 && tenths % 70 != 0)) continue;
            std::string value = std::to_string(std::abs(tenths) / 10);
            if (tenths < 0) value.insert(0, "-");
            if (tenths % 10 != 0) value += '.' + std::to_string(std::abs(tenths) % 10);
            Matcher matcher(made.value());
            ASSERT_EQ(!matcher.accept(value) && matcher.can_end(), is_valid)
                << text << ' ' << value;
          }
          ASSERT_EQ(made.ok(), has_any) << text;
        }
      }
    }
  expect_matches(R"({"type": "integer", "minimum": 10})", {"10", "9999999999999999999"},
                 {"9", "-10"});
  expect_matches(R"({"type": "number", "exclusiveMaximum": 0})", {"-0.1", "-5"},
                 {"0", "-0", "0.1"});
  expect_matches(R"({"type": "integer", "minimum": 0.5, "maximum": 2.5})", {"1", "2"}, {"0", "3"});
}

// Two bounds of one side, in any order: the tighter one holds.
TEST(JsonSchema, EveryBoundHoldsBesideAllOthers) {
  const char* const keys[] = {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"};
  constexpr int kAbsent = 2, kKinds = 4;  // -1, 0, 1, absent
  for (int all = 0; all < kKinds * kKinds * kKinds * kKinds; ++all)
    for (const bool is_reversed : {false, true})
      for (const std::string type : {"integer", "number"}) {
        int bounds[4];
        std::string members;
        for (int i = 0, rest = all; i < 4; ++i, rest /= kKinds) {
          bounds[i] = rest % kKinds - 1;
          if (bounds[i] == kAbsent) continue;
          const std::string member = format_text(", \"{}\": {}", keys[i], bounds[i]);
          members = is_reversed ? member + members : members + member;
        }
        const std::string text = R"({"type": ")" + type + '"' + members + '}';
        Result<std::shared_ptr<Grammar>> made = Grammar::from_json_schema(text, vocabulary());
        bool has_any = false;
        for (int halves = -5; halves <= 5; ++halves) {
          if (type == "integer" && halves % 2 != 0) continue;
          const double x = halves / 2.0;
          const bool is_valid =
              (bounds[0] == kAbsent || x >= bounds[0]) && (bounds[1] == kAbsent || x > bounds[1]) &&
              (bounds[2] == kAbsent || x <= bounds[2]) && (bounds[3] == kAbsent || x < bounds[3]);
          has_any |= is_valid;
          if (!made.ok()) continue;
          const std::string value = std::string(halves < 0 ? "-" : "") +
                                    std::to_string(std::abs(halves) / 2) +
                                    (halves % 2 != 0 ? ".5" : "");
          Matcher matcher(made.value());
          ASSERT_EQ(!matcher.accept(value) && matcher.can_end(), is_valid) << text << ' ' << value;
        }
        ASSERT_EQ(made.ok(), has_any) << text;
      }
}

// Bounds of an integer may lie between integers, of both kinds of bounds and both signs.
TEST(JsonSchema, IntegersLieBetweenFractions) {
  for (const bool is_exclusive_low : {false, true})
    for (const bool is_exclusive_high : {false, true})
      for (int low = -7; low <= 7; ++low)
        for (int high = low; high <= 8; ++high) {  // in halves
          const std::string text =
              format_text(R"({"type": "integer", "{}": {}, "{}": {}})",
                          is_exclusive_low ? "exclusiveMinimum" : "minimum", low / 2.0,
                          is_exclusive_high ? "exclusiveMaximum" : "maximum", high / 2.0);
          Result<std::shared_ptr<Grammar>> made = Grammar::from_json_schema(text, vocabulary());
          bool has_any = false;
          for (int value = -5; value <= 5; ++value) {
            const bool is_valid = (is_exclusive_low ? 2 * value > low : 2 * value >= low) &&
                                  (is_exclusive_high ? 2 * value < high : 2 * value <= high);
            has_any |= is_valid;
            if (!made.ok()) continue;
            Matcher matcher(made.value());
            ASSERT_EQ(!matcher.accept(std::to_string(value)) && matcher.can_end(), is_valid)
                << text << ' ' << value;
          }
          ASSERT_EQ(made.ok(), has_any) << text;
        }
}

TEST(JsonSchema, ErrorsNameThePlaceAndTheRemedy) {
  const std::pair<std::string_view, std::string_view> cases[] = {
      {"{", "json_schema: line 1, column 2: no key in quotes; pass valid JSON"},
      {R"({"type": "strin"})", "json_schema: #/type: not a type; choose from object, array"},
      {R"({"type": "array", "uniqueItems": true})", "#: keyword 'uniqueItems' is not supported"},
      {R"({"type": "object", "properties": {"a": {"not": {}}}})",
       "#/properties/a: keyword 'not' is not supported"},
      {R"({"minLength": 1})", "#: 'minLength' without 'type'; add \"type\""},
      {R"({"anyOf": [{}], "type": "object"})", "'type' beside 'anyOf' is not supported"},
      {R"({"$ref": "#/$defs/a"})", "#/$ref: no '#/$defs/a' in the schema; add it"},
      {R"({"$ref": "http://x"})", "must name a place in this schema"},
      {R"({"type": "string", "pattern": "("})", "#/pattern: regex: line 1, column 2: a group"},
      {R"({"type": "string", "pattern": "a", "minLength": 2})", "only one of 'pattern', 'format'"},
      {R"({"type": "string", "format": "iri"})",
       "'iri' is not supported; choose from date, date-time"},
      {R"({"type": "string", "minLength": 3, "maxLength": 2})", "minLength exceeds maxLength"},
      {R"({"type": "string", "minLength": -1})", "#/minLength: must be a whole number"},
      {R"({"type": "number", "minimum": 0.5})", "#/minimum=0.5: only whole bounds are supported"},
      {R"({"type": "integer", "minimum": 2, "maximum": 1})", "no number lies in its range"},
      {R"({"type": "object", "properties": {}, "required": ["a"]})", "'a' is not in properties"},
      {R"({"enum": []})", "#/enum: must be a list with at least one element"},
      {R"({"enum": [1], "type": "string"})", "no value of enum or const has the type"},
      {R"({"allOf": [{}, {}]})", "allOf of 2 schemas is not supported"},
      {R"({"type": "array", "items": [{}]})", "#/items: must be an object or true"},
      {R"({"type": "array", "items": false})", "#/items: false matches nothing"},
      {R"({"anyOf": [{"$ref": "#"}, {"type": "null"}]})", "rule '#' refers to itself"},
      {R"({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})",
       "no text matches"},
      {R"({"a": 1, "a": 2})", "a second key 'a'"},
      {R"({"type": "string", "pattern": "^(a{1000}){1000}$"})", "exceeds 200000 states"},
  };
  for (const auto& [text, expected] : cases) {
    Result<std::shared_ptr<Grammar>> made = Grammar::from_json_schema(text, vocabulary());
    const std::string message = made.ok() ? "accepted" : made.failure().message;
    EXPECT_NE(message.find(expected), std::string::npos) << text << ": " << message;
  }
}

// Random walks over the allowed tokens give JSON that another parser reads.
TEST(JsonSchema, RandomWalksAreJson) {
  const auto grammar = schema("true");
  Random random(5);
  std::vector<std::uint64_t> mask;
  int num_ended = 0;
  for (int i = 0; i < 500; ++i) {
    Matcher matcher(grammar);
    std::string text;
    for (int step = 0; step < 60 && !matcher.is_finished(); ++step) {
      ASSERT_FALSE(matcher.allowed(mask));
      std::vector<TokenId> allowed;
      for (TokenId token = 0; token < tokenizer().vocab_size(); ++token)
        if ((mask[static_cast<std::size_t>(token) / 64] >> token % 64 & 1) != 0)
          allowed.push_back(token);
      const TokenId token =
          allowed[static_cast<std::size_t>(random.between(0, std::ssize(allowed) - 1))];
      if (std::ranges::binary_search(tokenizer().end_tokens(), token)) break;
      text += tokenizer().bytes_of(token);
      ASSERT_FALSE(matcher.accept(token));
    }
    if (!matcher.can_end()) continue;
    ++num_ended;
    EXPECT_TRUE(nlohmann::json::accept(text)) << text;
  }
  EXPECT_GT(num_ended, 100);
}

}  // namespace
}  // namespace headrace::text
