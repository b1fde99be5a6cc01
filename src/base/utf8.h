// Well-formed UTF-8 by the Unicode standard: no overlong forms, no surrogates, nothing above
// U+10FFFF. Accepts arbitrary bytes.
#pragma once

#include <cstddef>
#include <string_view>

namespace headrace {

// Length of the character at the start of `text`, 1 to 4 bytes; 0: `text` starts with none.
std::size_t utf8_first_char(std::string_view text);

// Length of the incomplete character at the end of `text`, 0 to 3 bytes.
std::size_t utf8_unfinished_tail(std::string_view text);

}  // namespace headrace
