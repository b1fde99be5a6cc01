// The supported architectures. A family is one file that reads the hyperparameters; all families
// share the tensor names and the layers of decoder.h.
#pragma once

#include <span>

#include "base/error.h"
#include "model/config.h"
#include "weights/model_file.h"

namespace headrace::model {

struct Family {
  const char* architecture;  // `general.architecture` of the file
  Result<Config> (*read_config)(const ModelFile& file);
};

extern const Family kLlama;
extern const Family kQwen2;

std::span<const Family* const> families();

// By the architecture of the file. unsupported: the message lists the supported ones.
Result<Config> read_config(const ModelFile& file);

// Reads the keys that all families share, such as "ARCHITECTURE.context_length".
Result<Config> read_common_config(const ModelFile& file, std::string_view architecture);

}  // namespace headrace::model
