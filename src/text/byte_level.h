// The byte-to-character table of byte-level BPE files (GPT-2's bytes_to_unicode, 2019). Bytes
// 33-126, 161-172 and 174-255 are written as the character with that code point, the other 68
// bytes as U+0100 and up, in order: the file holds the token " the" as "\u0120the".
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace headrace::text {

// The bytes of a token's text; empty if a character is not in the table.
std::optional<std::string> bytes_from_byte_level(std::string_view text);

// The inverse.
std::string byte_level_from_bytes(std::string_view bytes);

}  // namespace headrace::text
