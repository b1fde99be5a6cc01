// The chunks that an engine computes beside the rows that the CPU's attention splits: neither of
// the two may name the other.
#include <set>

#include "backends/cpu/attention/flash/config.h"
#include "engine/model_fixture.h"
#include "tests/support/engine_fixture.h"

namespace headrace::engine {
namespace {

// Keys of sequences with up to kSplitRows rows may be split among threads, which changes bits of
// long ones. So neither a chunk of a prompt nor what it leaves has as few; and of the budgets that
// allow it, none is refused.
TEST(EngineChunks, HaveMoreRowsThanAreSplit) {
  std::set<std::int64_t> groups;
  for (const char* file : {"tiny_llama3_f16.gguf", "tiny_mistral_q4_1.gguf", "tiny_qwen2_f32.gguf",
                           "tiny_llama2_q4_0.gguf"}) {
    const LanguageModel model =
        load(std::string(HEADRACE_GOLDEN_DIR) + "/tiny/" + file, MatmulMode::normal);
    const model::Config& config = model.decoder->config;
    const std::int64_t group = config.num_heads / config.num_kv_heads;
    groups.insert(group);
    const std::int64_t min_chunk = cpu::flash::kSplitRows / group + 1;
    const auto options_of = [&](std::int64_t budget) {
      return EngineOptions{.max_batch_tokens = budget, .max_num_seqs = 1, .num_pages = 400};
    };
    const std::int64_t least = 2 * min_chunk - 1;
    EXPECT_FALSE(Engine::make(model, options_of(least - 1)).ok()) << file;
    int num_unfinished = 0;
    for (const std::int64_t budget : {least, least + 1}) {
      EngineOptions options = options_of(budget);
      options.has_prefix_cache = false;
      std::int64_t left = 0;
      options.before_step = [&](std::span<const Chunk> chunks) -> Status {
        for (const Chunk& chunk : chunks) {
          left -= std::ssize(chunk.tokens);
          num_unfinished += !chunk.is_last;
          EXPECT_TRUE(chunk.is_last || std::ssize(chunk.tokens) * group > cpu::flash::kSplitRows);
          EXPECT_TRUE(left == 0 || left * group > cpu::flash::kSplitRows);
        }
        return std::nullopt;
      };
      const auto engine = engine_of(model, options);
      for (std::size_t length = 1; length <= 128; ++length) {
        left = static_cast<std::int64_t>(length);
        ASSERT_TRUE(engine->add({.prompt = prompt_of(length, 7), .max_new_tokens = 1}).ok());
        ASSERT_FALSE(engine->run());
        EXPECT_EQ(left, 0);
      }
    }
    EXPECT_EQ(num_unfinished > 0, group > 1) << file;  // the context is 128
  }
  EXPECT_GT(groups.size(), 1u);
}

}  // namespace
}  // namespace headrace::engine
