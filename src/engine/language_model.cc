#include "engine/language_model.h"

#include <algorithm>
#include <map>

#include "core/device.h"
#include "weights/gguf.h"

namespace headrace::engine {
namespace {

std::string weight_types_of(const ModelFile& file) {
  std::map<std::string, int> counts;
  for (const TensorInfo& tensor : file.tensors) ++counts[info_of(tensor.type).name];
  std::vector<std::pair<std::string, int>> sorted(counts.begin(), counts.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string text;
  for (const auto& [name, count] : sorted)
    text += format_text("{}{} {}", text.empty() ? "" : ", ", name, count);
  return text;
}

std::int64_t parameters_of(const ModelFile& file) {
  std::int64_t total = 0;
  for (const TensorInfo& tensor : file.tensors) {
    std::int64_t elements = 1;
    for (const std::int64_t n : tensor.shape) elements *= n;
    total += elements;
  }
  return total;
}

Status check_vocabulary(const ModelFile& file, const LanguageModel& model) {
  const std::int64_t rows = model.decoder->config.vocab_size;
  if (rows == model.tokenizer.vocab_size()) return std::nullopt;
  return file.wrong(format_text("'token_embd.weight' has {} rows, expected {}, one per token", rows,
                                model.tokenizer.vocab_size()));
}

// A device that knows its free memory has the weights in the dtype of the activations.
Status check_memory(const ModelFile& file, const LanguageModel& model, const Executor& executor) {
  const std::size_t free = model.device->free_bytes();
  const std::size_t weights =
      static_cast<std::size_t>(model.num_parameters) * dtype_bytes(executor.activation_dtype());
  if (weights <= free) return std::nullopt;
  return file.failure(ErrorCode::out_of_memory,
                      format_text("the weights are {} MiB in {}, and {} MiB are free on device "
                                  "[{}]; free device memory or load the model on the CPU",
                                  weights >> 20, dtype_name(executor.activation_dtype()),
                                  free >> 20, device_text(model.device->info())));
}

}  // namespace

Result<LanguageModel> load_language_model(const std::string& path, const LoadOptions& options) {
  Result<std::unique_ptr<Device>> device = make_device(options.device.value_or(options.host));
  if (!device.ok()) return std::move(device.failure());
  Result<ModelFile> read = read_gguf(path);
  if (!read.ok()) return std::move(read.failure());
  ModelFile& file = read.value();
  Result<std::string> texts[] = {file.text("general.architecture"),
                                 file.text_or("general.name", "")};
  for (Result<std::string>& text : texts)
    if (!text.ok()) return std::move(text.failure());
  Result<text::Tokenizer> tokenizer = text::Tokenizer::make(file);
  if (!tokenizer.ok()) return std::move(tokenizer.failure());
  // These arrays are most of the metadata and are no longer needed.
  std::erase_if(file.metadata,
                [](const auto& pair) { return pair.first.starts_with("tokenizer.ggml."); });
  LanguageModel model{.path = path,
                      .architecture = std::move(texts[0].value()),
                      .name = std::move(texts[1].value()),
                      .chat_template = text::ChatTemplate::from_file(file),
                      .weight_types = weight_types_of(file),
                      .num_parameters = parameters_of(file),
                      .tokenizer = std::move(tokenizer.value()),
                      .mode = options.mode,
                      .host = options.host,
                      .device = std::move(device.value()),
                      .decoder = {}};
  if (options.vocab_only) return model;
  const auto executor = make_executor(*model.device, model.mode);
  if (!executor.ok()) return executor.failure();
  if (auto bad = check_memory(file, model, *executor.value())) return std::move(*bad);
  Result<model::Decoder> decoder = load_decoder(file, *executor.value(), options.weights);
  if (!decoder.ok()) return std::move(decoder.failure());
  model.decoder = std::move(decoder.value());
  if (auto bad = check_vocabulary(file, model)) return std::move(*bad);
  return model;
}

}  // namespace headrace::engine
