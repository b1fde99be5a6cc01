// UTF-8 as the Unicode standard defines well-formed: no overlong forms, no surrogates, nothing
// above U+10FFFF. For bytes that may be anything.
#pragma once

#include <cstddef>
#include <string_view>

namespace headrace {

// Bytes of the character that `text` begins with, 1 to 4; 0 where it begins with none.
std::size_t utf8_first_char(std::string_view text);

// Bytes at the end of `text`, 0 to 3, that begin a character which further bytes may complete.
std::size_t utf8_unfinished_tail(std::string_view text);

}  // namespace headrace
