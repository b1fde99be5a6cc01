// headrace tune: the file, what reads it, and the program.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/ceilings.h"
#include "tests/support/program_json.h"
#include "tuning_file.h"

namespace headrace::cli {
namespace {

using testing::content_of;
using testing::json_of;
using testing::run_program;

constexpr const char* kTune =
    "tune --rounds 1 --min-time 0 --warm --call 'attention --seqlen 192 --dtype f32' ";
constexpr const char* kExplain = "explain attention --seqlen 192 --dtype f32 ";

class Tune : public ::testing::Test {
 protected:
  void SetUp() override { setenv("XDG_CACHE_HOME", folder_.file("").c_str(), 1); }
  void TearDown() override { setenv("XDG_CACHE_HOME", ceilings_folder().file("").c_str(), 1); }
  static std::string path() { return tuning_path(cpu_info()); }
  // Another choice for the call of the file, one that every kernel of these calls offers.
  static void choose(const std::string& config) {
    std::string text = content_of(path());
    const std::size_t begin = text.find(':', text.find("\ncpu_")) + 1, end = text.find(':', begin);
    replace_file(path(), text.replace(begin, end - begin, config));
  }

  testing::TemporaryFolder folder_;
};

TEST_F(Tune, KeepsAFileThatPlansRead) {
  const auto first = json_of(kTune);
  ASSERT_EQ(first["calls"].size(), 1u);
  const auto& row = first["calls"][0];
  EXPECT_GT(row["us"].get<double>(), 0);
  EXPECT_GE(row["gain_percent"].get<double>(), 0);
  EXPECT_GE(row["num_configs"].get<int>(), row["num_timed"].get<int>());
  EXPECT_EQ(first["meta"]["file"], path());
  ASSERT_TRUE(std::filesystem::is_regular_file(path())) << path();
  // The next call is added.
  json_of("tune --rounds 1 --min-time 0 --warm --call 'attention --seqlen 8 --backward'");
  EXPECT_EQ(Tuning(cpu_info(), content_of(path()), "").calls().size(), 2u);
}

TEST_F(Tune, ExplainNamesTheChoiceAndItsFile) {
  json_of(kTune);
  choose("tile_m=96");
  const std::string text = run_program(kExplain).out;
  EXPECT_NE(text.find("tuning    tile_m=96: "), std::string::npos) << text;
  EXPECT_NE(text.find("tile_m 96, "), std::string::npos) << text;
  const auto json = json_of(kExplain);
  EXPECT_NE(json["plans"][0]["explain"].get<std::string>().find(path()), std::string::npos);
  const std::string own = run_program(std::string(kExplain) + "--no-tuning").out;
  EXPECT_EQ(own.find("tuning"), std::string::npos) << own;
  const auto bench = json_of("bench attention --no-ceilings --min-time 0 --reps 1 --seqlen 192");
  EXPECT_EQ(bench["meta"]["tuning"], path());
  EXPECT_EQ(bench["rows"][0]["tile_m"], 96);
}

TEST_F(Tune, ADamagedOrForeignFileIsIgnoredWithAReason) {
  json_of(kTune);
  choose("tile_m=96");
  const std::string good = content_of(path());
  const auto expect_ignored = [&](const std::string& text, const std::string& reason) {
    replace_file(path(), text);
    const auto result = run_program(std::string(kExplain) + "2>&1");
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_NE(result.out.find(reason), std::string::npos) << result.out;
    EXPECT_EQ(result.out.find("\ntuning "), std::string::npos) << result.out;
  };
  expect_ignored("", "its first line is not \"headrace-tuning 1\"");
  expect_ignored(good.substr(0, good.size() - 3), "its end is missing");
  expect_ignored(std::string(5 << 20, 'a'), "a table has at most");
  std::string other = good;
  expect_ignored(other.replace(other.find("units="), 6, "units=1"), "it is not of this device");
  other = good;
  expect_ignored(other.replace(other.find("version "), 9, "version 9"),
                 "it is not of this Headrace, version ");
  other = good;
  expect_ignored(other.replace(other.find("tile_m=96"), 9, "tile_m=-1"), "line 4 is damaged");
  // A choice that the kernel does not offer is named where it would count.
  replace_file(path(), other.replace(other.find("tile_m=-1"), 9, "tile_m=97"));
  const std::string text = run_program(kExplain).out;
  EXPECT_NE(text.find("ignores tile_m=97, which the kernel does not offer"), std::string::npos)
      << text;
  // Tuning again replaces what was there.
  replace_file(path(), "nonsense");
  EXPECT_NE(run_program(std::string(kTune) + "2>&1").out.find("its first line"), std::string::npos);
  EXPECT_EQ(Tuning(cpu_info(), content_of(path()), "").calls().size(), 1u);
}

TEST_F(Tune, PrunesByTheCachedCeilings) {
  EXPECT_EQ(json_of(kTune)["meta"]["predictions"], "without measured ceilings");
  const CeilingsKey key = ceilings_key(cpu_info());
  replace_file(ceilings_path(key), ceilings_text(key, round_ceilings()));
  EXPECT_EQ(json_of(kTune)["meta"]["predictions"], "from measured ceilings");
}

}  // namespace
}  // namespace headrace::cli
