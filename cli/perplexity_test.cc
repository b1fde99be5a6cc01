// headrace perplexity, run from a shell: its numbers beside those of the logits that it writes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "headrace/model.hpp"
#include "tests/support/program_json.h"

namespace {

using headrace::testing::content_of;
using headrace::testing::json_of;
using headrace::testing::TemporaryFolder;

const std::string kModel = HEADRACE_GOLDEN_DIR "/tiny/tiny_llama3_f16.gguf";

TEST(Perplexity, IsThatOfTheLogitsItWrites) {
  const TemporaryFolder folder;
  const std::string text = folder.file("text", "The quick brown fox jumps.");
  const std::string logits_path = folder.file("logits"), tokens_path = folder.file("tokens");
  const auto json = json_of("perplexity -w 10 -m " + kModel + " -f " + text + " --logits-out " +
                            logits_path + " --tokens-out " + tokens_path);
  const auto& row = json["perplexity"][0];
  const std::string tokens = content_of(tokens_path), logits = content_of(logits_path);
  const std::size_t num_tokens = tokens.size() / 4, vocab = logits.size() / 4 / num_tokens;
  ASSERT_EQ(row["tokens"], num_tokens);
  ASSERT_EQ(static_cast<std::int64_t>(vocab), headrace::Model(kModel).info().vocab_size);
  std::vector<std::int32_t> ids(num_tokens);
  std::vector<float> values(num_tokens * vocab);
  std::copy_n(tokens.data(), tokens.size(), reinterpret_cast<char*>(ids.data()));
  std::copy_n(logits.data(), logits.size(), reinterpret_cast<char*>(values.data()));
  std::vector<double> losses;
  for (std::size_t i = 0; i + 1 < num_tokens; ++i) {
    if ((i + 1) % 10 == 0) continue;  // the first token of a window is not predicted
    double sum = 0;
    for (std::size_t v = 0; v < vocab; ++v)
      sum += std::exp(static_cast<double>(values[i * vocab + v]));
    losses.push_back(std::log(sum) -
                     static_cast<double>(values[i * vocab + static_cast<std::size_t>(ids[i + 1])]));
  }
  double mean = 0, variance = 0;
  const auto n = static_cast<double>(losses.size());
  for (const double loss : losses) mean += loss / n;
  for (const double loss : losses) variance += (loss - mean) * (loss - mean) / (n - 1);
  EXPECT_EQ(row["window"], 10);
  EXPECT_EQ(row["predicted"], losses.size());
  EXPECT_NEAR(row["nats_per_token"].get<double>(), mean, 1e-6 * mean);
  EXPECT_NEAR(row["perplexity"].get<double>(), std::exp(mean), 1e-5 * std::exp(mean));
  const double error = std::exp(mean) * std::sqrt(variance / n);
  EXPECT_NEAR(row["standard_error"].get<double>(), error, 1e-5 * error);
}

nlohmann::json row_of(const std::string& options) {
  return json_of("perplexity -w 64 -f " HEADRACE_GOLDEN_DIR "/text/prompts.txt -m " + kModel +
                 options)["perplexity"][0];
}

template <class T>
std::vector<T> values_of(const std::string& path) {
  const std::string bytes = content_of(path);
  std::vector<T> values(bytes.size() / sizeof(T));
  std::copy_n(bytes.data(), bytes.size(), reinterpret_cast<char*>(values.data()));
  return values;
}

// A row of the report beside the logits `p` of the reference and `q` of the model.
void expect_divergence(const nlohmann::json& row, const std::vector<float>& p,
                       const std::vector<float>& q) {
  const auto vocab = static_cast<std::size_t>(headrace::Model(kModel).info().vocab_size);
  const auto num_tokens = p.size() / vocab;
  double num_same = 0;
  std::vector<double> divergences;
  for (std::size_t i = 0; i + 1 < num_tokens; ++i) {
    if ((i + 1) % 64 == 0) continue;  // the first token of a window is not predicted
    const float *a = &p[i * vocab], *b = &q[i * vocab];
    double sum_a = 0, sum_b = 0;
    for (std::size_t v = 0; v < vocab; ++v) {
      sum_a += std::exp(static_cast<double>(a[v]));
      sum_b += std::exp(static_cast<double>(b[v]));
    }
    double divergence = 0;
    for (std::size_t v = 0; v < vocab; ++v) {
      const double pa = std::exp(static_cast<double>(a[v])) / sum_a;
      divergence += pa * std::log(pa / (std::exp(static_cast<double>(b[v])) / sum_b));
    }
    divergences.push_back(divergence);
    num_same += std::max_element(a, a + vocab) - a == std::max_element(b, b + vocab) - b;
  }
  const auto num_predicted = static_cast<double>(divergences.size());
  double mean = 0, variance = 0;
  for (const double one : divergences) mean += one / num_predicted;
  for (const double one : divergences) variance += (one - mean) * (one - mean);
  variance /= num_predicted - 1;
  const double error = std::sqrt(variance / num_predicted);
  EXPECT_GT(mean, 0);
  EXPECT_NEAR(row["kl"].get<double>(), mean, 1e-6 * mean);
  EXPECT_NEAR(row["kl_standard_error"].get<double>(), error, 1e-5 * error);
  EXPECT_EQ(row["tokens"], num_tokens);
  EXPECT_EQ(row["window"], 64);
  EXPECT_EQ(row["predicted"], divergences.size());
  EXPECT_NEAR(row["same_top"].get<double>(), num_same / num_predicted, 1e-9);
}

TEST(Perplexity, ReportsTheDivergenceFromAnUnquantisedCache) {
  const TemporaryFolder folder;
  const auto logits_of = [&](const std::string& options) {
    const std::string path = folder.file("logits");
    row_of(options + " --logits-out " + path);
    return values_of<float>(path);
  };
  const auto without = row_of("");
  for (const char* name : {"kl", "kl_standard_error", "same_top"})
    EXPECT_TRUE(without[name].is_null()) << name;
  const auto same = row_of(" --kl-against f16");
  EXPECT_EQ(same["kl"], 0);
  EXPECT_EQ(same["same_top"], 1);
  const std::vector<float> p = logits_of(" --cache-type f32");
  for (const std::string types :
       {" --k-type int4", " --v-type int4", " --kv-type int4", " --k-type int8 --v-type kivi2",
        " --cache-type bf16 --v-type int8"}) {
    SCOPED_TRACE(types);
    expect_divergence(row_of(types + " --kl-against f32"), p, logits_of(types));
  }
}

TEST(Perplexity, OfSparqAttentionIsThatOfADecode) {
  const TemporaryFolder folder;
  const std::string logits_path = folder.file("logits"), tokens_path = folder.file("tokens");
  const auto row = row_of(" --sparq-r 2 --sparq-k 8 --kl-against f16 --logits-out " + logits_path +
                          " --tokens-out " + tokens_path);
  EXPECT_GT(row["kl"].get<double>(), 0);
  EXPECT_LT(row["same_top"].get<double>(), 1);
  const std::vector<float> logits = values_of<float>(logits_path);
  const std::vector<std::int32_t> tokens = values_of<std::int32_t>(tokens_path);
  const headrace::Model model(kModel);
  const auto vocab = static_cast<std::size_t>(model.info().vocab_size);
  headrace::Session session(model, {.sparq_components = 2, .sparq_keys = 8});
  session.append(std::span(tokens).first(8));
  for (std::size_t i = 8; i < 64; ++i) {
    session.append(std::span(tokens).subspan(i, 1));
    ASSERT_TRUE(std::equal(session.logits(), session.logits() + vocab, &logits[i * vocab])) << i;
  }
  // A window has no more keys than these: dense.
  EXPECT_EQ(row_of(" --sparq-r 2 --sparq-k 64 --kl-against f16")["kl"], 0);
}

}  // namespace
