// Sessions on a model whose biases make a few channels of its keys large: keys that become codes
// are divided by factors of their channels.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "engine/model_fixture.h"
#include "engine/session.h"
#include "weights/gguf.h"

namespace headrace::engine {
namespace {

// A tiny Qwen2 with two channels of keys in each layer that are far larger than the others.
class LargeKeyBiases : public ::testing::Test {
 protected:
  using Floats = std::vector<float>;
  static constexpr std::size_t kHeadDim = 16;
  static constexpr std::size_t channel_of(std::size_t layer) { return 3 + 2 * layer; }

  void SetUp() override {
    const std::string path = std::string(HEADRACE_GOLDEN_DIR) + "/tiny/tiny_qwen2_f32.gguf";
    std::ifstream in(path, std::ios::binary);
    std::string bytes{std::istreambuf_iterator<char>(in), {}};
    const ModelFile file = std::move(read_gguf(path).value());
    for (const std::size_t layer : {0, 1}) {
      const TensorInfo* bias = file.find_tensor(format_text("blk.{}.attn_k.bias", layer));
      const float of_pair[] = {40, -30};
      char* at = &bytes[static_cast<std::size_t>(bias->offset)] + sizeof(float) * channel_of(layer);
      std::memcpy(at, &of_pair[0], sizeof(float));
      std::memcpy(at + sizeof(float) * kHeadDim / 2, &of_pair[1], sizeof(float));
    }
    const std::string changed =
        ::testing::TempDir() + ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::ofstream(changed, std::ios::binary) << bytes;
    model_.emplace(load(changed, MatmulMode::exact));
    for (std::int32_t i = 0; i < 50; ++i) tokens_.push_back(37 * i % 280);
  }

  // Of all channels of all layers.
  void set_factors(float factor) {
    const Buffer& factors = model_->decoder->channel_factors;
    std::ranges::fill_n(factors.as<float>(), 2 * kHeadDim, factor);
  }

  Floats logits(std::optional<DType> k_dtype, std::int64_t batch_tokens = 512) const {
    Session session = std::move(Session::make(*model_, {.max_tokens = 64,
                                                        .batch_tokens = batch_tokens,
                                                        .cache_dtype = DType::f32,
                                                        .k_dtype = k_dtype})
                                    .value());
    Floats all(tokens_.size() * static_cast<std::size_t>(model_->decoder->config.vocab_size));
    EXPECT_FALSE(session.append(tokens_, all.data()));
    return all;
  }
  // Of the logits of 8-bit keys from those of a whole cache.
  double distance() const {
    const Floats whole = logits({}), codes = logits(DType::i8);
    double sum = 0;
    for (std::size_t i = 0; i < whole.size(); ++i) sum += std::abs(double{codes[i]} - whole[i]);
    return sum;
  }

  std::optional<LanguageModel> model_;
  std::vector<std::int32_t> tokens_;
};

TEST_F(LargeKeyBiases, GiveTheirChannelsFactors) {
  const auto* factors = model_->decoder->channel_factors.as<const float>();
  for (std::size_t i = 0; i < 2 * kHeadDim; ++i) {
    const std::size_t layer = i / kHeadDim, in_half = i % (kHeadDim / 2);
    EXPECT_EQ(factors[i], in_half == channel_of(layer) ? 8 : 1) << i;
  }
}

// Of 16 channels with an error the two large ones keep it: sqrt(2 / 16) of all.
TEST_F(LargeKeyBiases, CostKeysOfEightBitsLess) {
  const double with_factors = distance();
  set_factors(1);
  EXPECT_GT(with_factors, 0);
  EXPECT_LT(with_factors, distance() / 2);
}

TEST_F(LargeKeyBiases, DoNotChangeOtherKeys) {
  for (const std::optional<DType> k_dtype :
       {std::optional<DType>(), {DType::f8e4m3}, {DType::u4x2}}) {
    const Floats before = logits(k_dtype);
    set_factors(3);
    EXPECT_EQ(logits(k_dtype), before);
    set_factors(8);
  }
}

TEST_F(LargeKeyBiases, GiveTheSameLogitsInStepsOfAnySize) {
  for (const DType codes : {DType::i8, DType::i4x2}) {
    const Floats whole = logits(codes);
    for (const std::int64_t batch : {1, 3, 16, 17}) {
      const Floats steps = logits(codes, batch);
      for (std::size_t i = 0; i < whole.size(); ++i)
        ASSERT_NEAR(steps[i], whole[i], 1e-4) << dtype_name(codes) << ' ' << batch << ' ' << i;
    }
  }
}

}  // namespace
}  // namespace headrace::engine
