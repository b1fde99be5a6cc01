// The program with models, run from a shell: tiny files with random weights.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <set>
#include <string>

#include "headrace/model.hpp"
#include "tests/support/program_json.h"

namespace {

using Result = headrace::testing::ProgramResult;
using headrace::testing::content_of;
using headrace::testing::json_of;
using headrace::testing::run_program;
using headrace::testing::TemporaryFolder;

const std::string kModel = HEADRACE_GOLDEN_DIR "/tiny/tiny_llama3_f16.gguf";

TEST(ModelProgram, ModelUsageErrorsExitWith2) {
  for (const std::string& arguments :
       {std::string("generate Hi"),
        "generate -m " + kModel,
        "generate -m " + kModel + " -p x -f y",
        "generate -m " + kModel + " Hi --top-p 2",
        "generate -m " + kModel + " Hi --order x",
        "generate -m " + kModel + " Hi --logit-bias 5",
        "generate -m " + kModel + " Hi -c -1",
        "generate -m " + kModel + " Hi --page-size 0",
        "generate -m " + kModel + " Hi --temp 1 --samples 0",
        "generate -m " + kModel + " Hi --samples 2",
        "generate -m " + kModel + " Hi --beam-width 0",
        "generate -m " + kModel + " Hi --beam-width 2 --samples 2 --temp 1",
        "generate -m " + kModel + " Hi --beam-width 2 --temp 1",
        "generate -m " + kModel + " Hi --length-penalty 2",
        "generate -m " + kModel + " Hi --sparq-r 4",
        "generate -m " + kModel + " Hi --sparq-k 4",
        "generate -m " + kModel + " Hi --sparq-r 4 --sparq-k 0",
        std::string("chat"),
        "batch -m " + kModel,
        "batch -m " + kModel + " -f x --streams 0",
        "tokenize -m " + kModel,
        std::string("bench model -t 1"),
        std::string("inspect"),
        "perplexity -m " + kModel}) {
    const Result result = run_program(arguments);
    EXPECT_EQ(result.exit_code, 2) << arguments;
    EXPECT_EQ(result.out, "") << arguments;
  }
}

// Each command that reads a model; %s is the file.
const char* const kModelCommands[] = {"generate -m %s Hi -n 4",
                                      "chat -m %s -n 4 --no-history <<END\nHi\nEND\n",
                                      "batch -m %s -f - <<END\n{\"prompt\": \"Hi\"}\nEND\n",
                                      "tokenize -m %s Hi",
                                      "perplexity -m %s -w 8 -f " HEADRACE_GOLDEN_DIR
                                      "/text/prompts.txt",
                                      "inspect %s",
                                      "bench model -m %s -p 4 -n 4 -r 1 --no-ceilings"};

std::string with_file(std::string command, const std::string& file) {
  return command.replace(command.find("%s"), 2, '\'' + file + '\'');
}

Result errors_of(const std::string& arguments) { return run_program("2>&1 " + arguments); }

TEST(ModelProgram, FilesThatAreNotModelsFailAndAreNamed) {
  const TemporaryFolder folder;
  ASSERT_EQ(std::system(("mkfifo '" + folder.file("fifo") + "'").c_str()), 0);
  const std::string whole = content_of(kModel);
  const std::pair<std::string, std::string> files[] = {
      {"/nowhere.gguf", "No such file or directory"},
      {folder.file(""), "is a directory"},
      {folder.file("fifo"), "is a FIFO"},
      {"/dev/null", "is a character device"},
      {folder.file("empty", ""), "0 bytes"},
      {folder.file("text", std::string(100, 'x')), "not a GGUF file"},
      {folder.file("head", whole.substr(0, 1000)), "bytes left"},
      {folder.file("half", whole.substr(0, whole.size() / 2)), "ends "}};
  for (const char* command : kModelCommands) {
    for (const auto& [file, reason] : files) {
      const Result result = errors_of(with_file(command, file));
      EXPECT_EQ(result.exit_code, 1) << command << result.out;
      EXPECT_NE(result.out.find(file + ':'), std::string::npos) << command << result.out;
      EXPECT_NE(result.out.find(reason), std::string::npos) << command << result.out;
      EXPECT_EQ(run_program(with_file(command, file)).out, "") << command;
    }
  }
}

// The file with all bytes of one tensor 0xFF, which is NaN in every weight format.
std::string with_nan(const nlohmann::json& tensor, std::string bytes) {
  std::fill_n(bytes.begin() + tensor["offset"].get<std::ptrdiff_t>(),
              tensor["bytes"].get<std::size_t>(), static_cast<char>(0xFF));
  return bytes;
}

TEST(ModelProgram, NanInAnyTensorFails) {
  const TemporaryFolder folder;
  for (const char* name : {"tiny_llama3_f16", "tiny_llama2_q4_0", "tiny_qwen2_f32"}) {
    const std::string path = std::string(HEADRACE_GOLDEN_DIR "/tiny/") + name + ".gguf";
    const std::string whole = content_of(path);
    const auto json = json_of("inspect " + path);
    ASSERT_FALSE(json["tensors"].empty());
    for (const auto& tensor : json["tensors"]) {
      const std::string damaged = folder.file("damaged.gguf", with_nan(tensor, whole));
      const Result result = errors_of("generate --raw Hi -n 4 -m " + damaged);
      EXPECT_EQ(result.exit_code, 1) << tensor["name"] << result.out;
    }
  }
}

TEST(ModelProgram, DamagedWeightsFailInEveryCommand) {
  const TemporaryFolder folder;
  const auto json = json_of("inspect " + kModel);
  const auto& tensors = json["tensors"];
  const auto norm = std::find_if(tensors.begin(), tensors.end(), [](const auto& tensor) {
    return tensor["name"] == "output_norm.weight";  // every logit depends on it
  });
  ASSERT_NE(norm, tensors.end());
  const std::string damaged = folder.file("damaged.gguf", with_nan(*norm, content_of(kModel)));
  for (const char* command :
       {"generate -m %s Hi -n 4",
        "generate -m %s Hi -n 4 --temp 1 --top-p 0.9 --repeat-penalty 1.1",
        "chat -m %s -n 4 --no-history <<END\nHi\nEND\n",
        "perplexity -m %s -w 8 -f " HEADRACE_GOLDEN_DIR "/text/prompts.txt"}) {
    const Result result = errors_of(with_file(command, damaged));
    EXPECT_EQ(result.exit_code, 1) << command << result.out;
    EXPECT_NE(result.out.find("weights are damaged"), std::string::npos) << command << result.out;
  }
}

TEST(ModelProgram, AChatEndsAtAFailure) {
  const TemporaryFolder folder;
  const auto json = json_of("inspect " + kModel);
  const std::string damaged =
      folder.file("damaged.gguf", with_nan(json["tensors"][0], content_of(kModel)));
  const Result result = errors_of("chat --no-history -m " + damaged + " <<END\nHi\nyou\nEND\n");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.out.find("damaged;"), result.out.rfind("damaged;"))
      << "chat must stop after the first";
}

