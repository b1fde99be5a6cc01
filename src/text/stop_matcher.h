// Stop strings in streamed text. A suffix of the text that may begin a stop string is held back, so
// that no part of a stop string is emitted.
//
// The match that completes first wins; of matches that end at the same byte, the longest. So the
// result does not depend on how the text is split, and no text past the stop string is needed.
// (With the stops "abcd" and "bc", "abcd" stops at "bc": to see whether the longer one follows, the
// model would have to generate more.) Bytes are compared.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace headrace::text {

class StopMatcher {
 public:
  // Without stops nothing is held back. invalid_argument: an empty stop string.
  static Result<StopMatcher> make(std::vector<std::string> stops);

  struct Output {
    std::string text;                     // to emit
    std::optional<std::size_t> stop_idx;  // the stop string that follows this text
  };

  // Text after a stop is dropped.
  Output push(std::string_view piece);

  // The held-back text, for a generation that ends without a stop string.
  std::string finish();

 private:
  struct Stop {
    std::string text;
    // failure[n]: length of the longest proper prefix of text that ends its first n bytes (Knuth,
    // Morris, Pratt 1977).
    std::vector<std::size_t> failure;
    std::size_t num_matched = 0;  // length of the longest prefix that ends the text so far
  };
  static void advance(Stop& stop, char byte);

  std::vector<Stop> stops_;
  std::string held_;  // held-back text
  bool is_stopped_ = false;
};

}  // namespace headrace::text
