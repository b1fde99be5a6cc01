// GGUF files, versions 2 and 3, little-endian (the format's specification:
// github.com/ggml-org/ggml, docs/gguf.md). The bytes are not trusted: every count is compared with
// the bytes that are left before anything is reserved for it, and every tensor must lie inside the
// file.
#pragma once

#include <cstddef>
#include <span>

#include "weights/model_file.h"

namespace headrace {

// The head of the file (metadata and list of tensors) needs more bytes than these.
struct NeedsMore {};

// Reads a head from the first bytes of a file of `file_bytes` bytes. A pure function.
std::variant<ModelFile, NeedsMore, Failure> parse_gguf(std::span<const std::byte> begin,
                                                       std::uint64_t file_bytes,
                                                       const std::string& path);

// Opens the file and reads its head, not its weights.
Result<ModelFile> read_gguf(const std::string& path);

}  // namespace headrace
