// Tokens that are matched literally ("<|im_end|>"), before the text is split into pieces. The
// longest match at a position wins.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "text/token_index.h"

namespace headrace::text {

class SpecialTokens {
 public:
  void add(std::string text, TokenId id);  // not empty
  TokenId sort();  // after the last add; -1, or a token whose text was added twice

  struct Match {
    std::size_t bytes = 0;  // 0: no match
    TokenId id = -1;
  };
  // The longest token at the start of `text`.
  Match match(std::string_view text) const;
  // The next position from `from` on at which a token may start; text.size(): none.
  std::size_t next_start(std::string_view text, std::size_t from) const;

  TokenId find(std::string_view text) const;  // -1: none

 private:
  struct Entry {
    std::string text;
    TokenId id;
  };
  std::vector<Entry> entries_;  // sorted by text
  std::array<bool, 256> starts_{};
};

}  // namespace headrace::text
