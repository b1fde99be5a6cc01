// Measured ceilings of a device.
#include "capi/capi_common.h"
#include "headrace/roofline.h"
#include "probes/measure.h"

struct headrace_ceilings {
  std::vector<headrace::probes::Ceiling> list;
};

namespace headrace::capi {
namespace {

headrace_ceiling_options default_ceiling_options() {
  const probes::MeasureOptions ours;
  headrace_ceiling_options options{};
  options.struct_size = sizeof options;
  options.num_rounds = ours.num_rounds;
  options.round_seconds = ours.round_seconds;
  return options;
}

Result<probes::MeasureOptions> read_ceiling_options(const headrace_ceiling_options* theirs) {
  headrace_ceiling_options c = default_ceiling_options();
  if (theirs != nullptr)
    if (auto bad = copy_versioned("options", theirs, sizeof c, &c, sizeof c))
      return std::move(*bad);
  if (c.num_rounds < 1 || c.num_rounds > 1000)
    return invalid_argument("options.num_rounds={}: must be 1 to 1000; pass 9", c.num_rounds);
  if (!(c.round_seconds >= 0 && c.round_seconds <= 10))
    return invalid_argument("options.round_seconds={}: must be 0 to 10; pass 0.02",
                            c.round_seconds);
  return probes::MeasureOptions{.num_rounds = c.num_rounds, .round_seconds = c.round_seconds};
}

}  // namespace
}  // namespace headrace::capi

using namespace headrace::capi;  // the functions below are the C face of this namespace

extern "C" {

headrace_status headrace_ceiling_options_init_sized(headrace_ceiling_options* options,
                                                    size_t struct_size) {
  return init("options", default_ceiling_options(), options, struct_size);
}

headrace_status headrace_ceilings_measure(const headrace_device_info* device,
                                          const headrace_ceiling_options* options,
                                          headrace_ceilings** ceilings) {
  return guarded([&] {
    if (ceilings == nullptr)
      return fail(null_argument("ceilings", "pass the address of a ceilings pointer"));
    *ceilings = nullptr;
    headrace_device_info info{};
    if (auto bad = read_device(device, info)) return fail(std::move(*bad));
    auto ours = read_ceiling_options(options);
    if (!ours.ok()) return fail(std::move(ours.failure()));
    auto list = headrace::probes::measure(info, ours.value());
    if (!list.ok()) return fail(std::move(list.failure()));
    *ceilings = new headrace_ceilings{.list = std::move(list.value())};
    return HEADRACE_OK;
  });
}

int64_t headrace_ceilings_count(const headrace_ceilings* ceilings) {
  return ceilings == nullptr ? 0 : static_cast<int64_t>(ceilings->list.size());
}

headrace_status headrace_ceilings_get(const headrace_ceilings* ceilings, int64_t index,
                                      headrace_ceiling* ceiling) {
  return guarded([&] {
    const int64_t count = headrace_ceilings_count(ceilings);
    if (index < 0 || index >= count)
      return fail(headrace::invalid_argument(
          "index={}: must be 0 to below {}, the number of ceilings; pass one of them", index,
          count));
    const headrace::probes::Ceiling& ours = ceilings->list[static_cast<size_t>(index)];
    headrace_ceiling c{};
    c.kind = static_cast<int32_t>(ours.kind);
    c.num_units = ours.num_units;
    c.resource = ours.resource.c_str();
    c.operation = ours.operation.c_str();
    c.value = ours.value;
    c.best = ours.best;
    c.clock_hz = ours.clock_hz;
    c.watts = ours.watts;
    c.bytes = ours.bytes;
    return give("ceiling", c, ceiling);
  });
}

void headrace_ceilings_destroy(headrace_ceilings* ceilings) { delete ceilings; }

}  // extern "C"
