// Models with random weights through the public API.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "headrace/model.hpp"
#include "support/errors.h"
#include "support/temporary_folder.h"

namespace {

using headrace::Model;
using headrace::RandomModel;
using headrace::Session;
using headrace::testing::error_of;
using headrace::testing::TemporaryFolder;

const char* const kTypes[] = {"F32",  "F16",  "BF16", "Q4_0", "Q4_1", "Q5_0",
                              "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"};

// Rows are whole blocks of every type.
RandomModel small_model() {
  RandomModel random{.shape = headrace::find_model_shape("llama-3.2-1b")};
  random.shape.num_layers = 2;
  random.shape.hidden_size = 256;
  random.shape.ffn_size = 512;
  random.shape.vocab_size = 300;
  random.shape.num_heads = 4;
  random.shape.num_kv_heads = 2;
  random.shape.context_length = 64;
  random.shape.bos_token = 290;
  random.shape.eos_token = 3;
  return random;
}

std::vector<float> logits_of(const Model& model) {
  Session session(model, {.cache_dtype = headrace::DType::f32});
  const std::int32_t tokens[] = {5, 250, 299, 17};
  std::vector<float> logits(4 * 300);
  headrace::check(headrace_session_append(session.get(), tokens, 4, logits.data()));
  return logits;
}

TEST(RandomModel, OfEveryTypeGivesFiniteLogitsThatDiffer) {
  for (const char* architecture : {"llama", "qwen2"}) {
    for (const int is_tied : {0, 1}) {
      for (const char* type : kTypes) {
        RandomModel random = small_model();
        random.shape.architecture = architecture;
        random.shape.tied_embeddings = is_tied;
        random.weight_type = type;
        const std::vector<float> logits = logits_of(Model(random, {.num_threads = 2}));
        double sum = 0, squares = 0;
        for (const float logit : logits) {
          ASSERT_TRUE(std::isfinite(logit)) << architecture << type;
          sum += logit;
          squares += double{logit} * logit;
        }
        const double n = static_cast<double>(logits.size());
        const double deviation = std::sqrt(squares / n - sum / n * (sum / n));
        // Of the order of 1: neither equal nor a single token that takes all.
        EXPECT_GT(deviation, 0.5) << architecture << type;
        EXPECT_LT(deviation, 2.0) << architecture << type;
      }
    }
  }
}

TEST(RandomModel, InMemoryIsTheModelOfTheFile) {
  const TemporaryFolder folder;
  const RandomModel random = small_model();
  std::uint64_t last = 0;
  random.write(folder.file("m.gguf"),
               {.num_threads = 2, .progress = [&](std::uint64_t done, std::uint64_t total) {
                  EXPECT_LE(last, done);
                  EXPECT_LE(done, total);
                  last = done;
                }});
  EXPECT_GT(last, 0u);
  const Model from_file(folder.file("m.gguf")), from_memory(random);
  EXPECT_EQ(logits_of(from_file), logits_of(from_memory));
  EXPECT_STREQ(from_memory.info().name, "llama-3.2-1b");
  EXPECT_STREQ(from_memory.info().weight_types, from_file.info().weight_types);
  RandomModel other = random;
  other.seed = 1;
  EXPECT_NE(logits_of(Model(other)), logits_of(from_memory));
}

TEST(RandomModel, ShapesHaveNames) {
  const std::vector<std::string> names = headrace::model_shape_names();
  EXPECT_GE(names.size(), 6u);
  for (const std::string& name : names) EXPECT_EQ(headrace::find_model_shape(name).name, name);
  EXPECT_EQ(headrace_model_shape_name(-1), nullptr);
  EXPECT_EQ(headrace_model_shape_name(static_cast<std::int64_t>(names.size())), nullptr);
  const std::string text =
      error_of([] { headrace::find_model_shape("llama"); }, HEADRACE_INVALID_ARGUMENT);
  for (const std::string& name : names) EXPECT_NE(text.find(name), std::string::npos) << text;
}

// All fields in their order.
std::string text_of(const headrace_model_shape& s) {
  std::ostringstream text;
  text << s.name << ' ' << s.architecture;
  for (const std::int64_t size :
       {s.num_layers, s.hidden_size, s.ffn_size, s.vocab_size, s.num_heads, s.num_kv_heads,
        s.head_dim, s.context_length, s.window})
    text << ' ' << size;
  for (const double number :
       {s.rms_eps, s.rope_base, s.rope_linear_factor, s.rope_llama3_factor, s.rope_low_freq_factor,
        s.rope_high_freq_factor, s.rope_original_context_length})
    text << ' ' << number;
  text << ' ' << s.bos_token << ' ' << s.eos_token << ' ' << s.tied_embeddings;
  return std::move(text).str();
}

// As the config.json of each model has it.
TEST(RandomModel, ShapesAreThePublishedOnesInEveryField) {
  std::vector<std::string> shapes;
  for (const std::string& name : headrace::model_shape_names())
    shapes.push_back(text_of(headrace::find_model_shape(name)));
  const std::vector<std::string> published = {
      "smollm2-135m llama 30 576 1536 49152 9 3 64 8192 0 1e-05 100000 1 0 0 0 0 0 0 1",
      "qwen2.5-0.5b qwen2 24 896 4864 151936 14 2 64 32768 0 1e-06 1e+06 1 0 0 0 0 151643 151643 1",
      "qwen2.5-1.5b qwen2 28 1536 8960 151936 12 2 128 131072 0 1e-06 1e+06 1 0 0 0 0 151643 "
      "151643 "
      "1",
      "qwen2.5-7b qwen2 28 3584 18944 152064 28 4 128 131072 0 1e-06 1e+06 1 0 0 0 0 151643 151643 "
      "0",
      "llama-3.2-1b llama 16 2048 8192 128256 32 8 64 131072 0 1e-05 500000 1 32 1 4 8192 128000 "
      "128001 1",
      "llama-3.1-8b llama 32 4096 14336 128256 32 8 128 131072 0 1e-05 500000 1 8 1 4 8192 128000 "
      "128001 0",
      "mistral-7b llama 32 4096 14336 32000 32 8 128 32768 4096 1e-05 10000 1 0 0 0 0 1 2 0"};
  EXPECT_EQ(shapes, published);
}

// Of a model whose end token is one that its beams come to, so that every option has an effect.
TEST(RandomModel, EveryOptionOfABeamSearchCounts) {
  RandomModel random = small_model();
  const auto beams_of = [&](const headrace::BeamOptions& options) {
    const Model model(random);
    Session session(model, {.max_tokens = 32, .page_size = 4, .num_pages = 200});
    session.append(std::vector<std::int32_t>{5, 250, 17});
    std::vector<std::pair<std::vector<std::int32_t>, double>> beams;
    for (const headrace::Completion& beam : session.beam_search(options))
      beams.emplace_back(beam.tokens, beam.score);
    return beams;
  };
  random.shape.eos_token = -1;
  const headrace::BeamOptions base = {.beam_width = 2, .max_new_tokens = 6};
  const auto endless = beams_of(base);
  random.shape.eos_token = endless[0].first[1];
  const auto beams = beams_of(base);
  headrace::BeamOptions wider = base, longer = base, shorter = base, ignoring = base;
  wider.beam_width = 3;
  longer.length_penalty = 3;
  shorter.max_new_tokens = 1;
  ignoring.ignore_end = true;
  for (const headrace::BeamOptions& changed : {wider, longer, shorter, ignoring})
    EXPECT_NE(beams_of(changed), beams);
  EXPECT_EQ(beams_of(ignoring), endless);
}

TEST(RandomModel, ErrorsLeaveNoFile) {
  const TemporaryFolder folder;
  const auto fails = [&](const RandomModel& random, const std::string& path, headrace_status code,
                         const std::string& expected) {
    const std::string text = error_of([&] { random.write(path); }, code);
    EXPECT_EQ(text.find(expected), 0u) << text;
  };
  const std::string path = folder.file("m.gguf");
  RandomModel random = small_model();
  random.weight_type = "Q3_K";
  fails(random, path, HEADRACE_INVALID_ARGUMENT, "weight_type=\"Q3_K\": must be one of F32, ");
  random = small_model();
  random.shape.num_kv_heads = 3;
  fails(random, path, HEADRACE_INVALID_ARGUMENT, "shape.num_heads=4: must be a multiple of ");
  random.shape.struct_size = 0;
  fails(random, path, HEADRACE_INVALID_ARGUMENT, "shape.struct_size=0: ");
  fails(small_model(), folder.file(""), HEADRACE_IO_ERROR, folder.file("") + ": is a directory");
  fails(small_model(), folder.file("absent/m"), HEADRACE_IO_ERROR, folder.file("absent/m"));
  EXPECT_TRUE(std::filesystem::is_empty(folder.file("")));
  headrace_model* model = nullptr;
  EXPECT_EQ(headrace_random_model_load(nullptr, "F32", 0, nullptr, &model),
            HEADRACE_INVALID_ARGUMENT);
  EXPECT_EQ(std::strncmp(headrace_last_error(), "shape=NULL: ", 12), 0);
  const headrace_model_shape shape = small_model().shape;
  EXPECT_EQ(headrace_random_model_load(&shape, nullptr, 0, nullptr, &model),
            HEADRACE_INVALID_ARGUMENT);
  EXPECT_EQ(headrace_random_model_load(&shape, "F32", 0, nullptr, nullptr),
            HEADRACE_INVALID_ARGUMENT);
  EXPECT_EQ(headrace_random_model_write(&shape, "F32", 0, nullptr, nullptr),
            HEADRACE_INVALID_ARGUMENT);
  EXPECT_EQ(headrace_model_shape_find(nullptr, nullptr), HEADRACE_INVALID_ARGUMENT);
}

TEST(ConvertModel, WritesAFileWithFewerHeads) {
  const TemporaryFolder folder;
  const std::string in = folder.file("in.gguf"), out = folder.file("out.gguf");
  small_model().write(in);
  std::uint64_t last = 0;
  headrace::convert_model(in, out, 1, "F16",
                          {.progress = [&](std::uint64_t done, std::uint64_t) { last = done; }});
  EXPECT_GT(last, 0u);
  EXPECT_EQ(headrace::Model(out).info().num_kv_heads, 1);
  EXPECT_EQ(headrace_model_convert(nullptr, 1, "F16", nullptr, out.c_str()),
            HEADRACE_INVALID_ARGUMENT);
  EXPECT_EQ(std::strncmp(headrace_last_error(), "input=NULL: ", 12), 0);
  EXPECT_EQ(headrace_model_convert(in.c_str(), 1, "F16", nullptr, nullptr),
            HEADRACE_INVALID_ARGUMENT);
  EXPECT_EQ(headrace_model_convert(in.c_str(), 1, nullptr, nullptr, out.c_str()),
            HEADRACE_INVALID_ARGUMENT);
  EXPECT_EQ(headrace_model_convert(in.c_str(), 3, "F16", nullptr, out.c_str()),
            HEADRACE_INVALID_ARGUMENT);
  EXPECT_EQ(std::strncmp(headrace_last_error(), "num_kv_heads=3: ", 16), 0);
}

}  // namespace
