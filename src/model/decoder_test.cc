// Batched steps of several sequences.
#include "model/decoder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "kv_cache/kv_cache.h"
#include "weights/gguf.h"

namespace headrace::model {
namespace {

using Tokens = std::vector<std::int32_t>;

// Pages of 5 tokens: chunks begin and end within a page.
constexpr std::int64_t kPageSize = 5, kMaxPages = 10;

// The tokens of one sequence in a step, and the rows whose logits are computed.
struct Part {
  std::int64_t sequence;
  Tokens tokens;
  Tokens logits_rows;
};

class Steps : public ::testing::TestWithParam<std::tuple<const char*, DType, KvLayout>> {
 protected:
  Steps() {
    DeviceInfo info = cpu_info().value();
    info.num_units = 2;
    device_ = make_host_device(info);
    executor_ = std::move(make_executor(*device_, MatmulMode::normal).value());
    const std::string path = std::string(HEADRACE_GOLDEN_DIR) + "/tiny/" + std::get<0>(GetParam());
    Result<ModelFile> file = read_gguf(path);
    EXPECT_TRUE(file.ok());
    decoder_ = std::move(load_decoder(file.value(), *executor_, {}).value());
    const KvShape shape = decoder_.kv_shape(std::get<1>(GetParam()));
    cache_.emplace(std::move(KvCache::make(*device_, {.shape = shape,
                                                      .layout = std::get<2>(GetParam()),
                                                      .page_size = kPageSize,
                                                      .num_pages = 8 * kMaxPages,
                                                      .has_prefix_cache = false})
                                 .value()));
  }

  std::int64_t make_sequence() { return cache_->add({}, 0).value().sequence; }

