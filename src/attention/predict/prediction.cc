#include "attention/predict/prediction.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "base/error.h"

namespace headrace::predict {
namespace {

// "33.6 M": three digits.
std::string amount_text(double x) {
  constexpr struct {
    double unit;
    const char* name;
  } kUnits[] = {{1e12, " T"}, {1e9, " G"}, {1e6, " M"}, {1e3, " k"}};
  const char* name = " ";
  for (const auto& unit : kUnits)
    if (x >= unit.unit) {
      x /= unit.unit;
      name = unit.name;
      break;
    }
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), x >= 100 ? "%.0f%s" : "%.3g%s", x, name);
  return text.data();
}

// "361 us", "36.96 ms", "25 s".
std::string time_text(double seconds) {
  std::array<char, 32> text{};
  if (seconds < 1e-4)
    std::snprintf(text.data(), text.size(), "%.3g us", seconds * 1e6);
  else if (seconds < 1e-2)
    std::snprintf(text.data(), text.size(), "%.0f us", seconds * 1e6);
  else if (seconds < 10)
    std::snprintf(text.data(), text.size(), "%.4g ms", seconds * 1e3);
  else
    std::snprintf(text.data(), text.size(), "%.0f s", seconds);
  return text.data();
}

std::string percent_text(double share) {
  std::array<char, 16> text{};
  std::snprintf(text.data(), text.size(), "%.0f %%", 100 * share);
  return text.data();
}

std::string work_text(const Work& work) {
  return format_text("work      {}FLOP, {}B, {}exponentials; {}FLOP per byte\n",
                     amount_text(work.flops), amount_text(work.bytes), amount_text(work.exps),
                     amount_text(work.bytes > 0 ? work.flops / work.bytes : 0));
}

std::string tiles_text(const Plan& plan, const Prediction& x) {
  const bool is_gpu = plan.device.device_type == HEADRACE_CUDA;
  std::string text;
  if (x.time.waves.num_tiles > 0) {
    std::array<char, 32> waves{};
    const double count = x.time.waves.waves();
    std::snprintf(waves.data(), waves.size(), count < 100 ? "%.3g" : "%.0f", count);
    text = format_text("tiles     {} on {} {}: {} waves, {} of the device's time used\n",
                       x.time.waves.num_tiles, x.time.waves.num_slots,
                       is_gpu ? "resident CTAs" : "threads", waves.data(),
                       percent_text(x.time.waves.balance()));
  }
  if (x.occupancy.ctas > 0)
    text += format_text(
        "occupancy {} CTA{} of {} threads, {} registers and {} KiB each "
        "multiprocessor, limited by {}\n",
        x.occupancy.ctas, x.occupancy.ctas == 1 ? "" : "s", plan.schedule.cta.threads,
        plan.schedule.cta.registers, plan.schedule.cta.smem_bytes / 1024, x.occupancy.limit);
  return text;
}

std::string predicted_text(const Prediction& x) {
  if (x.seconds == 0) return format_text("predicted no time: {}\n", x.time.reason);
  std::string parts;
  for (const Part& part : x.time.parts)
    if (part.seconds() > 0.005 * x.seconds)
      parts += format_text("{}{} {}", parts.empty() ? "" : ", ", part.name,
                           percent_text(part.seconds() / x.seconds));
  return format_text("predicted {}, {}FLOP/s, {}B/s; ceilings: {}\n          {}\n",
                     time_text(x.seconds), amount_text(x.work.flops / x.seconds),
                     amount_text(x.work.bytes / x.seconds), x.source, parts);
}

}  // namespace

Prediction predict(const Plan& plan, std::span<const probes::Ceiling> measured) {
  Prediction x;
  const Rates rates = rates_of(plan, measured);
  x.work = work_of(plan.problem);
  x.occupancy = occupancy_of(plan.schedule.cta, plan.device);
  x.time = model_time(plan, rates, x.occupancy);
  x.source = rates.source;
  const Part* longest = nullptr;
  for (const Part& part : x.time.parts) {
    x.seconds += part.seconds();
    if (longest == nullptr || part.seconds() > longest->seconds()) longest = &part;
  }
  if (longest != nullptr) x.bound = longest->name;
  x.text = work_text(x.work) + tiles_text(plan, x) + predicted_text(x);
  return x;
}

}  // namespace headrace::predict
