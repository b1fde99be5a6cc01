// The alphabet in which byte-level BPE files write bytes (GPT-2, 2019): 33-126, 161-172 and 174-255
// as the character of that number, the other 68 bytes in their order as U+0100 and up. A token
// " the" stands in the file as "\u0120the".
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace headrace::text {

// The bytes that a token's text stands for; nothing where a character is not of the alphabet.
std::optional<std::string> bytes_from_byte_level(std::string_view text);

// The other way round.
std::string byte_level_from_bytes(std::string_view bytes);

}  // namespace headrace::text
