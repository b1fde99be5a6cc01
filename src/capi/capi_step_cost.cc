// What a step of a model costs, predicted or measured.
#include "capi/model_common.h"
#include "capi/model_file_common.h"
#include "capi/session_common.h"
#include "engine/step_times.h"
#include "headrace/step.h"
#include "model/step_cost.h"

struct headrace_step {
  std::vector<headrace::model::OperatorCost> costs;
  double seconds = 0;
};

namespace headrace::capi {
namespace {

Result<model::StepShape> read_step(const headrace_step_shape* theirs) {
  if (theirs == nullptr) return null_argument("shape", "pass the lengths of the sequences");
  headrace_step_shape c{};
  // The oldest accepted struct ends before the codes.
  if (auto bad =
          copy_versioned("shape", theirs, offsetof(headrace_step_shape, k_dtype), &c, sizeof c))
    return std::move(*bad);
  if (c.cache_dtype != HEADRACE_F32 && c.cache_dtype != HEADRACE_F16 &&
      c.cache_dtype != HEADRACE_BF16)
    return invalid_argument("shape.cache_dtype={}: must be f16, bf16 or f32; pass HEADRACE_F16",
                            c.cache_dtype);
  const auto stored = [](const char* name, int32_t dtype) {
    return stored_dtype_of(name, dtype == 0 ? -1 : dtype, "shape.cache_dtype");
  };
  Result<std::optional<DType>> k_dtype = stored("shape.k_dtype", c.k_dtype);
  if (!k_dtype.ok()) return std::move(k_dtype.failure());
  Result<std::optional<DType>> v_dtype = stored("shape.v_dtype", c.v_dtype);
  if (!v_dtype.ok()) return std::move(v_dtype.failure());
  return model::StepShape{.num_seqs = c.num_seqs,
                          .seqlen_q = c.seqlen_q,
                          .seqlen_k = c.seqlen_k,
                          .cache_dtype = static_cast<DType>(c.cache_dtype),
                          .k_dtype = k_dtype.value(),
                          .v_dtype = v_dtype.value()};
}

}  // namespace
}  // namespace headrace::capi

using namespace headrace::capi;  // the functions below are the C face of this namespace

extern "C" {

headrace_status headrace_step_explain(const headrace_model_file* file,
                                      const headrace_step_shape* shape,
                                      const headrace_device_info* device, headrace_step** step) {
  return guarded([&] {
    if (file == nullptr) return fail(null_argument("file", "open one first"));
    if (step == nullptr) return fail(null_argument("step", "pass the address of a step pointer"));
    *step = nullptr;
    headrace::Result<headrace::model::StepShape> ours = read_step(shape);
    if (!ours.ok()) return fail(std::move(ours.failure()));
    headrace_device_info info{};
    if (auto bad = read_device(device, info)) return fail(std::move(*bad));
    auto costs = headrace::model::step_cost(file->file, ours.value(), info);
    if (!costs.ok()) return fail(std::move(costs.failure()));
    *step = new headrace_step{.costs = std::move(costs.value())};
    return HEADRACE_OK;
  });
}

headrace_status headrace_session_time_step(headrace_session* session, int64_t num_tokens,
                                           int64_t num_rounds, headrace_step** step) {
  return guarded([&] {
    if (session == nullptr) return fail(null_argument("session", "create one first"));
    if (step == nullptr) return fail(null_argument("step", "pass the address of a step pointer"));
    *step = nullptr;
    auto times = headrace::engine::time_step(session->session, num_tokens, num_rounds);
    if (!times.ok()) return fail(std::move(times.failure()));
    *step = new headrace_step{.costs = std::move(times.value().operators),
                              .seconds = times.value().seconds};
    return HEADRACE_OK;
  });
}

double headrace_step_seconds(const headrace_step* step) {
  return step == nullptr ? 0 : step->seconds;
}

int64_t headrace_step_count(const headrace_step* step) {
  return step == nullptr ? 0 : static_cast<int64_t>(step->costs.size());
}

headrace_status headrace_step_get(const headrace_step* step, int64_t index,
                                  headrace_operator_cost* cost) {
  return guarded([&] {
    const int64_t count = headrace_step_count(step);
    if (index < 0 || index >= count)
      return fail(headrace::invalid_argument(
          "index={}: must be 0 to below {}, the number of operators; pass one of them", index,
          count));
    const headrace::model::OperatorCost& ours = step->costs[static_cast<size_t>(index)];
    headrace_operator_cost c{};
    c.name = ours.name.c_str();
    c.kernel = ours.kernel.c_str();
    c.num_calls = ours.num_calls;
    c.bytes = ours.bytes;
    c.flops = ours.flops;
    c.seconds = ours.seconds;
    return give("cost", c, cost);
  });
}

void headrace_step_destroy(headrace_step* step) { delete step; }

}  // extern "C"
