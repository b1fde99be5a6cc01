// headrace bench sparq: bytes follow from the sizes, and more components cost less error.
#include <gtest/gtest.h>

#include "tests/support/program_json.h"

namespace headrace::cli {
namespace {

using testing::json_of;
using testing::run_program;

TEST(BenchSparq, MoreComponentsAreMoreBytesAndLessError) {
  for (const std::string pages : {"0", "64"}) {
    const nlohmann::json report = json_of(
        "bench sparq --seqlen 512,1024 --components 4,16,32 --keys 64 --heads 4 --kv-heads 2 "
        "--head-dim 32 --batch 2 --reps 1 --page-size " +
        pages);
    ASSERT_EQ(report["rows"].size(), 6u);
    const int components[] = {4, 16, 32};
    for (std::size_t i = 0; i < 6; ++i) {
      const auto& row = report["rows"][i];
      EXPECT_EQ(row["seqlen_k"], i < 3 ? 512 : 1024);
      EXPECT_EQ(row["num_components"], components[i % 3]);
      EXPECT_EQ(row["num_keys"], 64);
      EXPECT_NEAR(row["speedup"].get<double>() * row["sparq_us"].get<double>(),
                  row["dense_us"].get<double>(), 1e-6 * row["dense_us"].get<double>());
    }
    double error = 0;
    for (const auto& row : report["rows"]) {
      const double seqlen = row["seqlen_k"], r = row["num_components"];
      EXPECT_NEAR(row["transfer"].get<double>(), (seqlen * r + 64 * 64) / (seqlen * 64), 1e-9);
      EXPECT_GT(row["sparq_us"].get<double>(), 0);
      EXPECT_GT(row["dense_us"].get<double>(), 0);
      EXPECT_LE(row["share"].get<double>(), 1);
      if (r > 4) {
        EXPECT_LT(row["error"].get<double>(), error);
      }
      error = row["error"];
    }
    EXPECT_LT(error, 0.2);  // all components: the best keys
  }
}

TEST(BenchSparq, SizesThatDoNotFit) {
  const auto pages = run_program("bench sparq --seqlen 100 --page-size 64 2>&1");
  EXPECT_EQ(pages.exit_code, 2);
  EXPECT_NE(pages.out.find("must be a multiple of --page-size 64"), std::string::npos) << pages.out;
  const auto heads = run_program("bench sparq --seqlen 100 --heads 3 --kv-heads 2 2>&1");
  EXPECT_EQ(heads.exit_code, 2);
  EXPECT_NE(heads.out.find("must be a multiple of --kv-heads 2"), std::string::npos) << heads.out;
}

}  // namespace
}  // namespace headrace::cli
