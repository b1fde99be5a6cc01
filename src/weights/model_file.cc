#include "weights/model_file.h"

#include <algorithm>

namespace headrace {
namespace {

constexpr const char* kKinds[] = {"an integer",
                                  "a number",
                                  "a boolean",
                                  "a string",
                                  "an array of integers",
                                  "an array of numbers",
                                  "an array of booleans",
                                  "an array of strings"};
static_assert(std::variant_size_v<MetadataValue> == std::size(kKinds));

// The value of a key as T; null: the key is missing.
template <class T>
Result<const T*> find(const ModelFile& file, std::string_view key) {
  const auto it = file.metadata.find(key);
  if (it == file.metadata.end()) return static_cast<const T*>(nullptr);
  if (const T* value = std::get_if<T>(&it->second)) return value;
  return file.wrong(format_text("'{}' is {}, expected {}", key, kKinds[it->second.index()],
                                kKinds[MetadataValue(T{}).index()]));
}

template <class T>
Result<const T*> find_required(const ModelFile& file, std::string_view key) {
  Result<const T*> found = find<T>(file, key);
  if (found.ok() && found.value() == nullptr)
    return file.wrong(format_text("'{}' is missing", key));
  return found;
}

template <class T>
Result<T> in_range(const ModelFile& file, std::string_view key, T value, T low, T high) {
  if (value >= low && value <= high) return value;  // false for NaN
  return file.wrong(format_text("'{}' is {}, expected {} to {}", key, value, low, high));
}

template <class T>
Result<T> ranged(const ModelFile& file, std::string_view key, T low, T high) {
  Result<const T*> found = find_required<T>(file, key);
  if (!found.ok()) return std::move(found.failure());
  return in_range(file, key, *found.value(), low, high);
}

template <class T>
Result<T> ranged_or(const ModelFile& file, std::string_view key, T low, T high, T fallback) {
  Result<const T*> found = find<T>(file, key);
  if (!found.ok()) return std::move(found.failure());
  return found.value() == nullptr ? fallback : in_range(file, key, *found.value(), low, high);
}

template <class T>
Result<T> plain_or(const ModelFile& file, std::string_view key, T fallback) {
  Result<const T*> found = find<T>(file, key);
  if (!found.ok()) return std::move(found.failure());
  return found.value() == nullptr ? fallback : *found.value();
}

}  // namespace

const TensorInfo* ModelFile::find_tensor(std::string_view name) const {
  const auto it = std::find_if(tensors.begin(), tensors.end(),
                               [&](const TensorInfo& tensor) { return tensor.name == name; });
  return it == tensors.end() ? nullptr : &*it;
}

Failure ModelFile::failure(ErrorCode code, std::string_view text) const {
  return {code, format_text("{}: {}", path, text)};
}

Failure ModelFile::wrong(std::string_view rule) const {
  return failure(ErrorCode::io_error, format_text("{}; download or convert the file again", rule));
}

Result<std::int64_t> ModelFile::integer(std::string_view key, std::int64_t low,
                                        std::int64_t high) const {
  return ranged<std::int64_t>(*this, key, low, high);
}

Result<std::int64_t> ModelFile::integer_or(std::string_view key, std::int64_t low,
                                           std::int64_t high, std::int64_t fallback) const {
  return ranged_or<std::int64_t>(*this, key, low, high, fallback);
}

Result<double> ModelFile::number(std::string_view key, double low, double high) const {
  return ranged<double>(*this, key, low, high);
}

Result<double> ModelFile::number_or(std::string_view key, double low, double high,
                                    double fallback) const {
  return ranged_or<double>(*this, key, low, high, fallback);
}

Result<bool> ModelFile::flag_or(std::string_view key, bool fallback) const {
  return plain_or<bool>(*this, key, fallback);
}

Result<std::string> ModelFile::text(std::string_view key) const {
  Result<const std::string*> found = find_required<std::string>(*this, key);
  if (!found.ok()) return std::move(found.failure());
  return *found.value();
}

Result<std::string> ModelFile::text_or(std::string_view key, std::string_view fallback) const {
  return plain_or<std::string>(*this, key, std::string(fallback));
}

Result<const std::vector<std::string>*> ModelFile::texts(std::string_view key) const {
  return find_required<std::vector<std::string>>(*this, key);
}

Result<const std::vector<std::int64_t>*> ModelFile::integers(std::string_view key) const {
  return find_required<std::vector<std::int64_t>>(*this, key);
}

Result<const std::vector<double>*> ModelFile::numbers(std::string_view key) const {
  return find_required<std::vector<double>>(*this, key);
}

}  // namespace headrace
