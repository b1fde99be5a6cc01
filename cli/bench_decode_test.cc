// headrace bench decode: rows of every type and page size beside one baseline; fewer bits are fewer
// bytes and more error.
#include <gtest/gtest.h>

#include <map>
#include <sstream>

#include "tests/support/program_json.h"

namespace headrace::cli {
namespace {

using testing::json_of;
using testing::run_program;

const std::string kQuick =
    "bench decode --heads 4 --kv-heads 2 --head-dim 32 --reps 1 --min-time 0 ";

nlohmann::json rows_of(const std::string& arguments) {
  const nlohmann::json report = json_of(kQuick + arguments);
  return report["rows"];
}

TEST(BenchDecode, HasARowForEachTypeAndPageSize) {
  const nlohmann::json rows = rows_of("--seqlen-k 70,1100 --batch 1,3 --page-size 32");
  std::map<std::string, int> num_rows;
  for (const auto& row : rows) {
    ++num_rows[row["kv_type"].get<std::string>() + ' ' +
               std::to_string(row["page_size"].get<int>())];
    EXPECT_GT(row["us_min"].get<double>(), 0);
    EXPECT_GE(row["us_median"].get<double>(), row["us_min"].get<double>());
    EXPECT_NE(row["kernel"].get<std::string>(), "");
    EXPECT_NEAR(row["gbytes"].get<double>(),
                row["bytes"].get<double>() / row["us_median"].get<double>() * 1e-3, 1e-6);
  }
  EXPECT_EQ(num_rows, (std::map<std::string, int>{{"bf16 16", 4},
                                                  {"bf16 32", 4},
                                                  {"int8 32", 4},
                                                  {"fp8 32", 4},
                                                  {"int4 32", 4},
                                                  {"kivi4 32", 4},
                                                  {"kivi2 32", 4}}));
}

// 1100 keys: 68 groups of 16 are codes and 12 keys are not; of kivi 34 groups of 32, and 12.
TEST(BenchDecode, FewerBitsAreFewerBytesAndMoreError) {
  for (const std::string more : {"", "--layout hnd --seqlen-q 3 --dtype f16 ", "--page-size 64 "}) {
    std::map<std::string, nlohmann::json> row_of;
    const std::string page_size = more.find("page") == std::string::npos ? "--page-size 32 " : "";
    const nlohmann::json rows = rows_of("--seqlen-k 1100 --batch 2 " + page_size + more);
    for (const auto& row : rows) {
      const double ratio = row["ratio"], error = row["error"];
      if (row["page_size"] == 16) {
        EXPECT_EQ(ratio, 1);
        EXPECT_EQ(error, 0);
        continue;
      }
      row_of[row["kv_type"]] = row;
    }
    const double key_heads = 2 * 2;  // of two sequences
    const auto bytes = [&](const char* type) { return row_of[type]["bytes"].get<double>(); };
    const double recent = 12 * key_heads * 2 * 64;
    const std::string unquantised = more.find("f16") == std::string::npos ? "bf16" : "f16";
    EXPECT_EQ(bytes(unquantised.c_str()), 1100 * key_heads * 2 * 64);
    EXPECT_EQ(bytes("int8"), 1088 * key_heads * 2 * (32 + 4) + recent);
    EXPECT_EQ(bytes("fp8"), bytes("int8"));
    EXPECT_EQ(bytes("int4"), 1088 * key_heads * 2 * (16 + 4) + recent);
    EXPECT_EQ(bytes("kivi4"), 1088 * key_heads * 2 * (16 + 4) + recent);
    EXPECT_EQ(bytes("kivi2"), 1088 * key_heads * 2 * (8 + 4) + recent);
    const auto error = [&](const std::string& type) { return row_of[type]["error"].get<double>(); };
    EXPECT_LT(error(unquantised), 0.01) << more;
    EXPECT_LT(error("int8"), 0.05) << more;
    EXPECT_LT(error("int8"), error("fp8")) << more;
    EXPECT_LT(error("fp8"), error("int4")) << more;
    EXPECT_LT(error("int4"), 0.3) << more;
    EXPECT_LT(error("kivi4"), error("kivi2")) << more;
    EXPECT_LT(error("kivi2"), 1) << more;
  }
}

// Appends of several thousand tokens, and sequences that are no multiple of anything.
TEST(BenchDecode, LongSequencesAreAppendedInParts) {
  for (const std::string seqlen : {"2048", "2049", "3001"}) {
    const nlohmann::json rows =
        rows_of("--page-size 96 --kv-type bf16,int8,kivi4 --seqlen " + seqlen);
    EXPECT_EQ(rows.size(), 4u);
    for (const auto& row : rows)
      EXPECT_LT(row["error"].get<double>(), row["kv_type"] == "kivi4" ? 0.2 : 0.05)
          << seqlen << ' ' << row;
  }
}

TEST(BenchDecode, ContiguousKeysGiveTheBitsOfPages) {
  const nlohmann::json rows =
      rows_of("--seqlen-k 300 --batch 2 --kv-type bf16 --page-size 0,5,300");
  ASSERT_EQ(rows.size(), 4u);
  for (const auto& row : rows) EXPECT_EQ(row["error"].get<double>(), 0) << row;
}

TEST(BenchDecode, SkipsWhatACacheCannotHave) {
  const auto result = run_program(
      kQuick + "--seqlen-k 64,128 --kv-type bf16,int8,kivi2 --page-size 16,0 --format csv 2>&1");
  EXPECT_EQ(result.exit_code, 0);
  const auto count = [&](const std::string& text) {
    std::size_t num = 0;
    for (std::size_t at = 0; (at = result.out.find(text, at)) != std::string::npos; ++at) ++num;
    return num;
  };
  EXPECT_EQ(count("skipped: kivi2 with page size 16: page_size=16: must be a multiple of 32"), 1u)
      << result.out;
  EXPECT_EQ(count("skipped: int8 with page size 0: quantised keys lie in pages"), 1u) << result.out;
  EXPECT_EQ(count("\n1,64,bf16,16,"), 1u) << result.out;
  EXPECT_EQ(count("\n1,64,bf16,0,"), 1u) << result.out;
  EXPECT_EQ(count("\n1,128,int8,16,"), 1u) << result.out;
  EXPECT_EQ(count(",kivi2,"), 0u) << result.out;
}

TEST(BenchDecode, TheBaselineIsMeasuredWhateverIsAsked) {
  const nlohmann::json rows = rows_of("--seqlen-k 64 --kv-type int4 --page-size 64,64");
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0]["kv_type"], "bf16");
  EXPECT_EQ(rows[0]["page_size"], 16);
  EXPECT_EQ(rows[1]["kv_type"], "int4");
}

TEST(BenchDecode, OptionsThatDoNotFit) {
  const std::pair<const char*, const char*> cases[] = {
      {"--heads 3 --kv-heads 2", "--heads 3: must be a multiple of --kv-heads 2; choose another"},
      {"--kv-type int8,f16",
       "--kv-type f16: must be bf16, the --dtype, or a quantised type; pass one of them, or "
       "--dtype f16"},
      {"--seqlen-k 8,2 --seqlen-q 4", "--seqlen-k 2: must be at least --seqlen-q 4"},
      {"--kv-type int3", "int3 not in {f16,bf16,int8,fp8,int4,kivi4,kivi2}"},
      {"--layout bhsd", "bhsd not in {nhd,hnd}"},
      {"--page-size -1", "-1 is out of range; pass 0 to 65536"}};
  for (const auto& [arguments, text] : cases) {
    const auto result = run_program(std::string("bench decode ") + arguments + " 2>&1");
    EXPECT_EQ(result.exit_code, 2) << arguments;
    EXPECT_NE(result.out.find(text), std::string::npos) << result.out;
  }
}

}  // namespace
}  // namespace headrace::cli
