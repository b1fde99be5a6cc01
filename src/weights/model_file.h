// What a model file says about itself: metadata and the tensors it holds, whatever its format. One
// reader a format makes it (gguf.h); nothing here has touched the weights yet.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/error.h"
#include "weights/weight_type.h"

namespace headrace {

// A value of the metadata. Integers of every width are int64 (uint64 above its range is refused by
// the reader); floats are double.
using MetadataValue =
    std::variant<std::int64_t, double, bool, std::string, std::vector<std::int64_t>,
                 std::vector<double>, std::vector<bool>, std::vector<std::string>>;

// A tensor of the file: where its blocks lie.
struct TensorInfo {
  std::string name;
  WeightType type;
  std::vector<std::int64_t> shape;  // rows first: [.., rows, columns]; columns are contiguous
  std::uint64_t offset;             // of the first byte, in the file
  std::uint64_t bytes;
};

struct ModelFile {
  std::string path;  // for messages
  std::string format;
  std::map<std::string, MetadataValue, std::less<>> metadata;
  std::map<std::string, std::string, std::less<>> types;  // of each value, as the format names it
  std::vector<TensorInfo> tensors;                        // in the order of the file

  const TensorInfo* find_tensor(std::string_view name) const;  // null: none of that name

  // Values by key. io_error naming file and key where the key is missing (without a fallback), is
  // of another kind or outside [low, high].
  Result<std::int64_t> integer(std::string_view key, std::int64_t low, std::int64_t high) const;
  Result<std::int64_t> integer_or(std::string_view key, std::int64_t low, std::int64_t high,
                                  std::int64_t fallback) const;
  Result<double> number(std::string_view key, double low, double high) const;
  Result<double> number_or(std::string_view key, double low, double high, double fallback) const;
  Result<bool> flag_or(std::string_view key, bool fallback) const;
  Result<std::string> text(std::string_view key) const;
  Result<std::string> text_or(std::string_view key, std::string_view fallback) const;
  // Lists: pointers into `metadata`.
  Result<const std::vector<std::string>*> texts(std::string_view key) const;
  Result<const std::vector<std::int64_t>*> integers(std::string_view key) const;

  Failure wrong(std::string_view rule) const;  // "FILE: rule"
};

}  // namespace headrace