TEST(ModelProgram, ATextThatCannotBeReadFails) {
  const TemporaryFolder folder;
  for (const std::string& command :
       {std::string("generate"), std::string("tokenize"), std::string("perplexity -w 8")})
    for (const auto& [file, reason] : {std::pair{folder.file(""), "is a directory"},
                                       std::pair{folder.file("none"), "No such file"}}) {
      const Result result = errors_of(command + " -m " + kModel + " -f '" + file + "'");
      EXPECT_EQ(result.exit_code, 1) << command << result.out;
      EXPECT_NE(result.out.find(file + ": "), std::string::npos) << result.out;
      EXPECT_NE(result.out.find(reason), std::string::npos) << result.out;
    }
  const Result result = errors_of("perplexity -w 8 -m " + kModel +
                                  " -f " HEADRACE_GOLDEN_DIR "/text/prompts.txt --logits-out '" +
                                  folder.file("") + "'");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.out.find("cannot be opened for writing: Is a directory"), std::string::npos);
}

TEST(ModelProgram, OutputThatCannotBeWrittenFails) {
  for (const char* command : kModelCommands)
    EXPECT_EQ(run_program(">/dev/full " + with_file(command, kModel)).exit_code, 1) << command;
}

TEST(ModelProgram, ATextBeyondTheContextReportsBothSizesAndTheRemedy) {
  const std::string text = HEADRACE_GOLDEN_DIR "/text/prompts.txt";
  const std::pair<std::string, std::string> cases[] = {
      {"generate --raw -c 5 -m " + kModel + " abcdef",
       "6-token prompt exceeds context 5; raise --context"},
      {"generate --raw -m " + kModel + " " + std::string(200, 'x'),
       "200-token prompt exceeds context 128, this model's maximum; shorten the text"},
      {"generate -c 500 -m " + kModel + " x", "--context 500 exceeds this model's 128 tokens"},
      {"perplexity -m " + kModel + " -f " + text,
       "512-token window (--window) exceeds context 128"},
      {"bench model -m " + kModel + " -p 8 -n 4 -d 5 -c 10 --no-ceilings",
       "13-token test exceeds context 10; raise --context"}};
  for (const auto& [command, expected] : cases) {
    const Result result = errors_of(command);
    EXPECT_EQ(result.exit_code, 2) << command << result.out;
    EXPECT_NE(result.out.find(expected), std::string::npos) << command << result.out;
  }
  const Result fits = run_program("generate --raw -c 6 -n 1 -m " + kModel + " abcdef");
  EXPECT_EQ(fits.exit_code, 0) << "6 tokens fit a context of 6";
}

