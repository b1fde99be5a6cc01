#include "suggest.h"

#include <gtest/gtest.h>

namespace headrace::cli {
namespace {

const std::vector<std::string> kNames = {"--threads", "--temp", "--template", "--top-k", "--top-p"};

TEST(Suggest, FindsNamesWithOneMistakeOfAnyKind) {
  EXPECT_EQ(closest_name("--thread", kNames), "--threads") << "missing";
  EXPECT_EQ(closest_name("--tthreads", kNames), "--threads") << "extra";
  EXPECT_EQ(closest_name("--thraeds", kNames), "--threads") << "swapped";
  EXPECT_EQ(closest_name("--threadz", kNames), "--threads") << "replaced";
  EXPECT_EQ(closest_name("--templ", kNames), "--template") << "prefix";
}

TEST(Suggest, PrefersTheClosest) {
  EXPECT_EQ(closest_name("--topp", kNames), "--top-p");
  EXPECT_EQ(closest_name("--tmp", kNames), "--temp");
}

TEST(Suggest, SuggestsNothingIfNothingIsClose) {
  EXPECT_EQ(closest_name("--verbose", kNames), "");
  EXPECT_EQ(closest_name("", kNames), "");
  EXPECT_EQ(closest_name(std::string(100000, 'x'), kNames), "");
}

}  // namespace
}  // namespace headrace::cli
