#include <type_traits>

#include "base/math.h"
#include "weights/gguf.h"

namespace headrace {
namespace {

constexpr std::uint64_t kAlignment = 32;  // the default of general.alignment
constexpr std::uint32_t kU32 = 4, kI32 = 5, kF32 = 6, kBool = 7, kText = 8, kList = 9;

template <class T>
void put(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void put_text(std::string& bytes, std::string_view text) {
  put<std::uint64_t>(bytes, text.size());
  bytes += text;
}

struct ValueType {
  std::uint32_t id;
  const char* name;
};

template <class T>
constexpr ValueType type_of(bool is_element) {
  if constexpr (std::is_same_v<T, bool>) return {kBool, "bool"};
  if constexpr (std::is_same_v<T, double>) return {kF32, "f32"};
  if constexpr (std::is_same_v<T, std::string>) return {kText, "string"};
  return is_element ? ValueType{kI32, "i32"} : ValueType{kU32, "u32"};
}

template <class T>
void put_value(std::string& bytes, const T& value) {
  if constexpr (std::is_same_v<T, bool>)
    put(bytes, static_cast<std::uint8_t>(value));
  else if constexpr (std::is_same_v<T, double>)
    put(bytes, static_cast<float>(value));
  else if constexpr (std::is_same_v<T, std::string>)
    put_text(bytes, value);
  else
    put(bytes, static_cast<std::uint32_t>(value));
}

// Appends type and value; returns the name of the type.
template <class T>
std::string put_typed(std::string& bytes, const T& value) {
  constexpr ValueType type = type_of<T>(false);
  put(bytes, type.id);
  put_value(bytes, value);
  return type.name;
}

template <class T>
std::string put_typed(std::string& bytes, const std::vector<T>& list) {
  constexpr ValueType type = type_of<T>(true);
  put(bytes, kList);
  put(bytes, type.id);
  put<std::uint64_t>(bytes, list.size());
  for (std::size_t i = 0; i < list.size(); ++i) put_value<T>(bytes, list[i]);
  return std::string("array[") + type.name + "]";
}

void put_tensor(std::string& bytes, TensorInfo& tensor, std::uint64_t offset) {
  const WeightTypeInfo& info = info_of(tensor.type);
  put_text(bytes, tensor.name);
  put(bytes, static_cast<std::uint32_t>(tensor.shape.size()));
  std::uint64_t elements = 1;
  for (std::size_t i = tensor.shape.size(); i-- > 0;) {  // columns first
    const auto n = static_cast<std::uint64_t>(tensor.shape[i]);
    put(bytes, n);
    elements *= n;
  }
  put(bytes, info.gguf_id);
  put(bytes, offset);
  tensor.offset = offset;
  tensor.bytes = elements / static_cast<std::uint64_t>(info.block_elements) *
                 static_cast<std::uint64_t>(info.block_bytes);
}

}  // namespace

std::string make_gguf_header(ModelFile& file) {
  std::string bytes = "GGUF";
  put<std::uint32_t>(bytes, 3);
  put<std::uint64_t>(bytes, file.tensors.size());
  put<std::uint64_t>(bytes, file.metadata.size());
  for (const auto& [key, value] : file.metadata) {
    put_text(bytes, key);
    file.types[key] =
        std::visit([&](const auto& content) { return put_typed(bytes, content); }, value);
  }
  std::uint64_t end = 0;
  for (TensorInfo& tensor : file.tensors) {
    put_tensor(bytes, tensor, round_up(end, kAlignment));
    end = tensor.offset + tensor.bytes;
  }
  bytes.resize(round_up(bytes.size(), kAlignment));
  for (TensorInfo& tensor : file.tensors) tensor.offset += bytes.size();
  return bytes;
}

}  // namespace headrace
