// For tests: tiny models with random weights (tests/golden/README.md).
#pragma once

#include <stdexcept>
#include <string>

#include "engine/language_model.h"

namespace headrace::engine {

inline LanguageModel load(const std::string& path, MatmulMode mode, int num_threads = 2,
                          bool use_mmap = false, std::optional<DeviceInfo> device = {}) {
  LoadOptions options;
  options.device = device;
  options.host = cpu_info().value();
  options.host.num_units = num_threads;
  options.mode = mode;
  options.weights.use_mmap = use_mmap;
  Result<LanguageModel> model = load_language_model(path, options);
  if (!model.ok()) throw std::runtime_error(model.failure().message);
  return std::move(model.value());
}

}  // namespace headrace::engine