TEST(ModelProgram, SparqAttentionReadsNoMoreComponentsThanThereAre) {
  const Result result = errors_of("generate -n 1 --sparq-r 17 --sparq-k 8 -m " + kModel + " x");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.out.find("--sparq-r 17 exceeds this model's 16 components of a key; lower"),
            std::string::npos)
      << result.out;
}

// Codes of few bits give another perplexity than whole keys.
TEST(ModelProgram, SparqAttentionReadsQuantisedKeys) {
  const std::string command = "perplexity -m " + kModel +
                              " -w 64 -f " HEADRACE_GOLDEN_DIR
                              "/text/prompts.txt --sparq-r 8 --sparq-k 16 --format csv";
  const Result whole = run_program(command), codes = run_program(command + " --kv-type kivi2");
  EXPECT_EQ(whole.exit_code, 0);
  EXPECT_EQ(codes.exit_code, 0);
  EXPECT_NE(whole.out, "");
  EXPECT_NE(codes.out, "");
  EXPECT_NE(codes.out, whole.out);
}

TEST(ModelProgram, AnUnansweredQuestionOfAScriptFails) {
  const Result result =
      errors_of("chat -c 20 -n 2 -m " + kModel + " <<END\n" + std::string(50, 'x') + "\nEND\n");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.out.find("-token conversation exceeds context 20; raise --context"),
            std::string::npos)
      << result.out;
}

// Wherever it is asked, and whatever is answered before and after.
TEST(ModelProgram, AnUnansweredQuestionFailsWhateverElseIsAnswered) {
  const std::string unanswered = std::string(100, 'x') + '\n', command = "chat --no-history -c 60 ";
  for (const std::string& lines :
       {unanswered, unanswered + "/reset\nHi\n", "Hi\n" + unanswered,
        "Hi\n" + unanswered + "/reset\nHi\n", unanswered + unanswered + "Hi\n"})
    EXPECT_EQ(run_program(command + "-n 3 -m " + kModel + " <<END\n" + lines + "END\n").exit_code,
              1)
        << lines;
  EXPECT_EQ(run_program(command + "-n 3 -m " + kModel + " <<END\nHi\n/reset\nHi\nEND\n").exit_code,
            0);
}

// What was held back because a stop string might begin there is printed when the answer ends.
TEST(ModelProgram, AnAnswerThatEndsLikeAStopStringIsWhole) {
  for (const char* count : {"1", "2", "5", "24"}) {
    const std::string command =
        "generate --raw Hello --ignore-end -m " + kModel + " -n " + count + " ";
    const std::string whole = run_program(command).out;
    ASSERT_GT(whole.size(), 1u);
    const std::string text = whole.substr(0, whole.size() - 1);
    for (std::size_t held = 1; held <= std::min<std::size_t>(text.size(), 3); ++held) {
      const TemporaryFolder folder;
      const std::string stop = folder.file("stop", text.substr(text.size() - held) + '\x01');
      EXPECT_EQ(run_program(command + "--stop \"$(cat '" + stop + "')\"").out, whole)
          << count << " tokens, " << held << " bytes";
    }
  }
}

TEST(ModelProgram, OptionValuesAreNotThePrompt) {
  const std::string command = "generate -m " + kModel + " --raw -n 8 --ignore-end ";
  const std::string expected = run_program(command + "Hello").out;
  for (const char* options : {"--stop zz Hello", "--stop zz --stop qq Hello",
                              "--logit-bias 5=0 Hello", "Hello --stop zz", "--prompt Hello"}) {
    const Result result = run_program(command + options);
    EXPECT_EQ(result.exit_code, 0) << options;
    EXPECT_EQ(result.out, expected) << options;
  }
}

