// Tables of tuned choices: their text, what is refused, what plans take.
#include "attention/tune/table.h"

#include <gtest/gtest.h>

#include <array>

#include "attention/select.h"
#include "attention/validate.h"
#include "core/device.h"

namespace headrace::tune {
namespace {

DeviceInfo device_of(const char* text) { return device_from_text(text).value(); }

Problem problem_of(std::int64_t seqlen, std::int32_t phase = HEADRACE_FORWARD) {
  Problem p = default_problem();
  p.seqlen_q = p.seqlen_k = seqlen;
  p.num_heads = p.num_kv_heads = 8;
  p.head_dim = p.head_dim_v = 64;
  p.phase = phase;
  p.has_lse = phase == HEADRACE_BACKWARD;
  return p;
}

constexpr const char* kDevice = "cpu:avx2:4";
Plan plan_of(const Problem& p, const Table* table) {
  const DeviceInfo device = device_of(kDevice);
  return plan_attention(p, device, kernels_of(HEADRACE_CPU, p.phase), table).value();
}

// A table in which both problems have a choice that their kernels offer.
Table table_of_two() {
  Table table(device_of(kDevice), "a file");
  for (const std::int32_t phase : {HEADRACE_FORWARD, HEADRACE_BACKWARD}) {
    const Plan plan = plan_of(problem_of(300, phase), nullptr);
    const auto configs = configs_of(*plan.kernel, plan.problem, plan.device);
    EXPECT_FALSE(configs.empty());
    EXPECT_FALSE(table.set(*plan.kernel, plan.problem,
                           {.config = configs.back(), .seconds = 1.5e-3, .own_seconds = 1.8e-3}));
  }
  return table;
}

std::string reason_of(std::string_view text, const char* device = kDevice) {
  Result<Table> table = Table::parse(device_of(device), text, "a file");
  EXPECT_FALSE(table.ok()) << text;
  return table.ok() ? "" : table.failure().message;
}

TEST(TuningTable, ReadsWhatItWrote) {
  const Table ours = table_of_two();
  Result<Table> read = Table::parse(device_of(kDevice), ours.text(), "a file");
  ASSERT_TRUE(read.ok()) << read.failure().message;
  ASSERT_EQ(read.value().calls().size(), 2u);
  EXPECT_EQ(read.value().text(), ours.text());
  for (const auto& [key, call] : ours.calls()) {
    const TunedCall& other = read.value().calls().at(key);
    EXPECT_EQ(other.config, call.config);
    EXPECT_DOUBLE_EQ(other.seconds, call.seconds);
    EXPECT_DOUBLE_EQ(other.own_seconds, call.own_seconds);
  }
}

TEST(TuningTable, PlansTakeItsChoicesAndSayWhereTheyAreFrom) {
  const Table table = table_of_two();
  for (const std::int32_t phase : {HEADRACE_FORWARD, HEADRACE_BACKWARD}) {
    const Plan own = plan_of(problem_of(300, phase), nullptr);
    const Plan tuned = plan_of(problem_of(300, phase), &table);
    EXPECT_EQ(own.config, TuningConfig{});
    EXPECT_EQ(tuned.config, configs_of(*own.kernel, own.problem, own.device).back());
    EXPECT_EQ(tuned.schedule.num_threads, 1);
    const std::string text = explain(tuned);
    EXPECT_NE(text.find("tuning    " + config_text(tuned.config) +
                        ": 20 % faster than the kernel's own choices; a file\n"),
              std::string::npos)
        << text;
    EXPECT_EQ(explain(own).find("tuning"), std::string::npos);
    EXPECT_EQ(plan_of(problem_of(301, phase), &table).config, TuningConfig{}) << "another shape";
  }
}

// Each of these changes one field of the key, and together they change all.
constexpr void (*kChanges[])(Problem&) = {
    [](Problem& p) { p.phase = HEADRACE_BACKWARD; },
    [](Problem& p) { p.dtype = p.k_dtype = p.v_dtype = HEADRACE_F16; },
    [](Problem& p) { p.batch = 2; },
    [](Problem& p) { p.seqlen_q = 299; },
    [](Problem& p) { p.seqlen_k = 299; },
    [](Problem& p) { p.num_heads = 16; },
    [](Problem& p) { p.num_kv_heads = 4; },
    [](Problem& p) { p.head_dim = 32; },
    [](Problem& p) { p.head_dim_v = 32; },
    [](Problem& p) { p.causal = HEADRACE_CAUSAL_TOP_LEFT; },
    [](Problem& p) { p.window_left = 7; },
    [](Problem& p) { p.window_right = 7; },
    [](Problem& p) { p.softmax_scale = -1; },
    [](Problem& p) { p.softcap = 30; },
    [](Problem& p) { p.dropout_p = 0.1; },
    [](Problem& p) { p.bias_dtype = HEADRACE_BF16; },
    [](Problem& p) { p.has_alibi = 1; },
    [](Problem& p) { p.has_mask = 1; },
    [](Problem& p) { p.has_tree_mask = 1; },
    [](Problem& p) { p.has_sinks = 1; },
    [](Problem& p) { p.has_lse = 1; },
    [](Problem& p) { p.has_dlse = 1; },
    [](Problem& p) { p.has_dbias = 1; },
    [](Problem& p) { p.has_dsinks = 1; },
    [](Problem& p) { p.deterministic = 1; },
    [](Problem& p) { p.num_splits = 3; },
    [](Problem& p) { p.strict_rows = 1; },
    [](Problem& p) { p.is_ragged = 1; },
    [](Problem& p) { p.total_q = 100; },
    [](Problem& p) { p.total_k = 100; },
    [](Problem& p) { p.has_seqused_k = 1; },
    [](Problem& p) { p.page_size = 16; },
    [](Problem& p) { p.k_dtype = HEADRACE_I8; },
    [](Problem& p) { p.v_dtype = HEADRACE_I8; },
    [](Problem& p) { p.k_scaling = HEADRACE_SCALING_PER_KEY; },
    [](Problem& p) { p.v_scaling = HEADRACE_SCALING_PER_KEY; },
    [](Problem& p) { p.recent_group = 16; },
    [](Problem& p) { p.max_shared_prefix = 4096; },
    [](Problem& p) { p.alignment = 2; },
    [](Problem& p) { p.has_negative_strides = 1; },
};

TEST(TuningTable, EveryFieldOfACallIsPartOfItsKey) {
  Problem p = problem_of(300);
  p.softmax_scale = 1;
  const CallKey key = key_of(p);
  std::array<int, kNumKeyFields> num_changes{};
  for (std::size_t c = 0; c < std::size(kChanges); ++c) {
    Problem other = p;
    kChanges[c](other);
    const CallKey changed = key_of(other);
    int num = 0;
    for (std::size_t i = 0; i < kNumKeyFields; ++i) {
      num += changed[i] != key[i];
      num_changes[i] += changed[i] != key[i];
    }
    EXPECT_EQ(num, 1) << "change " << c;
  }
  for (std::size_t i = 0; i < kNumKeyFields; ++i) EXPECT_EQ(num_changes[i], 1) << "field " << i;
}

// The values of numbers do not count, their presence does.
TEST(TuningTable, KeysIgnoreWhatTakesNoTime) {
  const Table table = table_of_two();
  Problem p = problem_of(300);
  p.softmax_scale = 0.3;
  p.strict_fallback = 1;
  EXPECT_NE(plan_of(p, &table).config, TuningConfig{});
  p.softcap = 30;
  EXPECT_EQ(plan_of(p, &table).config, TuningConfig{});
}

TEST(TuningTable, OnlyChoicesOfTheKernelCount) {
  Table table(device_of(kDevice), "a file");
  const Plan plan = plan_of(problem_of(300), nullptr);
  ASSERT_FALSE(table.set(*plan.kernel, plan.problem,
                         {.config = {.tile_m = 7}, .seconds = 1, .own_seconds = 2}));
  const Plan other = plan_of(problem_of(300), &table);
  EXPECT_EQ(other.config, TuningConfig{});
  EXPECT_EQ(other.schedule.tile_m, plan.schedule.tile_m);
  EXPECT_EQ(other.tuning, "ignores tile_m=7, which the kernel does not offer; a file");
}

TEST(TuningTable, RefusesForeignAndDamagedTexts) {
  const std::string good = table_of_two().text();
  const auto with = [&](std::string_view part, std::string_view other) {
    std::string text = good;
    const std::size_t at = text.find(part);
    EXPECT_NE(at, text.npos) << part;
    return text.replace(at, part.size(), other);
  };
  EXPECT_EQ(reason_of("").find("a file: its first line is not \"headrace-tuning 1\""), 0u);
  EXPECT_NE(reason_of(with("headrace-tuning 1", "headrace-tuning 2")).find("its first line"),
            std::string::npos);
  EXPECT_NE(reason_of(with("version 0", "version 9")).find("it is not of this Headrace, version "),
            std::string::npos);
  EXPECT_NE(reason_of(good, "cpu:avx2:3").find("it is not of this device, [cpu sm=0"),
            std::string::npos);
  EXPECT_NE(reason_of(good, "cpu:avx512:4").find("it is not of this device"), std::string::npos);
  EXPECT_NE(reason_of(std::string(Table::kMaxBytes + 1, ' ')).find("a table has at most"),
            std::string::npos);
  // Every truncation, and every changed byte that is not part of a number.
  for (std::size_t size = 0; size < good.size(); ++size) reason_of(good.substr(0, size));
  EXPECT_NE(reason_of(good + "more\n").find("is damaged"), std::string::npos);
  EXPECT_NE(reason_of(with("end 2", "end 1")).find("line 6 is damaged"), std::string::npos);
  for (const char* value : {"seqlen_q=x", "seqlen_q=", "seqlen_q", "sequence=300", "=",
                            "seqlen_q=99999999999999999999"})
    EXPECT_NE(reason_of(with("seqlen_q=300", value)).find("line 4 is damaged"), std::string::npos)
        << value;
  for (const char* value : {"num_threads=0", "num_threads=-1", "num_threads=4294967297",
                            "num_threads=1.5", "threads=1"})
    EXPECT_NE(reason_of(with("num_threads=1", value)).find("line 4 is damaged"), std::string::npos)
        << value;
  for (const char* value : {"us=0", "us=-1", "us=nan", "us=inf", "us=1e300", "own_us=1500"})
    EXPECT_NE(reason_of(with("us=1500", value)).find("line 4 is damaged"), std::string::npos)
        << value;
  EXPECT_NE(reason_of(with(plan_of(problem_of(300), nullptr).kernel->name, "cpu_future_fwd"))
                .find("names a kernel that this build lacks"),
            std::string::npos);
  const std::size_t line = good.find("cpu_"), end = good.find('\n', line) + 1;
  std::string twice = good.substr(0, end) + good.substr(line);
  EXPECT_NE(reason_of(twice).find("line 5 is damaged"), std::string::npos) << "the same call twice";
}

// A byte that was changed makes another table or none. What is read can be written and read again.
TEST(TuningTable, AnyByteMayBeDamaged) {
  const std::string good = table_of_two().text();
  int num_refused = 0;
  for (std::size_t i = 0; i < good.size(); ++i)
    for (const char c : {'\0', '\n', ' ', ':', '=', '-', '9', 'x', '\xff'}) {
      std::string text = good;
      text[i] = c;
      Result<Table> table = Table::parse(device_of(kDevice), text, "a file");
      num_refused += !table.ok();
      if (!table.ok()) continue;
      const std::string again = table.value().text();
      Result<Table> second = Table::parse(device_of(kDevice), again, "a file");
      ASSERT_TRUE(second.ok()) << text;
      EXPECT_EQ(second.value().text(), again);
    }
  EXPECT_GT(num_refused, 1000);
}

TEST(TuningTable, HoldsABoundedNumberOfCalls) {
  Table table(device_of(kDevice), "a file");
  const Plan plan = plan_of(problem_of(1), nullptr);
  Problem p = plan.problem;
  for (std::size_t i = 0; i < Table::kMaxCalls; ++i, ++p.seqlen_k)
    ASSERT_FALSE(table.set(*plan.kernel, p, {.config = {}, .seconds = 1, .own_seconds = 1}));
  const Status full = table.set(*plan.kernel, p, {.config = {}, .seconds = 1, .own_seconds = 1});
  ASSERT_TRUE(full);
  EXPECT_EQ(full->message, "tuning: has 2048 calls, the most of a table; create a new one");
  --p.seqlen_k;
  EXPECT_FALSE(table.set(*plan.kernel, p, {.config = {}, .seconds = 2, .own_seconds = 2}));
  EXPECT_TRUE(Table::parse(device_of(kDevice), table.text(), "a file").ok());
}

TEST(TuningTable, AProcessUsesOneForEachDevice) {
  const DeviceInfo device = device_of(kDevice);
  ASSERT_FALSE(use_table(std::make_shared<const Table>(table_of_two())));
  EXPECT_NE(plan_attention(problem_of(300), device).value().config, TuningConfig{});
  EXPECT_EQ(plan_attention(problem_of(300), device_of("cpu:avx2:3")).value().config,
            TuningConfig{});
  ASSERT_FALSE(use_table(std::make_shared<const Table>(device, "an empty one")));
  EXPECT_EQ(plan_attention(problem_of(300), device).value().config, TuningConfig{});
  ASSERT_FALSE(use_table(std::make_shared<const Table>(table_of_two())));
  ASSERT_FALSE(use_table(nullptr));
  EXPECT_EQ(plan_attention(problem_of(300), device).value().config, TuningConfig{});
  for (int threads = 1; threads <= 64; ++threads)
    ASSERT_FALSE(use_table(std::make_shared<const Table>(
        device_of(("cpu:avx2:" + std::to_string(threads)).c_str()), "")));
  EXPECT_TRUE(use_table(std::make_shared<const Table>(device_of("cpu:avx2:65"), "")));
  ASSERT_FALSE(use_table(nullptr));
}

}  // namespace
}  // namespace headrace::tune
