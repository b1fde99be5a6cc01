// GGUF files, versions 2 and 3, little-endian (specification: github.com/ggml-org/ggml,
// docs/gguf.md). The file is not trusted: every count is compared with the remaining bytes before
// memory is reserved for it, and every tensor must lie inside the file.
#pragma once

#include <cstddef>
#include <span>

#include "weights/model_file.h"

namespace headrace {

// The header (metadata and tensor list) is longer than the given bytes.
struct NeedsMore {};

// Parses the header from the first bytes of a file of `file_bytes` bytes. A pure function.
std::variant<ModelFile, NeedsMore, Failure> parse_gguf(std::span<const std::byte> begin,
                                                       std::uint64_t file_bytes,
                                                       const std::string& path);

// Opens the file and reads its header, not its weights.
Result<ModelFile> read_gguf(const std::string& path);

// The header of a version 3 file with the metadata and tensors of `file`, padded to its first
// tensor. Sets the offset and bytes of the tensors, one after the other, and the types. Value
// types: integers u32 (in arrays i32), floats f32.
std::string make_gguf_header(ModelFile& file);

}  // namespace headrace