TEST(ModelProgram, ARandomSeedIsPrintedAndRepeats) {
  const std::string command = "generate -m " + kModel + " --raw Hello -n 24 --ignore-end --temp 2 ";
  const Result random = errors_of(command + "--seed -1 --quiet");
  const std::string note = "headrace: seed ";
  ASSERT_EQ(random.out.rfind(note, 0), 0u) << random.out;
  const std::string seed = random.out.substr(note.size(), random.out.find(';') - note.size());
  const std::string answer = random.out.substr(random.out.find('\n') + 1);
  EXPECT_EQ(run_program(command + "--seed " + seed).out, answer);
  EXPECT_NE(errors_of(command + "--seed -1 --quiet").out, random.out);
}

TEST(ModelProgram, GeneratesTheSameForTheSameSeed) {
  const std::string command = "generate -m " + kModel + " --raw Hello -n 12 --ignore-end";
  const Result greedy = run_program(command);
  EXPECT_EQ(greedy.exit_code, 0);
  EXPECT_NE(greedy.out, "");
  EXPECT_EQ(run_program(command).out, greedy.out);
  const std::string drawn = command + " --temp 2 --seed ";
  EXPECT_EQ(run_program(drawn + "1").out, run_program(drawn + "1 --threads 1").out);
  EXPECT_NE(run_program(drawn + "1").out, run_program(drawn + "2").out);
  EXPECT_NE(run_program(command + " 2>&1").out.find("tokens/s"), std::string::npos);
  EXPECT_EQ(run_program(command + " --quiet 2>&1").out.find("tokens/s"), std::string::npos);
}

TEST(ModelProgram, ChatEndsWithItsInput) {
  const Result result = run_program("chat -m " + kModel + " -n 3 < /dev/null");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, "");
  const Result answers =
      run_program("chat -m " + kModel + " -n 3 2>&1 <<'END'\nHi\n/nope\n/again\nEND");
  EXPECT_EQ(answers.exit_code, 0);
  EXPECT_NE(answers.out.find("no such command"), std::string::npos);
}

TEST(ModelProgram, TokenizeShowsIdsAndText) {
  const auto json = json_of("tokenize -m " + kModel + " ab");
  EXPECT_EQ(json["meta"]["bytes"], 2);
  ASSERT_FALSE(json["tokens"].empty());
  const Result ids = run_program("tokenize -m " + kModel + " --ids ab");
  EXPECT_EQ(ids.out.find_first_not_of("0123456789 \n"), std::string::npos) << ids.out;
}

TEST(ModelProgram, PerplexityOfRandomWeightsIsNearTheVocabulary) {
  const auto json =
      json_of("perplexity -m " + kModel + " -w 64 -f " HEADRACE_GOLDEN_DIR "/text/prompts.txt");
  const double perplexity = json["perplexity"][0]["perplexity"];
  EXPECT_GT(perplexity, 30);
  EXPECT_LT(perplexity, 1e5);
}

// ---- the effect of each option on the result ----

std::string note_of(const std::string& arguments) {
  return run_program("2>&1 >/dev/null " + arguments).out;
}

std::int64_t number_after(const std::string& text, const std::string& word) {
  const std::size_t at = text.find(word);
  EXPECT_NE(at, std::string::npos) << word << ": " << text;
  return at == std::string::npos ? -1 : std::atoll(text.c_str() + at + word.size());
}

TEST(ModelProgram, AnAnswerHasAsManyTokensAsAskedFor) {
  for (const std::int64_t count : {1, 2, 7}) {
    const std::string note =
        note_of("generate --raw Hi --ignore-end -m " + kModel + " -n " + std::to_string(count));
    EXPECT_EQ(number_after(note, "answer "), count);
  }
  // Without a limit the context ends the answer; the last token needs no cache slot.
  for (const std::int64_t context : {3, 6, 20}) {
    const std::string note =
        note_of("generate --raw Hi --ignore-end -m " + kModel + " -c " + std::to_string(context));
    EXPECT_EQ(number_after(note, "answer "), context - 2 + 1);
  }
}

