// Properties of every option of every command, and the values that model options set.
#include "options.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>

#include "model_options.h"
#include "program.h"

namespace headrace::cli {
namespace {

struct Program {
  CLI::App app;
  Action action;
  Program() { add_commands(app, action, "headrace"); }

  // Empty: accepted.
  std::string error_of(const std::string& arguments) {
    try {
      app.parse(arguments);
      return {};
    } catch (const CLI::ParseError& error) {
      return usage_error(app, error);
    }
  }
};

using OnCommand = std::function<void(const std::string& path, const CLI::App& command)>;

void for_each_command(const CLI::App& app, const std::string& path, const OnCommand& body) {
  body(path, app);
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; }))
    for_each_command(*sub, path + sub->get_name() + ' ', body);
}

bool is_number(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  return type.starts_with("INT") || type.starts_with("UINT") || type.starts_with("FLOAT");
}

TEST(Options, EveryNumberIsRefusedOutsideItsRangeWithTheRange) {
  Program program;
  int count = 0;
  for_each_command(program.app, "", [&](const std::string& path, const CLI::App& command) {
    for (const CLI::Option* option : command.get_options()) {
      if (!is_number(*option)) continue;
      ++count;
      const bool is_whole = !option->get_type_name().starts_with("FLOAT");
      std::vector<std::string> wrong = {"x", "nan", "inf", "-inf", "1e400", "-1e400", "1x", "0x"};
      if (is_whole)
        wrong.insert(wrong.end(), {"1.5", "99999999999999999999", "-99999999999999999999"});
      for (const std::string& value : wrong) {
        const std::string error = program.error_of(path + option->get_name() + '=' + value);
        EXPECT_NE(error.find(option->get_name() + ": "), std::string::npos)
            << path << value << error;
        EXPECT_NE(error.find(value), std::string::npos) << path << error;
        EXPECT_NE(error.find("; pass "), std::string::npos) << path << error;
        EXPECT_NE(error.find(" to "), std::string::npos) << path << error;
      }
    }
  });
  EXPECT_GE(count, 40);
}

// An option accepts exactly the range that its error names, ends included.
TEST(Options, TheEndsOfARangeAreValid) {
  Program program;
  for_each_command(program.app, "", [&](const std::string& path, const CLI::App& command) {
    for (const CLI::Option* option : command.get_options()) {
      const std::string type = option->get_type_name();
      if (!is_number(*option) || type.find("below") != std::string::npos) continue;
      const std::string range = type.substr(type.find(':') + 1);
      const std::string low = range.substr(0, range.find(" to "));
      const std::string rest = range.substr(range.find(" to ") + 4);
      const std::string high = rest.substr(0, rest.find(','));
      const auto error = [&](const std::string& value) {
        return program.error_of(path + option->get_name() + '=' + value);
      };
      for (const std::string& end : {low, high})
        EXPECT_EQ(error(end).find("out of range"), std::string::npos) << path << error(end);
      if (type.starts_with("FLOAT")) continue;
      const std::string above = std::to_string(std::strtoull(high.c_str(), nullptr, 10) + 1);
      EXPECT_NE(error(above).find("out of range"), std::string::npos) << path << error(above);
      const std::string below = std::to_string(std::strtoll(low.c_str(), nullptr, 10) - 1);
      if (range.find("or " + below) == std::string::npos)
        EXPECT_NE(error(below).find("out of range"), std::string::npos) << path << error(below);
      else
        EXPECT_EQ(error(below).find("out of range"), std::string::npos) << path << error(below);
    }
  });
}

TEST(Options, NoneConsumesTheNextPositionalArgument) {
  Program program;
  for_each_command(program.app, "", [&](const std::string& path, const CLI::App& command) {
    for (const CLI::Option* option : command.get_options())
      EXPECT_TRUE(option->get_items_expected_max() <= 1 || !option->get_allow_extra_args())
          << path << option->get_name();
  });
}

