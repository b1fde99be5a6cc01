// Pieces as the vocabularies of SentencePiece write them (Kudo, Richardson 2018): a space is
// U+2581, and a byte that is no character of its own is "<0x0A>".
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace headrace::text {

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";

// The text of a normal piece; empty if it is not UTF-8.
std::optional<std::string> text_from_piece(std::string_view piece);

// The value of a byte piece; empty if it is none.
std::optional<unsigned char> byte_from_piece(std::string_view piece);

}  // namespace headrace::text
