// Writes GGUF files byte by byte, well-formed or not, for tests of the reader.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::testing {

class GgufBytes {
 public:
  template <class T>
  GgufBytes& put(T value) {
    const auto* bytes = reinterpret_cast<const char*>(&value);
    data_.append(bytes, sizeof value);
    return *this;
  }
  GgufBytes& put_text(std::string_view text) {
    put<std::uint64_t>(text.size());
    data_ += text;
    return *this;
  }
  GgufBytes& put_bytes(std::string_view bytes) {
    data_ += bytes;
    return *this;
  }

  GgufBytes& header(std::uint64_t num_tensors, std::uint64_t num_pairs, std::uint32_t version = 3) {
    return put_bytes("GGUF").put(version).put(num_tensors).put(num_pairs);
  }
  GgufBytes& key(std::string_view name, std::uint32_t type) { return put_text(name).put(type); }
  GgufBytes& list(std::uint32_t type, std::uint64_t count) {
    return put(std::uint32_t{9}).put(type).put(count);
  }
  // Dimensions in file order: columns first.
  GgufBytes& tensor(std::string_view name, const std::vector<std::uint64_t>& dims,
                    std::uint32_t type, std::uint64_t offset) {
    put_text(name).put(static_cast<std::uint32_t>(dims.size()));
    for (const std::uint64_t n : dims) put(n);
    return put(type).put(offset);
  }
  GgufBytes& pad(std::size_t alignment = 32) {
    data_.resize((data_.size() + alignment - 1) / alignment * alignment);
    return *this;
  }
  GgufBytes& zeros(std::size_t bytes) {
    data_.append(bytes, '\0');
    return *this;
  }

  const std::string& bytes() const { return data_; }

 private:
  std::string data_;
};

}  // namespace headrace::testing