TEST(Options, AMistypedOptionIsNamedWithTheRightOne) {
  Program program;
  for_each_command(program.app, "", [&](const std::string& path, const CLI::App& command) {
    for (const CLI::Option* option : command.get_options()) {
      for (const std::string& name : option->get_lnames()) {
        std::string mistyped = "--" + name;
        std::swap(mistyped[mistyped.size() - 2], mistyped[mistyped.size() - 3]);
        if (mistyped == "--" + name) mistyped += 'x';
        const std::string error = program.error_of(path + mistyped);
        EXPECT_NE(error.find("unknown option \"" + mistyped + '"'), std::string::npos) << error;
        EXPECT_NE(error.find("did you mean --" + name + '?'), std::string::npos) << error;
        EXPECT_EQ(program.error_of(path + mistyped + "=5"), error);
      }
    }
  });
}

TEST(Options, AMistypedCommandIsNamedWithTheRightOneOrAllOfThem) {
  Program program;
  for_each_command(program.app, "", [&](const std::string& path, const CLI::App& command) {
    std::vector<std::string> names;
    for (const CLI::App* sub : command.get_subcommands([](const CLI::App*) { return true; }))
      names.push_back(sub->get_name());
    if (names.empty()) return;
    const std::string unknown = program.error_of(path + "zzzz"), missing = program.error_of(path);
    EXPECT_NE(unknown.find("unknown command \"zzzz\""), std::string::npos) << unknown;
    for (const std::string& name : names) {
      EXPECT_NE(unknown.find(name), std::string::npos) << unknown;
      EXPECT_NE(missing.find(name), std::string::npos) << missing;
      const std::string mistyped = name.substr(0, name.size() - 1);
      if (mistyped.size() < 3) continue;
      const std::string error = program.error_of(path + mistyped);
      EXPECT_NE(error.find("\"" + mistyped + "\"; did you mean " + name + '?'), std::string::npos)
          << error;
    }
  });
}

TEST(Options, AnArgumentTooManyIsNamedWithTheRemedy) {
  Program program;
  for_each_command(program.app, "", [&](const std::string& path, const CLI::App& command) {
    if (!command.get_subcommands([](const CLI::App*) { return true; }).empty()) return;
    std::string arguments = path;
    for (const CLI::Option* option : command.get_options())
      if (option->get_positional()) arguments += "bash ";  // a shell, a text or a file
    const std::string error = program.error_of(arguments + "zzzz");
    EXPECT_NE(error.find("unexpected argument \"zzzz\"; quote a text"), std::string::npos) << error;
  });
}

TEST(Options, AMissingValueIsNamed) {
  Program program;
  EXPECT_EQ(program.error_of("generate hi -n"),
            "headrace generate: --max-tokens: the value is missing");
}

TEST(Options, DevicesAreNamedByTypeAndNumber) {
  Program program;
  for (const std::string bad :
       {"gpu", "cuda:", "cuda:-1", "cuda:x", "cuda:1x", "cuda:1000", "sm90"})
    for (const std::string command : {"generate hi -m x", "bench model -m x"})
      EXPECT_NE(program.error_of(command + " --device " + bad)
                    .find('"' + bad + "\" is not cpu, cuda or cuda:N; pass, for example, cuda:0"),
                std::string::npos)
          << bad;
}

// A distinct value for each option, so that swapped options are found.
struct ModelArguments {
  CLI::App app;
  ModelChoice model;
  SessionChoice session;
  GenerationChoice generation;
  ModelArguments() {
    add_model_options(app, model);
    add_session_options(app, session);
    add_generation_options(app, generation);
  }
};

