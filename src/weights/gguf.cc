#include "weights/gguf.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <limits>
#include <type_traits>

#include "base/math.h"

namespace headrace {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF is read without byte swaps");

// Limits far above real files: counts in the header, bytes of one string.
constexpr std::uint64_t kMaxRecords = 65536, kMaxElements = std::uint64_t{1} << 26;
constexpr std::uint64_t kMaxHeader = std::uint64_t{256} << 20;
constexpr std::uint64_t kMaxName = 256, kMaxText = 16 << 20, kMaxListedText = 64 << 10;
constexpr std::uint64_t kMaxAlignment = 65536;
constexpr std::uint64_t kMaxDimension = (std::uint64_t{1} << 31) - 1;
// The smallest records: a one-byte key with a one-byte value; a one-byte name with one dimension.
constexpr std::uint64_t kMinPair = 8 + 1 + 4 + 1, kMinTensor = 8 + 1 + 4 + 8 + 4 + 8;

enum class GgufType : std::uint32_t {
  u8,
  i8,
  u16,
  i16,
  u32,
  i32,
  f32,
  boolean,
  text,
  list,
  u64,
  i64,
  f64
};

// By GgufType, named as GGUF's tools name them.
constexpr const char* kTypeNames[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                      "bool", "string", "array", "u64", "i64", "f64"};

// Thrown and caught in this file only: a header may end early in a hundred places.
struct ParseError {
  Failure failure;
};

class HeaderReader {
 public:
  HeaderReader(std::span<const std::byte> begin, std::uint64_t file_bytes, const std::string& path)
      : begin_(begin), file_bytes_(file_bytes) {
    file_.path = path;
    file_.format = "GGUF";
  }

  ModelFile read() {
    read_header();
    for (std::uint64_t i = 0; i < num_pairs_; ++i) read_pair();
    for (std::uint64_t i = 0; i < num_tensors_; ++i) read_tensor();
    place_tensors();
    return std::move(file_);
  }

 private:
  template <class... Args>
  [[noreturn]] void fail(std::string_view pattern, const Args&... args) const {
    throw ParseError{
        file_.wrong(format_text("at byte {}: {}", at_, format_text(pattern, args...)))};
  }
  template <class... Args>
  [[noreturn]] void fail_unsupported(std::string_view pattern, const Args&... args) const {
    throw ParseError{{ErrorCode::unsupported, format_text("{}: at byte {}: {}", file_.path, at_,
                                                          format_text(pattern, args...))}};
  }

  std::uint64_t left() const { return file_bytes_ - at_; }

  const std::byte* take(std::uint64_t bytes) {
    if (bytes > left()) fail("{} bytes expected, {} left: the file is truncated", bytes, left());
    if (bytes > begin_.size() - at_) throw NeedsMore{};
    const std::byte* data = begin_.data() + at_;
    at_ += bytes;
    return data;
  }

