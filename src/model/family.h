// The list of architectures. A family is one file: it reads its numbers from a model file; the
// weights' names and the block they are put together in are those of decoder.h.
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

// By the architecture of the file; unsupported names the known ones.
Result<Config> read_config(const ModelFile& file);

// The keys that all families share, "ARCHITECTURE.context_length" and so on.
Result<Config> read_common_config(const ModelFile& file, std::string_view architecture);

}  // namespace headrace::model
