/// @file
/// Model files for C++20: a header-only wrapper of a part of model.h.
///
///   const headrace::ModelFile file("model.gguf");
///   for (std::int64_t i = 0; i < file.num_weights(); ++i)
///     std::cout << file.weight(i).name << '\n';
#pragma once

#if __cplusplus < 202002L
#error \
    "Headrace's C++ headers need C++20: compile with -std=c++20 (or later), in CMake link \
headrace::headrace or set CMAKE_CXX_STANDARD to 20; C programs include headrace/headrace.h"
#endif

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/headrace.hpp"
#include "headrace/model.h"

namespace headrace {
inline namespace v0 {

namespace detail {

/// Calls a function that fills (data, capacity, &count) twice: first for the count.
template <class Container, class Fill>
Container filled(Fill fill) {
  std::size_t count = 0;
  check(fill(nullptr, std::size_t{0}, &count));
  Container container(count, {});
  if (count > 0) check(fill(container.data(), count, &count));
  return container;
}

template <auto destroy>
struct Destroy {
  template <class T>
  void operator()(T* object) const noexcept {
    destroy(object);
  }
};

}  // namespace detail

/// Metadata and tensor list of a model file. Its strings live as long as the object.
class ModelFile {
 public:
  /// An entry of the metadata.
  struct Entry {
    std::string_view key;    ///< "general.architecture"
    std::string_view kind;   ///< GGUF type: "u32", "array[string]"
    std::string_view value;  ///< as text; lists: length and first elements
  };
  /// A tensor.
  struct Weight {
    std::string_view name;            ///< "output_norm.weight"
    std::string_view type;            ///< "Q4_1"
    std::vector<std::int64_t> shape;  ///< rows first; the last axis is contiguous
    std::uint64_t offset;             ///< of the first byte in the file
    std::uint64_t bytes;              ///< size in the file
  };

  /// Throws Error(HEADRACE_IO_ERROR or HEADRACE_UNSUPPORTED): file, position and rule.
  explicit ModelFile(const std::string& path) {
    headrace_model_file* file = nullptr;
    check(headrace_model_file_open(path.c_str(), &file));
    file_.reset(file);
  }

  /// The header of the file that RandomModel::write() writes.
  ModelFile(const headrace_model_shape& shape, const std::string& weight_type) {
    headrace_model_file* file = nullptr;
    check(headrace_model_file_describe(&shape, weight_type.c_str(), &file));
    file_.reset(file);
  }

  /// "GGUF".
  std::string_view format() const { return headrace_model_file_format(file_.get()); }
  /// Number of metadata entries.
  std::int64_t num_keys() const { return headrace_model_file_num_keys(file_.get()); }
  /// Number of tensors.
  std::int64_t num_weights() const { return headrace_model_file_num_weights(file_.get()); }
  /// index < num_keys(), sorted by key.
  Entry entry(std::int64_t index) const {
    return {headrace_model_file_key(file_.get(), index),
            headrace_model_file_kind(file_.get(), index),
            headrace_model_file_value(file_.get(), index)};
  }
  /// index < num_weights(), in file order.
  Weight weight(std::int64_t index) const {
    headrace_weight_info info{};
    info.struct_size = sizeof info;
    check(headrace_model_file_weight(file_.get(), index, &info));
    return {info.name, info.type, {info.shape, info.shape + info.rank}, info.offset, info.bytes};
  }

  /// For functions of the C ABI.
  const headrace_model_file* get() const { return file_.get(); }

 private:
  std::unique_ptr<headrace_model_file, detail::Destroy<headrace_model_file_close>> file_;
};

}  // namespace v0
}  // namespace headrace