  template <class T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof value), sizeof value);
    return value;
  }

  std::string text(const char* what, std::uint64_t min_bytes, std::uint64_t max_bytes) {
    const auto bytes = number<std::uint64_t>();
    if (bytes < min_bytes || bytes > max_bytes)
      fail("{} of {} bytes, expected {} to {}", what, bytes, min_bytes, max_bytes);
    const std::byte* data = take(bytes);
    return {reinterpret_cast<const char*>(data), static_cast<std::size_t>(bytes)};
  }

  std::uint64_t count(const char* what, std::uint64_t max_count, std::uint64_t min_bytes) {
    const auto n = number<std::uint64_t>();
    if (n > max_count) fail("{} {}, expected at most {}", n, what, max_count);
    if (n * min_bytes > left())  // max_count * min_bytes is far below 2^64
      fail("{} {} of at least {} bytes each, {} bytes left", n, what, min_bytes, left());
    return n;
  }

  void read_header() {
    if (file_bytes_ < 24) fail("{} bytes, expected at least the 24 of a GGUF header", file_bytes_);
    if (std::memcmp(take(4), "GGUF", 4) != 0) fail("not a GGUF file");
    const auto version = number<std::uint32_t>();
    if (version != 0 && version % 65536 == 0)
      fail_unsupported(
          "GGUF version {}: the file is big-endian, supported: little-endian; convert it again",
          version);
    if (version != 2 && version != 3)
      fail_unsupported("GGUF version {}, supported: 2 and 3; convert the model again", version);
    num_tensors_ = count("tensors", kMaxRecords, kMinTensor);
    num_pairs_ = count("metadata pairs", kMaxRecords, kMinPair);
  }

  void read_pair() {
    std::string key = text("key", 1, kMaxName);
    auto type = number<std::uint32_t>();
    const bool is_list = type == static_cast<std::uint32_t>(GgufType::list);
    if (is_list) type = number<std::uint32_t>();
    MetadataValue value = is_list ? read_list(type) : scalar(type);
    const std::string name = kTypeNames[type];
    file_.types[key] = is_list ? "array[" + name + "]" : name;
    if (!file_.metadata.emplace(std::move(key), std::move(value)).second)
      fail("a key appears twice");
  }

  template <class T>
  std::int64_t integer() {
    const T value = number<T>();
    if constexpr (std::is_same_v<T, std::uint64_t>)
      if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
        fail("integer {} is above 2^63 - 1", value);
    return static_cast<std::int64_t>(value);
  }

  bool boolean() {
    const auto value = number<std::uint8_t>();
    if (value > 1) fail("boolean {}, expected 0 or 1", static_cast<int>(value));
    return value != 0;
  }

  // Calls body(read_element, min_bytes) for an element type of the file.
  template <class Body>
  auto with_element(std::uint32_t type, std::uint64_t max_text, Body body) {
    switch (static_cast<GgufType>(type)) {
      case GgufType::u8:
        return body([this] { return integer<std::uint8_t>(); }, 1);
      case GgufType::i8:
        return body([this] { return integer<std::int8_t>(); }, 1);
      case GgufType::u16:
        return body([this] { return integer<std::uint16_t>(); }, 2);
      case GgufType::i16:
        return body([this] { return integer<std::int16_t>(); }, 2);
      case GgufType::u32:
        return body([this] { return integer<std::uint32_t>(); }, 4);
      case GgufType::i32:
        return body([this] { return integer<std::int32_t>(); }, 4);
      case GgufType::u64:
        return body([this] { return integer<std::uint64_t>(); }, 8);
      case GgufType::i64:
        return body([this] { return integer<std::int64_t>(); }, 8);
      case GgufType::f32:
        return body([this] { return static_cast<double>(number<float>()); }, 4);
      case GgufType::f64:
        return body([this] { return number<double>(); }, 8);
      case GgufType::boolean:
        return body([this] { return boolean(); }, 1);
      case GgufType::text:
        return body([this, max_text] { return text("string", 0, max_text); }, 8);
      case GgufType::list:
        fail_unsupported(
            "an array of arrays, supported: arrays of scalars and strings; use another file");
    }
    fail_unsupported("value type {}, supported: 0 to 12; use another file", type);
  }

  MetadataValue scalar(std::uint32_t type) {
    return with_element(type, kMaxText, [](auto read, int) { return MetadataValue(read()); });
  }

  MetadataValue read_list(std::uint32_t type) {
    return with_element(type, kMaxListedText, [this](auto read, int min_bytes) {
      const auto n = count("elements", kMaxElements, static_cast<std::uint64_t>(min_bytes));
      std::vector<decltype(read())> list;
      for (std::uint64_t i = 0; i < n; ++i) list.push_back(read());
      return MetadataValue(std::move(list));
    });
  }

  void read_tensor() {
    TensorInfo tensor;
    tensor.name = text("tensor name", 1, kMaxName);
    const auto num_dims = number<std::uint32_t>();
    if (num_dims < 1 || num_dims > 4)
      fail("tensor '{}' has {} dimensions, expected 1 to 4", tensor.name, num_dims);
    for (std::uint32_t i = 0; i < num_dims; ++i) {
      const auto n = number<std::uint64_t>();
      if (n < 1 || n > kMaxDimension)
        fail("tensor '{}' has a dimension of {}, expected 1 to {}", tensor.name, n, kMaxDimension);
      tensor.shape.insert(tensor.shape.begin(), static_cast<std::int64_t>(n));
    }
    const auto type = number<std::uint32_t>();
    const auto known = weight_type_from_gguf(type);
    if (!known)
      fail_unsupported("tensor '{}' has type {}, supported:{}; use another quantization",
                       tensor.name, type, known_types());
    tensor.type = *known;
    tensor.offset = number<std::uint64_t>();
    tensor.bytes = bytes_of(tensor);
    file_.tensors.push_back(std::move(tensor));
  }

  static std::string known_types() {
    std::string names;
    for (const WeightTypeInfo& info : weight_types())
      names += format_text(" {} ({})", info.name, info.gguf_id);
    return names;
  }

  std::uint64_t bytes_of(const TensorInfo& tensor) const {
    const WeightTypeInfo& info = info_of(tensor.type);
    if (tensor.shape.back() % info.block_elements != 0)
      fail("tensor '{}' has rows of {} elements, {} requires a multiple of {}", tensor.name,
           tensor.shape.back(), info.name, info.block_elements);
    auto bytes = static_cast<std::uint64_t>(info.bytes_of(tensor.shape.back()));
    for (std::size_t i = 0; i + 1 < tensor.shape.size(); ++i) {
      const auto rows = static_cast<std::uint64_t>(tensor.shape[i]);
      if (bytes > file_bytes_ / rows)
        fail("tensor '{}' is larger than the file of {} bytes", tensor.name, file_bytes_);
      bytes *= rows;
    }
    return bytes;
  }

  // Offsets are relative to the data section. Tensors must be aligned, inside the file and
  // disjoint, with only padding between them.
  void place_tensors() {
    const std::uint64_t alignment = read_alignment();
    const std::uint64_t data = round_up(at_, alignment);
    std::vector<TensorInfo*> in_order;
    for (TensorInfo& tensor : file_.tensors) in_order.push_back(&tensor);
    std::sort(in_order.begin(), in_order.end(),
              [](const TensorInfo* a, const TensorInfo* b) { return a->offset < b->offset; });
    if (!in_order.empty() && data > file_bytes_) fail("the file ends before its first tensor");
    std::uint64_t end = 0;
    for (TensorInfo* tensor : in_order) {
      if (tensor->offset != round_up(end, alignment))
        fail(
            "tensor '{}' has offset {}, expected the end of the tensor before it, {}, aligned to "
            "{}",
            tensor->name, tensor->offset, end, alignment);
      const std::uint64_t room = file_bytes_ - data;
      if (tensor->offset > room || tensor->bytes > room - tensor->offset)
        fail("tensor '{}' of {} bytes at offset {} extends past the end of the file", tensor->name,
             tensor->bytes, tensor->offset);
      end = tensor->offset + tensor->bytes;
      tensor->offset += data;
    }
    if (!in_order.empty() && file_bytes_ - data > round_up(end, alignment))
      fail("{} bytes follow the last tensor, expected padding only", file_bytes_ - data - end);
    std::vector<std::string_view> names;
    for (const TensorInfo& tensor : file_.tensors) names.push_back(tensor.name);
    std::sort(names.begin(), names.end());
    const auto duplicate = std::adjacent_find(names.begin(), names.end());
    if (duplicate != names.end()) fail("tensor '{}' appears twice", *duplicate);
  }

  std::uint64_t read_alignment() const {
    Result<std::int64_t> alignment = file_.integer_or("general.alignment", 8, kMaxAlignment, 32);
    if (!alignment.ok()) throw ParseError{std::move(alignment.failure())};
    const auto value = static_cast<std::uint64_t>(alignment.value());
    if (!std::has_single_bit(value))
      fail("general.alignment is {}, expected a power of two", value);
    return value;
  }

  std::span<const std::byte> begin_;
  std::uint64_t file_bytes_, at_ = 0;
  std::uint64_t num_tensors_ = 0, num_pairs_ = 0;
  ModelFile file_;
};

}  // namespace

