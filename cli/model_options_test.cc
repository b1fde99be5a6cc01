// What the library is given for each option of a model and of a session. Functions of the library
// that are defined here take the place of those that are linked.
#include "model_options.h"

#include <gtest/gtest.h>

#include "tests/support/fields.h"

namespace {

using namespace headrace::testing;

Shown arrived;
headrace_model_info info;

}  // namespace

extern "C" {

headrace_status headrace_model_load(const char* path, const headrace_model_options* given,
                                    headrace_model** model) {
  const headrace_model_options& c = *given;
  arrived = {{"path", path},   SHOW(num_threads), SHOW(exact),    SHOW(use_mmap),
             SHOW(vocab_only), SHOW(device_type), SHOW(device_id)};
  *model = nullptr;
  return HEADRACE_OK;
}

headrace_status headrace_random_model_load(const headrace_model_shape* shape,
                                           const char* weight_type, uint64_t seed,
                                           const headrace_model_options* given,
                                           headrace_model** model) {
  headrace_model_load(shape->name, given, model);
  arrived["weight_type"] = weight_type;
  arrived["seed"] = show(seed);
  return HEADRACE_OK;
}

headrace_status headrace_device_from_text(const char*, headrace_device_info*) {
  return HEADRACE_OK;
}

headrace_status headrace_model_get_info(const headrace_model*, headrace_model_info* given) {
  *given = info;
  return HEADRACE_OK;
}

headrace_status headrace_session_create(const headrace_model*,
                                        const headrace_session_options* given,
                                        headrace_session** session) {
  const headrace_session_options& c = *given;
  arrived = {SHOW(max_tokens),  {"batch", show(c.batch_tokens)},
             SHOW(cache_dtype), SHOW(page_size),
             SHOW(num_pages),   SHOW(k_dtype),
             SHOW(v_dtype),     SHOW(sparq_components),
             SHOW(sparq_keys)};
  *session = nullptr;
  return HEADRACE_OK;
}

headrace_status headrace_engine_create(const headrace_model*, const headrace_engine_options* given,
                                       headrace_engine** engine) {
  const headrace_engine_options& c = *given;
  arrived = {SHOW(max_tokens),     {"batch", show(c.max_batch_tokens)},
             SHOW(cache_dtype),    SHOW(page_size),
             SHOW(num_pages),      SHOW(k_dtype),
             SHOW(v_dtype),        SHOW(max_num_seqs),
             SHOW(max_requests),   SHOW(num_host_pages),
             SHOW(no_prefix_cache)};
  *engine = nullptr;
  return HEADRACE_OK;
}

}  // extern "C"

namespace headrace::cli {
namespace {

const std::string kFile = HEADRACE_GOLDEN_DIR "/tiny/tiny_llama3_f16.gguf";

const Model& no_model() {
  static const Model model(kFile);
  return model;
}

// What arrives after these arguments: each of `options` alone sets its field, and no other one.
struct Option {
  std::string arguments;
  Shown sets;
};
void expect_each(const std::function<Shown(const std::string&)>& after,
                 const std::vector<Option>& options) {
  const Shown without = after("");
  for (const Option& option : options) {
    Shown expected = without;
    for (const auto& [name, value] : option.sets) {
      ASSERT_TRUE(without.contains(name)) << name;
      expected[name] = value;
    }
    EXPECT_EQ(after(option.arguments), expected) << option.arguments;
  }
}

std::vector<Option> options_of_caches() {
  std::vector<Option> options = {{"-c 77", {{"max_tokens", "77"}}},
                                 {"-b 5", {{"batch", "5"}}},
                                 {"--page-size 9", {{"page_size", "9"}}},
                                 {"--cache-type f16", {{"cache_dtype", show(DType::f16)}}},
                                 {"--cache-type bf16", {{"cache_dtype", show(DType::bf16)}}},
                                 {"--cache-type f32", {{"cache_dtype", show(DType::f32)}}}};
  const std::pair<std::string, DType> types[] = {{"int8", DType::i8},
                                                 {"fp8", DType::f8e4m3},
                                                 {"int4", DType::i4x2},
                                                 {"kivi4", DType::u4x2},
                                                 {"kivi2", DType::u2x4}};
  EXPECT_EQ(stored_types().size(), std::size(types));
  for (const auto& [name, dtype] : types) {
    options.push_back({"--k-type " + name, {{"k_dtype", show(dtype)}}});
    options.push_back({"--v-type " + name, {{"v_dtype", show(dtype)}}});
    options.push_back({"--kv-type " + name, {{"k_dtype", show(dtype)}, {"v_dtype", show(dtype)}}});
  }
  options.push_back({"--k-type int8 --v-type kivi2",
                     {{"k_dtype", show(DType::i8)}, {"v_dtype", show(DType::u2x4)}}});
  return options;
}

// A model of 1000 tokens and heads of 64.
class OptionsOfSessions : public ::testing::Test {
 protected:
  OptionsOfSessions() {
    info = {};
    info.struct_size = sizeof info;
    info.context_length = 1000;
    info.head_dim = 64;
  }
  static SessionChoice choice_of(const std::string& arguments) {
    CLI::App app;
    SessionChoice choice;
    add_session_options(app, choice);
    add_sparq_options(app, choice);
    app.parse(arguments);
    return choice;
  }
  static Shown of_session(const std::string& arguments) {
    make_session(no_model(), choice_of(arguments));
    return arrived;
  }
  static Shown of_engine(const std::string& arguments) {
    const Engine engine(no_model(), engine_options(no_model(), choice_of(arguments)));
    return arrived;
  }
};

TEST_F(OptionsOfSessions, ReachTheLibrary) {
  const Shown without = of_session("");
  EXPECT_EQ(without.at("max_tokens"), "1000");
  EXPECT_EQ(without.at("k_dtype"), "-1");
  EXPECT_EQ(without.at("v_dtype"), "-1");
  std::vector<Option> options = options_of_caches();
  expect_each(of_engine, options);
  options.push_back({"--sparq-r 3 --sparq-k 4", {{"sparq_components", "3"}, {"sparq_keys", "4"}}});
  options.push_back(
      {"--sparq-r 64 --sparq-k 4", {{"sparq_components", "64"}, {"sparq_keys", "4"}}});
  expect_each(of_session, options);
}

// The defaults of an engine are the library's.
TEST_F(OptionsOfSessions, OfAnEngineAreItsDefaultsBeside) {
  const Shown ours = of_engine("");
  const Engine engine(no_model(), {.max_tokens = 1000});
  EXPECT_EQ(ours, arrived);
}

TEST_F(OptionsOfSessions, TheCacheHasTheTypeOfTheModelUnlessItIsGiven) {
  for (const auto& after : {of_session, of_engine}) {
    info.exact = 0;
    info.device_type = HEADRACE_CPU;
    EXPECT_EQ(after("").at("cache_dtype"), show(DType::f16));
    info.device_type = HEADRACE_CUDA;
    EXPECT_EQ(after("").at("cache_dtype"), show(DType::bf16));
    info.exact = 1;
    EXPECT_EQ(after("").at("cache_dtype"), show(DType::f32));
    EXPECT_EQ(after("--cache-type f16").at("cache_dtype"), show(DType::f16));
  }
}

TEST_F(OptionsOfSessions, MustFitTheModel) {
  const auto message = [](const auto& after, const std::string& arguments) {
    try {
      after(arguments);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), HEADRACE_INVALID_ARGUMENT);
      return std::string(error.what());
    }
    return std::string();
  };
  for (const auto& after : {of_session, of_engine}) {
    EXPECT_EQ(message(after, "-c 1000"), "");
    EXPECT_EQ(message(after, "-c 1001"),
              "--context 1001 exceeds this model's 1000 tokens; lower --context");
  }
  EXPECT_EQ(message(of_session, "--sparq-r 65 --sparq-k 4"),
            "--sparq-r 65 exceeds this model's 64 components of a key; lower --sparq-r");
}

