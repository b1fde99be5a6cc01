#include "attention_shape.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

namespace headrace::cli {
namespace {

AttentionShape shape_of(std::vector<std::string> arguments) {
  CLI::App app;
  ShapeOptions options;
  add_shape_options(app, options);
  std::reverse(arguments.begin(), arguments.end());  // the parser pops arguments from the back
  app.parse(arguments);
  const auto shapes = shapes_of(dims_of(options), options);
  EXPECT_EQ(shapes.size(), 1u);
  return shapes.at(0);
}

TEST(AttentionShape, ListsMakeAllCombinations) {
  CLI::App app;
  ShapeOptions options;
  add_shape_options(app, options);
  EXPECT_FALSE(has_dims(app));
  app.parse("--batch 1,2 --seqlen 128,256,512 --dtype f32,bf16 --causal none,top-left");
  EXPECT_TRUE(has_dims(app));
  EXPECT_EQ(dims_of(options).size(), 6u);
  EXPECT_EQ(shapes_of(dims_of(options), options).size(), 24u);
}

TEST(AttentionShape, DefaultsFollowOtherSizes) {
  const auto p = shape_of({"--seqlen=7", "--heads=6", "--head-dim=80"}).problem;
  EXPECT_EQ(p.seqlen_q, 7);
  EXPECT_EQ(p.seqlen_k, 7);
  EXPECT_EQ(p.num_kv_heads, 6);
  EXPECT_EQ(p.head_dim_v, 80);
}

// Options of one field each: the problem is the default with this field.
TEST(AttentionShape, EachOptionSetsItsFieldAlone) {
  using Problem = headrace_problem;
  const std::pair<std::vector<std::string>, void (*)(Problem&)> options[] = {
      {{"--batch=3"}, [](Problem& p) { p.batch = 3; }},
      {{"--seqlen-q=3", "--seqlen-k=7"}, [](Problem& p) { p.seqlen_q = 3, p.seqlen_k = 7; }},
      {{"--seqlen=5", "--seqlen-k=7"}, [](Problem& p) { p.seqlen_q = 5, p.seqlen_k = 7; }},
      {{"--seqlen-q=9"}, [](Problem& p) { p.seqlen_q = p.seqlen_k = 9; }},
      {{"--heads=6", "--kv-heads=2"}, [](Problem& p) { p.num_heads = 6, p.num_kv_heads = 2; }},
      {{"--head-dim=80", "--head-dim-v=48"},
       [](Problem& p) { p.head_dim = 80, p.head_dim_v = 48; }},
      {{"--dtype=f16"}, [](Problem& p) { p.dtype = HEADRACE_F16; }},
      {{"--dtype=bf16"}, [](Problem& p) { p.dtype = HEADRACE_BF16; }},
      {{"--dtype=f64"}, [](Problem& p) { p.dtype = HEADRACE_F64; }},
      {{"--causal=bottom-right"}, [](Problem& p) { p.causal = HEADRACE_CAUSAL_BOTTOM_RIGHT; }},
      {{"--causal=top-left"}, [](Problem& p) { p.causal = HEADRACE_CAUSAL_TOP_LEFT; }},
      {{"--window=3,open"}, [](Problem& p) { p.window_left = 3; }},
      {{"--window=-1,4"}, [](Problem& p) { p.window_right = 4; }},
      {{"--softcap=30"}, [](Problem& p) { p.softcap = 30; }},
      {{"--dropout=0.25"}, [](Problem& p) { p.dropout_p = 0.25; }},
      {{"--alibi"}, [](Problem& p) { p.has_alibi = 1; }},
      {{"--bias", "--dtype=f16"}, [](Problem& p) { p.dtype = p.bias_dtype = HEADRACE_F16; }},
      {{"--mask"}, [](Problem& p) { p.has_mask = 1; }},
      {{"--sinks"}, [](Problem& p) { p.has_sinks = 1; }},
      {{"--lse"}, [](Problem& p) { p.has_lse = 1; }},
      {{"--ragged", "--batch=2", "--seqlen=6"},
       [](Problem& p) {
         p.is_ragged = 1, p.batch = 2, p.seqlen_q = p.seqlen_k = 6, p.total_q = p.total_k = 6 + 3;
       }},
      {{"--backward"}, [](Problem& p) { p.phase = HEADRACE_BACKWARD, p.has_lse = 1; }},
      {{"--backward", "--deterministic"},
       [](Problem& p) { p.phase = HEADRACE_BACKWARD, p.has_lse = p.deterministic = 1; }},
      {{"--backward", "--bias", "--sinks"}, [](Problem& p) {
         p.phase = HEADRACE_BACKWARD, p.has_lse = p.has_sinks = p.has_dbias = p.has_dsinks = 1;
         p.bias_dtype = HEADRACE_F32;
       }}};
  for (const auto& [arguments, change] : options) {
    Problem expected = shape_of({}).problem;
    change(expected);
    const Problem got = shape_of(arguments).problem;
    EXPECT_EQ(std::memcmp(&got, &expected, sizeof got), 0) << arguments.front();
  }
}

TEST(AttentionShape, WorkOfAFullMatrix) {
  const Work work = work_of(shape_of({"--batch=2", "--seqlen-q=3", "--seqlen-k=5", "--heads=4",
                                      "--kv-heads=2", "--head-dim=8", "--head-dim-v=16"}));
  EXPECT_EQ(work.visible_pairs, 2 * 3 * 5);
  EXPECT_DOUBLE_EQ(work.flops, 2. * (8 + 16) * 4 * 2 * 3 * 5);
  EXPECT_DOUBLE_EQ(work.bytes, 4. * (8 + 16) * (2 * 3 * 4 + 2 * 5 * 2));
}

TEST(AttentionShape, WorkOfABackwardIsFiveProductsAndTwiceTheTensors) {
  const std::vector<std::string> sizes = {"--seqlen-q=3", "--seqlen-k=5", "--heads=4",
                                          "--kv-heads=2", "--head-dim=8", "--backward"};
  const Work work = work_of(shape_of(sizes));
  EXPECT_EQ(work.visible_pairs, 3 * 5);
  EXPECT_DOUBLE_EQ(work.flops, 2.5 * 4 * 8 * 4 * 3 * 5) << "2.5 times the flops of the forward";
  const double lse = 4. * 4 * 3, tensors = 4. * 16 * 2 * (3 * 4 + 5 * 2);
  EXPECT_DOUBLE_EQ(work.bytes, tensors + lse);

  auto with = [&](std::initializer_list<std::string> more) {
    std::vector<std::string> all = sizes;
    all.insert(all.end(), more);
    return work_of(shape_of(all));
  };
  EXPECT_DOUBLE_EQ(with({"--head-dim-v=16"}).flops, (6. * 8 + 4 * 16) * 4 * 3 * 5);
  EXPECT_DOUBLE_EQ(with({"--bias"}).bytes, work.bytes + 2 * 4. * 3 * 5)
      << "bias is read, dbias written";
  EXPECT_DOUBLE_EQ(with({"--mask"}).bytes, work.bytes + 3 * 5);
  // Three of the five keys are seen; all five gradients are written.
  EXPECT_DOUBLE_EQ(with({"--causal=top-left"}).bytes, work.bytes - 4. * 2 * 16 * 2);
}

TEST(AttentionShape, CausalPairsAreCountedOneByOne) {
  EXPECT_EQ(work_of(shape_of({"--seqlen=4", "--causal=bottom-right"})).visible_pairs, 10);
  const std::vector<std::string> sizes = {"--seqlen-q=2", "--seqlen-k=5"};
  EXPECT_EQ(work_of(shape_of({sizes[0], sizes[1], "--causal=bottom-right"})).visible_pairs, 4 + 5);
  EXPECT_EQ(work_of(shape_of({sizes[0], sizes[1], "--causal=top-left"})).visible_pairs, 1 + 2);
  // More queries than keys: the first ones see nothing.
  EXPECT_EQ(
      work_of(shape_of({"--seqlen-q=4", "--seqlen-k=2", "--causal=bottom-right"})).visible_pairs,
      1 + 2);
}

TEST(AttentionShape, WindowLimitsPairsAndBytes) {
  // A single query sees itself and two keys to its left: K and V are read for three keys only.
  const Work work = work_of(
      shape_of({"--seqlen-q=1", "--seqlen-k=100", "--heads=1", "--head-dim=4", "--window=2,0"}));
  EXPECT_EQ(work.visible_pairs, 3);
  EXPECT_DOUBLE_EQ(work.bytes, 4. * (8 + 3 * 8));
}

// Pairs and keys counted one by one, by the definition in headrace.h: also of rows behind the last
// key or before the first, of which a window or a causal mask hides all.
TEST(AttentionShape, WorkIsThatOfTheVisiblePairs) {
  const std::pair<const char*, int> causals[] = {{"none", HEADRACE_CAUSAL_NONE},
                                                 {"bottom-right", HEADRACE_CAUSAL_BOTTOM_RIGHT},
                                                 {"top-left", HEADRACE_CAUSAL_TOP_LEFT}};
  for (const auto& [causal, code] : causals)
    for (const int left : {-1, 0, 1, 3})
      for (const int right : {-1, 0, 1, 3})
        for (int seqlen_q = 1; seqlen_q <= 8; ++seqlen_q)
          for (int seqlen_k = 1; seqlen_k <= 8; ++seqlen_k) {
            const std::vector<std::string> options = {
                "--heads=1",
                "--head-dim=4",
                "--causal=" + std::string(causal),
                "--window=" + std::to_string(left) + ',' + std::to_string(right),
                "--seqlen-q=" + std::to_string(seqlen_q),
                "--seqlen-k=" + std::to_string(seqlen_k)};
            int num_pairs = 0;
            std::set<int> keys;
            const int shift = code == HEADRACE_CAUSAL_TOP_LEFT ? 0 : seqlen_k - seqlen_q;
            for (int i = 0; i < seqlen_q; ++i)
              for (int j = 0; j < seqlen_k; ++j) {
                const int distance = j - (i + shift);  // to the diagonal key
                const bool is_hidden = (code != HEADRACE_CAUSAL_NONE && distance > 0) ||
                                       (left >= 0 && distance < -left) ||
                                       (right >= 0 && distance > right);
                if (is_hidden) continue;
                ++num_pairs;
                keys.insert(j);
              }
            const Work work = work_of(shape_of(options));
            const std::string text =
                options[2] + ' ' + options[3] + ' ' + options[4] + ' ' + options[5];
            EXPECT_EQ(work.visible_pairs, num_pairs) << text;
            EXPECT_DOUBLE_EQ(work.flops, 2. * 8 * num_pairs) << text;
            EXPECT_DOUBLE_EQ(work.bytes, 4. * 8 * (seqlen_q + static_cast<double>(keys.size())))
                << text;
          }
}

TEST(AttentionShape, RaggedLengthsFallEvenly) {
  EXPECT_EQ(ragged_seqlens(4, 100), (std::vector<std::int64_t>{100, 75, 50, 25}));
  const AttentionShape shape = shape_of({"--ragged", "--batch=4", "--seqlen=100"});
  EXPECT_EQ(shape.problem.total_q, 250);
  EXPECT_EQ(work_of(shape).visible_pairs, 100 * 100 + 75 * 75 + 50 * 50 + 25 * 25);
}

// Of equal and of different lengths, whatever is visible.
TEST(AttentionShape, WorkOfABatchIsTheSumOfItsSequences) {
  const std::vector<std::string> masks[] = {{},
                                            {"--causal=top-left"},
                                            {"--causal=bottom-right"},
                                            {"--window=2,1"},
                                            {"--causal=bottom-right", "--window=1,open"}};
  for (const int seqlen_q : {1, 2, 5, 9})
    for (const int seqlen_k : {1, 4, 9})
      for (const int batch : {1, 2, 4})
        for (const std::string kind : {"--lse", "--backward"})
          for (const bool is_ragged : {false, true})
            for (const auto& mask : masks) {
              const auto work = [&](const std::vector<std::string>& sizes) {
                std::vector<std::string> all = {"--heads=4", "--kv-heads=2", "--head-dim=8", kind};
                all.insert(all.end(), mask.begin(), mask.end());
                all.insert(all.end(), sizes.begin(), sizes.end());
                return shape_of(all);
              };
              std::vector<std::string> sizes = {"--batch=" + std::to_string(batch),
                                                "--seqlen-q=" + std::to_string(seqlen_q),
                                                "--seqlen-k=" + std::to_string(seqlen_k)};
              if (is_ragged) sizes.push_back("--ragged");
              const AttentionShape shape = work(sizes);
              Work sum{};
              for (std::size_t i = 0; i < shape.seqlens_q.size(); ++i) {
                const Work one =
                    work_of(work({"--seqlen-q=" + std::to_string(shape.seqlens_q[i]),
                                  "--seqlen-k=" + std::to_string(shape.seqlens_k[i])}));
                sum.visible_pairs += one.visible_pairs;
                sum.flops += one.flops;
                sum.bytes += one.bytes;
              }
              const Work all = work_of(shape);
              const std::string text = sizes[0] + ' ' + sizes[1] + ' ' + sizes[2] + ' ' + kind;
              EXPECT_EQ(all.visible_pairs, sum.visible_pairs) << text << is_ragged;
              EXPECT_DOUBLE_EQ(all.flops, sum.flops) << text << is_ragged;
              EXPECT_DOUBLE_EQ(all.bytes, sum.bytes) << text << is_ragged;
            }
}

TEST(AttentionShape, InvalidValuesAreUsageErrors) {
  EXPECT_THROW(shape_of({"--window=3"}), CLI::ParseError);
  EXPECT_THROW(shape_of({"--window=3,x"}), CLI::ParseError);
  EXPECT_THROW(shape_of({"--batch=0"}), CLI::ParseError);
  EXPECT_THROW(shape_of({"--batch=1,a"}), CLI::ParseError);
  EXPECT_THROW(shape_of({"--dtype=f8"}), CLI::ParseError);
  EXPECT_THROW(shape_of({"--causal=left"}), CLI::ParseError);
  EXPECT_THROW(shape_of({"--deterministic"}), CLI::ParseError) << "every forward is deterministic";
}

TEST(AttentionShape, FeaturesAsText) {
  EXPECT_EQ(features_text(shape_of({}).problem), "");
  EXPECT_EQ(features_text(shape_of({"--window=open,0", "--softcap=30", "--sinks"}).problem),
            "window open/0, softcap 30, sinks");
  EXPECT_EQ(features_text(shape_of({"--backward", "--bias", "--deterministic"}).problem),
            "bias, deterministic")
      << "every backward has an lse";
}

}  // namespace
}  // namespace headrace::cli
