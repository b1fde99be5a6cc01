// headrace batch, run from a shell: a tiny file with random weights.
#include <gtest/gtest.h>

#include <cstdio>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "headrace/engine.hpp"
#include "tests/support/program.h"

namespace {

using headrace::testing::run_program;
using headrace::testing::TemporaryFolder;

const std::string kModel = HEADRACE_GOLDEN_DIR "/tiny/tiny_llama3_f16.gguf";

std::vector<nlohmann::json> lines_of(const std::string& text) {
  std::vector<nlohmann::json> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

TEST(BatchProgram, AnswersAsGenerateDoes) {
  const TemporaryFolder folder;
  const std::string file = folder.file(
      "prompts.jsonl",
      "{\"prompt\": \"ab\", \"max_tokens\": 6}\n"
      "\n"
      "{\"prompt\": \"Hello\", \"max_tokens\": 9, \"temperature\": 2, \"seed\": 5, \"id\": \"x\"}\n"
      "{\"prompt\": \"cd\", \"max_tokens\": 5, \"temperature\": 2, \"n\": 2, \"stop\": \"zzz\"}\n");
  const auto result = run_program("batch -m " + kModel + " --raw --streams 2,1 -f " + file);
  ASSERT_EQ(result.exit_code, 0);
  std::map<std::string, std::string> answers;
  for (const auto& line : lines_of(result.out))
    answers[line["id"].dump() + '/' + line["sample"].dump()] = line["text"];
  ASSERT_EQ(answers.size(), 4u);  // printed for 2 streams alone
  const auto generated = [](const std::string& arguments) {
    std::string text = run_program("generate -q --raw -m " + kModel + ' ' + arguments).out;
    text.pop_back();  // the end of the line
    // Bytes that are not UTF-8, as JSON has them.
    using Json = nlohmann::json;
    return Json::parse(Json(text).dump(-1, ' ', false, Json::error_handler_t::replace))
        .get<std::string>();
  };
  EXPECT_EQ(answers.at("1/0"), generated("ab -n 6"));
  EXPECT_EQ(answers.at("\"x\"/0"), generated("Hello -n 9 --temp 2 --seed 5"));
  EXPECT_EQ(answers.at("4/0"), generated("cd -n 5 --temp 2"));
  EXPECT_EQ(answers.at("4/1"), generated("cd -n 5 --temp 2 --seed 1"));
}

TEST(BatchProgram, AnswersMatchTheirGrammars) {
  const TemporaryFolder folder;
  const std::string schema = R"({"type": "object", "properties": {"b": {"type": "boolean"},)"
                             R"( "a": {"enum": [1, 2]}}, "required": ["b", "a"]})";
  const std::string file =
      folder.file("prompts.jsonl",
                  "{\"prompt\": \"ab\", \"temperature\": 3, \"n\": 5, \"json_schema\": " + schema +
                      "}\n"
                      "{\"prompt\": \"ab\", \"regex\": \"[0-9]{3}\"}\n"
                      "{\"prompt\": \"ab\", \"grammar\": \"root ::= \\\"yes\\\"\"}\n");
  const auto result = run_program("batch -q --raw -m " + kModel + " -f " + file);
  ASSERT_EQ(result.exit_code, 0);
  for (const auto& line : lines_of(result.out)) {
    EXPECT_EQ(line["finish"], "stop");
    const std::string text = line["text"];
    if (line["id"] == 1) {
      const auto value = nlohmann::ordered_json::parse(text);
      EXPECT_EQ(value.size(), 2u);
      EXPECT_EQ(value.begin().key(), "b");
      EXPECT_TRUE(value["b"].is_boolean() && (value["a"] == 1 || value["a"] == 2)) << text;
    } else if (line["id"] == 2) {
      EXPECT_EQ(text.size(), 3u);
      EXPECT_EQ(text.find_first_not_of("0123456789"), text.npos);
    } else {
      EXPECT_EQ(text, "yes");
    }
  }
  // The same through generate.
  const std::string schema_file = folder.file("schema.json", R"({"const": [1, null]})");
  const std::string generate = "generate -q --raw -m " + kModel + " ab ";
  EXPECT_EQ(run_program(generate + "--regex '(ab){2}'").out, "abab\n");
  const auto value =
      nlohmann::json::parse(run_program(generate + "--json-schema " + schema_file).out);
  EXPECT_EQ(value, nlohmann::json::parse("[1, null]"));
  const std::string gbnf = folder.file("yes.gbnf", "root ::= \"yes\"");
  EXPECT_EQ(run_program(generate + "--grammar " + gbnf).out, "yes\n");
}

TEST(BatchProgram, SaysHowFastEachNumberOfStreamsIs) {
  const auto result = run_program("2>&1 batch -m " + kModel +
                                  " --raw --streams 1,3 -f - <<END\n"
                                  "{\"prompt\": \"ab\", \"max_tokens\": 4, \"ignore_end\": true}\n"
                                  "END\n");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_NE(result.out.find("headrace: 1 streams: 1 requests in "), std::string::npos);
  EXPECT_NE(result.out.find("headrace: 3 streams: 1 requests in "), std::string::npos);
  EXPECT_NE(result.out.find("answers 4 tokens, "), std::string::npos);
}

// Of one stream: a step for each token of an answer. The last one is not computed with.
TEST(BatchProgram, TokensPerStepAreThoseThatWereComputed) {
  for (const int num_prompts : {1, 3})
    for (const int max_tokens : {1, 4, 9}) {
      std::string lines;
      for (int i = 0; i < num_prompts; ++i)
        lines += "{\"prompt\": \"abcdefgh" + std::to_string(i) +
                 "\", \"ignore_end\": true, \"max_tokens\": " + std::to_string(max_tokens) + "}\n";
      const auto result = run_program("2>&1 batch -m " + kModel +
                                      " --raw --streams 1 -f - <<END\n" + lines + "END\n");
      ASSERT_EQ(result.exit_code, 0);
      const std::string text = result.out.substr(result.out.find("answers "));
      int answers = 0, prompts = 0, cached = 0;
      double rate = 0, per_step = 0;
      ASSERT_EQ(std::sscanf(text.c_str(),
                            "answers %d tokens, %lf tokens/s; prompts %d tokens, %d cached; %lf "
                            "tokens per step",
                            &answers, &rate, &prompts, &cached, &per_step),
                5)
          << text;
      EXPECT_EQ(answers, num_prompts * max_tokens);
      const int computed = prompts - cached + answers - num_prompts;
      EXPECT_NEAR(per_step, static_cast<double>(computed) / answers, 0.051) << text;
    }
}

// As the program prints a text: bytes that are no UTF-8 are replaced.
std::string printed(const std::string& text) {
  using Json = nlohmann::json;
  return Json::parse(Json(text).dump(-1, ' ', false, Json::error_handler_t::replace));
}

// A field of a line, and what it sets of a request.
struct Field {
  std::string name, value;
  std::function<void(headrace::Request&)> set;
};

std::vector<Field> fields_of(const headrace::Model& model, const std::string& stop) {
  using headrace::Request;
  const std::string quoted = nlohmann::json(stop).dump();
  return {{"max_tokens", "7", [](Request& r) { r.max_new_tokens = 7; }},
          {"min_p", "0.3", [](Request& r) { r.sampling.min_p = 0.3; }},
          {"n", "3", [](Request& r) { r.n = 3; }},
          {"prompt", "\"cd\"", [&](Request& r) { r.prompt = model.tokenize("cd"); }},
          {"seed", "4", [](Request& r) { r.sampling.seed = 4; }},
          {"stop", quoted, [=](Request& r) { r.stop = {stop}; }},
          {"stop", "[\"never\", " + quoted + ']',
           [=](Request& r) {
             r.stop = {"never", stop};
           }},
          {"temperature", "0.25", [](Request& r) { r.sampling.temperature = 0.25; }},
          {"temperature", "0", [](Request& r) { r.sampling.temperature = 0; }},
          {"top_k", "2", [](Request& r) { r.sampling.top_k = 2; }},
          {"top_p", "0.1", [](Request& r) { r.sampling.top_p = 0.1; }}};
}

using Samples = std::map<std::int64_t, nlohmann::json>;

Samples answers_of(headrace::Engine& engine, const headrace::Request& request) {
  engine.add(request);
  engine.run();
  Samples answers;
  while (const std::optional<headrace::Output> output = engine.poll())
    answers[output->sample] = {
        {"text", printed(output->text)},
        {"num_tokens", output->tokens.size()},
        {"finish", output->finish == HEADRACE_REQUEST_LENGTH ? "length" : "stop"}};
  return answers;
}

// Each field alone: the answer is that of a request with the same value, and not the one without.
TEST(BatchProgram, EveryFieldChangesTheAnswerAsItsRequest) {
  const headrace::Model model(kModel);
  headrace::Engine engine(model);
  headrace::Request plain{.prompt = model.tokenize("ab"), .max_new_tokens = 40};
  plain.sampling.temperature = 1.5;
  plain.sampling.seed = 3;
  plain.ignore_end = true;
  const Samples without = answers_of(engine, plain);
  const std::string text = without.at(0).at("text");
  const std::vector<Field> fields =
      fields_of(model, std::string(1, text[text.find_first_of("aeiostn")]));
  std::string lines;
  for (const Field& field : fields) {
    std::map<std::string, std::string> all = {{"prompt", "\"ab\""},
                                              {"max_tokens", "40"},
                                              {"temperature", "1.5"},
                                              {"seed", "3"},
                                              {"ignore_end", "true"}};
    all[field.name] = field.value;
    std::string line;
    for (const auto& [name, value] : all)
      line += (line.empty() ? "{\"" : ", \"") + name + "\": " + value;
    lines += line + "}\n";
  }
  const TemporaryFolder folder;
  const auto result = run_program("batch -q --raw -m " + kModel + " -f " + folder.file("p", lines));
  ASSERT_EQ(result.exit_code, 0);
  std::map<std::size_t, Samples> answers;
  for (const auto& line : lines_of(result.out))
    answers[line["id"]][line["sample"]] = {
        {"text", line["text"]}, {"num_tokens", line["num_tokens"]}, {"finish", line["finish"]}};
  for (std::size_t i = 0; i < fields.size(); ++i) {
    headrace::Request request = plain;
    fields[i].set(request);
    const Samples expected = answers_of(engine, request);
    EXPECT_EQ(answers[i + 1], expected) << fields[i].name;
    EXPECT_NE(expected, without) << fields[i].name << " changes nothing";
  }
}

// The lowest runs first; one at a time, so that the answers are printed in that order.
TEST(BatchProgram, PrioritiesOrderTheRequests) {
  const TemporaryFolder folder;
  std::string lines;
  for (const int priority : {0, 3, -2, 1})
    lines += "{\"prompt\": \"ab\", \"max_tokens\": 2, \"ignore_end\": true, \"id\": " +
             std::to_string(priority) + ", \"priority\": " + std::to_string(priority) + "}\n";
  const auto result =
      run_program("batch -q --raw --streams 1 -m " + kModel + " -f " + folder.file("p", lines));
  std::vector<int> order;
  for (const auto& line : lines_of(result.out)) order.push_back(line["id"]);
  EXPECT_EQ(order, (std::vector<int>{-2, 0, 1, 3}));
}

// Before anything is computed.
TEST(BatchProgram, NamesTheBadLine) {
  const TemporaryFolder folder;
  const auto error_of = [&](const std::string& line) {
    const std::string file = folder.file("p", "{\"prompt\": \"ab\"}\n" + line + "\n");
    const auto result = run_program("2>&1 batch -q --raw -m " + kModel + " -f " + file);
    EXPECT_EQ(result.exit_code, 2);
    const std::string name = "headrace: " + file + ":2: ";
    EXPECT_EQ(result.out.find(name), 0u) << result.out;
    return result.out.substr(std::min(name.size(), result.out.size()));
  };
  EXPECT_EQ(error_of("[1]"), "not a JSON object; write one object per line\n");
  EXPECT_EQ(error_of("{\"prompt\": "), "not a JSON object; write one object per line\n");
  EXPECT_EQ(error_of("{}"), "no \"prompt\"; each line needs one\n");
  EXPECT_EQ(error_of("{\"prompt\": 1}"), "\"prompt\" must be a string\n");
  EXPECT_EQ(error_of("{\"prompt\": \"a\", \"max_tokens\": 1.5}"),
            "\"max_tokens\" must be a whole number\n");
  EXPECT_EQ(error_of("{\"prompt\": \"a\", \"ignore_end\": 1}"),
            "\"ignore_end\" must be true or false\n");
  EXPECT_EQ(
      error_of("{\"prompt\": \"a\", \"max_token\": 1}"),
      "unknown field \"max_token\"; choose from grammar, id, ignore_end, json_schema, "
      "max_tokens, min_p, n, priority, prompt, regex, seed, stop, temperature, top_k, top_p\n");
  EXPECT_EQ(error_of("{\"prompt\": \"a\", \"regex\": \"(\"}"),
            "regex: line 1, column 2: a group does not end; add ')', or write \\( for the "
            "character\n");
  EXPECT_EQ(error_of("{\"prompt\": \"a\", \"regex\": \"a\", \"json_schema\": true}"),
            "several of json_schema, regex and grammar; write one of them\n");
  EXPECT_EQ(error_of("{\"prompt\": \"a\", \"n\": 2}"),
            "n=2 with temperature=0: greedy samples are equal; pass a temperature above 0, or "
            "n=1\n");
  EXPECT_EQ(error_of("{\"prompt\": \"" + std::string(300, 'a') + "\"}").find("prompt: has "), 0u);
  EXPECT_EQ(run_program("batch -m " + kModel + " -f /dev/null").exit_code, 2);
}

}  // namespace