void expect_values(const std::string& arguments) {
  ModelArguments parsed;
  parsed.app.parse(arguments);
  EXPECT_EQ(parsed.model.path, "x.gguf");
  EXPECT_EQ(parsed.model.num_threads, 3);
  EXPECT_TRUE(parsed.model.is_exact);
  EXPECT_TRUE(parsed.model.uses_mmap);
  EXPECT_EQ(parsed.model.device, "cuda:1");
  EXPECT_EQ(parsed.session.context, 77);
  EXPECT_EQ(parsed.session.batch, 5);
  EXPECT_EQ(parsed.session.page_size, 9);
  EXPECT_EQ(parsed.session.cache_type, "bf16");
  const GenerationOptions options = generation_options(parsed.generation);
  const SamplingOptions& sampling = options.sampling;
  EXPECT_EQ(options.max_new_tokens, 11);
  EXPECT_EQ(sampling.temperature, 0.5);
  EXPECT_EQ(sampling.top_k, 7);
  EXPECT_EQ(sampling.top_p, 0.75);
  EXPECT_EQ(sampling.min_p, 0.125);
  EXPECT_EQ(sampling.repetition_penalty, 1.25);
  EXPECT_EQ(sampling.repetition_window, 13);
  EXPECT_EQ(sampling.presence_penalty, 0.25);
  EXPECT_EQ(sampling.frequency_penalty, 0.375);
  EXPECT_EQ(sampling.seed, 17u);
  EXPECT_EQ(sampling.order, HEADRACE_ORDER_LLAMA_CPP);
  ASSERT_EQ(sampling.logit_bias.size(), 2u);
  EXPECT_EQ(sampling.logit_bias[0].token, 42);
  EXPECT_EQ(sampling.logit_bias[0].bias, -1.5f);
  EXPECT_EQ(sampling.logit_bias[1].token, 7);
  EXPECT_EQ(sampling.logit_bias[1].bias, 2.f);
  EXPECT_EQ(options.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(options.ignore_end);
}

TEST(Options, OnlyListsOfNumbersAndNamesAreSplitAtCommas) {
  Program program;
  for_each_command(program.app, "", [&](const std::string& path, const CLI::App& command) {
    for (const CLI::Option* option : command.get_options()) {
      const std::string form = option->get_option_text();
      const bool is_list = form.find(",...") != std::string::npos;
      EXPECT_EQ(option->get_delimiter() == ',', is_list) << path << option->get_name();
    }
  });
}

TEST(Options, ATextIsTakenAsItIs) {
  for (const std::string text : {"a, b", "a,", ",", "[a]", "[a,b]", "{a}", "\"a\"", "'a'", "a=b",
                                 "=", "a;b", "#a", "\\n", "\n", "$a", "%s", " a ", "--", "-a"}) {
    Program program;
    for_each_command(program.app, "", [&](const std::string& path, const CLI::App& command) {
      for (const CLI::Option* option : command.get_options()) {
        if (option->get_type_name() != "TEXT" || option->get_lnames().empty()) continue;
        std::vector<std::string> arguments = CLI::detail::split(path, ' ');
        arguments.push_back("--" + option->get_lnames()[0] + '=' + text);
        std::reverse(arguments.begin(), arguments.end());  // the parser pops from the back
        try {
          program.app.parse(std::move(arguments));
        } catch (const CLI::ParseError&) {  // another argument is missing, or no such value
        }
        EXPECT_EQ(option->results(), std::vector{text}) << path << option->get_name();
      }
    });
    ModelArguments parsed;
    parsed.app.parse(std::vector<std::string>{"--stop=b,c", "--stop=" + text, "-m=x"});
    EXPECT_EQ(generation_options(parsed.generation).stop, (std::vector<std::string>{text, "b,c"}));
  }
}

TEST(Options, EveryValueSetsItsField) {
  expect_values(
      "-m x.gguf -t 3 --exact --mmap --device cuda:1 -c 77 -b 5 --page-size 9 --cache-type bf16 -n "
      "11 --temp 0.5 "
      "--top-k 7 "
      "--top-p 0.75 --min-p 0.125 --repeat-penalty 1.25 --repeat-window 13 --presence-penalty 0.25 "
      "--frequency-penalty 0.375 --seed 17 --order llama.cpp --logit-bias 42=-1.5 --logit-bias 7=2 "
      "--stop a --stop b --ignore-end");
  expect_values(
      "--model x.gguf --threads 3 --exact --mmap --device cuda:1 --context 077 --batch 5 "
      "--page-size 9 "
      "--cache-type bf16 "
      "--max-tokens 11 --temp 0.5 --top-k 007 --top-p 0.75 --min-p 0.125 --repeat-penalty 1.25 "
      "--repeat-window 13 --presence-penalty 0.25 --frequency-penalty 0.375 --seed 017 "
      "--order llama.cpp --logit-bias 42=-1.5 --logit-bias 7=2 --stop a --stop b --ignore-end");
}

TEST(Options, NamesOfLlamaCppMeanTheSame) {
  expect_values(
      "--model x.gguf --threads 3 --exact --mmap --device cuda:1 --ctx-size 77 --batch-size 5 "
      "--page-size 9 "
      "--cache-type bf16 "
      "--n-predict 11 --temperature 0.5 --top-k 7 --top-p 0.75 --min-p 0.125 --repeat-penalty 1.25 "
      "--repeat-last-n 13 --presence-penalty 0.25 --frequency-penalty 0.375 --seed 17 "
      "--order llama.cpp --logit-bias 42-1.5 --logit-bias 7+2 --reverse-prompt a "
      "--reverse-prompt b --ignore-eos");
  Program program;
  const std::vector<std::pair<std::string, std::vector<std::string>>> names = {
      {"generate",
       {"--prompt", "--file", "--system-prompt", "--chat-template", "--predict", "--no-mmap"}},
      {"chat", {"--system-prompt", "--chat-template", "--no-mmap"}},
      {"tokenize", {"--prompt", "--file", "--stdin", "--ids", "--no-bos"}},
      {"perplexity", {"--file", "--ctx-size"}}};
  for (const auto& [command, options] : names)
    for (const std::string& option : options)
      EXPECT_NE(program.app.get_subcommand(command)->get_option_no_throw(option), nullptr)
          << command << ' ' << option;
  const CLI::App* model = program.app.get_subcommand("bench")->get_subcommand("model");
  for (const char* option : {"--n-prompt", "--n-gen", "--n-depth", "--repetitions"})
    EXPECT_NE(model->get_option_no_throw(option), nullptr) << option;
}

TEST(Options, MinusOneIsNoLimitAndARandomSeed) {
  ModelArguments parsed;
  parsed.app.parse("-m x -n -1 --repeat-last-n -1 --seed -1");
  const GenerationOptions first = generation_options(parsed.generation);
  EXPECT_EQ(first.max_new_tokens, 0);
  EXPECT_EQ(first.sampling.repetition_window, 0);
  EXPECT_NE(first.sampling.seed, generation_options(parsed.generation).sampling.seed);
}

TEST(Options, ABiasIsATokenAndANumber) {
  for (const char* wrong :
       {"", "5", "=1", "x=1", "5=", "5=x", "5=1x", "-5=1", "5:1", "99999999999=1"}) {
    ModelArguments parsed;
    EXPECT_THROW(parsed.app.parse(std::vector<std::string>{wrong, "--logit-bias", "x", "-m"}),
                 CLI::ValidationError)
        << wrong;
  }
  // Of any length: an accepted token is the one that was written.
  for (const char first : {'1', '2', '4', '9'})
    for (std::size_t length = 1; length <= 21; ++length)
      for (const std::string value : {"=-1.5", "=2", "-1.5", "+2", "=1e-3"}) {
        const std::string token = first + std::string(length - 1, first == '9' ? '9' : '0');
        ModelArguments parsed;
        try {
          parsed.app.parse(std::vector<std::string>{token + value, "--logit-bias", "x", "-m"});
        } catch (const CLI::ValidationError&) {
          EXPECT_GT(length, 8u) << "no vocabulary has as many tokens: " << token;
          continue;
        }
        const auto& bias = generation_options(parsed.generation).sampling.logit_bias;
        ASSERT_EQ(bias.size(), 1u);
        EXPECT_EQ(std::to_string(bias[0].token), token);
        const std::string number = value[0] == '=' ? value.substr(1) : value;
        EXPECT_EQ(bias[0].bias, std::strtof(number.c_str(), nullptr)) << token << value;
      }
}

}  // namespace
}  // namespace headrace::cli
