// Shared by the functions of model files.
#pragma once

#include <string>
#include <vector>

#include "capi/capi_common.h"
#include "headrace/model.h"
#include "weights/model_file.h"

struct headrace_model_file {
  struct Entry {
    std::string key, kind, value;
  };
  headrace::ModelFile file;
  std::vector<Entry> entries;
};

namespace headrace::capi {

headrace_model_file* new_model_file(ModelFile file);

}  // namespace headrace::capi
