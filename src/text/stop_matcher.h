// Stop strings in streamed text. The end of the text is held back while it may be the beginning of
// a stop string, so that no part of one is ever printed.
//
// Of several matches the one that is complete first counts, of those that end together the
// longest: the result does not depend on how the text is cut into pieces, and no more text is
// needed than the stop string itself. (Of "abcd" and "bc" in "abcd" it is "bc": to know whether
// the longer one follows, the model would have to go on.) Bytes are compared.
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
  // No stops: all text is safe at once. invalid_argument: an empty stop string.
  static Result<StopMatcher> make(std::vector<std::string> stops);

  struct Output {
    std::string text;                     // safe to print
    std::optional<std::size_t> stop_idx;  // the stop string that follows this text
  };

  // After a stop there is nothing more: text is dropped.
  Output push(std::string_view piece);

  // The generation ended otherwise: what was held back.
  std::string finish();

 private:
  struct Stop {
    std::string text;
    // failure[n]: the longest proper beginning of text that the first n bytes end with (Knuth,
    // Morris, Pratt 1977).
    std::vector<std::size_t> failure;
    std::size_t num_matched = 0;  // the longest beginning that the text so far ends with
  };
  static void advance(Stop& stop, char byte);

  std::vector<Stop> stops_;
  std::string held_;  // what the stops have matched so far
  bool is_stopped_ = false;
};

}  // namespace headrace::text
