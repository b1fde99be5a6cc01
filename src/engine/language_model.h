// A loaded model file: vocabulary, chat template and, unless vocab_only, weights on a device.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "model/decoder.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace headrace::engine {

struct LanguageModel {
  std::string path;
  std::string architecture, name;
  // The file's template; a failure if it has none or it is not supported.
  Result<text::ChatTemplate> chat_template;
  std::string weight_types;  // "Q4_1 210, F32 61": tensors of each type, the most frequent first
  std::int64_t num_parameters = 0;
  text::Tokenizer tokenizer;
  MatmulMode mode = MatmulMode::normal;
  DeviceInfo host;                        // samples
  std::unique_ptr<Device> device;         // computes
  std::optional<model::Decoder> decoder;  // empty with vocab_only
};

// Tokens of a step on a CPU, where more give no speed. On a GPU more do: sessions, and engines,
// whose requests wait for a step.
inline constexpr std::int64_t kCpuBatchTokens = 512, kGpuSessionTokens = 8192,
                              kGpuEngineTokens = 2048;
inline constexpr std::int64_t kMaxBatchTokens = 1 << 16;
inline bool is_on_gpu(const LanguageModel& model) {
  return model.device->info().device_type == HEADRACE_CUDA;
}

struct LoadOptions {
  DeviceInfo host;                   // the CPU
  std::optional<DeviceInfo> device;  // computes; empty: the host
  MatmulMode mode = MatmulMode::normal;
  bool vocab_only = false;
  model::LoadOptions weights;
};

// io_error, unsupported: the message names the file. out_of_memory: the weights exceed the free
// memory of the device; nothing is allocated then. On success the vocabulary has as many tokens
// as the embedding has rows.
Result<LanguageModel> load_language_model(const std::string& path, const LoadOptions& options);

}  // namespace headrace::engine
