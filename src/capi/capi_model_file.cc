// Metadata and tensors of a model file.
#include <memory>

#include "capi/model_file_common.h"
#include "weights/gguf.h"

namespace headrace::capi {
namespace {

constexpr std::size_t kShownElements = 8;

std::string text_of(bool value) { return value ? "true" : "false"; }
std::string text_of(const std::string& value) { return value; }
std::string text_of(std::int64_t value) { return std::to_string(value); }
std::string text_of(double value) { return format_text("{}", value); }

template <class T>
std::string text_of(const std::vector<T>& list) {
  std::string text = format_text("{} elements: ", list.size());
  for (std::size_t i = 0; i < std::min(list.size(), kShownElements); ++i)
    text += (i > 0 ? ", " : "") + text_of(list[i]);
  return text + (list.size() > kShownElements ? ", ..." : "");
}

const headrace_model_file::Entry* entry_of(const headrace_model_file* file, int64_t index) {
  if (index < 0 || index >= headrace_model_file_num_keys(file)) return nullptr;
  return &file->entries[static_cast<std::size_t>(index)];
}

}  // namespace

headrace_model_file* new_model_file(ModelFile file) {
  auto opened = std::make_unique<headrace_model_file>();
  opened->file = std::move(file);
  for (const auto& [key, value] : opened->file.metadata)
    opened->entries.push_back(
        {key, opened->file.types.at(key),
         std::visit([](const auto& content) { return text_of(content); }, value)});
  return opened.release();
}

}  // namespace headrace::capi

using namespace headrace::capi;  // the functions below are the C face of this namespace

extern "C" {

headrace_status headrace_model_file_open(const char* path, headrace_model_file** file) {
  return guarded([&] {
    if (path == nullptr) return fail(null_argument("path", "pass the path of a model file"));
    if (file == nullptr) return fail(null_argument("file", "pass the address of a file pointer"));
    *file = nullptr;
    headrace::Result<headrace::ModelFile> read = headrace::read_gguf(path);
    if (!read.ok()) return fail(std::move(read.failure()));
    *file = new_model_file(std::move(read.value()));
    return HEADRACE_OK;
  });
}

void headrace_model_file_close(headrace_model_file* file) { delete file; }

const char* headrace_model_file_format(const headrace_model_file* file) {
  return file == nullptr ? "" : file->file.format.c_str();
}

int64_t headrace_model_file_num_keys(const headrace_model_file* file) {
  return file == nullptr ? 0 : static_cast<int64_t>(file->entries.size());
}

int64_t headrace_model_file_num_weights(const headrace_model_file* file) {
  return file == nullptr ? 0 : static_cast<int64_t>(file->file.tensors.size());
}

const char* headrace_model_file_key(const headrace_model_file* file, int64_t index) {
  const auto* entry = entry_of(file, index);
  return entry == nullptr ? nullptr : entry->key.c_str();
}

const char* headrace_model_file_kind(const headrace_model_file* file, int64_t index) {
  const auto* entry = entry_of(file, index);
  return entry == nullptr ? nullptr : entry->kind.c_str();
}

const char* headrace_model_file_value(const headrace_model_file* file, int64_t index) {
  const auto* entry = entry_of(file, index);
  return entry == nullptr ? nullptr : entry->value.c_str();
}

headrace_status headrace_model_file_weight(const headrace_model_file* file, int64_t index,
                                           headrace_weight_info* info) {
  return guarded([&] {
    if (file == nullptr) return fail(null_argument("file", "open one first"));
    const int64_t count = headrace_model_file_num_weights(file);
    if (index < 0 || index >= count)
      return fail(headrace::invalid_argument("index={}: the file has {} weights; pass 0 to {}",
                                             index, count, count - 1));
    const headrace::TensorInfo& weight = file->file.tensors[static_cast<std::size_t>(index)];
    headrace_weight_info facts{};
    facts.name = weight.name.c_str();
    facts.type = headrace::info_of(weight.type).name;
    facts.rank = static_cast<int32_t>(weight.shape.size());
    for (std::size_t i = 0; i < weight.shape.size(); ++i) facts.shape[i] = weight.shape[i];
    facts.offset = weight.offset;
    facts.bytes = weight.bytes;
    return give("info", facts, info);
  });
}

}  // extern "C"