std::variant<ModelFile, NeedsMore, Failure> parse_gguf(std::span<const std::byte> begin,
                                                       std::uint64_t file_bytes,
                                                       const std::string& path) {
  try {
    return HeaderReader(begin, file_bytes, path).read();
  } catch (const NeedsMore& needs_more) {
    return needs_more;
  } catch (ParseError& broken) {
    return std::move(broken.failure);
  }
}

Result<ModelFile> read_gguf(const std::string& path) {
  const auto io_error = [&](std::string_view text) {
    return Failure{ErrorCode::io_error, format_text("{}: {}", path, text)};
  };
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return io_error("cannot be opened for reading; check the path and its permissions");
  const std::streamoff size = file.tellg();
  if (size < 0)
    return io_error("not a regular file, which random access requires; name a model file");
  const auto file_bytes = static_cast<std::uint64_t>(size);
  std::vector<std::byte> header;
  for (std::uint64_t bytes = std::uint64_t{4} << 20;; bytes *= 2) {
    header.resize(static_cast<std::size_t>(std::min({bytes, file_bytes, kMaxHeader})));
    file.seekg(0);
    if (!file.read(reinterpret_cast<char*>(header.data()),
                   static_cast<std::streamsize>(header.size())))
      return io_error(format_text("{} bytes could not be read", header.size()));
    auto parsed = parse_gguf(header, file_bytes, path);
    if (auto* model = std::get_if<ModelFile>(&parsed)) return std::move(*model);
    if (auto* failure = std::get_if<Failure>(&parsed)) return std::move(*failure);
    if (bytes >= kMaxHeader)
      return io_error(
          format_text("the header is longer than {} bytes; use another file", kMaxHeader));
  }
}

}  // namespace headrace
