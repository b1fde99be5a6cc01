// Tokens that stand in text as they are written ("<|im_end|>"), found before anything is cut into
// pieces: the longest that begins at a place.
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
  TokenId sort();  // after the last add; -1, or one whose text was added twice

  struct Match {
    std::size_t bytes = 0;  // 0: none begins here
    TokenId id = -1;
  };
  // The longest that `text` begins with.
  Match match(std::string_view text) const;
  // The place of the next byte at or after `from` with which one begins; text.size(): none.
  std::size_t next_start(std::string_view text, std::size_t from) const;

  TokenId find(std::string_view text) const;  // -1: none

 private:
  struct Entry {
    std::string text;
    TokenId id;
  };
  std::vector<Entry> entries_;  // by text
  std::array<bool, 256> starts_{};
};

}  // namespace headrace::text