  // The logits of all parts, in their order.
  std::vector<float> run(const std::vector<Part>& parts) {
    Tokens tokens, positions, cu_seqlens_q = {0}, num_tokens, logits_rows;
    std::vector<std::int64_t> sequences;
    for (const Part& part : parts) {
      const auto first = static_cast<std::int32_t>(tokens.size());
      for (const std::int32_t row : part.logits_rows) logits_rows.push_back(first + row);
      const auto count = static_cast<std::int32_t>(part.tokens.size());
      EXPECT_FALSE(cache_->reserve(part.sequence, count, nullptr));
      auto position = static_cast<std::int32_t>(cache_->info(part.sequence).value().length);
      for (const std::int32_t token : part.tokens) {
        tokens.push_back(token);
        positions.push_back(position++);
      }
      cu_seqlens_q.push_back(static_cast<std::int32_t>(tokens.size()));
      num_tokens.push_back(count);
      sequences.push_back(part.sequence);
    }
    Tokens block_table(parts.size() * kMaxPages), seqused_k(parts.size());
    std::vector<std::int64_t> slot_mapping(tokens.size());
    EXPECT_FALSE(cache_->fill_batch({.sequences = sequences,
                                     .num_tokens = num_tokens,
                                     .max_pages = kMaxPages,
                                     .block_table = block_table,
                                     .seqused_k = seqused_k,
                                     .slot_mapping = slot_mapping}));
    std::vector<float> logits(logits_rows.size() *
                              static_cast<std::size_t>(decoder_.config.vocab_size));
    const Status failure = decoder_.forward(*executor_,
                                            {.tokens = tokens,
                                             .positions = positions,
                                             .slot_mapping = slot_mapping,
                                             .cu_seqlens_q = cu_seqlens_q,
                                             .seqused_k = seqused_k,
                                             .block_table = block_table,
                                             .logits_rows = logits_rows,
                                             .max_seqlen_q = *std::ranges::max_element(num_tokens),
                                             .max_seqlen_k = *std::ranges::max_element(seqused_k)},
                                            cache_->view(), logits.data());
    EXPECT_FALSE(failure) << failure->message;
    for (const Part& part : parts) EXPECT_FALSE(cache_->commit(part.sequence, part.tokens));
    return logits;
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Executor> executor_;
  Decoder decoder_;
  std::optional<KvCache> cache_;
};
INSTANTIATE_TEST_SUITE_P(Models, Steps,
                         ::testing::Combine(::testing::Values("tiny_mistral_q4_1.gguf",
                                                              "tiny_qwen2_f32.gguf"),
                                            ::testing::Values(DType::f32, DType::f16),
                                            ::testing::Values(KvLayout::nhd, KvLayout::hnd)));

Tokens tokens_from(std::int32_t first, std::size_t count) {
  Tokens tokens(count);
  for (std::size_t i = 0; i < count; ++i)
    tokens[i] = (first + 37 * static_cast<std::int32_t>(i)) % 280;
  return tokens;
}

TEST_P(Steps, TokensOutsideTheVocabularyAreRefused) {
  for (const std::int64_t token : {std::int64_t{-1}, decoder_.config.vocab_size}) {
    const Tokens tokens = {0, static_cast<std::int32_t>(token)};
    Batch batch;
    batch.tokens = tokens;
    const Status failed = decoder_.forward(*executor_, batch, cache_->view(), nullptr);
    ASSERT_TRUE(failed);
    EXPECT_EQ(failed->code, ErrorCode::invalid_argument);
    EXPECT_NE(failed->message.find(format_text("tokens[1]={}: must be 0 to {}", token,
                                               decoder_.config.vocab_size - 1)),
              std::string::npos)
        << failed->message;
  }
}

// A prompt, a later chunk of a prompt and decode tokens: alone and in one batch.
TEST_P(Steps, FourBitKeysAreRotatedWhereTheyHaveNoBias) {
  KvShape shape = decoder_.kv_shape(DType::f16);
  EXPECT_FALSE(shape.has_hadamard());
  shape.k_dtype = DType::i8;
  EXPECT_FALSE(shape.has_hadamard());
  shape.k_dtype = DType::i4x2;
  EXPECT_EQ(shape.has_hadamard(), decoder_.layers[0].qkv_bias.data() == nullptr);
}

TEST_P(Steps, BitsOfASequenceDoNotDependOnItsBatch) {
  const std::vector<Tokens> before = {
      {}, tokens_from(3, 19), tokens_from(70, 30), tokens_from(9, 1)};
  const std::vector<Tokens> tokens = {tokens_from(5, 33), tokens_from(11, 18), tokens_from(2, 1),
                                      tokens_from(8, 1)};
  const std::vector<Tokens> rows = {{0, 32}, {17, 4}, {0}, {}};
  const auto sequences_before = [&] {
    std::vector<std::int64_t> sequences;
    for (const Tokens& prefix : before) {
      sequences.push_back(make_sequence());
      if (!prefix.empty()) run({{sequences.back(), prefix, {}}});
    }
    return sequences;
  };
  const std::vector<std::int64_t> one_by_one = sequences_before(), together = sequences_before();
  std::vector<float> expected;
  std::vector<Part> parts;
  for (std::size_t s = 0; s < tokens.size(); ++s) {
    const auto logits = run({{one_by_one[s], tokens[s], rows[s]}});
    expected.insert(expected.end(), logits.begin(), logits.end());
    parts.push_back({together[s], tokens[s], rows[s]});
  }
  EXPECT_EQ(run(parts), expected);

  // The batch wrote the same bits to each cache.
  for (std::size_t s = 0; s < tokens.size(); ++s)
    EXPECT_EQ(run({{together[s], {1}, {0}}}), run({{one_by_one[s], {1}, {0}}})) << s;
}

// The logits of a row do not depend on which other rows are computed.
TEST_P(Steps, LogitsRowsMayBeAnyRows) {
  const Tokens prompt = tokens_from(21, 12);
  Tokens every_row(prompt.size());
  std::iota(every_row.begin(), every_row.end(), 0);
  const std::int64_t a = make_sequence(), b = make_sequence();
  const auto all = run({{a, prompt, every_row}});
  const auto some = run({{b, prompt, {7, 0, 11}}});
  const auto vocab_size = static_cast<std::size_t>(decoder_.config.vocab_size);
  for (std::size_t i = 0; i < 3; ++i) {
    const std::size_t row = std::vector<std::size_t>{7, 0, 11}[i];
    EXPECT_TRUE(std::equal(some.begin() + static_cast<std::ptrdiff_t>(i * vocab_size),
                           some.begin() + static_cast<std::ptrdiff_t>((i + 1) * vocab_size),
                           all.begin() + static_cast<std::ptrdiff_t>(row * vocab_size)))
        << row;
  }
}

// A tensor that is missing, of another shape, or unknown: the file is refused with its name. Some
// are optional: a model without them is another model.
TEST(LoadDecoder, EveryTensorIsNeededAsItIs) {
  DeviceInfo info = cpu_info().value();
  const std::unique_ptr<Device> device = make_host_device(info);
  const auto executor = std::move(make_executor(*device, MatmulMode::normal).value());
  for (const char* name : {"tiny_llama3_f16.gguf", "tiny_qwen2_f32.gguf"}) {
    Result<ModelFile> read = read_gguf(std::string(HEADRACE_GOLDEN_DIR) + "/tiny/" + name);
    ASSERT_TRUE(read.ok());
    const ModelFile& good = read.value();
    const auto refuse = [&](const ModelFile& file, const std::string& text) {
      Result<Decoder> made = load_decoder(file, *executor, {});
      ASSERT_FALSE(made.ok()) << name << ": " << text;
      EXPECT_NE(made.failure().message.find(text), std::string::npos) << made.failure().message;
    };
    for (std::size_t i = 0; i < good.tensors.size(); ++i) {
      const std::string tensor = "tensor '" + good.tensors[i].name + "'";
      ModelFile file = good;
      file.tensors[i].shape.back() += 1;
      refuse(file, tensor);
      file = good;
      const bool is_optional =
          good.tensors[i].name == "output.weight" || good.tensors[i].name == "rope_freqs.weight";
      file.tensors[i].name = "another.weight";
      refuse(file, is_optional ? "tensor 'another.weight' is not part" : tensor + " is missing");
      file = good;
      file.tensors.push_back(good.tensors[i]);
      file.tensors.back().name = "another.weight";
      refuse(file, "tensor 'another.weight' is not part");
    }
  }
}

}  // namespace
}  // namespace headrace::model
