// The header of a model file of any format: metadata and tensor list, without the weights. Each
// format has a reader (gguf.h).
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

// A metadata value. Integers of every width are int64 (the reader rejects larger uint64 values);
// floats are double.
using MetadataValue =
    std::variant<std::int64_t, double, bool, std::string, std::vector<std::int64_t>,
                 std::vector<double>, std::vector<bool>, std::vector<std::string>>;

// A tensor and the position of its blocks in the file.
struct TensorInfo {
  std::string name;
  WeightType type;
  std::vector<std::int64_t> shape;  // [.., rows, columns]; columns are contiguous
  std::uint64_t offset;             // of the first byte from the start of the file
  std::uint64_t bytes;
};

struct ModelFile {
  std::string path;  // for messages
  std::string format;
  std::map<std::string, MetadataValue, std::less<>> metadata;
  std::map<std::string, std::string, std::less<>> types;  // of each value, as the format names it
  std::vector<TensorInfo> tensors;                        // in file order

  const TensorInfo* find_tensor(std::string_view name) const;  // null: not found

  // Values by key. io_error if the key is missing (and there is no fallback), has another type or
  // is outside [low, high]; the message names file and key.
  Result<std::int64_t> integer(std::string_view key, std::int64_t low, std::int64_t high) const;
  Result<std::int64_t> integer_or(std::string_view key, std::int64_t low, std::int64_t high,
                                  std::int64_t fallback) const;
  Result<double> number(std::string_view key, double low, double high) const;
  Result<double> number_or(std::string_view key, double low, double high, double fallback) const;
  Result<bool> flag_or(std::string_view key, bool fallback) const;
  Result<std::string> text(std::string_view key) const;
  Result<std::string> text_or(std::string_view key, std::string_view fallback) const;
  // Arrays: pointers into `metadata`.
  Result<const std::vector<std::string>*> texts(std::string_view key) const;
  Result<const std::vector<std::int64_t>*> integers(std::string_view key) const;
  Result<const std::vector<double>*> numbers(std::string_view key) const;

  // "FILE: text".
  Failure failure(ErrorCode code, std::string_view text) const;
  // io_error for a file that breaks a rule, with the remedy.
  Failure wrong(std::string_view rule) const;
};

}  // namespace headrace
