#include "text/stop_matcher.h"

#include <gtest/gtest.h>

#include "tests/support/random.h"

namespace headrace::text {
namespace {

using Strings = std::vector<std::string>;

StopMatcher matcher_of(const Strings& stops) { return StopMatcher::make(stops).value(); }

struct Found {
  std::string text;
  std::optional<std::size_t> stop_idx;
};

// The definition: the match that ends first; of those that end there, the longest.
Found naive(const std::string& text, const Strings& stops) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    std::optional<std::size_t> best;
    for (std::size_t s = 0; s < stops.size(); ++s)
      if (text.substr(0, end).ends_with(stops[s]) &&
          (!best || stops[s].size() > stops[*best].size()))
        best = s;
    if (best) return {text.substr(0, end - stops[*best].size()), best};
  }
  return {text, {}};
}

// The text to hold back: its longest suffix that begins a stop string.
std::size_t naive_held(const std::string& text, const Strings& stops) {
  for (std::size_t n = text.size(); n > 0; --n)
    for (const std::string& stop : stops)
      if (stop.starts_with(text.substr(text.size() - n))) return n;
  return 0;
}

std::string random_text(testing::Random& random, std::int64_t low, std::int64_t high) {
  std::string text(static_cast<std::size_t>(random.between(low, high)), 'a');
  for (char& byte : text) byte = static_cast<char>('a' + random.between(0, 1));
  return text;
}

TEST(StopMatcher, MatchesANaiveSearchForEverySplit) {
  testing::Random random(1);
  int num_stopped = 0;
  for (int i = 0; i < 20000; ++i) {
    Strings stops(static_cast<std::size_t>(random.between(0, 3)));
    for (std::string& stop : stops) stop = random_text(random, 1, 7);
    const std::string text = random_text(random, 0, 24);
    const Found expected = naive(text, stops);
    auto matcher = matcher_of(stops);
    std::string printed;
    std::optional<std::size_t> stop_idx;
    std::size_t at = 0;
    while (at < text.size() && !stop_idx) {
      const auto size = static_cast<std::size_t>(random.between(0, 4));
      const auto output = matcher.push(std::string_view(text).substr(at, size));
      at = std::min(at + size, text.size());
      printed += output.text;
      stop_idx = output.stop_idx;
      const std::string so_far = text.substr(0, at);
      ASSERT_EQ(stop_idx, naive(so_far, stops).stop_idx) << "a stop is seen with its last byte";
      if (!stop_idx) {
        ASSERT_EQ(printed, so_far.substr(0, at - naive_held(so_far, stops)));
      }
    }
    if (!stop_idx) printed += matcher.finish();
    ASSERT_EQ(printed, expected.text);
    ASSERT_EQ(stop_idx, expected.stop_idx);
    num_stopped += stop_idx ? 1 : 0;
  }
  EXPECT_GT(num_stopped, 5000);
  EXPECT_LT(num_stopped, 15000);
}

TEST(StopMatcher, HoldsBackPrefixesOfStops) {
  auto matcher = matcher_of({"</s>", "User:"});
  EXPECT_EQ(matcher.push("Hello <").text, "Hello ");
  EXPECT_EQ(matcher.push("/").text, "");
  EXPECT_EQ(matcher.push("b> Us").text, "</b> ");
  const auto output = matcher.push("er: and more");
  EXPECT_EQ(output.text, "");
  EXPECT_EQ(output.stop_idx, 1u);
  EXPECT_EQ(matcher.push("more").text, "");
  EXPECT_EQ(matcher.finish(), "");
}

TEST(StopMatcher, TheFirstCompleteMatchWinsThenTheLongest) {
  auto shorter = matcher_of({"abcd", "bc"});
  const auto first = shorter.push("xabcd");
  EXPECT_EQ(first.text, "xa");
  EXPECT_EQ(first.stop_idx, 1u);
  auto longest = matcher_of({"c", "abc", "bc"});
  const auto output = longest.push("xabc");
  EXPECT_EQ(output.text, "x");
  EXPECT_EQ(output.stop_idx, 1u);
}

TEST(StopMatcher, WithoutStopsNothingIsHeldBack) {
  auto matcher = matcher_of({});
  EXPECT_EQ(matcher.push("abc").text, "abc");
  EXPECT_EQ(matcher.finish(), "");
}

TEST(StopMatcher, BytesOfAnyValue) {
  const std::string stop("\0\xff", 2);
  auto matcher = matcher_of({stop});
  EXPECT_EQ(matcher.push(std::string("a\0", 2)).text, "a");
  EXPECT_TRUE(matcher.push("\xff").stop_idx);
}

TEST(StopMatcher, RejectsAnEmptyStop) {
  auto result = StopMatcher::make({"a", ""});
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.failure().code, ErrorCode::invalid_argument);
  EXPECT_NE(result.failure().message.find("stop[1]"), std::string::npos);
}

}  // namespace
}  // namespace headrace::text