// As many sequences as completions, and the prompt's own.
TEST_F(OptionsOfSessions, SeveralCompletionsHaveThePagesOfEach) {
  using Pages = std::pair<std::int64_t, std::int64_t>;  // the context, and their number
  const auto pages = [](const std::string& arguments, std::int64_t num_completions,
                        std::int64_t num_prompt_tokens, std::int64_t max_new_tokens) {
    const SessionChoice wide = with_completions(no_model(), choice_of(arguments), num_completions,
                                                num_prompt_tokens, max_new_tokens);
    return std::pair(wide.context, wide.num_pages);
  };
  EXPECT_EQ(pages("", 3, 10, 6), Pages(16, 4));  // a page each
  EXPECT_EQ(pages("", 3, 10, 7), Pages(17, 8));  // two
  EXPECT_EQ(pages("--page-size 5", 1, 10, 7), Pages(17, 8));
  EXPECT_EQ(pages("-c 15", 1, 10, 7), Pages(15, 2));  // the context ends first
  EXPECT_EQ(pages("-c 33", 1, 10, 0), Pages(33, 6));  // no limit
  EXPECT_EQ(pages("", 1, 10, 0), Pages(1000, 2 * 63));
}

TEST(OptionsOfModels, ReachTheLibrary) {
  const auto after = [](const std::string& arguments) {
    CLI::App app;
    ModelChoice choice;
    add_model_options(app, choice);
    app.parse("-m " + kFile + ' ' + arguments);
    load_model(choice);
    return arrived;
  };
  EXPECT_EQ(after(""), (Shown{{"path", kFile},
                              {"num_threads", "0"},
                              {"exact", "0"},
                              {"use_mmap", "0"},
                              {"vocab_only", "0"},
                              {"device_type", show(HEADRACE_CPU)},
                              {"device_id", "0"}}));
  const std::string cuda = show(HEADRACE_CUDA);
  expect_each(after, {{"-t 3", {{"num_threads", "3"}}},
                      {"--exact", {{"exact", "1"}}},
                      {"--mmap", {{"use_mmap", "1"}}},
                      {"--no-mmap", {}},
                      {"--device cpu", {}},
                      {"--device cuda", {{"device_type", cuda}}},
                      {"--device cuda:12", {{"device_type", cuda}, {"device_id", "12"}}}});
  load_vocabulary(kFile);
  const Shown vocabulary = arrived;
  Shown expected = after("");
  expected["vocab_only"] = "1";
  EXPECT_EQ(vocabulary, expected);
}

TEST(OptionsOfModels, OfRandomWeightsReachTheLibrary) {
  const auto after = [](const std::string& arguments) {
    CLI::App app;
    ModelChoice choice;
    RandomModel random;
    add_model_or_random(app, choice.path, choice.path, random);
    app.parse(arguments);
    choice.random = random;
    choice.num_threads = 3;
    load_model(choice);
    return arrived;
  };
  const Shown without = after("--random llama-3.1-8b");
  EXPECT_EQ(without.at("num_threads"), "3");
  Shown expected = without;
  expected["weight_type"] = "Q4_0";
  EXPECT_EQ(after("--random llama-3.1-8b --type q4_0"), expected);
  expected = without;
  expected["seed"] = "7";
  EXPECT_EQ(after("--random llama-3.1-8b --seed 7"), expected);
  EXPECT_NE(after("--random smollm2-135m").at("path"), without.at("path"));
}

}  // namespace
}  // namespace headrace::cli