TEST(ModelProgram, PromptSystemPromptAndTemplateAreTokensOfThePrompt) {
  const std::string command = "generate -n 1 -m " + kModel + " ";
  const auto tokens = [&](const std::string& options) {
    return number_after(note_of(command + options), "prompt ");
  };
  const std::int64_t plain = tokens("Hi");
  EXPECT_EQ(tokens("--raw Hi"), 2) << "one token per byte in this vocabulary";
  EXPECT_EQ(tokens("Hiya"), plain + 2);
  EXPECT_GE(tokens("--system abcd Hi"), plain + 4);
  EXPECT_EQ(tokens("--system abcdef Hi"), tokens("--system abcd Hi") + 2);
  EXPECT_NE(tokens("--template llama3 Hi"), plain);
  EXPECT_EQ(run_program(command + "--template nonsense Hi").exit_code, 2);
  const TemporaryFolder folder;
  EXPECT_EQ(tokens("--raw -f " + folder.file("prompt", "abc")), 3);
}

// The first answer of a chat is that of generate with the same options, and each changes it.
TEST(ModelProgram, AChatTakesTheOptionsOfGenerate) {
  std::set<std::string> answers;
  for (const std::string options :
       {"-n 40", "-n 5", "-n 40 --system abcd", "-n 40 --template llama3", "-n 40 --stop t",
        "-n 40 --temp 2", "-n 40 --temp 2 --seed 3", "-n 40 --temp 2 --top-k 3",
        "-n 40 --temp 2 --top-p 0.5", "-n 40 --temp 2 --top-p 0.5 --order llama.cpp",
        "-n 40 --repeat-penalty 3", "-n 40 --presence-penalty 4", "-n 40 --logit-bias 200=9",
        "-n 40 --sparq-r 2 --sparq-k 4"}) {
    const std::string model = " -m " + kModel + " --ignore-end " + options;
    const std::string answer = run_program("generate Hi" + model).out;
    EXPECT_EQ(run_program("chat --no-history" + model + " <<END\nHi\nEND\n").out, answer)
        << options;
    EXPECT_TRUE(answers.insert(answer).second) << options << " has no effect";
  }
  EXPECT_EQ(run_program("chat --template nonsense -m " + kModel + " </dev/null").exit_code, 2);
}

TEST(ModelProgram, TokenizeTakesTextsInEveryWay) {
  const TemporaryFolder folder;
  const std::string command = "tokenize --ids -m " + kModel + " ";
  const std::string expected = run_program(command + "ab").out;
  EXPECT_EQ(std::count(expected.begin(), expected.end(), ' '), 1) << expected;
  EXPECT_EQ(run_program(command + "-p ab").out, expected);
  EXPECT_EQ(run_program(command + "-f " + folder.file("text", "ab")).out, expected);
  EXPECT_EQ(run_program("<" + folder.file("text") + " " + command + "--stdin").out, expected);
  EXPECT_EQ(run_program("<" + folder.file("text") + " " + command + "-f -").out, expected);
  const auto count = [&](const std::string& options) {
    return json_of("tokenize " + options)["tokens"].size();
  };
  // The file has add_bos_token false; make one with true.
  const std::string key = "tokenizer.ggml.add_bos_token";
  std::string bytes = content_of(kModel);
  bytes[bytes.find(key) + key.size() + 4] = 1;
  const std::string with_bos = folder.file("with_bos.gguf", bytes);
  EXPECT_EQ(count("-m " + kModel + " ab"), 2u);
  EXPECT_EQ(count("-m " + with_bos + " ab"), 3u);
  EXPECT_EQ(count("-m " + with_bos + " --no-bos ab"), 2u);
  EXPECT_EQ(count("-m " + kModel + " --special '<|im_end|>'"), 1u);
  EXPECT_GT(count("-m " + kModel + " '<|im_end|>'"), 1u);
}

TEST(ModelProgram, ExactAndTheCacheTypeChangeTheNumbers) {
  const std::string command =
      "perplexity -w 64 -m " HEADRACE_GOLDEN_DIR
      "/tiny/tiny_llama2_q4_0.gguf -f " HEADRACE_GOLDEN_DIR "/text/prompts.txt ";
  const auto perplexity = [&](const std::string& options) {
    return json_of(command + options)["perplexity"][0]["perplexity"].get<double>();
  };
  const double usual = perplexity("");
  EXPECT_EQ(perplexity("--cache-type f16"), usual);
  EXPECT_NE(perplexity("--cache-type f32"), usual);
  EXPECT_NE(perplexity("--cache-type bf16"), usual);
  EXPECT_NE(perplexity("--exact"), usual);
  EXPECT_EQ(perplexity("--exact"), perplexity("--exact --cache-type f32"));
  EXPECT_EQ(perplexity("--mmap"), usual);
}

