// Shared by the functions of sessions.
#pragma once

#include "capi/model_common.h"
#include "engine/generate.h"
#include "engine/session.h"

struct headrace_session {
  const headrace_model* model;
  headrace::engine::Session session;
  headrace::Sampler sampler;
};

namespace headrace::capi {

Result<engine::GenerationOptions> generation_options(const headrace_generation_options* theirs);

}  // namespace headrace::capi
