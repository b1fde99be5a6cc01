// Models through the public API: the shared library, model.h, model.hpp and a tiny model file.
#include "headrace/model.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "support/errors.h"

namespace {

using headrace::Error;
using headrace::Generation;
using headrace::Model;
using headrace::Session;
using headrace::testing::error_of;

const std::string kFile = std::string(HEADRACE_GOLDEN_DIR) + "/tiny/tiny_llama3_f16.gguf";
const std::vector<std::int32_t> kPrompt = {89, 271, 200, 103, 38};

TEST(ModelFile, ShowsMetadataAndTensors) {
  const headrace::ModelFile file(kFile);
  EXPECT_EQ(file.format(), "GGUF");
  bool has_architecture = false;
  for (std::int64_t i = 0; i < file.num_keys(); ++i)
    has_architecture |= file.entry(i).key == "general.architecture" &&
                        file.entry(i).value == "llama" && file.entry(i).kind == "string";
  EXPECT_TRUE(has_architecture);
  ASSERT_GT(file.num_weights(), 0);
  for (std::int64_t i = 0; i < file.num_weights(); ++i) {
    EXPECT_FALSE(file.weight(i).shape.empty());
    EXPECT_GT(file.weight(i).bytes, 0u);
  }
  error_of([&] { static_cast<void>(file.weight(-1)); }, HEADRACE_INVALID_ARGUMENT);
  error_of([&] { static_cast<void>(file.weight(file.num_weights())); }, HEADRACE_INVALID_ARGUMENT);
}

TEST(ModelFile, NullHandlesAreEmpty) {
  headrace_weight_info info{};
  info.struct_size = sizeof info;
  EXPECT_EQ(headrace_model_file_weight(nullptr, 0, &info), HEADRACE_INVALID_ARGUMENT);
  EXPECT_STREQ(headrace_last_error(), "file=NULL: must not be null; open one first");
  EXPECT_EQ(headrace_model_file_num_weights(nullptr), 0);
  EXPECT_EQ(headrace_model_file_num_keys(nullptr), 0);
  EXPECT_STREQ(headrace_model_file_format(nullptr), "");
  for (const auto text :
       {headrace_model_file_key, headrace_model_file_kind, headrace_model_file_value})
    EXPECT_EQ(text(nullptr, 0), nullptr);
}

TEST(Model, NamesTheMissingFile) {
  const std::string text = error_of([] { Model model("/nowhere/m.gguf"); }, HEADRACE_IO_ERROR);
  EXPECT_EQ(text,
            "/nowhere/m.gguf: cannot be opened for reading; check the path and its permissions");
}

TEST(Model, InfoAndProgress) {
  std::uint64_t last = 0, all = 0;
  const Model model(kFile,
                    {.num_threads = 2, .progress = [&](std::uint64_t done, std::uint64_t total) {
                       EXPECT_GT(done, last);
                       last = done;
                       all = total;
                     }});
  EXPECT_EQ(last, all);
  EXPECT_GT(all, 0u);
  const headrace_model_info info = model.info();
  EXPECT_STREQ(info.architecture, "llama");
  EXPECT_EQ(info.vocab_size, 288);
  EXPECT_EQ(info.num_threads, 2);
  EXPECT_GT(info.weight_bytes, info.token_weight_bytes - 1);
  error_of([] { Model bad(kFile, {.num_threads = -1}); }, HEADRACE_INVALID_ARGUMENT);
}

TEST(Model, DevicesAreChecked) {
  const auto text = [](const headrace::ModelOptions& options, headrace_status code) {
    return error_of([&] { Model bad(kFile, options); }, code);
  };
  EXPECT_EQ(text({.device_type = 7}, HEADRACE_INVALID_ARGUMENT),
            "device_type=7: must be HEADRACE_CPU (0) or HEADRACE_CUDA (1)");
  EXPECT_EQ(text({.device_id = 1}, HEADRACE_INVALID_ARGUMENT),
            "device_id=1: must be 0 on the CPU; pass 0 or set device_type");
  EXPECT_EQ(text({.exact = true, .device_type = HEADRACE_CUDA}, HEADRACE_UNSUPPORTED),
            "exact=1 on a CUDA device: weights and activations are bf16 there; pass exact=0 or "
            "load the model on the CPU");
  EXPECT_EQ(text({.fast = true}, HEADRACE_UNSUPPORTED),
            "fast=1 on the CPU: its products have one speed; pass fast=0 or a CUDA device");
  // The same error as from any other call for a device that is absent.
  std::string absent;
  headrace_status status = HEADRACE_OK;
  try {
    headrace::cuda_info(63);
  } catch (const Error& error) {
    absent = error.what();
    status = error.code();
  }
  EXPECT_EQ(text({.device_type = HEADRACE_CUDA, .device_id = 63}, status), absent);
}

TEST(Model, TokensAreTheText) {
  const Model model(kFile, {.vocab_only = true});
  const std::string text = "Hello, world! caf\xc3\xa9 \xff\n";
  EXPECT_EQ(model.detokenize(model.tokenize(text, 0)), text);
  EXPECT_TRUE(model.tokenize("", 0).empty());
  std::string joined;
  for (const std::int32_t token : model.tokenize(text, 0)) joined += model.token_text(token);
  EXPECT_EQ(joined, text);
  error_of([&] { static_cast<void>(model.token_text(288)); }, HEADRACE_INVALID_ARGUMENT);
  const std::vector<std::int32_t> bad = {288};
  error_of([&] { static_cast<void>(model.detokenize(bad)); }, HEADRACE_INVALID_ARGUMENT);
  error_of([&] { static_cast<void>(model.tokenize("x", 64)); }, HEADRACE_INVALID_ARGUMENT);
  error_of([&] { Session session(model); }, HEADRACE_INVALID_ARGUMENT);
}

TEST(Model, ShortBuffersAreNotWritten) {
  const Model model(kFile, {.vocab_only = true});
  std::int32_t tokens[2] = {-7, -7};
  std::size_t count = 0;
  EXPECT_EQ(headrace_tokenize(model.get(), "xyz", 3, 0, nullptr, 0, &count), HEADRACE_OK);
  ASSERT_EQ(count, 3u);
  EXPECT_EQ(headrace_tokenize(model.get(), "xyz", 3, 0, tokens, 2, &count),
            HEADRACE_INVALID_ARGUMENT);
  EXPECT_EQ(tokens[0], -7);
  EXPECT_EQ(headrace_tokenize(model.get(), "xyz", 3, 0, tokens, 2, nullptr),
            HEADRACE_INVALID_ARGUMENT);
  EXPECT_EQ(headrace_tokenize(nullptr, "xyz", 3, 0, tokens, 2, &count), HEADRACE_INVALID_ARGUMENT);
  EXPECT_EQ(headrace_tokenize(model.get(), nullptr, 3, 0, tokens, 2, &count),
            HEADRACE_INVALID_ARGUMENT);
}

TEST(Model, UnknownTemplatesAreRejectedWithTheRemedy) {
  const Model model(kFile, {.vocab_only = true});
  EXPECT_STREQ(model.info().chat_template, "chatml");
  EXPECT_EQ(model.chat_tokens({{"user", "Hi"}}), model.chat_tokens({{"user", "Hi"}}, "chatml"));
  const std::string text = error_of(
      [&] {
        static_cast<void>(model.chat_tokens({{"user", "Hi"}}, "nonsense"));
      },
      HEADRACE_INVALID_ARGUMENT);
  EXPECT_NE(text.find("chatml"), std::string::npos) << text;
  EXPECT_NE(model.chat_tokens({{"user", "Hi"}}, "llama2"), model.chat_tokens({{"user", "Hi"}}));
  error_of(
      [&] {
        static_cast<void>(model.chat_tokens({{"judge", "Hi"}}));
      },
      HEADRACE_INVALID_ARGUMENT);
}

// generate() is a loop of sample and append.
// Each option alone, and beside a temperature, without which some have no effect.
std::vector<headrace::SamplingOptions> sampling_options() {
  using Options = headrace::SamplingOptions;
  std::vector<Options> all = {{}};
  for (void (*set)(Options&) :
       {+[](Options&) {}, +[](Options& o) { o.top_p = 0.5; }, +[](Options& o) { o.min_p = 0.5; },
        +[](Options& o) { o.top_k = 3; }, +[](Options& o) { o.repetition_penalty = 3; },
        +[](Options& o) { o.repetition_penalty = 3, o.repetition_window = 2; },
        +[](Options& o) { o.presence_penalty = 4; }, +[](Options& o) { o.frequency_penalty = -4; },
        +[](Options& o) { o.seed = std::uint64_t{1} << 40; },
        +[](Options& o) { o.sequence = std::uint64_t{1} << 40; },
        +[](Options& o) {
          o.logit_bias = {{200, 9.0f}};
        },
        +[](Options& o) { o.top_p = 0.5, o.order = HEADRACE_ORDER_LLAMA_CPP; }}) {
    Options options{.temperature = 5, .seed = 5};
    set(options);
    all.push_back(std::move(options));
  }
  return all;
}

TEST(Session, GeneratesWhatSamplingGives) {
  const Model model(kFile);
  std::set<std::vector<std::int32_t>> answers;
  for (const headrace::SamplingOptions& sampling : sampling_options()) {
    Session one(model), other(model);
    one.append(kPrompt);
    std::vector<std::int32_t> drawn;
    for (int i = 0; i < 20; ++i) {
      std::vector<headrace_token_logprob> top(3);
      const auto token = one.sample(sampling, static_cast<std::int64_t>(kPrompt.size()), top);
      EXPECT_LE(token.logprob, 0);
      EXPECT_GE(top[0].logprob, top[1].logprob);
      EXPECT_TRUE(sampling.temperature > 0 || top[0].token == token.token);
      drawn.push_back(token.token);
      one.append({&token.token, 1});
    }
    other.append(kPrompt);
    std::string text;
    const Generation result =
        other.generate({.sampling = sampling, .max_new_tokens = 20, .ignore_end = true},
                       [&](std::string_view piece) {
                         text += piece;
                         return true;
                       });
    EXPECT_EQ(result.num_tokens, 20);
    EXPECT_EQ(result.finish, HEADRACE_FINISH_LENGTH);
    std::string wanted;
    for (const std::int32_t& token : drawn)
      if (model.info().eos_token != token) wanted += model.detokenize({&token, 1});
    EXPECT_EQ(text, wanted);
    EXPECT_EQ(other.length(), static_cast<std::int64_t>(kPrompt.size()) + 19);
    EXPECT_TRUE(answers.insert(drawn).second) << "an option without effect";
  }
}

// Seeds and sequences that differ in any bit draw other tokens.
TEST(Session, EveryBitOfSeedAndSequenceCounts) {
  const Model model(kFile);
  std::map<int, std::vector<std::int32_t>> drawn;  // by bit: of the seed, then of the sequence
  Session session(model);
  for (int length = 1; length <= 12; ++length) {
    session.append({kPrompt.data(), 1});
    for (int bit = 0; bit < 128; ++bit) {
      headrace::SamplingOptions sampling{.temperature = 100};
      (bit < 64 ? sampling.seed : sampling.sequence) = std::uint64_t{1} << bit % 64;
      drawn[bit].push_back(session.sample(sampling, length).token);
    }
  }
  std::set<std::vector<std::int32_t>> all;
  for (const auto& [bit, tokens] : drawn) EXPECT_TRUE(all.insert(tokens).second) << "bit " << bit;
}

TEST(Session, TextEndsAtLimitsCallbacksAndStopStrings) {
  const Model model(kFile);
  Session session(model, {.max_tokens = 16});
  session.append(kPrompt);
  const auto all = [](std::string_view) { return true; };
  EXPECT_EQ(session.generate({.ignore_end = true}, all).finish, HEADRACE_FINISH_LENGTH);
  EXPECT_EQ(session.length(), 16);
  session.truncate(0);
  session.append(kPrompt);
  const Generation cancelled =
      session.generate({.ignore_end = true}, [](std::string_view) { return false; });
  EXPECT_EQ(cancelled.finish, HEADRACE_FINISH_CANCELLED);
  EXPECT_EQ(cancelled.num_tokens, 1);
  // Use the first generated text as the stop string.
  session.truncate(0);
  session.append(kPrompt);
  const std::int32_t next = session.sample({}, 0).token;
  const std::string stop = model.detokenize({&next, 1});
  std::string text;
  const Generation stopped =
      session.generate({.stop = {stop}, .ignore_end = true}, [&](std::string_view piece) {
        text += piece;
        return true;
      });
  EXPECT_EQ(stopped.finish, HEADRACE_FINISH_STOP);
  EXPECT_EQ(text, "");
}

TEST(Session, SamplesAreTheRunsOfTheirSeeds) {
  const Model model(kFile);
  Session session(model, {.max_tokens = 32, .page_size = 4, .num_pages = 40});
  session.append(kPrompt);
  const headrace::GenerationOptions options{.sampling = {.temperature = 3, .seed = 9},
                                            .max_new_tokens = 12,
                                            .stop = {"a", "b"},
                                            .ignore_end = true};
  std::vector<std::string> texts(5);
  const auto samples = session.generate_n(options, 5, [&](std::int64_t i, std::string_view text) {
    texts[static_cast<std::size_t>(i)] += text;
    return true;
  });
  ASSERT_EQ(samples.size(), 5u);
  EXPECT_EQ(session.length(), static_cast<std::int64_t>(kPrompt.size()));
  for (std::size_t i = 0; i < 5; ++i) {
    Session alone(model);
    alone.append(kPrompt);
    headrace::GenerationOptions own = options;
    own.sampling.seed += i;
    std::string text;
    const Generation generation = alone.generate(own, [&](std::string_view piece) {
      text += piece;
      return true;
    });
    EXPECT_EQ(samples[i].text, text);
    EXPECT_EQ(texts[i], text);
    EXPECT_EQ(samples[i].finish, generation.finish);
    EXPECT_EQ(static_cast<std::int64_t>(samples[i].tokens.size()), generation.num_tokens);
    EXPECT_LT(samples[i].logprob, 0);
    EXPECT_EQ(samples[i].score, samples[i].logprob);
  }
  EXPECT_EQ(session.generate_n(options, 5).back().tokens, samples.back().tokens);
}

TEST(Session, BadCallsOfSamplesAreRefused) {
  const Model model(kFile);
  Session session(model, {.max_tokens = 32});
  session.append(kPrompt);
  const headrace::GenerationOptions warm{.sampling = {.temperature = 1}};
  EXPECT_EQ(error_of([&] { session.generate_n(warm, 0); }, HEADRACE_INVALID_ARGUMENT),
            "n=0: must be 1 to 1024; pass fewer, or call again for more");
  error_of([&] { session.generate_n({}, 2); }, HEADRACE_INVALID_ARGUMENT);
  const std::string full = error_of([&] { session.generate_n(warm, 3); }, HEADRACE_OUT_OF_MEMORY);
  EXPECT_NE(full.find("create the session with num_pages=7"), std::string::npos) << full;
  EXPECT_EQ(error_of([&] { Session small(model, {.max_tokens = 32, .num_pages = 1}); },
                     HEADRACE_INVALID_ARGUMENT),
            "num_pages=1: must be at least 2, the pages of max_tokens=32 tokens; pass 0 for as "
            "many");

  headrace_completions* list = nullptr;
  const auto generate = [&](headrace_session* to, headrace_completions** completions,
                            const headrace_generation_options* options = nullptr) {
    EXPECT_EQ(headrace_session_generate_n(to, options, 1, nullptr, nullptr, completions),
              HEADRACE_INVALID_ARGUMENT);
    return std::string(headrace_last_error());
  };
  EXPECT_EQ(generate(nullptr, &list), "session=NULL: must not be null; create one first");
  EXPECT_EQ(generate(session.get(), nullptr),
            "completions=NULL: must not be null; pass the address of a pointer to completions");
  headrace_generation_options options;
  headrace_generation_options_init(&options);
  options.on_text = [](void*, const char*, std::size_t) { return 0; };
  EXPECT_EQ(generate(session.get(), &list, &options),
            "options.on_text: must be NULL, because it does not name the sample; pass on_text of "
            "headrace_session_generate_n()");
  options = {};
  headrace_generation_options_init(&options);
  options.max_new_tokens = 1;
  ASSERT_EQ(headrace_session_generate_n(session.get(), &options, 1, nullptr, nullptr, &list),
            HEADRACE_OK);
  EXPECT_EQ(headrace_completions_count(list), 1);
  headrace_completion completion{};
  completion.struct_size = sizeof completion;
  for (const std::int64_t index : {-1, 1})
    EXPECT_EQ(headrace_completions_get(list, index, &completion), HEADRACE_INVALID_ARGUMENT);
  EXPECT_EQ(headrace_completions_get(nullptr, 0, &completion), HEADRACE_INVALID_ARGUMENT);
  EXPECT_EQ(headrace_completions_count(nullptr), 0);
  headrace_completions_destroy(list);
  headrace_completions_destroy(nullptr);
}

TEST(Session, BeamsAreRankedAndLeaveTheSessionAsItIs) {
  const Model model(kFile);
  Session session(model, {.max_tokens = 32, .page_size = 4, .num_pages = 40});
  session.append(kPrompt);
  const auto beams =
      session.beam_search({.beam_width = 3, .length_penalty = 2, .max_new_tokens = 6});
  ASSERT_EQ(beams.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    const auto length = static_cast<double>(beams[i].tokens.size());
    EXPECT_EQ(beams[i].score, beams[i].logprob / (length * length));
    EXPECT_TRUE(i == 0 || beams[i].score <= beams[i - 1].score);
    EXPECT_EQ(beams[i].text, model.detokenize(beams[i].tokens));
  }
  EXPECT_EQ(session.length(), static_cast<std::int64_t>(kPrompt.size()));
  EXPECT_EQ(error_of([&] { session.beam_search({.beam_width = 289}); }, HEADRACE_INVALID_ARGUMENT),
            "beam_width=289: must be 1 to 288 for a vocabulary of 288 tokens; pass a width in that "
            "range");
  error_of([&] { session.beam_search({.beam_width = 200}); }, HEADRACE_OUT_OF_MEMORY);
  headrace_completions* list = nullptr;
  EXPECT_EQ(headrace_session_beam_search(nullptr, nullptr, &list), HEADRACE_INVALID_ARGUMENT);
  EXPECT_EQ(headrace_session_beam_search(session.get(), nullptr, nullptr),
            HEADRACE_INVALID_ARGUMENT);
}

TEST(Session, CallbackExceptionsPropagate) {
  const Model model(kFile);
  Session session(model);
  session.append(kPrompt);
  EXPECT_THROW(session.generate_n(
                   {.max_new_tokens = 4}, 1,
                   [](std::int64_t, std::string_view) -> bool { throw std::runtime_error("x"); }),
               std::runtime_error);
  EXPECT_THROW(session.generate({.ignore_end = true},
                                [](std::string_view) -> bool { throw std::runtime_error("x"); }),
               std::runtime_error);
}

// A copy of the model file with a float tensor filled with `value`.
std::string damaged_copy(std::string_view tensor, float value) {
  std::ifstream from(kFile, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(from)), std::istreambuf_iterator<char>());
  const headrace::ModelFile file(kFile);
  for (std::int64_t i = 0; i < file.num_weights(); ++i) {
    const headrace::ModelFile::Weight weight = file.weight(i);
    if (weight.name != tensor) continue;
    EXPECT_EQ(weight.type, "F32");
    for (std::uint64_t at = 0; at < weight.bytes; at += sizeof value)
      std::memcpy(&bytes[weight.offset + at], &value, sizeof value);
  }
  const std::string path = ::testing::TempDir() + "headrace_damaged.gguf";
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

// The arguments are valid: the status must tell a damaged file from invalid arguments.
TEST(Session, NonFiniteLogitsAreIoErrors) {
  for (const float value :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    const std::string path = damaged_copy("output_norm.weight", value);
    const Model model(path);
    std::remove(path.c_str());
    for (const headrace::SamplingOptions& sampling :
         {headrace::SamplingOptions{}, headrace::SamplingOptions{.temperature = 1},
          headrace::SamplingOptions{.repetition_penalty = 2}}) {
      Session session(model);
      session.append(kPrompt);
      const auto all = [](std::string_view) { return true; };
      const std::string texts[] = {
          error_of([&] { session.sample(sampling, 0); }, HEADRACE_IO_ERROR),
          error_of([&] { session.generate({.sampling = sampling}, all); }, HEADRACE_IO_ERROR)};
      for (const std::string& text : texts) {
        EXPECT_EQ(text.find("logits["), 0u) << text;
        EXPECT_NE(text.find("as the model computed it: must be a number or -infinity"),
                  std::string::npos)
            << text;
        EXPECT_NE(text.find("check the model file"), std::string::npos) << text;
      }
    }
  }
}

TEST(Session, BadOptionsAreRefused) {
  const Model model(kFile);
  for (const std::int64_t max_tokens : {std::int64_t{-1}, std::int64_t{1} << 30}) {
    const std::string text = error_of([&] { Session session(model, {.max_tokens = max_tokens}); },
                                      HEADRACE_INVALID_ARGUMENT);
    EXPECT_EQ(text, "max_tokens=" + std::to_string(max_tokens) + ": must be 1 to " +
                        std::to_string(model.info().context_length) +
                        ", the model's context_length; pass 0 for all of it");
  }
  error_of([&] { Session session(model, {.cache_dtype = headrace::DType::f64}); },
           HEADRACE_INVALID_ARGUMENT);
  for (const std::int64_t page_size : {0, -16})
    EXPECT_EQ(error_of([&] { Session session(model, {.page_size = page_size}); },
                       HEADRACE_INVALID_ARGUMENT),
              "page_size=" + std::to_string(page_size) +
                  ": must be 1 to 2147483647; 16 suits most models");
  Session session(model);
  const auto all = [](std::string_view) { return true; };
  error_of([&] { session.generate({}, all); }, HEADRACE_INVALID_ARGUMENT);  // no logits yet
  session.append(kPrompt);
  error_of([&] { session.generate({.sampling = {.temperature = -1}}, all); },
           HEADRACE_INVALID_ARGUMENT);
  error_of([&] { session.generate({.stop = {""}}, all); }, HEADRACE_INVALID_ARGUMENT);
  error_of([&] { session.sample({}, 99); }, HEADRACE_INVALID_ARGUMENT);
  // An enum with values 0 to 2 can represent 3, but nothing larger.
  EXPECT_EQ(error_of([&] { session.sample({.order = static_cast<headrace_sampling_order>(3)}, 0); },
                     HEADRACE_INVALID_ARGUMENT),
            "order=3: must be 0 (vllm), 1 (transformers) or 2 (llama.cpp); use a "
            "headrace_sampling_order value");
  EXPECT_EQ(headrace_session_append(nullptr, nullptr, 0, nullptr), HEADRACE_INVALID_ARGUMENT);
  EXPECT_EQ(headrace_session_logits(nullptr), nullptr);
  headrace_session_destroy(nullptr);
  headrace_model_destroy(nullptr);
  headrace_model_file_close(nullptr);
}

// A generation that ends by itself ends with one of them.
TEST(Model, SomeTokensEndATurn) {
  const Model model(kFile);
  std::set<std::int32_t> ends;
  for (std::int32_t token = -1; token <= 288; ++token)
    if (model.is_end(token)) ends.insert(token);
  EXPECT_EQ(ends.size(), 2u);
  EXPECT_FALSE(ends.contains(-1));
  EXPECT_FALSE(ends.contains(288));
}

TEST(Model, ChatTokensEndWithTheBeginOfAnAnswerWhereItIsAskedFor) {
  headrace_model* made = nullptr;
  ASSERT_EQ(headrace_model_load(kFile.c_str(), nullptr, &made), HEADRACE_OK);
  const std::unique_ptr<headrace_model, decltype(&headrace_model_destroy)> model(
      made, headrace_model_destroy);
  const headrace_message message{"user", "Hi"};
  const auto tokens = [&](int add_generation_prompt) {
    std::vector<std::int32_t> all(256);
    std::size_t count = 0;
    EXPECT_EQ(headrace_chat_tokens(made, "chatml", &message, 1, add_generation_prompt, all.data(),
                                   all.size(), &count),
              HEADRACE_OK);
    all.resize(count);
    return all;
  };
  const auto without = tokens(0), with = tokens(1);
  ASSERT_LT(without.size(), with.size());
  EXPECT_TRUE(std::equal(without.begin(), without.end(), with.begin()));
}

}  // namespace
