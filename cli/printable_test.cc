#include "printable.h"

#include <gtest/gtest.h>

namespace headrace::cli {
namespace {

TEST(Printable, WholeCharactersStay) {
  EXPECT_EQ(printable("a \"b\" \u00e9\u20ac\U0001f600"), "a \"b\" \u00e9\u20ac\U0001f600");
}

TEST(Printable, ATerminalGetsNoCommands) {
  EXPECT_EQ(printable("a\nb\t\x1b[2J\x7f"), "a\\nb\\x09\\x1b[2J\\x7f");
  EXPECT_EQ(printable({"\0", 1}), "\\x00");
  EXPECT_EQ(printable("\xc2\x9b"), "\\xc2\\x9b") << "C1 CSI, which some terminals obey";
}

TEST(Printable, PartsOfCharactersAreBytes) {
  EXPECT_EQ(printable("\xe2\x82"), "\\xe2\\x82");
  EXPECT_EQ(printable("\x82z"), "\\x82z");
  EXPECT_EQ(printable("\xf5\x80\x80\x80"), "\\xf5\\x80\\x80\\x80");
  EXPECT_EQ(printable("\xc1\xbf"), "\\xc1\\xbf") << "overlong encoding";
  EXPECT_EQ(printable("\xf0\x9f\x98z"), "\\xf0\\x9f\\x98z");
}

}  // namespace
}  // namespace headrace::cli