TEST(ModelProgram, SamplesAreTheAnswersOfTheirSeeds) {
  const std::string command = "generate Hi -n 9 --temp 2 --stop e -m " + kModel;
  std::string expected;
  for (int i = 0; i < 3; ++i)
    expected += "--- sample " + std::to_string(i + 1) + " of 3, seed " + std::to_string(40 + i) +
                " ---\n" + run_program(command + " --seed " + std::to_string(40 + i)).out;
  for (const char* options : {"", " --page-size 1", " --page-size 100"})
    EXPECT_EQ(run_program(command + " --seed 40 --samples 3" + options).out, expected) << options;
  EXPECT_EQ(run_program(command + " --samples 1").out, run_program(command).out);
}

TEST(ModelProgram, BeamsDoNotDependOnThePageSize) {
  const std::string command = "generate Hi -n 9 --length-penalty 0.5 -m " + kModel;
  const std::string out = run_program(command + " --beam-width 3").out;
  for (const char* header : {"--- beam 1 of 3, score -", "--- beam 3 of 3, score -"})
    EXPECT_NE(out.find(header), std::string::npos) << out;
  EXPECT_EQ(run_program(command + " --beam-width 3 --page-size 1").out, out);
  const std::string one = run_program(command + " --beam-width 1").out;
  EXPECT_EQ(one.substr(one.find('\n') + 1), run_program("generate Hi -n 9 -m " + kModel).out);
  const Result wide = errors_of(command + " --beam-width 300");
  EXPECT_EQ(wide.exit_code, 2);
  EXPECT_NE(wide.out.find("beam_width=300: must be 1 to 288"), std::string::npos) << wide.out;
}

std::string chat_of(const std::string& options, const std::string& lines) {
  return run_program("chat --no-history -n 3 -m " + kModel + options + " <<END\n" + lines + "END\n")
      .out;
}

TEST(ModelProgram, ThePageSizeChangesNoResult) {
  const TemporaryFolder folder;
  const auto logits_of = [&](const std::string& options) {
    const std::string path = folder.file("logits");
    run_program("perplexity -w 64 -m " + kModel +
                " -f " HEADRACE_GOLDEN_DIR "/text/prompts.txt --logits-out " + path + options);
    return content_of(path);
  };
  const std::string generate = "generate Hi -n 20 --temp 1 --seed 3 -m " + kModel;
  const std::string chat = chat_of("", "Hi\nyou\n/undo\nthey\n");
  const std::string logits = logits_of(""), text = run_program(generate).out;
  ASSERT_FALSE(logits.empty());
  for (const std::string size : {"1", "7", "64", "4096"}) {
    const std::string option = " --page-size " + size;
    EXPECT_EQ(logits_of(option), logits) << size;
    EXPECT_EQ(run_program(generate + option).out, text) << size;
    EXPECT_EQ(chat_of(option, "Hi\nyou\n/undo\nthey\n"), chat) << size;
  }
  EXPECT_EQ(
      json_of("bench model -p 4 -n 4 -r 1 --no-ceilings --page-size 3 -m " + kModel)["rows"].size(),
      2u);
}

TEST(ModelProgram, BenchRestsBeforeEachRun) {
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(
      json_of("bench model -p 4 -n 4 -r 2 --rest 0.2 --no-ceilings -m " + kModel)["rows"].size(),
      2u);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(800));
}

// Each of them, with and without a system prompt.
void expect_commands_change_the_conversation(const std::string& options) {
  const auto chat = [&](const std::string& lines) { return chat_of(options, lines); };
  const std::string one = chat("Hi\n"), two = chat("Hi\nyou\n");
  ASSERT_NE(one, "");
  ASSERT_EQ(two.rfind(one, 0), 0u);
  const std::string second = two.substr(one.size());
  EXPECT_NE(second, chat("you\n")) << "the first question is part of the conversation";
  EXPECT_EQ(chat("Hi\n/undo\nHi\n"), one + one);
  EXPECT_EQ(chat("Hi\n/again\n"), one + one);
  EXPECT_EQ(chat("Hi\nyou\n/undo\nyou\n"), two + second);
  EXPECT_EQ(chat("Hi\nyou\n/reset\nHi\n"), two + one);
  EXPECT_EQ(chat("Hi\n/exit\nyou\n"), one);
}

TEST(ModelProgram, CommandsOfAChatChangeTheConversation) {
  EXPECT_NE(chat_of(" --system abcd", "Hi\n"), chat_of("", "Hi\n"));
  for (const char* options : {"", " --system abcd"}) {
    SCOPED_TRACE(options);
    expect_commands_change_the_conversation(options);
  }
}

}  // namespace
